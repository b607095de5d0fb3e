"""A run that a signal ends: it ends in order, says so by its exit status, and can go on."""

import signal
import subprocess
import sys
import time

import pytest

from tiny import TINY

LONG = f"fit -c configs/quickstart.yaml {TINY} --run_name=ended --trainer.max_epochs=2000"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_in_order(workspace, lit, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_project", *LONG.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    checkpoint = workspace / "runs" / "quickstart" / "ended" / "checkpoints" / "last.ckpt"
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err  # schedulers and sweeps take 0 for a run that has ended by itself
    assert "Traceback" not in err
    assert "interrupted; go on with: lit-project fit --run runs/quickstart/ended" in out
    resumed = lit("fit --run runs/quickstart/ended --trainer.max_epochs=1 --model.schedulers=null")
    assert resumed.status == 0, resumed.err
