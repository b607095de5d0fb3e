"""Translation: the task, its scores and figures, and the command `translate`."""
