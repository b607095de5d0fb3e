"""The command `reproduce`."""
