"""The template as it lies here: its files and what git knows of it."""

import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from template.errors import TemplateError


def git(folder: Path, *args: str, check: bool = True, env: dict[str, str] | None = None) -> str:
    """What `git ARGS` in a folder prints; raises TemplateError with its message."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "-c", "core.quotePath=false", *args], capture_output=True, text=True, env=env
        )
    except FileNotFoundError as error:
        raise TemplateError("git is not on PATH: install it") from error
    if check and done.returncode:
        raise TemplateError(f"git {args[0]} in {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip("\n")


def has_git() -> bool:
    """Whether there is a git to run."""
    return shutil.which("git") is not None


@dataclass(frozen=True)
class File:
    """Content of a file and whether it can be executed; a link has its target as content."""

    content: bytes
    executable: bool = False
    link: bool = False

    def text(self) -> str | None:
        """The content as text; None for binary files and links."""
        if self.link or b"\0" in self.content:
            return None
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class Template:
    """A checkout of the template.

    Args:
        root: its folder.
        package: name of its package.
        commit: that of the checkout; None where git does not know.
    """

    root: Path
    package: str
    commit: str | None

    @classmethod
    def at(cls, root: Path) -> "Template":
        """Reads name and commit.

        Raises:
            TemplateError: it has changes that are not committed.
        """
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"]
        package = project.replace("-", "_")
        if not has_git() or not (root / ".git").exists():
            return cls(root, package, None)
        if changed := git(root, "status", "--porcelain"):
            first = changed.splitlines()[0][3:]
            raise TemplateError(
                f"{root} has changes that are not committed ({first}): commit them or `git stash -u` first, so that "
                "the new project has a commit to be updated from"
            )
        return cls(root, package, git(root, "rev-parse", "--verify", "HEAD"))

    def paths(self) -> list[str]:
        """Files of the project: those that git tracks, or without git those that .gitignore does not name."""
        if self.commit is not None:
            return [path for path in git(self.root, "ls-files", "-z").split("\0") if path]
        file = self.root / ".gitignore"
        ignored = [line for line in file.read_text().splitlines() if line] if file.exists() else []
        return sorted(_walk(self.root, self.root, ignored))

    def read(self) -> dict[str, File]:
        """Path → file."""
        return {path: _read(self.root / path) for path in self.paths()}


def _walk(folder: Path, root: Path, ignored: list[str]) -> list[str]:
    found = []
    for path in folder.iterdir():
        relative = path.relative_to(root).as_posix()
        if path.name == ".git" or any(_ignores(pattern, relative, path) for pattern in ignored):
            continue
        found += _walk(path, root, ignored) if path.is_dir() and not path.is_symlink() else [relative]
    return found


def _ignores(pattern: str, relative: str, path: Path) -> bool:
    if pattern.endswith("/") and not path.is_dir():
        return False
    return fnmatchcase(relative if "/" in pattern.rstrip("/") else path.name, pattern.strip("/"))


def _read(path: Path) -> File:
    if path.is_symlink():
        return File(str(path.readlink()).encode(), link=True)
    return File(path.read_bytes(), executable=bool(path.stat().st_mode & 0o100))


def write(files: dict[str, File], folder: Path) -> None:
    """Writes files into a folder."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            path.symlink_to(file.content.decode())
            continue
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)


def new_history(folder: Path, message: str) -> str:
    """A repository of one commit; the note says so, and what to do where git does not know who commits."""
    if not has_git():
        return "git is not on PATH: the project has no history (git init && git add -A && git commit)"
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all", "--force")
    known = git(folder, "config", "user.email", check=False) and git(folder, "config", "user.name", check=False)
    who = [] if known else ["-c", f"user.name={folder.name}", "-c", "user.email=nobody@localhost"]
    no_hooks = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false"]
    git(folder, *who, *no_hooks, "commit", "--quiet", "--message", message)
    if known:
        return "a new history of one commit"
    return "a new history of one commit (git knows no user.name: set it and `git commit --amend --reset-author`)"
