"""Checkpoints: reading, writing and choosing them; weights that fit a model."""
