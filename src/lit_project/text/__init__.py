"""Text preparation, tokens, vocabularies and scores."""
