"""Finds samples that are probably mislabelled, using networks from a cross-validation (`repeat --folds`).

The module `samples` computes out-of-fold probabilities and features. `statistics` finds label errors and
near-duplicates. `command` writes the table, the page and the JSON document.
"""
