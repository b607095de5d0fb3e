"""`torchrun` as docs/scaling.md has it: two nodes (on this machine) train one run."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tiny import TINY


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_train_one_run_that_one_process_goes_on_with(lit, tmp_path):
    launch = f"--nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:{free_port()} --rdzv_id=1"
    command = (
        f"-m -- lit_project fit -c configs/quickstart.yaml -c configs/overlays/ddp.yaml {TINY} --run_name=both "
        "--trainer.accelerator=cpu --trainer.devices=1 --trainer.num_nodes=2 --trainer.max_epochs=1 "
        "--test_after_fit=false --model.schedulers=null"
    )
    words = [sys.executable, "-m", "torch.distributed.run", *launch.split(), *command.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    logs = [tmp_path / f"node{number}.log" for number in range(2)]
    nodes = [
        subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT)
        for log in logs
    ]
    try:
        for node, log in zip(nodes, logs, strict=True):
            assert node.wait(500) == 0, log.read_text()[-3000:]
    finally:
        for node in nodes:
            node.kill()
    run = tmp_path / "runs" / "quickstart" / "both"
    assert list(run.parent.iterdir()) == [run]
    first = json.loads((run / "metrics.json").read_text())["fit"]
    assert (first["train/samples"], first["val/samples"], first["steps"]) == (1257, 180, 5)
    assert len(json.loads((run / "provenance.json").read_text())) == 1

    one = "--trainer.devices=1 --trainer.num_nodes=1 --trainer.strategy=auto"
    assert lit(f"fit --run {run} --trainer.max_epochs=2 {one}").status == 0
    second = json.loads((run / "metrics.json").read_text())["fit"]
    assert (second["epochs"], second["train/samples"], second["steps"]) == (2, 1257, 15)
    assert second["val/loss"] < first["val/loss"]
