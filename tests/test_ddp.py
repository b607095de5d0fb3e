"""Two processes (gloo, CPU): one run directory, every sample once, the same metrics as one process."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of two processes, and one of a single process that evaluates its weights."""
    folder = tmp_path_factory.mktemp("ddp")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

    def lit(*args: str) -> None:
        command = [sys.executable, "-m", "lit_project", *args]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]

    lit(
        "fit", "-c", str(ROOT / "configs" / "quickstart.yaml"), "-c", str(ROOT / "configs" / "overlays" / "ddp.yaml"),
        "--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--data.eval_batch_size=37", "--model.net.norm=none",
    )  # fmt: skip
    two = next((folder / "runs" / "quickstart").iterdir())
    assert [path.name for path in (folder / "runs" / "quickstart").iterdir()] == [two.name]
    file = next((two / "checkpoints").glob("best*.ckpt"))
    lit(
        "test", "-c", str(two / "config.yaml"), "--ckpt_path", str(file), "--run_name=one", "--trainer.devices=1",
        "--trainer.strategy=auto",
    )  # fmt: skip
    return two, folder / "runs" / "quickstart" / "one"


def test_every_sample_counts_once(runs):
    metrics = json.loads((runs[0] / "metrics.json").read_text())
    assert metrics["fit"]["train/samples"] == 1257
    assert metrics["fit"]["val/samples"] == 180
    assert metrics["test"]["test/samples"] == 360


def test_metrics_equal_those_of_one_process(runs):
    two, one = (json.loads((run / "metrics.json").read_text())["test"] for run in runs)
    assert two.keys() == one.keys()
    numbers = [name for name in two if name.startswith("test/")]
    assert [two[name] for name in numbers] == pytest.approx([one[name] for name in numbers], rel=1e-5)


def test_history_is_written_by_one_process(runs):
    rows = list(csv.DictReader((runs[0] / "metrics.csv").open()))
    assert [row["epoch"] for row in rows if row["val/loss"]] == ["0", "1"]
    assert len({row["step"] for row in rows}) == len(rows)
    assert len(json.loads((runs[0] / "provenance.json").read_text())) == 1
