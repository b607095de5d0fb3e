"""Tests that the Translations callback writes exactly the expected files, with the expected content."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from lit_project.data.parallel_text.batches import PairText
from lit_project.tasks.translation.figures import Translations, sample_tables
from lit_project.tasks.translation.scores import Row, by_length
from translation_run import shared


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return shared(tmp_path_factory)


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_run_contains_exactly_the_expected_figures_and_tables(run):
    assert names(run / "figures" / "attention") == {f"epoch001_{k}.png" for k in (1, 2, 3, 4)}  # the last of two epochs
    attention = {f"{split}_attention_{k}.png" for split in ("val", "test") for k in (1, 2, 3, 4)}
    others = {"attention", "gradient_norm.png", "learning_curves.png", "learning_rate.png", "val_bleu_by_length.png"}
    assert names(run / "figures") == attention | others | {"test_bleu_by_length.png"}
    assert names(run / "predictions") == {"val_samples.json", "test_samples.json"}
    assert all(min(Image.open(path).size) > 200 for path in (run / "figures").rglob("*.png"))


def test_sample_table_has_ten_best_worst_and_random_translations(run):
    samples = json.loads((run / "predictions" / "test_samples.json").read_text())
    scores = {which: [row["BLEU"] for row in rows] for which, rows in samples.items()}
    assert {which: len(rows) for which, rows in scores.items()} == {"Best": 10, "Worst": 10, "Random": 10}
    assert scores["Best"] == sorted(scores["Best"], reverse=True)
    assert scores["Worst"] == sorted(scores["Worst"])
    assert json.loads((run / "metrics.json").read_text())["test"]["test/samples"] == 30


def row(index, hypothesis, *references, source=None):
    text = PairText(source or f"source {index}", references[0], list(references), "")
    return Row(index, text, hypothesis, [5])


def test_sample_tables_contain_the_best_worst_and_random_rows():
    rows = [row(0, "a b c d", "a b c d"), row(1, "x y", "a b c d"), row(2, "a b c e", "a b c d"), row(3, "", "a b")]
    found = sample_tables(rows, 2, "en")
    assert [row["source"] for row in found["Best"]] == ["source 0", "source 2"]
    assert [row["source"] for row in found["Worst"]] == ["source 3", "source 1"]
    assert len(found["Random"]) == 2
    assert sample_tables(rows, 2, "en") == found
    assert str(sample_tables(rows, 99, "en")).count("source 1") == 3


def test_by_length_groups_rows_by_source_length():
    rows = [row(n, "a b", "a b", source="w " * n) for n in (1, 2, 2, 5)]
    full = pytest.approx(100)
    assert by_length(rows, "en") == [("1", full, 1), ("2", full, 2), ("5", full, 1)]
    rows = [row(n, "x" if n == 61 else "a b", "a b", source="w " * n) for n in (1, 10, 11, 61)]
    labels = [(label, count) for label, _, count in by_length(rows, "en")]
    assert labels == [("1–10", 2), ("11–20", 1), ("61–70", 1)]
    assert by_length(rows, "en")[-1][1] == pytest.approx(0)
    assert len(by_length([row(0, "a", "a", source="w " * 9000)], "en")) == 1


class Watched(Translations):
    """Records which attention maps would be drawn."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.drawn = []

    def _draw_attention(self, trainer, rows, name, tag):
        self.drawn += [name] if rows else []


def epochs(callback, count):
    """Validate after each of `count` training epochs, and return the drawn epochs."""
    state = SimpleNamespace(fn="fit")
    trainer = SimpleNamespace(state=state, sanity_checking=False, is_global_zero=True, fast_dev_run=False)
    task = SimpleNamespace(rows=[row(0, "a", "a")])
    for trainer.current_epoch in range(count):
        callback.on_validation_end(trainer, task)
    callback.on_fit_end(trainer, task)
    return [name.removeprefix("attention/epoch") for name in callback.drawn]


def test_attention_is_drawn_every_few_epochs_and_at_the_end():
    assert epochs(Watched(every_n_epochs=3), 6) == ["002", "005"]
    assert epochs(Watched(every_n_epochs=3), 7) == ["002", "005", "006"]
    with pytest.raises(ValueError, match="every_n_epochs must be at least 1, got 0"):
        Translations(every_n_epochs=0)
