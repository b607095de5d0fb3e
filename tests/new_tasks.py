"""A copy of the parts of this project that a new task touches, and what a user does in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_COPIED = shutil.ignore_patterns("__pycache__")


def python(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Runs Python in a project, on the package that is there."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, timeout=240)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command ended with one line that says these words."""
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def new_task(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return python(project, "scripts/new_task.py", *args)


def fit(project: Path, config: str, *options: object) -> dict[str, float]:
    """Trains as a user does; the numbers of the test split."""
    command = ["fit", "-c", f"configs/{config}.yaml", "--run_name=mine", *options]
    done = python(project, "-m", "lit_project", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((project / "runs" / config / "mine" / "metrics.json").read_text())["test"]


def copied(project: Path) -> Path:
    """Copies this project there without its tests, and with what they share."""
    for folder in ("src", "configs", "scripts"):
        shutil.copytree(ROOT / folder, project / folder, ignore=NOT_COPIED)
    (project / "tests").mkdir()
    helpers = [path for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")]
    for file in (ROOT / "pyproject.toml", ROOT / "README.md", *helpers):
        shutil.copy(file, project / file.relative_to(ROOT))
    return project
