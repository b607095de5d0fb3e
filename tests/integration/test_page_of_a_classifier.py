"""Tests the page of a classifier's run."""

import csv
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from html_pages import Page, tables


def test_metrics_on_the_page_match_scikit_learn(lit, trained):
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
    assert not {"trainer.accelerator", "model.optimizer.eps", "data.val_size"} & {*options}  # defaults are not listed
    assert re.search(r"; \S+ s per epoch on cpu; peak memory [\d.]+ GB; finished", page)
    # The page can be rendered from the run directory alone, wherever it is.
    shutil.copytree(trained, "elsewhere/copy")
    shutil.rmtree("elsewhere/copy/checkpoints")
    assert tables(Path("elsewhere/copy"))[:4] == [numbers, classes, means, confused]
