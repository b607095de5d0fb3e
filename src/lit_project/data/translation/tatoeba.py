"""English-French sentence pairs of Tatoeba, as manythings.org/anki collects them (CC-BY 2.0)."""

from pathlib import Path

from lit_project.data.translation.carved import CarvedData
from lit_project.data.translation.download import fetch
from lit_project.data.translation.graph import Pairs
from lit_project.data.translation.pairs import read_tsv
from lit_project.data.translation.prefixes import CLASSIC_PREFIXES

__all__ = ["CLASSIC_PREFIXES", "Tatoeba"]


class Tatoeba(CarvedData):
    """Short everyday sentences, many with several translations (142,787 pairs in the release of September 2017).

    Read from `root/tatoeba/fra-eng.zip`, `fra-eng.txt` or `fra.txt`: `english<TAB>french`, any release. The archive is
    downloaded there if all are missing.

    Args:
        val_size: pairs of validation, approximately.
        test_size: pairs of test, approximately.
        **kwargs: of `TranslationData`.

    Raises:
        DataError: the file is damaged, or missing and cannot be downloaded; the message says where to put it.
    """

    ADDRESS = "https://www.manythings.org/anki/fra-eng.zip"
    FILES = ("fra-eng.zip", "fra-eng.txt", "fra.txt")
    LANGUAGES = ("en", "fr")

    def prepare_data(self) -> None:
        """Downloads the archive if no file is there."""
        if not self._file().exists():
            fetch(self._file(), self.ADDRESS)

    def pool(self) -> Pairs:
        """All pairs as (source, target)."""
        pairs = read_tsv(self._file())
        return pairs if self.source == "en" else [(french, english) for english, french in pairs]

    def _file(self) -> Path:
        folder = self.root / "tatoeba"
        return next((folder / name for name in self.FILES if (folder / name).exists()), folder / self.FILES[0])
