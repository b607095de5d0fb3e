"""Reading, writing and selecting checkpoints, and loading weights that fit a model."""
