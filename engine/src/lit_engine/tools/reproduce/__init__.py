"""Implements the `reproduce` command."""
