"""Data: LightningDataModules. They know nothing of any model."""

from lit_project.data.batch import ImageBatch
from lit_project.data.csv_table import CSV
from lit_project.data.datasets import DatasetImages
from lit_project.data.digits import Digits
from lit_project.data.fashion_mnist import MNIST, FashionMNIST
from lit_project.data.image_folder import ImageFolder
from lit_project.data.images import ImageData
from lit_project.data.in_memory import InMemoryImages
from lit_project.data.table_loader import TableBatch
from lit_project.data.tables import ClassicFunction, Diabetes
from lit_project.data.tabular import TabularData
from lit_project.data.translation import Multi30k, PairBatch, PairText, ParallelText, Tatoeba, ToyGrammar

__all__ = [
    "CSV",
    "MNIST",
    "ClassicFunction",
    "DatasetImages",
    "Diabetes",
    "Digits",
    "FashionMNIST",
    "ImageBatch",
    "ImageData",
    "ImageFolder",
    "InMemoryImages",
    "Multi30k",
    "PairBatch",
    "PairText",
    "ParallelText",
    "TableBatch",
    "TabularData",
    "Tatoeba",
    "ToyGrammar",
]
