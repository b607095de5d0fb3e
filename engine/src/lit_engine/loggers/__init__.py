"""Loggers in addition to metrics.csv."""
