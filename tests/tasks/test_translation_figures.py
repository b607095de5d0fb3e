"""Tests that attention maps and charts of BLEU by length are correct and legible, even with dollar signs."""

import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lit_project.tasks.translation.figures import attention_map, bleu_by_length

pytestmark = pytest.mark.draws


def png(figure):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warnings about missing glyphs or layouts that do not fit
        figure.savefig(file, format="png")
    pixels = np.asarray(Image.open(file).convert("L"))
    assert pixels.min() < 128 < pixels.max()
    return pixels


def weights(target, source):
    return torch.randn(target, source, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)


def test_attention_map_has_the_source_at_the_top_and_the_target_on_the_side():
    given = weights(3, 4)
    figure = attention_map(given, ["I", "am", "tired", "■"], ["Je", "suis", "■"], "Je suis")
    axes, _ = figure.axes
    png(figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["I", "am", "tired", "■"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Je", "suis", "■"]
    assert axes.xaxis.get_ticks_position() == "top"
    assert axes.yaxis_inverted()  # the first word of the translation is at the top
    assert np.allclose(axes.get_images()[0].get_array(), given)
    assert figure.get_suptitle() == "Je suis"


def test_dollar_signs_are_not_rendered_as_formulas():
    png(attention_map(weights(2, 2), ["$\\frac", "$"], ["$5_{", "$"], "$x_{$ costs $5"))


def test_bleu_by_length_has_a_bar_per_group_with_its_number_of_sentences():
    figure = bleu_by_length([("1–5", 40.5, 1200), ("6–10", 100.0, 7), ("11–15", 0.0, 1)], "test")
    png(figure)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [40.5, 100, 0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1–5", "6–10", "11–15"]
    assert [text.get_text() for text in axes.texts] == ["1,200", "7", "1"]
