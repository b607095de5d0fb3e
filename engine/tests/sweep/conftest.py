"""Fixtures for testing sweeps without training: trials run `fake_fit.py` instead of `fit`."""

import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Engine, event

from lit_engine.tools.sweep import worker
from lit_engine.tools.sweep.config import SweepConfig
from lit_engine.tools.sweep.study import Study
from lit_engine.tools.sweep.worker import Workers

GOOD = {
    "method": "grid",
    "metric": {"name": "val/score", "goal": "maximize"},
    "command": ["toy", "fit", "--config", "configs/x.yaml", "--config", "${args_json_file}"],
}


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a grid sweep over a and b, with some keys changed, or removed if set to `...`."""

    def reading(**changes):
        parameters = {"a": {"values": [1, None]}, "b": {"values": ["x", "y", "z"]}}
        content = {**GOOD, "parameters": parameters, **changes}
        reading.file.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not ...}))
        return SweepConfig.read(reading.file)

    reading.file = tmp_path / "sweep.yaml"
    return reading


@pytest.fixture(autouse=True)
def _fast_database():
    """Do not wait for the disk at each SQLite write."""

    def relax(connection, record):
        if "sqlite" in type(connection).__module__:
            connection.execute("pragma synchronous = off")

    event.listen(Engine, "connect", relax)
    yield
    event.remove(Engine, "connect", relax)


class Sweep:
    """A sweep in the test's folder."""

    def __init__(self, folder, config, **options):
        self.study, self.said = Study(folder / "s", config), deque()
        options = {"workers": 1, "most": config.trials(None), **options}
        self.workers, self.then = Workers(self.study, "x", **options), {}

    def say(self, line, flush):
        self.said.append(line)
        for start in [start for start in self.then if line.startswith(start)]:
            threading.Thread(target=self._act, args=self.then.pop(start)).start()

    def _act(self, action, *args):
        """Call a function soon after the first trial has logged a value."""
        end = time.monotonic() + 20
        while not any(self.study.folder.rglob("metrics.csv")) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.3)
        action(*args)

    def run(self):
        return self.workers.run()

    @property
    def rows(self):
        return [(row.number, row.state, row.value if row.value == row.value else None) for row in self.study.rows()]


@pytest.fixture
def sweep(tmp_path, monkeypatch, read):
    """Return a function that creates a `Sweep`. Parameters with a list of values are varied, others are constant."""
    monkeypatch.setattr(worker, "fit_command", lambda: [sys.executable, str(Path(__file__).with_name("fake_fit.py"))])
    monkeypatch.setattr(worker, "POLL", 0.02)

    def make(changes=None, options=None, **parameters):
        section = {k: {"values" if isinstance(v, list) else "value": v} for k, v in parameters.items()}
        made = Sweep(tmp_path, read(**{"parameters": section, **(changes or {})}), **(options or {}))
        monkeypatch.setattr(worker, "print", made.say, raising=False)
        return made

    return make
