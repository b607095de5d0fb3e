"""Lines of text files, plain or in archives."""

import gzip
import io
import zipfile
import zlib
from pathlib import Path

from lit_project.engine.errors import DataError

UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain, `.gz`, or the one text in a `.zip` (files named `_…` do not count).

    Raises:
        DataError: the file is missing or damaged, or a line is not UTF-8.
    """
    try:
        if path.suffix == ".zip":
            raw = _only_text(path)
        elif path.suffix == ".gz":
            raw = gzip.decompress(path.read_bytes())
        else:
            raw = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {str(error) or type(error).__name__}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        for number, line in enumerate(raw.split(b"\n"), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: not valid UTF-8 ({error.reason}, byte {error.start + 1})"
                ) from error
        raise
    # only these end a line; str.splitlines would also split at U+2028 or a form feed inside a sentence
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _only_text(path: Path) -> bytes:
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        names = [name for name in archive.namelist() if name.endswith(".txt") and not Path(name).name.startswith("_")]
        if len(names) != 1:
            raise DataError(f"{path} must hold one .txt file of sentence pairs, got {', '.join(names) or 'none'}")
        return archive.read(names[0])
