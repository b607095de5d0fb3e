"""Tests `torchrun` commands from docs/scaling.md on CPUs: lost nodes, signals, and errors in one process."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import free_port
from lit_engine.checkpoints.io import read
from tiny import TINY

ROOT = Path(__file__).parents[2]
RUN = Path("runs", "quickstart", "NAME")
ALONE, NODES = "torchrun --standalone", "torchrun --nnodes=1:2"
FREQUENT = "[{class_path: Checkpoint, init_args: {monitor: val/loss, mode: min, every_n_steps: 3}}]"
FAILING = """
from lightning.pytorch import Callback

class Failing(Callback):
    def __init__(self, rank: int):
        self.rank = rank

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_rank == self.rank and trainer.global_step == 3:
            raise ValueError(f"in rank {self.rank}")
"""


def taken(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def documented(start, *more, **changed):
    """Return a command from docs/scaling.md, adapted to CPUs with small sizes and modified options."""
    page = (ROOT / "docs" / "scaling.md").read_text().replace("\\\n", "")
    (command,) = (line for line in page.splitlines() if line.startswith(start))
    words = shlex.split(command)[1:]
    words[words.index("-c") + 1] = str(ROOT / "configs" / "quickstart.yaml")
    small = [word for word in TINY.split() if "batch_size" not in word or "global" not in command]
    for option, value in {"trainer.accelerator": "cpu", **changed}.items():
        words = [re.sub(f"^--{option}=.*", f"--{option}={value}", word) for word in words]
    return [sys.executable, "-m", "torch.distributed.run", *words, *small, "--model.schedulers=null", *more]


def family(pid):
    """Return a process and all its descendants."""
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in direct for one in family(int(child)))]


def all_end(pids, seconds=10):
    """Return whether all processes end in time. Zombies count as ended."""
    until = time.monotonic() + seconds
    while any(map(family, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(map(family, pids))


def kill(pid):
    for one in family(pid):
        os.kill(one, signal.SIGKILL)


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts a command and returns its process and log file."""
    started = []

    def launch(words, **variables):
        log = tmp_path / f"{len(started)}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **variables}
        with log.open("w") as file:
            started.append(subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=file, stderr=file))
        return started[-1], log

    yield launch
    for process in started:
        if process.poll() is None:
            kill(process.pid)
            process.wait(10)


def wait_for(ready, process, log, seconds=200):
    until = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.1)


def lines_of(log):
    return [re.sub(r"^\[rank\d\]: ", "", line) for line in log.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_train_one_run_and_one_continues_if_the_other_is_lost(launch, tmp_path):
    """At 993b54a, `devices` and `num_nodes` were required, and were not adjusted when one of two nodes was lost."""
    port = free_port()
    command = documented(
        NODES, "--trainer.max_epochs=40", f"--trainer.callbacks={FREQUENT}", nproc_per_node=1,
        rdzv_endpoint=f"localhost:{port}", **{"data.global_batch_size": 128},
    )  # fmt: skip
    command.insert(3, "--rdzv_conf=last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=2")
    first, log = launch(command)
    wait_for(lambda: taken(port), first, log)
    second, _ = launch(command)  # not the agent that hosts the store
    wait_for(lambda: "epoch 3 (" in log.read_text(), first, log)
    kill(second.pid)
    assert first.wait(300) == 0, log.read_text()[-3000:]
    assert "error: rank 0 ended because another rank disconnected: " in log.read_text()
    assert "Traceback" not in log.read_text()
    assert "processes: 2 in the checkpoint, 1 now; a step still has 128 samples" in log.read_text()
    assert len(list((tmp_path / RUN.parent).iterdir())) == 1
    metrics = json.loads((tmp_path / RUN / "metrics.json").read_text())
    assert (metrics["fit"]["epochs"], metrics["fit"]["steps"]) == (40, 40 * 10)
    assert (metrics["fit"]["train/samples"], metrics["test"]["test/samples"]) == (1257, 360)
    assert "num_nodes: 1\n" in (tmp_path / RUN / "config.yaml").read_text()  # unchanged


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("to", ["agent", "worker"])
def test_a_signal_saves_the_run_and_ends_it(launch, tmp_path, to):
    command = documented(ALONE, "--trainer.max_epochs=3000", nproc_per_node=2, max_restarts=0)
    agent, log = launch(command)
    wait_for(lambda: "epoch 1 (" in log.read_text(), agent, log)
    workers = [pid for pid in family(agent.pid)[1:] if b"lit_project" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(agent.pid if to == "agent" else workers[1], signal.SIGTERM)
    assert agent.wait(100) != 0
    assert all_end(workers)
    assert "interrupted; repeat the command to continue" in log.read_text()
    saved = read(tmp_path / RUN / "checkpoints" / "last.ckpt")
    assert saved["global_step"] > 5
    assert json.loads((tmp_path / RUN / "provenance.json").read_text())[-1]["status"] == 143


def launched(how):
    """Return a `fit` command for two processes, started by torchrun or Lightning."""
    if how == "torchrun":
        return documented(ALONE, nproc_per_node=2, max_restarts=0)
    words = documented(ALONE)
    return [sys.executable, "-m", *words[words.index("lit_project") :], "--trainer.devices=2"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("how", "rank"), [("torchrun", 1), ("lightning", 0)])
def test_error_in_one_process_prints_a_single_traceback(launch, tmp_path, how, rank):
    """At 993b54a, the other process also printed a traceback about a closed connection."""
    (tmp_path / "failing.py").write_text(FAILING)
    callback = f"--trainer.callbacks=[{{class_path: failing.Failing, init_args: {{rank: {rank}}}}}]"
    process, log = launch([*launched(how), callback])
    assert process.wait(200) not in (0, None)
    text = log.read_text()
    ours = text[: text.find("ChildFailedError")]
    assert ours.count("Traceback (most recent call last)") == 1 + (how == "torchrun"), text
    line = f"error: rank {1 - rank} ended because another rank disconnected: "
    assert text.index(f"\nValueError: in rank {rank}") < text.find(line) or line not in text


@pytest.mark.slow
def test_occupied_port_causes_an_error_and_no_process_remains(launch):
    """At 993b54a, the second process kept waiting for an answer."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        process, log = launch(launched("lightning"), MASTER_PORT=str(port))
        wait_for(lambda: len(family(process.pid)) > 1, process, log)
        started = family(process.pid)
        assert process.wait(100) == 2
    assert lines_of(log)[-1] == f"error: 127.0.0.1:{port} is taken by another program: set MASTER_PORT to a free port"
    assert all_end(started)
