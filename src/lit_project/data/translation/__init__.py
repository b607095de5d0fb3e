"""Parallel text: sentences and their translations, as batches of token ids."""

from lit_project.data.translation.base import TranslationData
from lit_project.data.translation.batch import PairBatch, PairText
from lit_project.data.translation.grammar import ToyGrammar
from lit_project.data.translation.multi30k import Multi30k
from lit_project.data.translation.parallel_text import ParallelText
from lit_project.data.translation.tatoeba import Tatoeba

__all__ = ["Multi30k", "PairBatch", "PairText", "ParallelText", "Tatoeba", "ToyGrammar", "TranslationData"]
