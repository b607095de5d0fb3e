"""Builds HTML pages, including the page and model card of a run."""
