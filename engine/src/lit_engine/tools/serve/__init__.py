"""`serve`: a trained run answers in the browser."""
