"""The page and model card of a run match the run's files, and need nothing else."""

import csv
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from huggingface_hub import ModelCard
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from test_compare import Page

from lit_engine.tools.pages.run_page import MARK, render_card, render_page, write
from lit_engine.tools.runs.reading import Run
from lit_project.tasks.classification import ImageClassifier
from tiny import TINY


def tables(run):
    """Return the tables of a run's page, with each row as a dict by its first cell."""
    found = Page(render_page(Run.read(run))).tables
    return [{row[0]: dict(zip(head, row, strict=True)) for row in rows} for head, *rows in found]


def test_the_numbers_of_a_classifier_are_those_of_scikit_learn(lit, trained):
    result = lit(f"test --run {trained}")
    assert result.out.splitlines()[-1] == f"page: {trained}/index.html"
    assert lit(f"predict --run {trained}").status == 0
    rows = list(csv.DictReader((trained / "predictions" / "test.csv").open()))
    true, predicted = (np.array([int(row[name]) for row in rows]) for name in ("target", "prediction"))
    test = json.loads((trained / "metrics.json").read_text())["test"]
    names = [str(k) for k in range(10)]
    counts = [[test["confusion"][true].get(predicted, 0) for predicted in names] for true in names]
    assert counts == confusion_matrix(true, predicted).tolist()
    confidence = np.array([float(row["probability"]) for row in rows])
    bins = [np.minimum((confidence * 15).astype(int), 14) == k for k in range(15)]
    gaps = [abs((confidence[k] - (true == predicted)[k]).sum()) for k in bins]
    assert test["calibration"]["ece"] == pytest.approx(sum(gaps) / len(rows), abs=1e-6)
    assert test["calibration"]["samples"] == [k.sum() for k in bins]

    numbers, classes, means, confused, *_ = tables(trained)
    assert numbers["accuracy"]["test"] == f"{(true == predicted).mean():.4f}"
    assert (numbers["samples"]["train"], numbers["samples"]["test"]) == ("1,257", "360")
    expected = precision_recall_fscore_support(true, predicted)
    for k, name in enumerate(names):
        shown = [float(classes[name][column]) for column in ("precision", "recall", "F1", "samples")]
        assert shown == pytest.approx([column[k] for column in expected], abs=1e-4)
    wrong = sorted((counts * (1 - np.eye(10, dtype=int))).flatten(), reverse=True)
    assert [int(row[2]) for row in Page((trained / "index.html").read_text()).tables[3][1:]] == wrong[:12]
    for kind in ("macro", "weighted"):
        values = precision_recall_fscore_support(true, predicted, average=kind, zero_division=0)
        for column, value in zip(("precision", "recall", "F1"), values, strict=False):
            shown, low, high = map(float, re.findall(r"[\d.]+", means[kind][column]))
            assert shown == pytest.approx(value, abs=1e-4)
            assert low < shown < high
    drawn = {file.stem.replace("_", " ") for file in (trained / "figures").glob("*.png")}
    assert {"train batch", "learning curves", "test confusion matrix", "test reliability"} <= drawn
    page = (trained / "index.html").read_text()
    assert set(re.findall('alt="(.*?)"', page)) == drawn
    assert not re.search(r'https?://|src="(?!data:)', page)
    links = [unquote(address) for address in re.findall('href="(.*?)"', page)]
    assert all(f'id="{one[1:]}"' in page if one[0] == "#" else (trained / one).exists() for one in links)
    files = {str(file.relative_to(trained)) for file in trained.rglob("[!.]*") if file.is_file()}
    assert files - set(links) == {"index.html", "predictions/test.csv"}  # written after the page
    options = tables(trained)[-2]
    assert options["trainer.max_epochs"]["value"] == "3"
    assert not {"trainer.accelerator", "model.optimizer.eps", "data.val_size"} & {*options}  # the defaults
    assert re.search(r"; \S+ s per epoch on cpu; peak memory [\d.]+ GB; finished", page)
    # The page only needs the directory, wherever it is.
    shutil.copytree(trained, "elsewhere/copy")
    shutil.rmtree("elsewhere/copy/checkpoints")
    assert tables(Path("elsewhere/copy"))[:4] == [numbers, classes, means, confused]


def test_what_differs_from_the_first_config_is_named(lit):
    options = "-c configs/overlays/ema.yaml --trainer.max_epochs=1 --test_after_fit=false"
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --run_name=a {options}")
    changed = json.loads((result.run / "provenance.json").read_text())[0]["changed"]
    assert changed["trainer.max_epochs"] == [15, 1]
    assert changed["trainer.callbacks.EMA"] == [None, "lit_engine.EMA"]
    assert changed["model.net"] == ["lit_project.CNN", "lit_project.MLP"]
    assert {key.split(".")[0] for key in changed} == {"model", "data", "trainer", "test_after_fit"}
    assert tables(result.run)[-3]["trainer.max_epochs"]["in the config"] == "15"
    smoothed = lit(f"fit -c configs/quickstart.yaml --trainer.limit_train_batches=1 {options} --run_name=c")
    note = "train: the last epoch, with dropout, label smoothing 0.1 and augmentation, so not comparable with val"
    assert note in (smoothed.run / "index.html").read_text()
    again = lit(f"fit -c {result.run}/config.yaml --run_name=b")
    assert json.loads((again.run / "provenance.json").read_text())[0]["changed"] == {}
    assert "differs" not in (again.run / "index.html").read_text()


def test_a_page_leaves_out_what_is_missing_and_tells_what_it_does_not_know(make_run):
    """Includes runs of other tasks, of earlier versions, and killed runs."""
    run = make_run("a", test={"test/iou/road": 0.5, "test/iou/car": 0.25, "bleu_by_length": {"1–5": 40.0}})
    whole = tables(run)
    assert whole[0] == {"loss": {"metric": "loss", "train": "0.1000", "val": "0.3000", "test": "0.7000"}}
    assert "comparable" not in render_page(Run.read(run))
    assert whole[1]["road"]["iou"] == "0.5000"
    assert whole[2]["1–5"]["bleu"] == "40.00"
    for name in ("config.yaml", "provenance.json", "metrics.csv", "metrics.json"):
        (run / name).unlink()
        assert "<h1>x/a</h1>" in render_page(Run.read(run))
        assert render_card(Run.read(run)).startswith("---\nlibrary_name: ")
    killed = make_run("<b>&", (0.5,), None)
    assert "killed" in render_page(Run.read(killed))
    assert "<b>" not in render_page(Run.read(killed))


def test_samples_are_shown_unchanged(make_run):
    run = make_run("a")
    (run / "predictions").mkdir()
    samples = {"Worst": [{"BLEU": 3.5, "source": "a | <unk> *b*", "references": "one & two"}]}
    (run / "predictions" / "test_samples.json").write_text(json.dumps(samples))
    page = Page(render_page(Run.read(run)))
    assert page.tables[1] == [["BLEU", "source", "references"], ["3.5", "a | <unk> *b*", "one & two"]]


def test_the_page_of_a_run_that_did_not_end_has_its_curves_and_the_command_that_continues(lit, monkeypatch):
    def step(task, *args):
        if task.current_epoch == 2:
            raise RuntimeError("a broken step")
        return training_step(task, *args)

    training_step = ImageClassifier.training_step
    monkeypatch.setattr(ImageClassifier, "training_step", step)
    with pytest.raises(RuntimeError, match="a broken step"):
        lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --run_name=a")
    page = Path("runs/quickstart/a/index.html").read_text()
    assert re.search(r"; 2 epochs; \d+ steps; .*failed\.", page)
    assert re.findall('alt="(.*?)"', page) == ["learning curves", "learning rate", "gradient norm", "train batch"]
    assert "fit --run runs/quickstart/a" in page


def test_what_cannot_be_written_costs_the_page_alone(make_run, capsys):
    run = make_run("a")
    (run / "index.html").mkdir()
    write(run)
    (run / "metrics.json").write_text("{")
    write(run)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:28] for line in err.splitlines()] == ["warning: no page was written"] * 2


def test_the_model_card_is_one_of_the_hub_with_results_and_counts(make_run):
    run = make_run("a", test={"test/accuracy": 0.75, "test/samples": 40, "task": "image-classification"})
    write(run)
    data = ModelCard.load(run / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("pytorch", "image-classification")
    results = {result.metric_name: result for result in data.eval_results}
    assert results["test accuracy"].metric_value == 0.75
    assert results["test accuracy"].dataset_args == {"samples": 40}
    assert (results["val loss"].dataset_split, results["val loss"].metric_value) == ("validation", 0.3)
    card = (run / "README.md").read_text()
    assert "val: the best epoch by val/loss; train: the last epoch" in card
    (run / "README.md").write_text(card.replace(MARK, "My words."))
    write(run)
    assert "My words." in (run / "README.md").read_text()
