"""`doubts` finds wrong labels and near-duplicates, and `data.corrections` corrects training labels."""

import csv
import hashlib
import json

import numpy as np
import pytest
import torch

from helpers import TINY
from lit_engine.data.corrections import sample_ids
from lit_engine.errors import DataError
from lit_engine.tools.doubts.statistics import NEAR, find_label_errors, find_near_duplicates
from lit_engine.tools.runs.columns import cell_of
from toy.data import Digits

FIT = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=12 --trainer.callbacks=[]"
DOUBTS = "repeats/mine/doubts.csv"
# cleanlab 2.9.0 for `noisy()`: find_label_issues(labels, p, filter_by="low_self_confidence",
#                                                 return_indices_ranked_by="self_confidence")
CLEANLAB = [
    283, 95, 65, 206, 5, 31, 237, 180, 147, 38, 299, 148, 213, 212, 76, 244, 214, 123, 297, 4, 225, 183, 257, 287, 136,
    126, 17, 174, 23, 269, 274, 57,
]  # fmt: skip


def noisy():
    """Return labels `(300,)` and probabilities `(300, 4)` that contradict some of them."""
    draw = np.random.RandomState(0)
    labels = draw.randint(0, 4, 300)
    p = draw.dirichlet(np.ones(4), 300)
    p += 2 * np.eye(4)[np.where(draw.rand(300) < 0.12, draw.randint(0, 4, 300), labels)] * draw.rand(300, 1)
    return labels, p / p.sum(axis=1, keepdims=True)


def test_label_errors_agree_with_cleanlab():
    labels, p = noisy()
    order, count = find_label_errors(p, labels)
    assert order[:count].tolist() == CLEANLAB
    assert sorted(order) == list(range(300))


def test_number_of_label_errors_matches_the_definition_with_an_empty_class():
    labels, p = noisy()
    labels[labels == 2] = 3
    thresholds = {k: np.mean([row[k] for row, label in zip(p, labels, strict=True) if label == k]) for k in (0, 1, 3)}
    expected = 0
    for row, label in zip(p, labels, strict=True):
        confident = {k: row[k] for k in thresholds if row[k] >= thresholds[k]}
        expected += bool(confident) and max(confident, key=confident.get) != label and np.argmax(row) != label
    assert 0 < expected == find_label_errors(p, labels)[1]


def test_near_duplicates_match_a_brute_force_search(monkeypatch):
    monkeypatch.setattr("lit_engine.tools.doubts.statistics.BLOCK", 7)
    draw = np.random.RandomState(1)
    features, labels, folds = draw.randn(40, 8), draw.randint(0, 2, 40), draw.randint(0, 3, 40)
    for copy, original, label, fold in ((1, 0, 0, 1), (3, 2, 1, 0), (5, 4, 0, 0)):
        features[copy] = 3 * features[original] + 1e-3
        labels[[copy, original]], folds[[copy, original]] = (label, 0), (fold, 0)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    distance = 1 - unit @ unit.T + np.diag(np.full(40, np.inf))
    found = find_near_duplicates(features, labels, folds)
    assert [pair[:2] for pair in found] == sorted(((0, 1), (2, 3)), key=lambda pair: distance[pair])  # not 4 and 5
    assert [d for _, _, d in found] == pytest.approx([distance[i, j] for i, j, _ in found], abs=1e-6)
    assert distance[0, 1] < NEAR * np.median(distance.min(axis=1))


@pytest.fixture
def repeated(lit, workspace, monkeypatch):
    """A `repeat` over two folds of data with 19 wrong labels. Both runs are trained in this process."""
    hold_out, runs = Digits.hold_out, {}

    def with_errors(self, size, test_size, labels):
        labels[::97] = (labels[::97] + 1) % 10
        return hold_out(self, size, test_size, labels)

    def inputs(self, split):
        images = enumerate(self.splits[split][0].numpy())
        return {i: {"id": hashlib.sha1(image.tobytes()).hexdigest(), "line": "7"} for i, image in images}

    monkeypatch.setattr(Digits, "hold_out", with_errors)
    monkeypatch.setattr(Digits, "inputs", inputs, raising=False)  # these columns also occur in the table
    for fold in range(2):
        run = lit(f"{FIT} --data.folds=2 --data.fold={fold} --runs_dir=repeats/mine --run_name=fold-{fold}").run
        runs[run.name] = {"data.folds": 2, "data.fold": fold, "path": f"quickstart/{run.name}", "state": "finished"}
    folder = workspace / "repeats/mine"
    (folder / "summary.json").write_text(json.dumps({"runs": runs}))
    return folder


def rows_of(file):
    with open(file, newline="") as handle:
        return list(csv.DictReader(handle))


def write(rows, file="corrections.csv", delimiter=","):
    with open(file, "w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def is_right(row):
    return row["suggestion"] != "" and (int(row["suggestion"]) + 1) % 10 == int(row["label"])


def test_wrong_labels_are_listed_and_corrected(lit, repeated, monkeypatch):
    told = lit("doubts repeats/mine --first 25 --json")
    assert told.status == 0, told.err
    document = json.loads(told.out)
    assert (document["samples"], document["table"], document["page"]) == (1797, DOUBTS, "repeats/mine/doubts.html")
    rows = rows_of(DOUBTS)
    assert [row["id"] for row in rows] == [row["id"] for row in document["doubts"]]
    assert [row["reason"] for row in rows[:26]].count("label") == 25
    assert {len(row["id"]) for row in rows} == {13}
    assert {len(row["input/id"]) for row in rows} == {40}
    assert sum(map(is_right, rows[:19])) >= 15
    assert (repeated / "doubts.html").read_text().count("data:image/png") >= 25

    for row in rows[:25]:
        row["correction"] = row["suggestion"] if is_right(row) else ""
    write(rows, DOUBTS, delimiter=";")  # as some spreadsheets do
    result = lit(f"{FIT} --data.corrections={DOUBTS} --test_after_fit=false")
    assert result.status == 0, result.err
    plain, corrected = Digits(), Digits(corrections=DOUBTS)
    for data in (plain, corrected):
        data.setup("fit")
    before, after = (data.splits["train"][1] for data in (plain, corrected))
    changed = before != after
    assert torch.equal(after[changed], (before[changed] - 1) % 10)
    left = sum(row["correction"] != "" for row in rows) - int(changed.sum())
    assert 0 < left < changed.sum()
    assert (
        f"corrections: {changed.sum()} of 1,257 training labels changed; {left} corrections are for validation or test "
        "samples, which keep their labels\n"
    ) in result.out
    assert torch.equal(plain.splits["val"][1], corrected.splits["val"][1])
    monkeypatch.setenv("HOME", "/proc/x")  # a shell does not expand ~ after =
    assert lit("doubts repeats/mine --csv=~/y.csv").err.startswith("error: cannot write the table /proc/x/y.csv: ")
    again = lit("doubts repeats/mine")
    assert (again.status, again.err) == (
        2, f"error: {DOUBTS} contains corrections or other data: rename it, or choose another --csv FILE\n"
    )  # fmt: skip


def test_integers_are_shown_with_all_digits():
    assert cell_of(123456) == ("123456", 123456)
    assert cell_of(0.123456) == ("0.1235", 0.123456)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("s00", "1"), ("ID", "1")], "c.csv does not match the data: 1 of its 2 corrections are for unknown "
         "samples (line 2)"),
        ([("ID", "11")], "c.csv, line 2: there is no class '11'; did you mean 1?"),
        ([("ID", "1"), ("ID", "2")], "c.csv, line 3: ID is '2', but '1' on line 2"),
        (None, "c.csv has no column 'id', 'correction'; available: label"),
    ],
)  # fmt: skip
def test_invalid_corrections_are_rejected(lit, workspace, rows, message):
    data = Digits()
    data.setup("fit")
    own = sample_ids(data, "train")[0]
    table = [{"id": sample.replace("ID", own), "correction": label} for sample, label in rows or ()]
    write(table or [{"label": "1"}], "c.csv")
    result = lit(f"{FIT} --data.corrections=c.csv")
    assert (result.status, result.err) == (2, f"error: {message.replace('ID', own)}\n")
    assert not list(workspace.glob("runs/*/*"))


def test_ids_do_not_depend_on_the_location_of_the_data():
    class Files(Digits):
        def inputs(self, split):
            return {number: {"file": str(self.root / f"{number}.png")} for number in range(self.size_of(split))}

    found = []
    for root in ("data", "/elsewhere/data"):
        data = Files(root=root)
        data.setup("test")
        found.append(sample_ids(data, "test"))
    assert found[0] == found[1]
    assert len({*found[0]}) == len(found[0]) == data.size_of("test")


def test_line_numbers_in_correction_errors_count_blank_lines(lit, workspace):
    (workspace / "c.csv").write_text("id,correction\n\ns00,11\n")
    assert "c.csv, line 3: there is no class '11'" in lit(f"{FIT} --data.corrections=c.csv").err


def test_unknown_samples_are_reported_for_data_without_a_test_split(tmp_path):
    class NoTest(Digits):
        def load(self, split):
            if split == "test":
                raise DataError("there is no test split")
            return super().load(split)

    (tmp_path / "c.csv").write_text("id,correction\ns00,1\n")
    with pytest.raises(DataError, match=r"1 of its 1 corrections are for unknown samples \(line 2\)"):
        NoTest(corrections=str(tmp_path / "c.csv")).setup("fit")


def test_only_a_complete_repeat_over_folds_is_accepted(lit, workspace):
    told = lit("doubts repeats/mine")
    assert (told.status, told.err) == (
        2, "error: repeats/mine contains no cross-validation: run `toy repeat CONFIG --folds 5` first\n"
    )  # fmt: skip
    (workspace / "repeats/mine").mkdir(parents=True)
    runs = {"fold-0": {"data.folds": 2, "data.fold": 0, "path": "quickstart/fold-0", "state": "failed"}}
    (workspace / "repeats/mine/summary.json").write_text(json.dumps({"runs": runs}))
    told = lit("doubts repeats/mine")
    again = "did not finish: run the same `toy repeat` command again"
    assert (told.status, told.err) == (2, f"error: repeats/mine/quickstart/fold-0 {again}\n")
    assert "the file x.csv does not exist; `doubts` creates it" in lit(f"{FIT} --data.corrections=x.csv").err
