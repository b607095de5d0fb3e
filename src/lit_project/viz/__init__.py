"""Figures: numbers in, matplotlib figures out. They know nothing of Lightning or of files."""

from lit_project.viz.figures import confusion_matrix, gallery, learning_curves, learning_rates

__all__ = ["confusion_matrix", "gallery", "learning_curves", "learning_rates"]
