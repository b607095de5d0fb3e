"""Fixtures: the command line in-process, in an empty folder, offline, on small data of the real shapes.

torch and Lightning are imported by what needs them: the process that hands out the tests to others does not.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MPLBACKEND"] = "Agg"

import gc
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tiny import TINY, blank_figures, write

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

ROOT = Path(__file__).parents[1]


@dataclass
class Result:
    """What a command did: exit status, what it printed, and the run that it named last."""

    status: int
    out: str
    err: str

    @property
    def run(self) -> Path:
        return Path([line for line in self.out.splitlines() if line.startswith("run: ")][-1].removeprefix("run: "))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may reach beyond this machine."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to connect to {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def _blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn in tests marked `draws` alone."""
    if "draws" not in request.keywords:
        blank_figures(monkeypatch)


@pytest.fixture
def official() -> Callable[..., Path]:
    """`official("tatoeba/fra-eng.zip")` is the folder `data/`, which must have it: for tests marked `archives`."""

    def folder(*archives: str) -> Path:
        missing = [name for name in archives if not (ROOT / "data" / name).exists()]
        assert not missing, f"not in data/: {', '.join(missing)}"
        return ROOT / "data"

    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the project's configs."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lit(workspace: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `lit-project ARGS` in this process: a string is split at spaces, lists are taken as they are."""
    from lit_project.__main__ import main

    def run(*parts: object) -> Result:
        args: list[str] = []
        for part in parts:
            args += part.split() if isinstance(part, str) else part if isinstance(part, list) else [str(part)]
        capfd.readouterr()
        status = main(args)
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What configs would download is small and made up: see `configs_of_*.py`. Nothing is read or downloaded."""
    for path in Path(__file__).parent.glob("configs_of_*.py"):
        import_module(path.stem).replace(monkeypatch)


@pytest.fixture
def image_folder(workspace: Path) -> Path:
    """`data/images` with two classes of 40 small pictures: dark cats and bright dogs."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for number, name in enumerate(("cat", "dog")):
        folder = workspace / "data" / "images" / name
        folder.mkdir(parents=True)
        for index in range(40):
            pixels = torch.randint(0, 100, (20, 20, 3), generator=generator, dtype=torch.uint8) + 100 * number
            Image.fromarray(pixels.numpy()).save(folder / f"{index}.png")
    return workspace / "data" / "images"


@pytest.fixture
def imagenet_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights of a thin resnet18 in the cache where torchvision looks for those of ImageNet."""
    from configs_of_images import ThinResNet, publish, thin_resnet18

    thin_resnet18(monkeypatch)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    publish(ThinResNet(), tmp_path / "torch" / "hub" / "checkpoints" / "resnet18-f37072fd.pth")


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/` with one run, for `trained`."""
    from lit_project.__main__ import main

    runs = tmp_path_factory.mktemp("trained") / "runs"
    command = f"fit -c {ROOT}/configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false"
    with pytest.MonkeyPatch.context() as patch:
        blank_figures(patch)
        assert main([*command.split(), "--run_name=tiny", f"--runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def trained(trained_once: Path, workspace: Path) -> Path:
    """A run on the bundled digits, three epochs of a perceptron: a copy for each test, which may change it."""
    shutil.copytree(trained_once, "runs")
    return Path("runs/quickstart/tiny")


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., "Trainer"]:
    """Makes trainers on the CPU that print and write nothing; keyword arguments of Trainer come on top."""
    from lightning.pytorch import Trainer

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)

    def make(**kwargs: object) -> Trainer:
        small = {"accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 0, "default_root_dir": tmp_path}
        return Trainer(**{**quiet, **small, **kwargs})  # type: ignore[arg-type]

    return make


@pytest.fixture
def seed_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Seeds everything as the command line does; the seed of the process is put back after the test."""
    from lightning.pytorch import seed_everything

    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    return lambda seed: seed_everything(seed, verbose=False)


@pytest.fixture
def splits(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """`root/train`, `root/val`, `root/test` of 21, 9 and 6 images."""
    classes = {}
    for split, count, start in (("train", 7, 0), ("val", 3, 50), ("test", 2, 100)):
        classes |= write(tmp_path / "root" / split, count, start)
    return tmp_path / "root", classes


def pytest_collection_finish() -> None:
    """The garbage collector does not look through the many objects of the imports: that is a tenth of the time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left at the end is reported as leaks
