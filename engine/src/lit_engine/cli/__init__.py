"""Parses the command line and creates the trainer, the model and the data module."""
