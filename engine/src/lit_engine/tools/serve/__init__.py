"""Serves a web page for trying a trained run in the browser."""
