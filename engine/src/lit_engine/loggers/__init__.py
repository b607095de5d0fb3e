"""Loggers of metrics: metrics.csv, TensorBoard and W&B."""
