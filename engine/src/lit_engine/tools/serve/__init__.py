"""`serve`: lets you try a trained run in the browser."""
