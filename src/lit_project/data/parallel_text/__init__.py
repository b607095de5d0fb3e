"""Parallel corpora with leak-free splits, vocabularies and batches of tokens."""
