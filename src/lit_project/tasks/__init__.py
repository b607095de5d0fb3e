"""Tasks: LightningModules that train a model on data. They know nothing of any dataset."""

from lit_project.tasks.base import Task
from lit_project.tasks.classification import ImageClassifier
from lit_project.tasks.on_text import Translation
from lit_project.tasks.regression import Regressor
from lit_project.tasks.several_optimizers import TranslatorOfParts
from lit_project.tasks.translation import Translator

__all__ = ["ImageClassifier", "Regressor", "Task", "Translation", "Translator", "TranslatorOfParts"]
