"""`serve`: tries a trained run in the browser."""
