"""benchmarks/kills.py and benchmarks/restarts.py with few kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def result_of(folder, name, *options):
    """Run a benchmark and return its JSON file."""
    file = folder / "result.json"
    command = [sys.executable, BENCHMARKS / f"{name}.py", *options, "--out", file]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_killed_at_any_moment_end_as_if_they_had_not_been(tmp_path):
    """The benchmark kills 100 runs of all kinds; this test kills a few single-process runs."""
    options = ["--folder", tmp_path / "kills", "--kills", "2", "--kinds", "halves", "ema"]
    result = result_of(tmp_path, "kills", *options)
    assert result["equal"] == result["killed"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_worker_is_restarted_and_the_run_ends_as_if_nothing_had_been(tmp_path):
    """Each start needs its own part of the store. Otherwise, workers hang or fail because they read old addresses."""
    result = result_of(tmp_path, "restarts", "--kills", "1")
    assert [(run["restarts"], run["different"]) for run in result["runs"]] == [(1, [])]
