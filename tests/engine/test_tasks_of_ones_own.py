"""A subclass of a task that passes its arguments on."""

import json
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


COUNTS = """
import torch
from lit_project.tasks.classification import ImageClassifier

class Counts(ImageClassifier):
    def evaluation_step(self, batch, split):
        found = super().evaluation_step(batch, split)
        ones = torch.ones(len(batch.targets))
        self.add_sums(ones=ones.sum())
        return found

class Twice(ImageClassifier):
    def evaluation_step(self, batch, split):
        super().evaluation_step(batch, split)
        return self.step(torch.tensor(1.0), len(batch.targets))

class TwiceInTraining(ImageClassifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return self.step(loss, len(batch.targets))
"""


def test_a_subclass_adds_sums_and_counts_no_batch_twice(lit, workspace, monkeypatch):
    (workspace / "counting.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(workspace)
    fit = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=true"
    plain = lit(fit)
    counts = lit(f"{fit} --model=counting.Counts")
    metrics, more = (json.loads((r.run / "metrics.json").read_text())["test"] for r in (plain, counts))
    assert more.pop("test/ones") == 1
    assert {**more, "checkpoint": ""} == {**metrics, "checkpoint": ""}
    for name in ("Twice", "TwiceInTraining"):
        with pytest.raises(ValueError, match="step was called twice for a batch"):
            lit(f"{fit} --model=counting.{name}")
