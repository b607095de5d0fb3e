"""Tests scripts/slurm_fit.sbatch with an `srun` that starts real processes and a `scontrol` that records requests."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from helpers import free_port
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.cli.invocation import prepare
from lit_engine.cli.parser import LitCLI
from lit_engine.project import current
from lit_engine.training.saver import Saver
from lit_engine.training.signals import Interrupted
from tiny import TINY

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "slurm_fit.sbatch"
JOB = {"JOB_NAME": "fit", "JOB_ID": 1234567, "NNODES": 1, "NTASKS_PER_NODE": 1, "CPUS_PER_TASK": 1}

# This `srun` works as described in the manual. It starts one process per task, forwards USR1 to all of them, and exits
# with the highest status, where a signal counts as 128 + its number.
SRUN = """
import os, pathlib, signal, subprocess, sys
assert sys.argv[1:4] == ["--cpus-per-task=1", "--kill-on-bad-exit=0", "--wait=120"], sys.argv
nodes, per_node = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
step = {"NTASKS": nodes * per_node, "STEP_NUM_TASKS": nodes * per_node, "STEP_ID": 0}
step["NODELIST"] = step["JOB_NODELIST"] = ",".join(["localhost"] * nodes)
tasks = []
for task in range(nodes * per_node):
    own = {"PROCID": task, "LOCALID": task % per_node, "NODEID": task // per_node, **step}
    variables = {f"SLURM_{name}": str(value) for name, value in own.items()}
    tasks.append(subprocess.Popen(sys.argv[4:], env={**os.environ, **variables}))

def forward(number, frame):
    for task in tasks:
        task.send_signal(number)
    pathlib.Path("signalled").touch()

signal.signal(signal.SIGUSR1, forward)
pathlib.Path("srun.pid").write_text(str(os.getpid()))
statuses = [task.wait() for task in tasks]
sys.exit(max(status if status >= 0 else 128 - status for status in statuses))
"""

# A user's callback that makes all tasks wait for the signal in the middle of the first epoch.
WAITING = """
import pathlib, time
from lightning.pytorch import Callback

class WaitForSignal(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3:
            pathlib.Path(f"waiting-{trainer.global_rank}").touch()
            end = time.monotonic() + 100
            while not pathlib.Path("signalled").exists() and time.monotonic() < end:
                time.sleep(0.01)
"""


def program(folder, name, text):
    (folder / name).write_text(f"#!{text.lstrip()}")
    (folder / name).chmod(0o755)


class Cluster:
    """The project in a folder shared by all nodes."""

    def __init__(self, folder):
        self.folder, self.requests = folder, folder / "requests.txt"
        self.bin = folder / "bin"
        self.bin.mkdir()
        program(self.bin, "srun", f"{sys.executable}\n{SRUN}")
        program(self.bin, "scontrol", f'/bin/bash\necho "$@" >> {self.requests}\nexit $SCONTROL_STATUS')
        (folder / "waiting.py").write_text(WAITING)

    def install(self, text=None):
        """Install the project's program or a replacement."""
        if text is None:
            (self.folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        else:
            (self.folder / ".venv" / "bin").mkdir(parents=True)
            program(self.folder / ".venv" / "bin", "lit-project", text)

    def start(self, *words, **variables):
        """Start a job."""
        job = {f"SLURM_{name}": str(value) for name, value in {**JOB, **variables}.items()}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", SCRIPT, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **job, "PATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())},
            start_new_session=True,
        )  # fmt: skip

    def finish(self, job):
        """Wait until the job ends, and return its status and output."""
        try:
            return job.communicate(timeout=200)[0], job.returncode
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()

    def run(self, *words, **variables):
        return self.finish(self.start(*words, **variables))

    def asked(self):
        return self.requests.read_text().splitlines() if self.requests.exists() else []


@pytest.fixture
def cluster(workspace):
    return Cluster(workspace)


ARRAY = {"ARRAY_JOB_ID": 90, "ARRAY_TASK_ID": 4}


@pytest.mark.parametrize("status", [0, 1, 2, 130, 137])
def test_a_job_ends_with_the_status_of_its_tasks_and_is_not_requeued(cluster, status):
    cluster.install(f"/bin/bash\nexit {status}")
    assert cluster.run("fit") == ("", status)
    assert cluster.asked() == []


@pytest.mark.parametrize(
    ("ends", "array", "id", "refused"),  # a job that cannot be requeued fails
    [("exit 138", {}, "1234567", 1), ("exit 143", ARRAY, "90_4", 0), ("kill -USR1 $$", {}, "1234567", 0)],
)
def test_job_stopped_by_a_slurm_signal_is_requeued_once_under_its_id(cluster, monkeypatch, ends, array, id, refused):
    cluster.install(f"/bin/bash\n{ends}")
    monkeypatch.setenv("SCONTROL_STATUS", str(refused))
    assert cluster.run("fit", NTASKS_PER_NODE=2, NNODES=2, **array) == ("", refused)
    assert cluster.asked() == [f"requeue incomplete {id}"]


@pytest.mark.parametrize(
    ("words", "variables", "given"),
    [
        ("fit -c x.yaml", {}, "fit --run_name=fit-1234567 --resume=true -c x.yaml"),
        ("fit --run_name=mine", {}, "fit --run_name=fit-1234567 --resume=true --run_name=mine"),
        ("fit -c x.yaml", ARRAY, "fit --run_name=fit-90_4 --resume=true -c x.yaml --seed_everything=4"),
        ("sweep x.yaml --count 9", ARRAY, "sweep x.yaml --count 9"),
        ("fit runs/x/one --trainer.max_epochs=9", {}, "fit runs/x/one --trainer.max_epochs=9"),
        ("fit --run runs/x/one", {}, "fit --run runs/x/one"),
    ],
)
def test_new_runs_are_named_after_the_job_and_array_tasks_set_the_seed(cluster, words, variables, given):
    cluster.install('/bin/bash\necho "$@"')
    run = cluster.folder / "runs" / "x" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    assert cluster.run(*words.split(), **variables) == (f"{given}\n", 0)


FIT = (
    f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=2 --trainer.accelerator=cpu --test_after_fit=false "
    "--trainer.callbacks+=waiting.WaitForSignal"
)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "tasks"), [(1, 1), (1, 2), (2, 1)])
def test_requeued_job_matches_an_uninterrupted_job(cluster, lit, monkeypatch, nodes, tasks):
    cluster.install()
    sizes = {"NNODES": nodes, "NTASKS_PER_NODE": tasks}
    job = cluster.start(*FIT.split(), **sizes)
    waiting = [cluster.folder / f"waiting-{rank}" for rank in range(nodes * tasks)]
    while job.poll() is None and not all(file.exists() for file in waiting):
        time.sleep(0.05)
    if job.poll() is None:
        os.kill(int((cluster.folder / "srun.pid").read_text()), signal.SIGUSR1)
    out, status = cluster.finish(job)
    assert status == 0, out
    assert "Traceback" not in out
    assert "interrupted; repeat the command to continue\n" in out
    assert "auto-requeue" not in out  # Lightning's own requeueing saves a checkpoint that is never used
    assert cluster.asked() == ["requeue incomplete 1234567"]
    run = cluster.folder / "runs" / "quickstart" / "fit-1234567"
    assert [path.relative_to(run).as_posix() for path in run.rglob("*.ckpt")] == ["checkpoints/last.ckpt"]
    later = nodes * tasks > 1  # with several processes, a signal takes effect one step later
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 4 + later

    out, status = cluster.run(*FIT.split(), **sizes)
    assert status == 0, out
    assert f"resuming from {run.relative_to(cluster.folder)}" in out
    assert cluster.asked() == ["requeue incomplete 1234567"]
    if nodes * tasks == 1:
        monkeypatch.syspath_prepend(cluster.folder)
        assert lit(f"{FIT} --run_name=fit-2").status == 0
    else:
        assert cluster.run(*FIT.split(), **sizes, JOB_ID=2)[1] == 0
    requeued, whole = (read(run.with_name(f"fit-{id}") / "checkpoints" / "last.ckpt") for id in (1234567, 2))
    assert requeued["global_step"] == whole["global_step"] == 2 * -(-1257 // (128 * nodes * tasks))
    assert requeued["state_dict"].keys() == whole["state_dict"].keys()
    for name, weights in whole["state_dict"].items():
        assert torch.equal(requeued["state_dict"][name], weights), name
    assert len(list(run.parent.iterdir())) == 2


def test_custom_trainer_saves_one_checkpoint_and_does_not_requeue(cluster, trainer, monkeypatch):
    class Signalled(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    task = {**JOB, "NTASKS": 1, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "NODELIST": "localhost"}
    for name, value in task.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("PATH", str(cluster.bin), prepend=os.pathsep)
    saver, checkpoint = Saver(), Checkpoint(monitor=None)
    run = trainer(max_epochs=1, callbacks=[saver, Signalled(), checkpoint], enable_checkpointing=True)
    try:
        with pytest.raises(Interrupted):
            run.fit(BoringModel())
    finally:
        saver.signals.remove()
    assert [path.relative_to(cluster.folder).as_posix() for path in cluster.folder.rglob("*.ckpt")] == [
        "checkpoints/last.ckpt"
    ]
    assert read(Path("checkpoints/last.ckpt"))["global_step"] == 3
    assert cluster.asked() == []


@pytest.mark.parametrize("file", ["scripts/slurm_fit.sbatch", "docs/scaling.md"])
def test_documented_sbatch_commands_are_accepted(lit, file):
    text = (ROOT / file).read_text().replace("\\\n", "")
    found = re.findall(r"sbatch [^\n]*?scripts/slurm_fit\.sbatch ((?:\S+ )*?\S+)(?:\n|  )", text)
    assert {words.split()[0] for words in found} == {"fit", "sweep"}
    for words in sorted(set(found)):
        if words.startswith("fit"):
            LitCLI(current(), prepare(words.split()).args)
        else:
            assert lit(words, "--dry_run").status == 0
