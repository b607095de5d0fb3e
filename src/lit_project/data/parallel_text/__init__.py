"""Pairs of sentences: corpora, splits without leaks, vocabularies, batches of tokens."""
