"""A run that a signal ends: it ends in order, says so by its exit status, and can go on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tiny import TINY

LONG = f"fit -c configs/quickstart.yaml {TINY} --run_name=ended --trainer.max_epochs=2000"


def heed():
    """Ctrl-C works, also where a shell that runs these tests in the background has had it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended_by(number, workspace, **environment):
    """A process that got the signal while it trained, and what it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_project", *LONG.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, preexec_fn=heed,
    )  # fmt: skip
    checkpoint = workspace / "runs" / "quickstart" / "ended" / "checkpoints" / "last.ckpt"
    try:
        while not checkpoint.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        return process, *process.communicate(timeout=120)
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_in_order(workspace, lit, number):
    process, out, err = ended_by(number, workspace)
    assert process.returncode == 128 + number, err  # schedulers and sweeps take 0 for a run that has ended by itself
    assert "Traceback" not in err
    assert "interrupted; go on with: lit-project fit --run runs/quickstart/ended" in out
    resumed = lit("fit --run runs/quickstart/ended --trainer.max_epochs=1 --model.schedulers=null")
    assert resumed.status == 0, resumed.err


def test_a_trial_that_an_agent_of_wandb_stops_has_not_failed_for_the_agent(workspace):
    process, out, err = ended_by(signal.SIGTERM, workspace, WANDB_SWEEP_ID="sweep")
    assert process.returncode == -signal.SIGTERM, err  # for shells that is 143, too
    assert "Traceback" not in err
    assert "interrupted; go on with: lit-project fit --run runs/quickstart/ended" in out


def test_ctrl_c_while_lightning_is_imported_ends_without_a_traceback(tmp_path):
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'lightning': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv[1:] = ['fit', '-c', 'configs/quickstart.yaml']\n"
        "from lit_project.__main__ import entry_point\n"
        "entry_point()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr == ""
