"""Data: LightningDataModules. They know nothing of any model."""

from lit_project.data.batch import ImageBatch
from lit_project.data.datasets import DatasetImages
from lit_project.data.digits import Digits
from lit_project.data.fashion_mnist import MNIST, FashionMNIST
from lit_project.data.image_folder import ImageFolder
from lit_project.data.images import ImageData
from lit_project.data.in_memory import InMemoryImages
from lit_project.data.translation import Multi30k, PairBatch, PairText, ParallelText, Tatoeba, ToyGrammar

__all__ = [
    "MNIST",
    "DatasetImages",
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
    "Tatoeba",
    "ToyGrammar",
]
