"""Sequence-to-sequence nets: encoder, decoder with attention, search."""
