"""What a user does with a new task, in a project made from this one."""

import json
import os
import subprocess
import sys
from pathlib import Path


def python(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Runs Python in a project, on the package that is there."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, timeout=240)


def new_task(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return python(project, "scripts/new_task.py", *args)


def fit(project: Path, config: str, *options: object) -> dict[str, float]:
    """Trains as a user does; the numbers of the test split."""
    command = ["fit", "-c", f"configs/{config}.yaml", "--run_name=mine", *options]
    done = python(project, "-m", "kite_lab", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((project / "runs" / config / "mine" / "metrics.json").read_text())["test"]
