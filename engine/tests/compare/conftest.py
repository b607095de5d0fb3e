"""Fixture that creates the files that `compare` and `runs` read, without training."""

import json
from pathlib import Path

import pytest
import yaml

CONFIG = {
    "seed_everything": 1,
    "trainer": {
        "max_epochs": 3,
        "callbacks": [{"class_path": "p.Checkpoint", "init_args": {"monitor": "val/loss", "mode": "min"}}],
    },
    "model": {
        "class_path": "p.Classifier",
        "init_args": {
            "net": {"class_path": "p.models.CNN", "init_args": {"hidden": 64, "layers": [4, 8]}},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
        },
    },
}


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Return a function that creates `runs/x/NAME` with a loss per epoch and a test loss of 1 − the best loss."""
    monkeypatch.chdir(tmp_path)

    def make(name, losses=(0.5, 0.3, 0.4), status=0, seed=1, lr=0.01, config=None, test=None, **entry):
        run = Path("runs/x", name)
        run.mkdir(parents=True)
        content = json.loads(json.dumps(CONFIG if config is None else config))
        if config is None:
            content["seed_everything"] = seed
            content["model"]["init_args"]["optimizer"]["init_args"]["lr"] = lr
        (run / "config.yaml").write_text(yaml.safe_dump(content))
        rows = [f"{epoch},{10 * epoch},{loss}\n" for epoch, loss in enumerate(losses)]
        (run / "metrics.csv").write_text("epoch,step,val/loss\n" + "".join(rows))
        git = {"commit": "0123456789abcdef", "dirty": False}
        ended = {"status": status, **({} if status is None else {"seconds": 90.0})}
        start = {"time": "2026-11-22T22:31:40+00:00", "git": git, "versions": {"torch": "2.15.0"}, "devices": ["cpu"]}
        (run / "provenance.json").write_text(json.dumps([{**start, **ended, **entry}]))
        sections = {}
        if status == 0:
            best = {"best_checkpoint": "best.ckpt", "best val/loss": min(losses)}
            sections["fit"] = {"epochs": len(losses), "train/loss": 0.1, **best}
            sections["test"] = {"checkpoint": "best.ckpt", "test/loss": 1 - min(losses), **(test or {})}
        (run / "metrics.json").write_text(json.dumps(sections))
        return run

    make.config = CONFIG
    return make


@pytest.fixture
def say(make_run, capfd):
    """Return a function that runs a command in-process and returns its exit status, output and errors."""
    from toy.__main__ import main

    def run(command):
        capfd.readouterr()
        return main(command.split()), *capfd.readouterr()

    return run
