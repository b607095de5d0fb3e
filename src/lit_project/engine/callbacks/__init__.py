"""Callbacks: checkpoints that survive, records, figures, freezing, averages, progress."""
