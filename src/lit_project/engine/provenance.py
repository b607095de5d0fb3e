"""Where the numbers of a run come from: command, commit and what is not committed, versions, machine."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .project import PROGRAM

PACKAGES = (PROGRAM, "torch", "lightning", "torchmetrics", "torchvision", "jsonargparse", "numpy")
SOURCE = (".py", ".yaml", ".yml", ".toml", ".sh", ".ipynb")  # new files of these kinds belong to a patch
MOST_BYTES, MOST_NAMED = 1_000_000, 50  # of a patch, and of the new files in it; files that it lacks


def provenance() -> dict[str, Any]:
    """Time, command, commit, versions, host and devices of this process."""
    import torch

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["cpu"],
        "cpu_threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str | None]:
    """Of Python, of this program and of the packages that results depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the code and whether it had uncommitted changes; None outside a repository."""
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    commit, *lines = done.stdout.splitlines()
    return {"commit": commit.removeprefix("# branch.oid "), "dirty": any(line[0] != "#" for line in lines)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def uncommitted(folder: Path) -> bytes:
    """A patch for `git apply` that makes the commit the code that runs; what it lacks is named in its first lines.

    New files are in it if they are source and small. Nothing in the repository changes.
    """
    try:
        root = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        listed = _git(root, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0")[:-1]
        new, left_out, size = [], [], 0
        for name in listed:
            file = root / os.fsdecode(name)
            if file.suffix in SOURCE and size + (own := file.lstat().st_size) < MOST_BYTES:
                new.append(name)
                size += own
            else:
                left_out.append(name)
        with tempfile.TemporaryDirectory() as scratch:  # in an index of its own new files count as added
            index = Path(scratch) / "index"
            shutil.copy(root / os.fsdecode(_git(root, "rev-parse", "--git-path", "index").rstrip(b"\n")), index)
            inside = {"GIT_INDEX_FILE": str(index), "GIT_LITERAL_PATHSPECS": "1"}
            if new:
                add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
                _git(root, *add, given=b"\0".join(new), environment=inside)
            diff = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color", "--src-prefix=a/",
                        "--dst-prefix=b/", environment=inside)  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"The changes are not known: {error}\n".encode()
    if len(diff) > MOST_BYTES:
        return f"The changes are not kept: a patch of {len(diff):,} bytes, more than {MOST_BYTES:,}.\n".encode()
    more = [b"and %d more\n" % (len(left_out) - MOST_NAMED)] if len(left_out) > MOST_NAMED else []
    return b"".join([*(b"New file, not in this patch: %s\n" % name for name in left_out[:MOST_NAMED]), *more, diff])


def _git(folder: Path, *args: str, given: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
    command, own = ["git", "-C", str(folder), *args], {**os.environ, **(environment or {})}
    return subprocess.run(command, input=given, capture_output=True, timeout=10, check=True, env=own).stdout
