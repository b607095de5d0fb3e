"""A subclass of a task that passes its arguments on."""

import sys

import pytest

from lit_project.data.digits import Digits
from tiny import TINY

MINE = """
from lit_project.tasks.classification import ImageClassifier

class Mine(ImageClassifier):
    def __init__(self, *args, extra: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra
"""


def test_its_checkpoint_keeps_what_the_data_gave(lit, workspace, monkeypatch):
    (workspace / "passes_on.py").write_text(MINE)
    monkeypatch.syspath_prepend(workspace)
    run = lit(
        f"fit -c configs/quickstart.yaml {TINY} --model=passes_on.Mine --model.extra=3 --trainer.max_epochs=1"
    ).run
    best = next((run / "checkpoints").glob("best*.ckpt"))
    task = sys.modules["passes_on"].Mine.load_from_checkpoint(best)
    data = Digits()
    assert (task.extra, task.class_names, task.mean.flatten().tolist()) == (
        3,
        data.class_names,
        pytest.approx(data.mean),
    )
    tested = lit(f"test --run {run}")
    assert tested.status == 0
    assert "differs" not in tested.err
