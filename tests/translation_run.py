"""Trains a tiny translator in seconds, for tests that need one."""

from pathlib import Path

import pytest

from lit_engine.tools.testing import blank_figures

ROOT = Path(__file__).parents[1]
HELLO = "The bird is small."
SIZES = "--data.size=700 --data.val_size=30 --data.test_size=30"
NET = "--model.net.embedding_size=16 --model.net.hidden_size=32"
SMALL = f"{SIZES} {NET} --trainer.max_epochs=2 --trainer.limit_train_batches=8"


def train(runs: Path, *options: str, config: str = "translation_quickstart.yaml") -> Path:
    """Train for two short epochs, test, and return the run."""
    from lit_project.__main__ import main

    args = ["fit", "-c", str(ROOT / "configs" / config), *SMALL.split(), f"--runs_dir={runs}", "--run_name=tiny"]
    with pytest.MonkeyPatch.context() as patch:
        blank_figures(patch)
        assert main([*args, *options]) == 0
    return runs / Path(config).stem / "tiny"


RUNS: list[Path] = []  # trained by this process


def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trained and validated run. It is trained once per process, for tests that do not change it."""
    from lit_project.__main__ import main

    if not RUNS:
        RUNS.append(train(tmp_path_factory.mktemp("runs")))
        with pytest.MonkeyPatch.context() as patch:
            blank_figures(patch)
            assert main(["validate", "--run", str(RUNS[0])]) == 0
    return RUNS[0]
