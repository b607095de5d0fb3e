"""Text: preparation of sentences, vocabularies that travel in checkpoints, and scores of translations."""

from lit_project.text.preparation import Preparation
from lit_project.text.scores import Scores, corpus_scores, group_bleu, lowercase_tokenised_bleu, sentence_bleu
from lit_project.text.vocabulary import BOS, EOS, PAD, UNK, SubwordVocabulary, Vocabulary, WordVocabulary

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Preparation",
    "Scores",
    "SubwordVocabulary",
    "Vocabulary",
    "WordVocabulary",
    "corpus_scores",
    "group_bleu",
    "lowercase_tokenised_bleu",
    "sentence_bleu",
]
