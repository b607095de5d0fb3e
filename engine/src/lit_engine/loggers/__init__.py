"""Loggers that can be used in addition to metrics.csv."""
