"""Parsing the command line, and creating the objects of a run."""
