"""Loggers beside metrics.csv."""
