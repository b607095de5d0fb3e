"""Multi30k, task 1 (Elliott et al. 2016): captions of photographs in English, German and French."""

from pathlib import Path
from typing import ClassVar

from lit_project.data.splits import Split
from lit_project.data.translation.base import TranslationData
from lit_project.data.translation.download import fetch
from lit_project.data.translation.pairs import read_aligned


class Multi30k(TranslationData):
    """29,000 training, 1,014 validation and 1,000 test captions (test_2016_flickr), the official splits.

    Read from `root/multi30k/{train,val,test_2016_flickr}.{en,de,fr}`, with or without `.gz`; missing files are
    downloaded there. The splits are used as they are: no caption of test occurs in train, and of validation one source
    and, of English to French, three targets; the report says how many.

    Raises:
        DataError: a file is damaged, or missing and cannot be downloaded; the message says where to put it.
    """

    ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    LANGUAGES = ("en", "de", "fr")
    NAMES: ClassVar[dict[str, str]] = {"train": "train", "val": "val", "test": "test_2016_flickr"}

    def prepare_data(self) -> None:
        """Downloads the files that are missing."""
        for name in self.NAMES.values():
            for language in (self.source, self.target):
                path = self._file(name, language)
                if not path.exists():
                    fetch(path, f"{self.ADDRESS}/{path.name}")

    def read(self, split: Split) -> list[tuple[str, str]]:
        """The pairs of an official split."""
        name = self.NAMES[split]
        return read_aligned(self._file(name, self.source), self._file(name, self.target))

    def _file(self, name: str, language: str) -> Path:
        plain = self.root / "multi30k" / f"{name}.{language}"
        return plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
