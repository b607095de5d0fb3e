"""Corpora: files of your own, Tatoeba, Multi30k."""

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
    """Pairs of two files, where line n of one translates line n of the other.

    Raises:
        DataError: as `read_lines`; different numbers of lines; an empty line; no line at all.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: line n of one must translate line n "
            "of the other"
        )
    for path, lines in ((source, sources), (target, targets)):
        if not lines:
            raise DataError(f"{path} is empty")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise DataError(f"{path}, line {number}: empty")
    return list(zip(sources, targets, strict=True))


def read_tsv(path: Path) -> list[tuple[str, str]]:
    """Pairs of a file with lines `sentence<TAB>translation`; further columns are ignored.

    Raises:
        DataError: as `read_lines`; a line without a tab or with an empty side; no line at all.
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
    if not pairs:
        raise DataError(f"{path} is empty")
    return pairs


TIMEOUT = 60  # seconds without a byte


def fetch(path: Path, address: str) -> None:
    """Downloads `address` to `path`, and checks that it is a readable archive of UTF-8 text.

    Raises:
        DataError: there is no network, or what came is no such archive; the message says where to put the file.
    """
    part = path.with_name(f".{os.getpid()}.{path.name}")  # keeps the suffix, by which it is read
    print_once(f"downloading {address} to {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # manythings.org refuses clients that do not look like browsers
        request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (lit-project)"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            part.write_bytes(answer.read())
        read_lines(part)
        os.replace(part, path)
    except (OSError, HTTPException, DataError) as error:
        reason = str(error).replace(str(part), "what came")
        raise DataError(
            f"{path} does not exist and could not be downloaded ({reason}). Download {address} and put it there"
        ) from error
    finally:
        part.unlink(missing_ok=True)


Files = str | list[str]


class ParallelText(CarvedData):
    """Any parallel corpus, plain or `.gz`, in UTF-8.

    A split is a list of two files (line n of the source file, line n of the target file) or one file of lines
    `source<TAB>target`. Validation or test that is not given is carved out of train without leaks; training pairs
    that share a sentence with a given split are then left out, and counted. Where both are given, all three are
    used as they are, and the report says what they share.

    Args:
        train: file or files of the training pairs.
        val: of validation; null carves `val_size` pairs out of train.
        test: of test; null carves `test_size` pairs out of train.
        **kwargs: of `CarvedData` and `TranslationData`; `source` and `target` name the languages.

    Raises:
        DataError: a file is missing or damaged; files of different lengths; a line without a tab or with an empty
            side.
    """

    def __init__(self, train: Files, val: Files | None = None, test: Files | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train, self.files = train, {"val": val, "test": test}
        for files in (train, val, test):
            if isinstance(files, list) and len(files) not in (1, 2):
                raise DataError(f"a split must be one file with tabs or [source file, target file], got {files}")

    def pool(self) -> Pairs:
        return self._read(self.train)

    def given(self) -> dict[str, Pairs]:
        return {split: self._read(files) for split, files in self.files.items() if files is not None}

    def _read(self, files: Files) -> Pairs:
        paths = [Path(file).expanduser() for file in ([files] if isinstance(files, str) else files)]
        return read_tsv(paths[0]) if len(paths) == 1 else read_aligned(paths[0], paths[1])


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
        if not self._file().exists():
            fetch(self._file(), self.ADDRESS)

    def pool(self) -> Pairs:
        pairs = read_tsv(self._file())
        return pairs if self.source == "en" else [(french, english) for english, french in pairs]

    def _file(self) -> Path:
        folder = self.root / "tatoeba"
        return next((folder / name for name in self.FILES if (folder / name).exists()), folder / self.FILES[0])


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
