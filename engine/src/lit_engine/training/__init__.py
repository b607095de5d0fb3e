"""The base class for tasks, exact means over batches and processes, saving, schedules and parameter groups."""
