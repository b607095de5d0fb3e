"""Serves a web page to try a trained run in the browser."""
