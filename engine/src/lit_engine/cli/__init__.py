"""The command line, from its arguments to the objects of a run."""
