"""The contents of a run directory."""
