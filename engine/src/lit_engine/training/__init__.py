"""The base task, exact averages, metrics, saving, schedules and parameter groups."""
