"""Tests `export` and `serve` for runs on tables."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession

from serving import opened, post, serving, shown, table_of

NAMES, NEW = ['a "big"', "b;c"], [0.25, -1500]


@pytest.fixture
def regression(lit, workspace):
    """Return a run on a table whose column names need quotes, and its prediction for the row NEW in new.csv."""
    rows = np.random.default_rng(0).normal(size=(40, 2)) * [1, 1000]
    for name, lines in {"train": [[*row, row[0] + row[1]] for row in rows], "new": [[*NEW, 0]]}.items():
        with (workspace / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows([[*NAMES, "y"], *lines])
    data = "--data=CSV --data.file=train.csv --data.target_names=y --data.delimiter=;"
    run = lit(f"fit -c configs/regression_quickstart.yaml -c configs/overlays/debug.yaml {data} --run_name=tiny").run
    assert lit(f"predict --run {run} --table new.csv").status == 0
    return run, pytest.approx(float(table_of(run, "table_new")[0]["prediction"]), rel=1e-5)


@pytest.fixture
def table(lit, workspace):
    """Return a run on `table.csv` with two targets in very different units."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(80, 2)) * [1, 1000]
    targets = np.stack([features @ [1, 0.001], 1e-3 * features[:, 0] + 5], axis=1)
    lines = [",".join(map(str, row)) for row in np.concatenate([features, targets], axis=1)]
    (workspace / "table.csv").write_text("\n".join(["a,b,u,v", *lines]))
    data = "--data=CSV --data.file=table.csv --data.target_names=[u,v] --data.batch_size=16"
    result = lit(f"fit -c configs/regression_quickstart.yaml {data} --trainer.max_epochs=2 --test_after_fit=false")
    assert result.status == 0, result.err
    return result.run


def predicted(lit, run):
    assert lit(f"predict --run {run}").status == 0
    return table_of(run, "test")


def test_exported_regressor_uses_the_units_of_the_table(lit, table):
    result = lit(f"export --run {table} --format pt2,onnx")
    assert result.status == 0, result.err
    expected = [[float(row["prediction/u"]), float(row["prediction/v"])] for row in predicted(lit, table)]
    about = json.loads((table / "export" / "model.json").read_text())
    assert (about["feature_names"], about["target_names"]) == (["a", "b"], ["u", "v"])
    data = np.loadtxt("table.csv", delimiter=",", skiprows=1)
    true = [[float(row["target/u"]), float(row["target/v"])] for row in predicted(lit, table)]
    places = [int(abs(data[:, 2:] - row).sum(axis=1).argmin()) for row in true]
    features = data[places, :2]
    net = InferenceSession(str(table / "export" / "model.onnx"))
    program = torch.export.load(table / "export" / "model.pt2").module()
    for size in (1, len(features)):
        found = net.run(["predictions"], {"features": features[:size]})[0]
        assert found == pytest.approx(np.array(expected[:size]), rel=1e-4)
        assert program(torch.from_numpy(features[:size]))[0].detach().numpy() == pytest.approx(found, rel=1e-5)


def test_export_reports_missing_data(lit, table, workspace):
    (workspace / "table.csv").unlink()
    result = lit(f"export --run {table}")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "table.csv" in result.err


def test_serve_matches_predict_for_a_row_and_reports_invalid_tables(lit, monkeypatch, regression):
    run, expected = regression
    table = Path("new.csv").read_bytes()

    def ask(address):
        status, (found,) = post(address, table)
        assert (status, found["prediction"]) == (200, expected)
        assert [row["b;c"] for row in post(address, table + b"1;2;3")[1]] == ["-1500", "2"]
        message = post(address, table.replace(b"-1500", b"many"))[1]
        assert message == "line 2, column 'b;c': 'many' is not a finite number"
        assert post(address, b"a;b\n1;2")[1] == "the table has no column 'a \"big\"', 'b;c'; available: a, b"

    serving(lit, monkeypatch)(ask, run)


@pytest.mark.slow
def test_browser_page_predicts_a_typed_row(lit, monkeypatch, regression, browser):
    run, expected = regression

    def ask(address):
        with opened(browser, address) as page:
            for name, value in zip(NAMES, NEW, strict=True):
                page.get_by_label(name).fill(str(value))
            page.keyboard.press("Enter")
            assert float(shown(page, "y")) == expected
            page.get_by_label(NAMES[1]).fill("")
            page.get_by_label(NAMES[1]).press_sequentially("many")
            assert page.locator("input:invalid").count() == 1  # the browser reports the error and sends no request

    serving(lit, monkeypatch)(ask, run)
