"""Brings a new project into the style that its own `ruff` settings ask for; names change the order of imports."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

_STEPS = (
    # imports in order, and none of what is not used any more
    ("check", "--fix-only", "--select", "I,F401"),
    ("format",),
    # lines that a longer name has made too long, where the formatter breaks none: in strings and docstrings
    ("check", "--select", "E501", "--add-noqa"),
)


def find_ruff(*roots: Path) -> list[str] | None:
    """The command of ruff: of this interpreter, of the `.venv` of a project, or on PATH."""
    if importlib.util.find_spec("ruff") is not None:
        return [sys.executable, "-m", "ruff"]
    files = [str(root / ".venv" / "bin" / "ruff") for root in roots]
    for file in filter(None, map(shutil.which, [*files, "ruff"])):
        try:
            if subprocess.run([file, "--version"], capture_output=True).returncode == 0:
                return [file]
        except OSError:
            continue
    return None


def format_project(folder: Path, ruff: list[str]) -> list[str]:
    """Formats all Python files; what ruff still finds wrong, a line each."""
    for step in _STEPS:
        _run(folder, ruff, *step, "--quiet")
    return [*_run(folder, ruff, "format", "--check"), *_run(folder, ruff, "check", "--output-format=concise")]


def by_hand() -> str:
    """The commands that do the same in the project, a line each."""
    return "\n".join(["  make setup", *(f"  .venv/bin/ruff {' '.join(step)} ." for step in _STEPS)])


def _run(folder: Path, ruff: list[str], command: str, *options: str) -> list[str]:
    done = subprocess.run([*ruff, command, "--no-cache", *options, "."], cwd=folder, capture_output=True, text=True)
    return [] if done.returncode == 0 else (done.stdout or done.stderr).strip().splitlines()
