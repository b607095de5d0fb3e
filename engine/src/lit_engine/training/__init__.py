"""The base class for tasks. Also exact means over batches and processes, saving, schedules and parameter groups."""
