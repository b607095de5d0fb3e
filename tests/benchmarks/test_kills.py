"""Tests benchmarks/kills.py and benchmarks/restarts.py with only a few kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def result_of(folder, name, *options):
    """Run a benchmark and return the content of its JSON file."""
    file = folder / "result.json"
    command = [sys.executable, BENCHMARKS / f"{name}.py", *options, "--out", file]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_killed_at_any_moment_match_uninterrupted_runs(tmp_path):
    """The benchmark kills 100 runs of all kinds; this test kills a few single-process runs."""
    options = ["--folder", tmp_path / "kills", "--kills", "2", "--kinds", "halves", "ema"]
    result = result_of(tmp_path, "kills", *options)
    assert result["equal"] == result["killed"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_with_a_restarted_worker_matches_an_uninterrupted_run(tmp_path):
    """Each restart needs its own store namespace. Otherwise, workers read stale addresses and hang or fail."""
    result = result_of(tmp_path, "restarts", "--kills", "1")
    assert [(run["restarts"], run["different"]) for run in result["runs"]] == [(1, [])]
