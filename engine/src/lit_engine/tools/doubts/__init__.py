"""Finds samples whose labels are probably wrong, from a repeat over folds.

samples.py  out-of-fold probabilities, features, labels      statistics.py  label errors and near-duplicates
command.py  `doubts`: table, page and JSON
"""
