"""Parallel text: corpora, leak-free splits, vocabularies and token batches."""
