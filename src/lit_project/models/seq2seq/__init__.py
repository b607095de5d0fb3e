"""Sequence-to-sequence models with encoders, attention decoders and beam search."""
