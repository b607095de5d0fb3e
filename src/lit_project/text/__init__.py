"""Text: preparation, tokens, vocabularies, scores."""
