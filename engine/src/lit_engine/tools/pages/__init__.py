"""HTML pages, and the page and model card of a run."""
