"""Figures: numbers in, matplotlib figures out. They know nothing of Lightning or of files."""

from lit_project.viz.figures import confusion_matrix, gallery, learning_curves, learning_rates
from lit_project.viz.regression import predicted_against_true
from lit_project.viz.translation import attention_map, bleu_by_length

__all__ = [
    "attention_map",
    "bleu_by_length",
    "confusion_matrix",
    "gallery",
    "learning_curves",
    "learning_rates",
    "predicted_against_true",
]
