"""Fetches a file from its public address, whole or not at all."""

import os
import urllib.request
from http.client import HTTPException
from pathlib import Path

from lit_project.data.translation.pairs import read_lines
from lit_project.errors import DataError
from lit_project.processes import print_once

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
        # manythings.org refuses clients that do not name themselves as browsers do
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
