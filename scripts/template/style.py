"""Brings a new project into the style that its own `ruff` settings ask for; names change the order of imports."""

import importlib.util
import subprocess
import sys
from pathlib import Path

_STEPS = (
    # imports in order, and none of what is not used any more
    ("check", "--quiet", "--fix-only", "--select", "I,F401"),
    ("format", "--quiet"),
    # lines that a longer name has made too long, where the formatter breaks none: in strings and docstrings
    ("check", "--quiet", "--select", "E501", "--add-noqa"),
)


def format_project(folder: Path) -> list[str] | None:
    """Formats all Python files; what ruff still finds wrong, a line each. None without ruff."""
    if importlib.util.find_spec("ruff") is None:
        return None
    for step in _STEPS:
        _ruff(folder, *step)
    return [*_ruff(folder, "format", "--check"), *_ruff(folder, "check", "--output-format=concise")]


def _ruff(folder: Path, command: str, *options: str) -> list[str]:
    arguments = [sys.executable, "-m", "ruff", command, "--no-cache", *options, "."]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    return [] if done.returncode == 0 else (done.stdout or done.stderr).strip().splitlines()
