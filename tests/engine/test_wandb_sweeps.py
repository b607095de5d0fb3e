"""Sweeps with W&B's own client, `wandb sweep` and `wandb agent`, against a server in this process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb_server import ENTITY, PROJECT, Run, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHIPPED = "configs/sweeps/quickstart_cnn.yaml"
# a net that trains in a second
TINY = {
    "model.net.layers": {"value": [4, "pool"]},
    "model.net.hidden": {"value": 8},
    "model.net.dropout": {"value": 0.0},
    "model.schedulers": {"value": None},
    "test_after_fit": {"value": False},
}
LONG = 100_000  # epochs, of a trial that a test ends


def processes(*words: str) -> list[int]:
    """Those whose command line contains all the words."""
    lines = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in lines.splitlines() if all(word in line for word in words)]


class Bench:
    """A server, and the client's commands in a working folder.

    Args:
        folder: with the project's configs.
    """

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.agents: list[subprocess.Popen[bytes]] = []
        (folder / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # where lit-project is
            "HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "WANDB_API_KEY": "0123456789" * 4,
            "WANDB_BASE_URL": server.url,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1",  # seconds
        }

    def sweep(self, parameters: dict[str, Any]) -> None:
        """`wandb sweep` of the shipped file, with these parameters on top of the tiny ones."""
        config = yaml.safe_load((self.folder / SHIPPED).read_text())
        config["parameters"] = {**TINY, **parameters}
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "sweep", "--project", PROJECT, "sweep.yaml"], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"wandb agent {self.path}" in done.stderr

    @property
    def path(self) -> str:
        """Of the sweep, as `wandb agent` takes it."""
        return f"{ENTITY}/{PROJECT}/{self.server.sweeps[0].name}"

    @property
    def runs(self) -> list[Run]:
        """The trials, in the order of their start."""
        return self.server.sweeps[0].runs

    def agent(self) -> subprocess.Popen[bytes]:
        """Starts `wandb agent`; what it and its trials print is in `agent*.log`."""
        with (self.folder / f"agent{len(self.agents)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "wandb", "agent", self.path], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.agents.append(process)
        return process

    def process(self, run: Run) -> int:
        """The process of a trial, which the file of its parameters names."""
        (found,) = processes("lit-project", str(self.folder), f"config-{run.name}.json")
        return found

    @property
    def printed(self) -> str:
        """What all agents and their trials have printed."""
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("agent*.log")))

    def trial(self, number: int) -> Run:
        """The trial that was started as this one, once its process has sent a validation accuracy."""
        self.server.wait(lambda: len(self.runs) > number and self.runs[number].logged("val/accuracy"))
        return self.runs[number]

    def check(self, states: list[str]) -> None:
        """The trials ended like this, nothing is left to try, and all that was sent was understood."""
        assert not self.server.unknown, self.server.unknown
        assert [run.state for run in self.runs] == states, self.printed
        assert "W&B does not answer" not in self.printed
        assert "Traceback" not in self.printed
        assert not self.server.sweeps[0].points
        assert {run.project for run in self.runs} == {PROJECT}

    def close(self) -> None:
        """Ends what a failed test has left running."""
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for process in processes("lit-project", str(self.folder)):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def bench(workspace: Path) -> Iterator[Bench]:
    """Without a sweep yet."""
    with Server() as server:
        bench = Bench(workspace, server)
        yield bench
        bench.close()


def test_two_agents_share_the_grid(bench: Bench) -> None:
    bench.server.wanted = 2
    rates = [0.001, 0.003]
    bench.sweep({"model.optimizer.lr": {"values": rates}, "trainer.max_epochs": {"value": 1}})
    agents = [bench.agent(), bench.agent()]
    assert [agent.wait(240) for agent in agents] == [0, 0]
    bench.check(["finished", "finished"])
    assert {run.agent for run in bench.runs} == set(bench.server.agents)
    assert [run.parameters["model.optimizer.lr"] for run in bench.runs] == rates
    assert [run.config["model"]["init_args"]["optimizer"]["init_args"]["lr"] for run in bench.runs] == rates
    for run in bench.runs:
        assert len(run.logged("val/accuracy")) == 1
        assert run.config["model"]["init_args"]["net"]["init_args"]["layers"] == [4, "pool"]
        assert run.config["model"]["init_args"]["schedulers"] is None
        assert run.parameters.items() <= run.config.items()  # under the names of the sweep, for its charts
    records = [json.loads(file.read_text()) for file in bench.folder.glob("runs/quickstart/*/wandb.json")]
    assert {record["id"] for record in records} == {run.name for run in bench.runs}
    assert {(record["entity"], record["project"]) for record in records} == {(ENTITY, PROJECT)}


def test_trials_that_are_stopped_have_not_finished(bench: Bench) -> None:
    bench.environment["WANDB_AGENT_KILL_DELAY"] = "600"  # seconds after the request to stop
    bench.environment["WANDB_AGENT_MAX_INITIAL_FAILURES"] = "1"  # agents give up after the first, instead of a few
    bench.sweep({"trainer.max_epochs": {"values": [LONG, LONG + 1]}})
    agent = bench.agent()
    first = bench.trial(0)
    process = bench.process(first)
    first.agent_stops = True  # with SIGTERM
    second = bench.trial(1)  # the agent goes on
    assert process not in processes("lit-project")
    second.agent_stops = True
    assert agent.wait(240) == 0
    bench.check(["failed", "failed"])
    assert "Kill:" not in bench.printed  # the first request was enough
    assert all(0 < len(run.logged("val/accuracy")) < LONG for run in bench.runs)
