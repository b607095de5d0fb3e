"""Sequence-to-sequence models: encoders, decoders with attention, and search."""
