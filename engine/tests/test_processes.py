"""Only one process at a time can train a run, and a single process has rank 0."""

import subprocess
import sys

import pytest
from lightning.pytorch.utilities import rank_zero_only

from helpers import TINY

HOLDER = (
    "import sys, pathlib; from lit_engine import RunDir; lock = RunDir(pathlib.Path(sys.argv[1])).lock(); "
    "print('held', flush=True); sys.stdin.read()"
)


SLURM_TASK = {
    "JOB_ID": 78, "PROCID": 1, "LOCALID": 1, "NODEID": 0, "NODELIST": "localhost", "JOB_NUM_NODES": 1, "NTASKS": 2,
    "STEP_NUM_TASKS": 2, "JOB_NAME": "farm",
}  # fmt: skip


def test_a_single_process_has_rank_0_regardless_of_its_slurm_rank(lit, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # Lightning sets this from SLURM_PROCID at import
    for name, value in SLURM_TASK.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    fit = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --trainer.devices=1 --run_name=second"
    refused = lit(fit)  # without SLURM_NTASKS_PER_NODE
    assert (refused.status, len(refused.err.splitlines())) == (2, 1)
    assert "--ntasks-per-node=2" in refused.err
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    result = lit(fit)
    assert result.status == 0, result.err
    assert str(result.run) == "runs/quickstart/second"
    assert [path.name for path in result.run.parents[1].iterdir()] == ["quickstart"]
    assert (result.run / "metrics.csv").exists()


@pytest.fixture
def holder(trained):
    """Another process that has locked the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(trained)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_locked_by_another_process_is_not_changed(lit, trained, holder):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    result = lit(f"fit --run {trained} --trainer.max_epochs=4")
    assert result.status == 2
    assert result.err == f"error: another process is training the run {trained}\n"
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    assert lit(f"validate --run {trained}").status == 0
    holder.kill()  # releases the lock
    holder.wait()
    assert lit(f"fit --run {trained} --trainer.max_epochs=4 --model.schedulers=null").status == 0
