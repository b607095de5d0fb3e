"""The provenance of a run, such as the command, commit, uncommitted changes, versions and machine."""

import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lit_engine.project import current, program, variable

PACKAGES = ("lit-engine", "torch", "lightning", "torchmetrics", "torchvision", "jsonargparse", "numpy")
# A patch includes imported modules, and new files of these types in these folders and the package. Other files, such as
# keys, may be private.
SOURCE, FOLDERS = (".py", ".yaml", ".yml", ".toml", ".sh", ".ipynb"), {"src", "configs"}
FORM = ("--binary", "--no-ext-diff", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
MAX_BYTES, MAX_NAMED = 1_000_000, 50  # maximum size of a patch, maximum number of omitted files to list


command_line: list[str] = []  # arguments of `main`, which are not in `sys.argv` if a notebook calls it
_hidden: dict[str, str] = {}  # secrets, mapped to the text that replaces them in records


def hide(urls: Sequence[str]) -> None:
    """Mask URLs in the recorded command and code changes, because URLs may contain secrets. The host stays visible.

    `sys.argv` is also changed, because W&B records it and launched processes receive it.
    """
    # Hide long URLs first, because a short URL may be the start of a long one.
    for url in sorted(urls, key=len, reverse=True):
        if "://" in url:  # a URL, not the name of an environment variable
            _hidden[url] = f"{urlsplit(url).scheme}://{urlsplit(url).hostname}/***"
    sys.argv[:] = map(_mask, sys.argv)


def _mask(text: str) -> str:
    for url, replacement in _hidden.items():
        text = text.replace(url, replacement)
    return text


def provenance() -> dict[str, Any]:
    """Return the time, command, commit, versions, host and devices of this process."""
    import torch

    other = ["mps"] if torch.backends.mps.is_available() else ["cpu"]
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": [sys.argv[0], *map(_mask, command_line)],
        "git": read_git_state(current().folder),
        **hash_outside_modules(current().folder),
        "versions": versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or other,
        "cpu_threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python, the project, and the packages that affect results."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (program(), *PACKAGES)}}


def read_git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the code and whether there were uncommitted changes.

    Outside a repository, such as in a Docker image, this information comes from an environment variable that contains
    the output of `git describe --always --abbrev=40 --dirty`. If the variable is not set, the result is None.
    """
    try:
        commit, *lines = _git(folder, "status", "--porcelain=v2", "--branch").decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        commit = os.environ.get(variable("COMMIT"), "")
        return {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")} if commit else None
    return {"commit": commit.removeprefix("# branch.oid "), "dirty": any(line[0] != "#" for line in lines)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_uncommitted_changes(folder: Path) -> tuple[bytes, list[str]]:
    """Return the changes since the commit as a patch for `git apply`, and the list of changed files.

    The patch includes all changes to tracked files. It also includes small new files that are imported, and small new
    source files in src/, configs/ and the package `folder`. Omitted new files are listed in the first lines of the
    patch. The repository is not changed.
    """
    try:
        root, modules = _root(folder), _own_modules()
        diff, left_out = _git(root, "diff", "HEAD", *FORM), []
        names = [os.fsdecode(name) for name in _git(root, "diff", "HEAD", "--name-only", "-z").split(b"\0")[:-1]]
        folders = {*FOLDERS, folder.name}
        for name in _git(root, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0")[:-1]:
            file = root / os.fsdecode(name)
            in_folders = file.suffix in SOURCE and not folders.isdisjoint(file.relative_to(root).parts[:-1])
            of_project = in_folders or file.resolve() in modules
            if of_project and len(diff) + file.lstat().st_size < MAX_BYTES:
                names.append(os.fsdecode(name))
                diff += _git(root, "diff", "--no-index", *FORM, "--", os.devnull, os.fsdecode(name))
            else:
                left_out.append(b"New file, not in this patch: %s\n" % name)
    except (OSError, subprocess.SubprocessError) as error:
        return f"The changes are not known: {error}\n".encode(), []
    if len(diff) > MAX_BYTES:
        reason = f"The changes are not saved: a patch of {len(diff):,} bytes exceeds the limit of {MAX_BYTES:,}.\n"
        return reason.encode(), []
    if _hidden:  # mask only added lines, because `git apply` requires that other lines match the files
        lines = diff.split(b"\n")
        diff = b"\n".join(os.fsencode(_mask(os.fsdecode(one))) if one[:1] == b"+" else one for one in lines)
    return b"".join(left_out[:MAX_NAMED]) + diff, names


def hash_outside_modules(folder: Path) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of imported modules that are in the working folder, but outside the repository."""
    try:
        here, root = Path.cwd(), _root(folder).resolve()
    except (OSError, subprocess.SubprocessError):
        return {}
    outside = [file for file in _own_modules() if file.is_relative_to(here) and not file.is_relative_to(root)]
    found = {str(file.relative_to(here)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(outside)}
    return {"modules": found} if found else {}


def _own_modules() -> set[Path]:
    """Return the files of all imported modules that belong neither to Python nor to installed packages."""
    standard = sys.stdlib_module_names
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] not in standard]
    files = {getattr(module, "__dict__", {}).get("__file__") or "" for module in modules}
    own = [file for file in files if file.endswith(".py") and not re.search("/(site|dist)-packages/", file)]
    return {Path(file).resolve() for file in own if os.path.isfile(file)}


def _root(folder: Path) -> Path:
    return Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def _git(folder: Path, *args: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, timeout=10)
    if "--no-index" in args and done.returncode == 1:  # the files differ
        return done.stdout
    done.check_returncode()
    return done.stdout
