"""Parallel corpora from your own files, Tatoeba and Multi30k."""

import os
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

from lit_engine.data.module import Split
from lit_engine.distributed.processes import print_once
from lit_engine.errors import DataError
from lit_project.data.parallel_text.base import CarvedData, TranslationData
from lit_project.data.parallel_text.leak_free_split import Pairs
from lit_project.text.files import read_lines


def read_aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    """Read pairs from two files. Line n of one file is the translation of line n of the other.

    Raises:
        DataError: a file is unreadable or empty, a line is empty, or the numbers of lines differ.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources)} lines, but {target} has {len(targets)}: line n of one file must be the "
            "translation of line n of the other"
        )
    for path, lines in ((source, sources), (target, targets)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise DataError(f"{path}, line {number}: empty line")
    return list(zip(sources, targets, strict=True))


def read_tsv(path: Path) -> list[tuple[str, str]]:
    """Read pairs from a file with lines `sentence<TAB>translation`. Further columns are ignored.

    Raises:
        DataError: the file is unreadable or empty, a line has no tab, or one side of a line is empty.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(f"{path}, line {number}: no tab between a sentence and its translation: {line[:60]!r}")
        for side, text in (("left", columns[0]), ("right", columns[1])):
            if not text.strip():
                raise DataError(f"{path}, line {number}: the {side} side is empty")
        pairs.append((columns[0], columns[1]))
    return pairs


TIMEOUT = 60  # maximum seconds without receiving data


def fetch(path: Path, address: str) -> None:
    """Download `address` to `path`, and check that the file contains UTF-8 text, plain or compressed.

    Raises:
        DataError: the download fails, or the file is not readable. The message explains how to add the file.
    """
    part = path.with_name(f".{os.getpid()}.{path.name}")  # The suffix determines how the file is read.
    print_once(f"downloading {address} to {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # manythings.org rejects clients that do not look like a browser.
        request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (lit-project)"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            part.write_bytes(answer.read())
        read_lines(part)
        os.replace(part, path)
    except (OSError, HTTPException, DataError) as error:
        reason = str(error).replace(str(part), "the download")
        raise DataError(
            f"{path} does not exist and could not be downloaded ({reason}). Download {address} to this path"
        ) from error
    finally:
        part.unlink(missing_ok=True)


Files = str | list[str]


class ParallelText(CarvedData):
    """Your own parallel corpus in UTF-8, plain or compressed (`.gz`).

    A split is either one file with a `source<TAB>target` pair per line, or a list of two line-aligned files. If the
    validation or test split is missing, training pairs are held out so that no sentence occurs in two splits. In this
    case, training pairs that share a sentence with a given split are dropped and counted. If both splits are given, all
    three splits are used unchanged, and the report shows how much they overlap.

    Args:
        train: one or two files with the training pairs.
        val: one or two files with the validation pairs. By default, `val_size` training pairs are held out.
        test: one or two files with the test pairs. By default, `test_size` training pairs are held out.
        **kwargs: arguments of `CarvedData` and `TranslationData`. `source` and `target` are language codes.

    Raises:
        DataError: a file is missing or damaged, two files have different lengths, or a line has no tab or an empty
            side.
    """

    def __init__(self, train: Files, val: Files | None = None, test: Files | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train, self.files = train, {"val": val, "test": test}
        for files in (train, val, test):
            if isinstance(files, list) and len(files) not in (1, 2):
                raise DataError(f"a split must be one tab-separated file or [source file, target file], got {files}")

    def pool(self) -> Pairs:
        return self._read(self.train)

    def given_splits(self) -> dict[str, Pairs]:
        return {split: self._read(files) for split, files in self.files.items() if files is not None}

    def _read(self, files: Files) -> Pairs:
        paths = [Path(file).expanduser() for file in ([files] if isinstance(files, str) else files)]
        return read_tsv(paths[0]) if len(paths) == 1 else read_aligned(paths[0], paths[1])


class Tatoeba(CarvedData):
    """Short everyday sentences from Tatoeba. Many sentences have several translations.

    The September 2017 release has 142,787 pairs. You can place the file `fra-eng.zip`, `fra-eng.txt` or `fra.txt`
    (`english<TAB>french`) from any release in `root/tatoeba/`. If no such file exists, the archive is downloaded.

    Args:
        val_size: approximate number of validation pairs.
        test_size: approximate number of test pairs.
        **kwargs: arguments of `TranslationData`.

    Raises:
        DataError: the file is damaged or cannot be downloaded. The message explains how to add the file.
    """

    ADDRESS = "https://www.manythings.org/anki/fra-eng.zip"
    FILES = ("fra-eng.zip", "fra-eng.txt", "fra.txt")
    LANGUAGES = ("en", "fr")

    def prepare_data(self) -> None:
        if not self._file().exists():
            fetch(self._file(), self.ADDRESS)

    def pool(self) -> Pairs:
        pairs = read_tsv(self._file())
        return pairs if self.source == "en" else [(french, english) for english, french in pairs]

    def _file(self) -> Path:
        folder = self.root / "tatoeba"
        return next((folder / name for name in self.FILES if (folder / name).exists()), folder / self.FILES[0])


class Multi30k(TranslationData):
    """Multi30k with its 29,000 training, 1,014 validation and 1,000 test captions (test_2016_flickr).

    The captions are read from `root/multi30k/{train,val,test_2016_flickr}.{en,de,fr}`, with or without `.gz`. Missing
    files are downloaded. The official splits are used unchanged. No test caption occurs in train, but one validation
    source and three validation targets do (English to French). The report shows this overlap.

    Raises:
        DataError: a file is damaged or cannot be downloaded. The message explains how to add the file.
    """

    ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    LANGUAGES = ("en", "de", "fr")
    NAMES: ClassVar[dict[str, str]] = {"train": "train", "val": "val", "test": "test_2016_flickr"}
    official_test = True

    def prepare_data(self) -> None:
        for name in self.NAMES.values():
            for language in (self.source, self.target):
                path = self._file(name, language)
                if not path.exists():
                    fetch(path, f"{self.ADDRESS}/{path.name}")

    def read(self, split: Split) -> list[tuple[str, str]]:
        name = self.NAMES[split]
        return read_aligned(self._file(name, self.source), self._file(name, self.target))

    def _file(self, name: str, language: str) -> Path:
        plain = self.root / "multi30k" / f"{name}.{language}"
        return plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
