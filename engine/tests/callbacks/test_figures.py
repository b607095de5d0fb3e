"""Figures contain the expected panels, lines, labels and numbers, and the PNG files are not blank."""

import io

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from helpers import NAMES, classifier
from lit_engine.callbacks import figures as viz
from lit_engine.callbacks.figures import Figures, confusion_matrix, draw_curves, gallery, learning_curves, step_curves
from lit_engine.loggers.tensorboard import TensorBoardExtras
from toy.data import Images

pytestmark = pytest.mark.draws


def png(figure):
    """Return the pixels of a figure as saved to a file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    pixels = np.asarray(Image.open(file).convert("L"))
    assert pixels.min() < 128 < pixels.max()  # something dark on a light background
    return pixels


def curve(values):
    return [(float(epoch), value) for epoch, value in enumerate(values, 1)]


def test_learning_curves_have_one_panel_per_metric_and_one_line_per_split():
    losses = {"train": curve([2.0, 1.0, 0.5]), "val": curve([2.1, 1.2, 0.9])}
    figure = learning_curves({"loss": losses, "accuracy": {"val": curve([0.1, 0.2, 0.3])}}, best=2)
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    loss, accuracy = figure.axes
    train, val, best = loss.get_lines()
    assert train.get_xydata().tolist() == [[1, 2.0], [2, 1.0], [3, 0.5]]
    assert val.get_xydata().tolist() == [[1, 2.1], [2, 1.2], [3, 0.9]]
    assert set(best.get_xdata()) == {2}
    labels = [text.get_text() for text in loss.get_legend().get_texts()]
    assert labels == ["train (last 0.5)", "val (last 0.9)", "best checkpoint (epoch 2)"]
    assert len(accuracy.get_lines()) == 2
    png(figure)


def test_learning_rates_have_one_line_per_parameter_group():
    rates = {"lr/body": [(0.0, 0.1), (1.0, 0.2)], "lr/head": [(0.0, 1.0), (1.0, 0.5)]}
    (axes,) = step_curves(rates).axes
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert lines == [[[0, 0.1], [1, 0.2]], [[0, 1.0], [1, 0.5]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["lr/body", "lr/head"]
    png(axes.figure)


def test_rates_of_lightnings_learning_rate_monitor_are_drawn():
    rows = [{"step": step, "lr-Adam": "0.1", "lr-Adam-momentum": "0.9"} for step in "12"]
    figure, _ = draw_curves(rows, [])["learning_rate"]
    assert [line.get_xydata().tolist() for line in figure.axes[0].get_lines()] == [[[1, 0.1], [2, 0.1]]]


def test_learning_rates_that_differ_by_a_factor_of_20_use_a_logarithmic_axis():
    falling = [(float(step), 1.0 - step / 10) for step in range(11)]
    assert step_curves({"lr": falling}).axes[0].get_yscale() == "linear"  # a schedule that ends at 0
    for factor, kind in ((19, "linear"), (20, "log")):
        rates = {"lr/body": [(x, y / factor) for x, y in falling], "lr/head": falling}
        assert step_curves(rates).axes[0].get_yscale() == kind
    assert step_curves({"gradient norm": falling}, "gradient norm").axes[0].get_yscale() == "log"


@pytest.mark.parametrize("labels", [1, 12])
def test_score_curve_areas_match_scikit_learn(labels):
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(300, labels, generator=generator) < 0.3).long()
    targets[:, -1] = torch.arange(300) < 2
    scores = (0.3 * targets + 0.7 * torch.rand(300, labels, generator=generator)).round(decimals=2)  # with ties
    outputs = {"probabilities": scores, "targets": targets}
    if labels == 1:
        outputs = {"logits": torch.cat([torch.zeros(300, 1), scores.logit(eps=1e-6)], 1), "targets": targets[:, 0]}
    names = ["no", "yes"] if labels == 1 else [f"label {k}" for k in range(labels)]
    found = viz._scores_by_label([viz._scores_of(outputs)], names)
    assert len(found) == min(labels, 10)
    assert "label 11" not in found  # the rarest label is omitted
    left, right = viz.score_curves(found, "test").axes
    for axes, area in ((left, average_precision_score), (right, roc_auc_score)):
        shown = [text.get_text() for text in axes.get_legend().get_texts()]
        expected = [
            area(targets[:, names.index(name) if labels > 1 else 0], scores[:, names.index(name) if labels > 1 else 0])
            for name in found
        ]
        assert [float(text.split()[-1]) for text in shown] == pytest.approx(expected, abs=1e-4)
    assert viz._scores_of({"logits": torch.rand(4, 3), "targets": torch.arange(4)}) is None


COUNTS = torch.tensor([[5.0, 1.0, 0.0], [0.0, 7.0, 2.0], [0.0, 0.0, 0.0]])


def test_confusion_matrix_shows_counts_in_cells_and_shares_as_colours():
    figure = confusion_matrix(COUNTS, ["ant", "bee", "cat"], "val: accuracy 0.8")
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["ant", "bee", "cat"]
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "5", (1, 0): "1", (1, 1): "7", (2, 1): "2"}  # (column, row): (predicted, true)
    shares = axes.get_images()[0].get_array()
    assert np.allclose(shares, [[5 / 6, 1 / 6, 0], [0, 7 / 9, 2 / 9], [0, 0, 0]])
    png(figure)


def test_large_confusion_matrix_omits_counts_and_every_second_label():
    axes = confusion_matrix(torch.eye(61), [f"class {k}" for k in range(61)]).axes[0]
    assert not axes.texts
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"class {k}" for k in range(0, 61, 2)]
    assert axes.get_images()[0].norm(0.01) > 0.2  # one percent of a class is visible


@pytest.mark.parametrize(("channels", "count"), [(1, 1), (3, 7)])
def test_gallery_shows_every_image_with_its_caption(channels, count):
    torch.manual_seed(0)
    images = list(torch.rand(count, channels, 4, 5))
    captions = [f"#{number}" for number in range(count)]
    figure = gallery(images, captions, "most wrong")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == captions
    assert figure.get_suptitle() == "most wrong"
    for image, shown, caption in zip(images, axes.get_images(), axes.texts, strict=True):
        expected = image[0] if channels == 1 else image.movedim(0, -1)
        assert np.allclose(shown.get_array(), expected)
        left, right, bottom, top = shown.get_extent()
        assert (bottom - top) / (right - left) == pytest.approx(4 / 5)
        assert left < caption.get_position()[0] < right
        assert caption.get_position()[1] < top
    assert not axes.axison


def test_figures_accept_special_characters_and_galleries_share_one_grey_scale():
    figure = gallery([torch.full((1, 2, 2), 2.0), torch.full((1, 2, 2), 0.5)], ["$x_$ for $", "a_{b"])
    first, second = figure.axes[0].get_images()
    assert first.get_array().max() == 1
    assert first.get_clim() == second.get_clim() == (0, 1)
    png(figure)
    png(gallery([torch.rand(5, 4, 4)], ["five channels"]))
    png(confusion_matrix(torch.tensor([[3, 1], [0, 2]]), ["$x_$", "a_{b"]))


def test_galleries_of_long_time_series_have_a_limited_height():
    figure = gallery([torch.rand(1, 22_000, 1)] * 12, 12 * ["a"])
    assert figure.get_figheight() < 2 * figure.get_figwidth()
    png(figure)


def test_masks_appear_below_their_training_images_in_the_legend_colours():
    masks = torch.tensor([[[0, 1], [2, -1]]]).expand(8, 2, 2)
    figure = viz.draw_training_images(torch.rand(8, 1, 2, 2), masks, ["sky", "sea", "sand"])
    drawn = figure.axes[0].get_images()
    assert [one.get_array().shape for one in drawn] == [(2, 2)] * 6 + [(2, 2, 3)] * 6
    above, below = (drawn[first].get_extent() for first in (0, 6))
    assert above[:2] == below[:2]
    assert above[2] < below[3]  # the vertical axis points down
    key = [patch.get_facecolor()[:3] for patch in figure.legends[0].get_patches()]
    assert np.allclose(drawn[6].get_array().reshape(4, 3), [*key, (0.9, 0.9, 0.9)], atol=1e-6)
    png(figure)


def test_training_images_are_captioned_with_their_labels():
    names = [f"label {k}" for k in range(7)]
    targets = torch.tensor([[0] * 7, [1, 0, 1, 0, 0, 0, 0], [1] * 7])
    figure = viz.draw_training_images(torch.rand(3, 3, 4, 4), targets, names)
    captions = [text.get_text() for text in figure.axes[0].texts]
    assert captions == ["no label", "label 0\nlabel 2", "label 0\nlabel 1\nlabel 2\nand 4 more"]
    figure = viz.draw_training_images(torch.rand(3, 3, 4, 4), torch.tensor([6, 7, -100]), names)
    assert [text.get_text() for text in figure.axes[0].texts] == ["label 6", "7", "-100"]


def test_reliability_diagram_shows_accuracy_and_sample_count_per_bin():
    bins = {"samples": [0, 30, 1200], "accuracy": [None, 0.25, 1.0]}
    figure = viz.reliability(bins, "ECE")
    for axes, heights in zip(figure.axes, ([0.25, 1.0], [30, 1200]), strict=True):
        assert [bar.get_center()[0] for bar in axes.patches] == pytest.approx([0.5, 5 / 6])
        assert [bar.get_height() for bar in axes.patches] == heights
    png(figure)


def test_class_names_may_be_in_any_script(trainer, recwarn):
    viz.save_figure(trainer(), "counts", confusion_matrix(torch.eye(2), ["日本", "b"], ""))
    assert not [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)]


class WhiteTop(torch.nn.Module):
    """An augmentation that is easy to recognize."""

    def forward(self, images):
        return images.index_fill(2, torch.tensor([0]), 255)


def test_the_first_training_images_are_drawn_as_the_network_receives_them(trainer, tmp_path, monkeypatch):
    drawn, seen = {}, []
    monkeypatch.setattr(viz, "save_figure", lambda trainer, name, figure, **_: drawn.update({name: figure}))
    task, data = classifier(), Images(batch_size=16, train_transforms=[WhiteTop()])
    task.net.register_forward_pre_hook(lambda net, inputs: seen.append(inputs[0]))
    board = TensorBoardLogger(tmp_path)
    trainer(callbacks=[Figures(), TensorBoardExtras()], logger=board, max_epochs=2).fit(task, datamodule=data)
    (axes,) = drawn["train_batch"].axes
    batches = [images for images in seen if len(images) > 1]  # TensorBoard traces the graph with one image
    images = batches[0][:12, 0] * 0.3 + 0.4  # reverses the normalization
    assert len(axes.get_images()) == 12
    assert torch.allclose(images[:, 0], torch.tensor(1.0), atol=1e-6)
    for shown, image in zip(axes.get_images(), images, strict=True):
        assert np.allclose(shown.get_array(), image.clamp(0, 1), atol=1e-6)
    captions = {text.get_text() for text in axes.texts}
    assert captions <= set(NAMES)


def test_the_callback_can_be_used_in_several_fits(trainer, tmp_path):
    callback = Figures()
    for folder in (tmp_path / "a", tmp_path / "b"):
        run = trainer(callbacks=[callback], max_epochs=1, default_root_dir=folder)
        run.fit(classifier(), datamodule=Images())
        assert (folder / "figures" / "train_batch.png").exists()


@pytest.mark.parametrize(
    ("logits", "targets"),
    [((4,), (4,)), ((4, 3), (4, 3)), ((4, 3, 8, 8), (4, 8, 8))],
    ids=["binary", "multilabel", "segmentation"],
)
def test_binary_multilabel_and_segmentation_images_are_not_listed_as_wrong(logits, targets):
    figures = Figures()
    outputs = {"logits": torch.randn(logits), "targets": torch.randint(2, targets)}
    for inputs in (torch.rand(4, 1, 8, 8), {"image": torch.rand(4, 1, 8, 8)}):
        figures.on_test_batch_end(None, None, outputs, (inputs, outputs["targets"]))
    assert figures._wrong == []
