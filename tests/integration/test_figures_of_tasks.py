"""Tests that figures of the template's tasks are legible, and that mixed images have no caption."""

import pytest
import torch

from classifier_data import Images, classifier
from legible import illegible
from lit_engine.callbacks import figures as viz
from lit_engine.callbacks.figures import Figures
from lit_project.tasks.mixup import Mixing
from lit_project.tasks.regression_figures import predicted_against_true
from lit_project.tasks.translation.figures import attention_map, bleu_by_length

pytestmark = pytest.mark.draws


@pytest.mark.parametrize(("count", "letters"), [(2, 3), (2, 30), (5, 12), (40, 3), (40, 30)])
def test_text_stays_inside_the_figure_and_does_not_overlap(count, letters):
    names = [f"{number:02d}{'name ' * 6}"[:letters].strip() for number in range(count)]
    points = torch.randn(50), torch.randn(50)
    lengths = [(f"{n}–{n + 4}", 30.0, 14_018) for n in range(0, 5 * min(count, 12), 5)]
    figures = {
        "predictions": predicted_against_true(dict.fromkeys(names[:9], points), "test: 14,018 samples"),
        "attention": attention_map(torch.rand(count, count), names, names, "A sentence of " + "words " * 9),
        "BLEU": bleu_by_length(lengths, "test"),
    }
    assert {name: found[:6] for name, figure in figures.items() if (found := illegible(figure))} == {}


def test_mixed_images_have_no_caption(trainer, monkeypatch):
    drawn = {}
    monkeypatch.setattr(viz, "save_figure", lambda trainer, name, figure, **_: drawn.update({name: figure}))
    task = classifier(mixing=Mixing(mixup_alpha=1.0))
    trainer(callbacks=[Figures()], max_epochs=1).fit(task, datamodule=Images(batch_size=16))
    (axes,) = drawn["train_batch"].axes
    assert {text.get_text() for text in axes.texts} == {""}
