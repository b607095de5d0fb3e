"""Commands that work on run directories. The rest of the library does not import these modules."""
