"""Tests the output of `compare` and `runs`: differences, means, standard deviations, table, CSV and page."""

import csv
import math
import re
from html import unescape
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from html_pages import Page
from lit_engine.errors import UserError
from lit_engine.tools.pages.chart import COLOURS, GREY, HEIGHT, Axis, Series, chart, positions
from lit_engine.tools.runs.columns import (
    Column,
    as_csv,
    columns_of,
    duration,
    in_terminal,
    number,
    short_names,
    table_of,
)
from lit_engine.tools.runs.differences import Comparison, find_differing_options
from lit_engine.tools.runs.reading import Run, read_runs
from lit_engine.tools.runs.report import changes, curves, page_of, scatter


def compared(*over, chosen=()):
    return Comparison(read_runs(["runs"]), over, chosen)


def test_only_differing_options_become_columns(make_run):
    make_run("a"), make_run("b", (0.4, 0.2), lr=0.1), make_run("c", lr=0.1)
    found = compared()
    assert (found.keys, found.facts) == (["model.optimizer.lr"], [])
    assert [row.runs[0].path.name for row in found.rows] == ["b", "a", "c"]  # best first
    assert [column.short or column.name for column in columns_of(found, found.rows, found.keys)] == [
        "run", "state", "lr", "val/loss", "test/loss", "time"
    ]  # fmt: skip


def test_over_accepts_shortened_option_names(make_run):
    make_run("a"), make_run("b")
    assert compared("lr").over == ["model.optimizer.lr"]  # equal in all runs
    make_run("c", lr=0.1)
    assert compared("lr").over == compared("optimizer.lr").over == ["model.optimizer.lr"]
    with pytest.raises(UserError, match="no run has the option r"):
        compared("r")


def test_csv_contains_options_at_full_precision(make_run, say, monkeypatch, tmp_path):
    make_run("a", lr=0.00123456789), make_run("b", (0.6,))
    monkeypatch.setenv("HOME", str(tmp_path))  # a shell does not expand ~ after =
    assert say("compare runs --csv=~/t.csv --html=~/page.html")[1].endswith(f"page: {tmp_path}/page.html\n")
    lines = csv.DictReader(Path("t.csv").read_text().splitlines())
    assert [line["model.optimizer.lr"] for line in lines] == ["0.00123456789", "0.01"]


def test_options_in_only_some_runs_are_ignored_except_callbacks():
    cnn, mlp = {"net": "p.CNN", "net.layers": [4], "seed": 1}, {"net": "p.MLP", "net.hidden": 9, "seed": 1.0, "new": 3}
    assert find_differing_options([cnn, mlp]) == ["net"]
    assert find_differing_options([cnn, {**cnn, "callbacks.Stop": "p.Stop", "callbacks.Stop.patience": 3}]) == [
        "callbacks.Stop"
    ]
    assert find_differing_options([{"x": None}, {"x": {1: 2}}]) == ["x"]
    assert short_names(["model.lr", "data.seed", "seed", "other.lr"]) == ["model.lr", "data.seed", "seed", "other.lr"]


def test_differing_commits_and_versions_are_shown(make_run):
    make_run("a"), make_run("b", git={"commit": "fedcba9876543210", "dirty": True}, versions={"torch": "2.16.0"})
    found = compared()
    assert found.facts == ["commit", "torch"]
    lines = in_terminal(columns_of(found, found.rows, []))
    assert "012345678" in lines[1]
    assert "fedcba987 dirty" in lines[2]
    assert "runs in one group differ in: commit, torch" in compared("seed_everything").notes()


def test_runs_with_initial_weights_form_a_separate_group(make_run):
    make_run("a", seed=1), make_run("b", seed=2), make_run("c", seed=3, init_from="runs/x/a")
    assert [row.runs[0].options["init_from"] for row in compared("seed_everything").rows] == [None, "runs/x/a"]
    assert compared().keys == ["seed_everything", "init_from"]


def test_options_changed_between_training_and_test_are_shown(make_run):
    make_run("a"), make_run("b", test={"changed": ["beam_size was 3 in training and is 1"]})
    found = compared()
    assert found.facts == ["tested"]
    assert [row.facts("tested") for row in found.rows] == [["as trained"], ["beam_size was 3 in training and is 1"]]


def test_compare_shows_if_a_different_checkpoint_was_tested(make_run):
    make_run("a"), make_run("b", test={"checkpoint": "runs/x/b/checkpoints/last.ckpt"})
    assert [row.facts("tested") for row in compared().rows] == [["as trained"], ["checkpoint last.ckpt"]]


def test_over_computes_mean_and_standard_deviation_of_finished_runs(make_run):
    losses = [0.31, 0.34, 0.45]
    for seed, loss in enumerate(losses):
        make_run(f"a{seed}", (0.5, loss), seed=seed)
    make_run("b", (0.5, 0.2), seed=7, lr=0.1)
    for number_of, status in enumerate((None, 1, 143)):  # better, but not included in the mean
        make_run(f"bad{number_of}", (0.1, 0.01), status, seed=10 + number_of)
    found = compared("seed_everything")
    assert found.keys == ["model.optimizer.lr"]
    one, three = found.rows
    assert three.metric("val/loss") == (pytest.approx(np.mean(losses)), pytest.approx(np.std(losses, ddof=1)), 3)
    assert one.metric("val/loss")[::2] == (0.2, 1)
    lines = "\n".join(in_terminal(columns_of(found, found.rows, found.keys)))
    assert f"{np.mean(losses):.4f} ± {np.std(losses, ddof=1):.4f}" in lines
    assert "3 finished, 1 killed, 1 failed, 1 stopped" in lines
    (note,) = [note for note in found.notes() if note.startswith("left out of the mean: ")]
    assert all(f"runs/x/bad{n} ({state})" in note for n, state in enumerate(("killed", "failed", "stopped")))


def test_a_single_group_has_one_row_per_metric_and_pools_its_folds(make_run):
    """Metrics that are equal in all runs are included, but counts are not.

    Half of the pixels are correct in one fold, and all of them in the other.
    """
    config = {**make_run.config, "data": {"class_path": "p.Data", "init_args": {"folds": 2}}}
    for fold, (right, pixels) in enumerate(((0.5, 30), (1.0, 10))):
        config["data"]["init_args"]["fold"] = fold
        counts = {"test/pixels": pixels, "test/samples": 2}  # number of images
        make_run(f"f{fold}", config=config, test={"test/accuracy": right, "test/f1": 0.9, "test/mae": 0.2, **counts})
    found = compared("data.fold")
    assert [re.split("  +", line) for line in in_terminal(table_of(found))][3:] == [
        ["test/accuracy", "0.7500 ± 0.3536", "0.6250"], ["test/f1", "0.9000 ± 0.0000"],
        ["test/mae", "0.2000 ± 0.0000", "0.2000"],
    ]  # fmt: skip
    assert Comparison(found.runs, chosen=["accuracy"]).metrics == ["test/accuracy"]
    make_run("again", config=config)
    assert "2 runs in one group have the same {'data.fold': 1}" in compared("data.fold").notes()
    config["data"]["init_args"] = {"folds": None, "fold": 0}
    assert "data.fold" not in Run.read(make_run("whole", config=config)).options


def test_metrics_in_some_runs_are_shown_and_calibration_is_not_listed_per_class(make_run):
    calibration = {"calibration": {"ece": 0.1, "samples": [1, 2]}}
    make_run("a", test=calibration | {"test/f1": 0.5, "test/samples": 53.0}), make_run("b", test=calibration)
    found = compared()
    assert found.metrics == ["val/loss", "test/loss", "test/f1"]  # missing counts are not differences
    assert changes(found) == {}
    make_run("c", test={"test/samples": 50.0})
    found = compared()
    assert found.metrics == ["val/loss", "test/loss", "test/f1", "test/samples"]
    assert [line.split()[-4:-2] for line in in_terminal(table_of(found))][1] == ["0.5000", "53"]


# Simulations of colour blindness in linear RGB, from Machado, Oliveira & Fernandes (2009), severity 1.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def linear(colour):
    """Convert a colour to linear RGB."""
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Convert linear RGB to CIELAB (D65)."""
    x, y, z = (
        math.cbrt(v) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116
        for v in XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_lines_have_similar_colours(sight):
    seen = [lab(SIGHT[sight] @ linear(colour)) for colour in COLOURS]
    assert min(math.dist(a, b) for a, b in combinations(seen, 2)) > 15
    assert all(math.hypot(*lab(linear(colour))[1:]) > 30 for colour in COLOURS)  # grey is reserved for additional lines


@pytest.mark.parametrize("ground", ["#ffffff", "#15181c"])
def test_lines_stand_out_on_light_and_dark_pages(ground):
    for colour in COLOURS:
        low, high = sorted(XYZ[1] @ linear(one) + 0.05 for one in (colour, ground))
        assert high / low >= 3  # WCAG 2.2, 1.4.11


def panel(found, metric="metric-0 x-0"):
    """Return a `(class, [(x, y), …])` pair for each band and line in a panel, and the SVG code of the panel."""
    (text,) = re.findall(rf'<div class="{metric}">(.*?)</div>', "".join(curves(found)))
    paths = re.findall(r'class="(band|line)"[^>]* d="M([^"Z]*)', text)
    return [(kind, [tuple(map(float, at.split())) for at in path.split("L")]) for kind, path in paths], text


def heights(text):
    """Return a function that maps a vertical position to a value of a logarithmic axis, based on its ticks."""
    ticks = re.findall(r'y="([\d.]+)" dy="4" text-anchor="end">([^<]*)<', text)[:2]
    (y1, v1), (y2, v2) = ((float(y), math.log10(float(v))) for y, v in ticks)
    return lambda y: 10 ** (v1 + (y - y1) * (v2 - v1) / (y2 - y1))


def test_curves_are_drawn_by_epoch_step_and_time_with_excess_lines_in_grey(make_run):
    for seed in range(10):
        make_run(f"{seed}", seed=seed)
    for by, name in enumerate(("epoch", "step", "minutes")):
        found, text = panel(compared(), f"metric-0 x-{by}")
        assert [len(points) for _, points in found] == [3] * 10
        assert f"val/loss by {name}" in text
        assert text.count(GREY) == 2
    right = [float(x) for x, _ in re.findall(rf'<text x="([\d.]+)" y="{HEIGHT - 24}"[^>]*>([\d.]+)<', text)]
    assert right == sorted(right)
    assert re.findall(rf'y="{HEIGHT - 24}"[^>]*>([\d.]+)<', text)[-1] == "1.5"  # 90 seconds


def test_metrics_are_plotted_against_a_differing_option(make_run):
    make_run("a", lr=0.1), make_run("b", (0.4, 0.2)), make_run("c", lr=0.001)
    text = "".join(scatter(compared()))
    assert text.count("<svg") == 2  # validation and test loss
    (places,) = {tuple(sorted(float(x) for x in set(re.findall(r'cx="([\d.]+)"', text))))}
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)  # logarithmic
    assert positions([None, "x", None]) == ([0, 1, 0], False, ["None", "x"])
    assert positions([0.5, math.inf, 10]) == ([0, 1, 2], False, ["0.5", "inf", "10"])


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [((0, 14), False, [0, 5, 10]), ((0, 1), False, [0, 1]), ((0.001, 0.1), True, [0.001, 0.003, 0.01, 0.03, 0.1]),
     ((0.31, 0.34), False, [0.31, 0.32, 0.33, 0.34]), ((5, 5), False, [5]), ((1e-9, 1.0), True, None)],
)  # fmt: skip
def test_an_axis_has_a_few_round_ticks(values, log, expected):
    axis = Axis(values, 0, 100, log)
    ticks = axis.ticks(5)
    assert 1 <= len(ticks) <= 6
    assert expected is None or ticks == pytest.approx(expected)
    assert all(0 <= axis(tick) <= 100 for tick in ticks)


@pytest.mark.parametrize("folds", [None, 2])
def test_different_data_are_reported_unless_they_are_folds(make_run, folds):
    for fold, name in enumerate("ab"):
        config = {**make_run.config, "data": {"class_path": "p.Data", "init_args": {"folds": folds, "fold": fold}}}
        make_run(name, config=config, data={"train": name, "val": "same"})
    assert ("the runs have different data: train" in compared().notes()) == (folds is None)


def test_losses_of_different_tasks_are_not_plotted_together(make_run):
    regressor = {**make_run.config, "model": {"class_path": "p.Regressor"}}
    make_run("a"), make_run("b", config=regressor)
    found = compared()
    assert "the losses of different tasks cannot be compared: Classifier, Regressor" in found.notes()
    assert curves(found) == []


def test_labels_of_long_categories_differ():
    categories = [f"{{'class_path': 'FFNN', 'init_args': {{'hidden_size': {size}}}}}" for size in (8, 16, 128)]
    plot = chart("val/loss", "net", [Series(0, "a", [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)])], categories=categories)
    labels = [text.replace("}", "") for text in re.findall(r">([^<]*size': \d+}*)<", unescape(plot))]
    assert [label.split()[-1] for label in labels] == ["8", "16", "128"]


def test_a_band_below_zero_is_clipped_on_a_logarithmic_axis(make_run):
    make_run("a", (0.9, 0.01), seed=1), make_run("b", (0.9, 2.0), seed=2)
    ((_, band), _), text = panel(compared("seed_everything"))
    assert heights(text)(max(y for _, y in band)) == pytest.approx(0.9 / 2, rel=0.01)


def test_runs_of_different_tasks_share_a_table_with_empty_cells(make_run, say):
    config = {
        "trainer": {"callbacks": [{"class_path": "p.Checkpoint", "init_args": {"monitor": "val/r2", "mode": "max"}}]}
    }
    make_run("a")
    other = make_run("b", config=config)
    (other / "metrics.csv").write_text("epoch,step,val/r2\n0,1,0.5\n1,2,0.9\n2,3,0.7\n")
    (other / "metrics.json").write_text('{"fit": {"best val/r2": 0.9}, "test": {"test/r2": 0.8}}')
    status, out, _ = say("compare runs --csv t.csv")
    assert status == 0
    assert out.endswith("table: t.csv\npage: runs/x/compare.html\n")
    first, second = csv.DictReader(Path("t.csv").read_text().splitlines())
    assert (first["val/loss"], first["val/r2"], first["test/r2"]) == ("0.3", "", "")
    assert (second["val/loss"], second["val/r2"], second["test/r2"]) == ("", "0.9", "0.8")
    assert len(panel(compared(), "metric-1 x-0")[0]) == 1


def test_lists_the_classes_and_lengths_that_gained_or_lost_most(make_run, say):
    lengths = {"1–5": 40.0, "6–10": 30.0, "11–15": 9.0}
    first = {f"test/class_accuracy/c{n}": 0.5 for n in range(20)} | {"bleu_by_length": lengths}
    second = first | {f"test/class_accuracy/c{n}": 0.5 + (n - 10) / 40 for n in range(20)}
    rounded = 9.0 - 1e-7  # counts as unchanged
    second |= {"bleu_by_length": {"1–5": 39.0, "6–10": 35.0, "11–15": rounded}, "signatures": {"bleu": "x"}}
    make_run("a", test=first), make_run("b", test=second)
    found = changes(compared())
    assert [name for name, *_ in found["class accuracy"]] == [f"c{n}" for n in [*range(19, 13, -1), *range(5, -1, -1)]]
    same = ("11–15", 9.0, rounded, rounded - 9.0)
    assert found["bleu by length"] == [("6–10", 30.0, 35.0, 5.0), same, ("1–5", 40.0, 39.0, -1.0)]
    out = say("compare runs")[1]
    assert "class accuracy from a to b: up: c19 +0.2250, c18 +0.2000, c17 +0.1750; down: c0 -0.2500," in out
    assert "bleu by length from a to b: up: 6–10 +5.0000; down: 1–5 -1.0000\n" in out


def test_group_curves_show_the_mean_where_all_runs_have_a_value(make_run):
    make_run("a", (0.5, 0.3, 0.2), seed=1), make_run("b", (0.7, 0.5), seed=2), make_run("c", (9, 9), 1, seed=3)
    ((_, band), (_, line)), text = panel(compared("seed_everything"))
    value = heights(text)
    assert [value(y) for _, y in line] == pytest.approx([0.6, 0.4], rel=0.01)
    sd = np.std([0.5, 0.7], ddof=1)
    low, high = (value(f(y for _, y in band)) for f in (max, min))
    assert (low, high) == (pytest.approx(0.4 - sd, rel=0.01), pytest.approx(0.6 + sd, rel=0.01))
    assert curves(Comparison(read_runs(["runs/x/c"]), ["seed_everything"])) == []
    assert [len(points) for _, points in panel(compared())[0]] == [2, 2, 3]  # the best run is drawn last, on top


def test_page_is_self_contained_and_escapes_text(make_run):
    make_run("<b>a&b</b>"), make_run("z", (0.4, 0.2), lr=0.1), make_run("killed", (0.6,), None)
    text = page_of(compared(), "<i>runs</i>", "made & done", Path("runs"))
    page = Page(text)
    assert page.tables[0] == [
        ["run", "state", "lr", "val/loss", "test/loss", "time"],
        ["z", "finished", "0.1", "0.2000", "0.8000", "2 min"],
        ["<b>a&b</b>", "finished", "0.01", "0.3000", "0.7000", "2 min"],
        ["killed", "killed", "0.01", "0.6000", "", ""],
    ]
    assert all(link.startswith("#") for link in page.links)  # anchors only, because no run has a page
    assert not re.search(r"https?://|<b>|<i>", text)
    assert 'data-key="0.2"' in text
    assert '<td class="number"></td>' in text  # sorted last


def test_the_table_fits_the_terminal(make_run, monkeypatch):
    make_run("a"), make_run("b", lr=0.1, seed=2)
    found = compared()
    columns = columns_of(found, found.rows, found.keys)
    whole = in_terminal(columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for width in (40, 60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = in_terminal(columns)
        assert max(map(len, lines)) <= width
        shown = lines[0].split()
        hidden = [name for name in whole[0].split() if name not in shown]
        note = f"columns that do not fit ({len(hidden)}, see the page or --json): {', '.join(hidden)}"
        assert "".join(lines[3:]).removesuffix(" …") in (note if hidden else "")
        assert shown[:2] == ["run", "state"]
    assert lines == whole


def test_numbers_and_durations_are_formatted_compactly():
    assert [number(v) for v in (0.98765, 31.614, 12345.6, 2e-5, 0.0)] == [
        "0.9877",
        "31.61",
        "12346",
        "2e-05",
        "0.0000",
    ]
    assert [number(12345.6, 12.3), number(3923.4, 731.2)] == ["12346 ± 12", "3923 ± 731"]
    assert [number(31.6, 0.53), number(float("nan")), number(4), number(180.0)] == ["31.60 ± 0.53", "nan", "4", "180"]
    assert [duration(s)[0] for s in (4.2, 59.4, 59.7, 90, 3599, 6600)] == [
        "4 s", "59 s", "1 min", "2 min", "1 h 00 min", "1 h 50 min",
    ]  # fmt: skip


def test_runs_are_listed_most_recent_first(make_run, say):
    make_run("a"), make_run("b", (0.6,), None, time="2026-11-23T01:00:00+00:00")
    status, out, err = say("runs")
    assert (status, err) == (0, "")
    head, newest, oldest = out.splitlines()
    assert head.split() == ["run", "state", "started", "time", "best", "test"]
    assert newest.split()[:2] == ["runs/x/b", "killed"]
    assert re.fullmatch(r"runs/x/a +finished +2026-11-2\d \d\d:\d\d +2 min +val/loss 0.3000 +test/loss 0.7000", oldest)


def test_bad_input_causes_a_one_line_error(make_run, say):
    run = make_run("a")
    (run / "file").touch()
    for command, words in (
        ("compare", "needs RUN"),
        ("export", "toy export needs RUN; see toy export --help"),
        ("compare runs/y", "no such run or folder: runs/y"),
        ("compare runs/x/aa", "no such run or folder: runs/x/aa; did you mean a?"),
        ("runs nothing", "no such run or folder: nothing"),
        ("compare runs --over seed_everythin", "no run has the option seed_everythin; did you mean seed_everything?"),
        ("compare runs --metric val/los", "no run has the metric val/los; did you mean val/loss?"),
        ("compare runs --metric bleu", "available: val/loss, test/loss, "),
        (f"compare runs --html {run}/file/page.html", "cannot write the page runs/x/a/file/page.html: "),
        (f"compare runs --csv {run}", "cannot write the table runs/x/a: "),
    ):
        status, _, err = say(command)
        assert (status, err.count("\n")) == (2, 1), err
        assert words in err


def test_missing_values_are_empty_cells_in_the_csv_file():
    columns = [Column("run", ["a", "b"]), Column("loss", [("0.5", 0.5), ("", float("nan"))], sds=[0.1, float("nan")])]
    assert as_csv(columns) == "run,loss,loss sd\na,0.5,0.1\nb,,\n"


@pytest.mark.parametrize("folds", [None, 2])
def test_a_single_fold_has_no_pooled_mean(make_run, folds):
    data = {"class_path": "p.Data", "init_args": {"folds": folds, "fold": 0}}
    for seed in (1, 2):
        config = {**make_run.config, "seed_everything": seed, "data": data}
        make_run(f"{seed}", config=config, test={"test/accuracy": seed / 4, "test/samples": 10.0 * seed})
    assert [column.name for column in table_of(compared("seed_everything"))] == ["metric", "mean ± sd"]


def test_columns_that_fit_the_terminal_exactly_are_shown(monkeypatch):
    columns = [Column("run", ["one"]), Column("loss", ["0.1234"], 1), Column("time", ["12 s"], 2)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for width, note in ((17, []), (16, ["columns that …"])):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = in_terminal(columns)
        assert max(map(len, lines)) <= width
        assert lines[2:] == note


@pytest.mark.parametrize(("mode", "order"), [("min", ["low", "high", "none"]), ("max", ["high", "low", "none"])])
def test_the_best_run_comes_first_and_runs_without_a_value_come_last(make_run, mode, order):
    (callback,) = make_run.config["trainer"]["callbacks"]
    checkpoint = {**callback, "init_args": {"monitor": "val/loss", "mode": mode}}
    config = {**make_run.config, "trainer": {"callbacks": [checkpoint]}}
    for name, losses in (("none", []), ("high", [0.9]), ("low", [0.1])):
        make_run(name, losses, status=0 if losses else None, config=config)
    assert [row.runs[0].path.name for row in compared().rows] == order
