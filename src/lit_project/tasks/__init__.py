"""Tasks: LightningModules that train a model on data. They know nothing of any dataset."""

from lit_project.tasks.base import Task
from lit_project.tasks.classification import ImageClassifier

__all__ = ["ImageClassifier", "Task"]
