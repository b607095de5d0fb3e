"""Finds samples that are probably mislabelled, using the networks of a repeat over folds.

samples.py  out-of-fold probabilities, features, labels      statistics.py  label errors and near-duplicates
command.py  `doubts`: table, page and JSON
"""
