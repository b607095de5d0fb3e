"""The command line: from arguments to objects."""
