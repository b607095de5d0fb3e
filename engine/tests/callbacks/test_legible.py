"""Every figure is legible with short and long names, for few and many classes."""

import pytest
import torch

from legible import illegible
from lit_engine.callbacks.figures import (
    confusion_matrix,
    gallery,
    learning_curves,
    reliability,
    score_curves,
    step_curves,
)

pytestmark = pytest.mark.draws
CASES = pytest.mark.parametrize(("classes", "letters"), [(2, 3), (2, 30), (5, 12), (40, 3), (40, 30)])


def names_of(classes, letters):
    return [f"{number:02d}{'name ' * 6}"[:letters].strip() for number in range(classes)]


def drawn(classes, letters):
    names = names_of(classes, letters)
    curve = [(float(epoch), 1 / (epoch + 1)) for epoch in range(12)]
    captions = [f"true: {name}\npredicted: {name}\n87%, index 12345" for name in names]
    calibration = {"samples": [0] * 5 + [123_456] * 10, "accuracy": [None] * 5 + [0.8] * 10}
    counts = torch.full((classes, classes), 7009.0)
    yield "confusion matrix", confusion_matrix(counts, names, "test: accuracy 0.9312 of 14018")
    yield "gallery", gallery([torch.rand(1, 8, 8)] * classes, captions, "test: most confidently wrong")
    yield "tall gallery", gallery([torch.rand(3, 16, 8)] * classes, captions, "test: most confidently wrong")
    yield "curves", learning_curves({name: {"train": curve, "val": curve} for name in names[:3]}, best=7)
    yield "rates", step_curves(dict.fromkeys(names, curve))
    yield "scores", score_curves({name: (torch.rand(9), torch.arange(9) % 2) for name in names[:10]}, "test: 9 samples")
    yield "reliability", reliability(calibration, "test: expected calibration error 0.0123")


@CASES
def test_text_stays_inside_the_figure_and_does_not_overlap(classes, letters):
    found = {name: illegible(figure) for name, figure in drawn(classes, letters)}
    assert {name: texts[:6] for name, texts in found.items() if texts} == {}


def test_illegible_text_is_detected():
    figure = gallery([torch.rand(1, 8, 8)], ["a"])
    assert not illegible(figure)
    figure.text(0.99, 0.5, "beyond the figure")
    assert illegible(figure) == ["beyond the figure"]
    figure.text(0.99, 0.5, "covered")
    assert ("beyond the figure", "covered") in illegible(figure)
