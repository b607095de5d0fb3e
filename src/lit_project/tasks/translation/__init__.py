"""The translation task, its scores and figures, and the `translate` command."""
