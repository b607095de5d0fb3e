"""Reads lines from plain and compressed text files."""

import gzip
import io
import zipfile
import zlib
from pathlib import Path

from lit_engine.errors import DataError


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, which may be a `.gz` file or a `.zip` file with one `.txt` file.

    In a `.zip` file, names that start with an underscore are ignored.

    Raises:
        DataError: the file is missing, damaged or empty, or a line is not UTF-8.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".zip":
            raw = _only_text(raw, path)
        elif path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path} cannot be read: {str(error) or type(error).__name__}") from error
    if not raw:
        raise DataError(f"{path} is empty")
    return lines_of(raw, str(path))


def lines_of(raw: bytes, name: str) -> list[str]:
    """Return the lines of UTF-8 text. `name` is used in error messages.

    Raises:
        DataError: a line is not UTF-8.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, place = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise DataError(f"{name}, line {line}: not valid UTF-8 ({error.reason}, byte {place})") from error
    # Split only at line feeds, because `str.splitlines` would also split at U+2028 or a form feed inside a sentence.
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _only_text(raw: bytes, path: Path) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = [name for name in archive.namelist() if name.endswith(".txt") and not Path(name).name.startswith("_")]
        if len(names) != 1:
            raise DataError(f"{path} must contain one .txt file of sentence pairs, got {', '.join(names) or 'none'}")
        return archive.read(names[0])
