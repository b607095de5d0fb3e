"""Callbacks: figures, freezing, averages, progress and more; `Checkpoint` is in `checkpoints.py` of the engine."""
