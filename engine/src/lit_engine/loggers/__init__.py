"""Metric loggers: metrics.csv, TensorBoard and W&B."""
