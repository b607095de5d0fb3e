"""Text processing: preparation, tokens, vocabularies and scores."""
