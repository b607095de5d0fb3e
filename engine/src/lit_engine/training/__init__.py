"""The base task, exact sums, metrics, saving, schedules and parameter groups."""
