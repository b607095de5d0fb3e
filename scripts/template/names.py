"""Names: which ones a project can have, and how the old one is replaced, token by token."""

import importlib.metadata
import importlib.util
import keyword
import re
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from template.errors import TemplateError

# folders of the project, and what .gitignore leaves out wherever it is
RESERVED = {"build", "configs", "data", "dist", "docs", "runs", "scripts", "src", "test", "tests", "wandb"}


def check_name(name: str, old: str, files: Iterable[str], lock: str) -> None:
    """Raises TemplateError for a name that a package, a distribution or a project of this kind cannot have.

    Args:
        name: the new one.
        old: name of the package now.
        files: of the project; a module of it is in the way.
        lock: text of requirements.lock, whose packages are taken whether they are installed here or not.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
        plain = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
        hint = f"; try {plain}" if re.fullmatch(r"[a-z][a-z0-9_]*", plain) else ""
        raise TemplateError(
            f"{name!r} is not a name for a package: use lower-case letters a to z, digits and underscores, "
            f"beginning with a letter{hint}"
        )
    if keyword.iskeyword(name):
        raise TemplateError(f"{name} is a keyword of Python: choose another name, such as my_{name}")
    if name.endswith("_") or "__" in name:
        raise TemplateError(f"{name} has underscores that no distribution name keeps: use single ones between words")
    if name in sys.stdlib_module_names or name == "test":
        raise TemplateError(f"{name} is a module of Python's standard library: choose another name, such as my_{name}")
    if find_traces(name.encode(), old):
        raise TemplateError(f"{name} contains the template's own name, {old}: choose one without it")
    modules = {PurePosixPath(file).stem for file in files if file.endswith(".py")}
    modules |= {part for file in files if file.endswith(".py") for part in PurePosixPath(file).parts[:-1]} - {old}
    if name in RESERVED | modules:
        raise TemplateError(f"{name} is a module or folder of the project itself: choose another, such as my_{name}")
    if _installed(name) or name.replace("_", "-") in re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE):
        raise TemplateError(f"{name} is the name of an installed package: choose another, such as my_{name}")


def _installed(name: str) -> bool:
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except (ImportError, ValueError):
        return True
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _words(old: str) -> list[str]:
    return [re.escape(word) for word in old.split("_")]


def rename(text: str, old: str, new: str) -> tuple[str, int]:
    """The text with every token of the old name replaced in its own spelling, and how many there were.

    A token ends where letters and digits end: `lit_x` is one in `test_lit_x_runs` and `LIT_X_DEBUG`, and none in
    `split_x` or `lit_xs`.
    """
    pattern = rf"(?<![A-Za-z0-9]){'([-_ ]?)'.join(_words(old))}(?![A-Za-z0-9])"
    parts = new.split("_")

    def replaced(found: re.Match[str]) -> str:
        token, separator = found[0], (found.groups() or ("_",))[0]
        if separator == "" and token != token.lower() and token != token.upper():  # LitProject
            return "".join(part.capitalize() for part in parts)
        spelled = separator.join(parts)
        if token == token.lower():
            return spelled
        return spelled.upper() if token == token.upper() else separator.join(part.capitalize() for part in parts)

    return re.subn(pattern, replaced, text, flags=re.IGNORECASE)


def find_traces(content: bytes, old: str) -> list[str]:
    """Where the old name occurs in whatever spelling, in text or binary; letters around it make another word."""
    pattern = rf"(?<![A-Za-z])(?:{'[-_. ]?'.join(_words(old))})(?![A-Za-z])"
    return [found[0].decode("latin-1") for found in re.finditer(pattern.encode(), content, re.IGNORECASE)]


def traces(folder: Path, old: str) -> list[str]:
    """Files under a folder whose name or content has a trace of the old name; `.git` and `.venv` are left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] in (".git", ".venv"):
            continue
        link = path.is_symlink()
        content = str(path.readlink()).encode() if link else path.read_bytes() if path.is_file() else b""
        if find_traces(relative.as_posix().encode(), old) or find_traces(content, old):
            found.append(relative.as_posix())
    return found
