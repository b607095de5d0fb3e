"""The base task, exact means, metrics, saving, schedules and parameter groups."""
