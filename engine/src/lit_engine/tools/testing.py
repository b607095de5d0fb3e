"""A pytest plugin that runs a project's command line in the test process, offline and without drawing figures.

The pytest option `-p lit_engine.tools.testing` enables the plugin. The project's conftest.py defines the fixtures
`workspace` (the folder in which commands run) and `command_line` (the project's `main` function).

torch and Lightning are imported inside the tests, because the process that distributes the tests needs neither.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in parallel, and forked tests would hang with more threads
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MPLBACKEND"] = "Agg"

import gc
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lit_engine._lazy_imports import import_lazily

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

import_lazily()  # as on the command line


@dataclass
class Result:
    """The exit status of a command, its output, and the last run that it printed."""

    status: int
    out: str
    err: str

    @property
    def run(self) -> Path:
        """The run directory."""
        return Path([line for line in self.out.splitlines() if line.startswith("run: ")][-1].removeprefix("run: "))


def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save blank images instead of figures, because drawing takes half the time of a small run."""
    from matplotlib.figure import Figure
    from PIL import Image

    def blank(self: Figure, file: str | Path, **_: object) -> None:
        Image.new("L", (int(self.bbox.width), int(self.bbox.height))).save(file, format="png")

    monkeypatch.setattr(Figure, "savefig", blank)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an error for connections to other machines."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to connect to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def _no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the project of the previous test."""
    monkeypatch.setattr("lit_engine.project._used", [])


@pytest.fixture(autouse=True)
def _blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures only in tests that are marked `draws`."""
    if "draws" not in request.keywords:
        blank_figures(monkeypatch)


@pytest.fixture
def lit(
    workspace: Path, command_line: Callable[[Sequence[str]], int], capfd: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run a command in this process. Strings are split at spaces, and list elements are passed unchanged."""

    def run(*parts: object) -> Result:
        args: list[str] = []
        for part in parts:
            args += part.split() if isinstance(part, str) else part if isinstance(part, list) else [str(part)]
        capfd.readouterr()
        status = command_line(args)
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., "Trainer"]:
    """Create a CPU trainer without output or checkpoints. Keyword arguments are passed to Trainer."""
    from lightning.pytorch import Trainer

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)

    def create(**kwargs: Any) -> Trainer:
        small = {"accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 0, "default_root_dir": tmp_path}
        return Trainer(**{**quiet, **small, **kwargs})

    return create


@pytest.fixture
def seed_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Seed everything as the command line does, and restore Lightning's seed variables after the test."""
    from lightning.pytorch import seed_everything

    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    return lambda seed: seed_everything(seed, verbose=False)


def pytest_configure(config: pytest.Config) -> None:
    """Hide warnings from other packages, and warnings about Optuna's experimental functions."""
    for ignored in (":::(lightning|torch|optuna|matplotlib|contextlib|<)", ":.* is experimental"):
        config.addinivalue_line("filterwarnings", f"ignore{ignored}")


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, and collect less often. This saves a fifth of the test time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Undo `pytest_collection_finish`, so that no objects are reported as leaks."""
    gc.unfreeze()
