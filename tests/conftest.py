"""Fixtures of this project: its command line, its configs, and small data with the original shapes.

Other fixtures, such as `lit`, which runs a command in-process, come from `lit_engine.tools.testing`.
"""

import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from lit_engine.tools.testing import blank_figures
from tiny import TINY, write

ROOT = Path(__file__).parents[1]


@pytest.fixture
def command_line() -> Callable[[Sequence[str]], int]:
    """Return the function that runs `lit-project ARGS` in this process."""
    from lit_project.__main__ import main

    return main


@pytest.fixture
def official() -> Callable[..., Path]:
    """Return a function that returns `data/`, or fails if archives are missing, for tests marked `archives`."""

    def folder(*archives: str) -> Path:
        missing = [name for name in archives if not (ROOT / "data" / name).exists()]
        assert not missing, f"not in data/: {', '.join(missing)}"
        return ROOT / "data"

    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an otherwise empty working folder with the project's configs."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace downloaded data with small synthetic data (see `configs_of_*.py`). Nothing is downloaded."""
    for path in Path(__file__).parent.glob("configs_of_*.py"):
        import_module(path.stem).replace(monkeypatch)


@pytest.fixture
def image_folder(workspace: Path) -> Path:
    """Create the folder `data/images` with two classes of 40 small images: dark cats and bright dogs."""
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
    """Save random weights of a thin resnet18 where torchvision expects the cached ImageNet weights."""
    from configs_of_images import ThinResNet, publish, thin_resnet18

    thin_resnet18(monkeypatch)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    publish(ThinResNet(), tmp_path / "torch" / "hub" / "checkpoints" / "resnet18-f37072fd.pth")


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a `runs/` folder with one run, which `trained` copies."""
    from lit_project.__main__ import main

    runs = tmp_path_factory.mktemp("trained") / "runs"
    command = f"fit -c {ROOT}/configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false"
    with pytest.MonkeyPatch.context() as patch:
        blank_figures(patch)
        assert main([*command.split(), "--run_name=tiny", f"--runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def trained(trained_once: Path, workspace: Path) -> Path:
    """Return a new copy of a three-epoch run of an MLP on the bundled digits. Tests may change it."""
    shutil.copytree(trained_once, "runs")
    return Path("runs/quickstart/tiny")


@pytest.fixture
def splits(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """Create `train`, `val` and `test` with 21, 9 and 6 images. Return their root and the class for each brightness."""
    classes = {}
    for split, count, start in (("train", 7, 0), ("val", 3, 50), ("test", 2, 100)):
        classes |= write(tmp_path / "root" / split, count, start)
    return tmp_path / "root", classes
