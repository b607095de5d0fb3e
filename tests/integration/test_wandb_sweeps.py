"""Tests a sweep with W&B's own client (`wandb sweep` and `wandb agent`) and a fake server in this process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from wandb_server import ENTITY, PROJECT, Server

SHIPPED = "configs/sweeps/quickstart_cnn.yaml"
RATES = [0.001, 0.003]
# A net that trains in a second.
PARAMETERS = {
    "model.net.layers": {"value": [4, "pool"]},
    "model.net.hidden": {"value": 8},
    "model.net.dropout": {"value": 0.0},
    "model.schedulers": {"value": None},
    "test_after_fit": {"value": False},
    "trainer.max_epochs": {"value": 1},
    "model.optimizer.lr": {"values": RATES},
}


def wandb(server: Server, *args: str) -> subprocess.Popen[str]:
    """Start `wandb ARGS` for the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # contains lit-project
        "HOME": str(Path.cwd()),
        "OMP_NUM_THREADS": "1",
        "WANDB_API_KEY": "0123456789" * 4,
        "WANDB_BASE_URL": server.url,
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1",  # seconds
    }
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", "wandb", *args], env=environment, **pipes)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_agents_share_the_grid(workspace: Path) -> None:
    config = {**yaml.safe_load(Path(SHIPPED).read_text()), "parameters": PARAMETERS}
    Path("sweep.yaml").write_text(yaml.safe_dump(config))
    with Server(wanted=2) as server:
        made = wandb(server, "sweep", "--project", PROJECT, "sweep.yaml")
        said = made.communicate(timeout=200)[0]
        (sweep,) = server.sweeps
        assert made.returncode == 0, said
        assert f"wandb agent {ENTITY}/{PROJECT}/{sweep.name}" in said
        agents = [wandb(server, "agent", f"{ENTITY}/{PROJECT}/{sweep.name}") for _ in range(2)]
        try:
            printed = [agent.communicate(timeout=240)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        assert [agent.returncode for agent in agents] == [0, 0], printed
        assert not server.unknown, server.unknown
    assert not any("Traceback" in text or "W&B does not respond" in text for text in printed), printed
    assert [run.state for run in sweep.runs] == ["finished", "finished"], printed
    assert not sweep.points
    assert {run.agent for run in sweep.runs} == set(server.agents)
    assert [run.parameters["model.optimizer.lr"] for run in sweep.runs] == RATES
    assert [run.config["model"]["init_args"]["optimizer"]["init_args"]["lr"] for run in sweep.runs] == RATES
    for run in sweep.runs:
        assert run.project == PROJECT
        assert len(run.logged("val/accuracy")) == 1
        assert run.config["model"]["init_args"]["net"]["init_args"]["layers"] == [4, "pool"]
        assert run.config["model"]["init_args"]["schedulers"] is None
        assert run.parameters.items() <= run.config.items()  # W&B's charts need the sweep's parameter names
    records = [json.loads(file.read_text()) for file in Path("runs/quickstart").glob("*/wandb.json")]
    assert {record["id"] for record in records} == {run.name for run in sweep.runs}
    assert {(record["entity"], record["project"]) for record in records} == {(ENTITY, PROJECT)}
