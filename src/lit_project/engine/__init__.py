"""The engine of the project: README.md beside this file says what is in it."""
