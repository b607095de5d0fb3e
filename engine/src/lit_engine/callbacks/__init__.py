"""Callbacks for figures, freezing, weight averages, progress and more. `Checkpoint` is in `checkpoints/callback.py`."""
