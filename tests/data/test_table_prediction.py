"""Tests that `predict --table FILE` works for new rows, even if the training table is gone."""

import csv

import pytest
import torch

FIT = (
    "fit -c configs/regression_quickstart.yaml -c configs/overlays/debug.yaml --run_name=tiny --test_after_fit=false "
    "--data=CSV --data.file=train.csv --data.target_names=y"
)
NEW = [[0.5, -1.0], [2.0, 3.5], [-0.25, 0.0]]


@pytest.fixture
def run(lit, workspace):
    """Train a run to predict `y` from `a` and `b`. new.csv contains `NEW` with more columns in a different order."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 2, generator=generator).tolist()
    write(workspace / "train.csv", [[a, b, a - 2 * b] for a, b in rows], "a,b,y")
    write(workspace / "new.csv", [[n, b, "text", a] for n, (a, b) in enumerate(NEW)], "prediction,b,note,a")
    result = lit(FIT)
    assert result.status == 0, result.err
    return result.run


def write(file, rows, header):
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


def predicted(run, name="table_new"):
    return list(csv.DictReader((run / "predictions" / f"{name}.csv").open()))


def test_prediction_for_new_rows_selects_columns_by_name(lit, run, workspace):
    from lit_project.tasks.regression import Regressor

    assert lit(f"predict --run {run} --table new.csv").status == 0
    rows = predicted(run)
    task = Regressor.load_from_checkpoint(next((run / "checkpoints").glob("best*.ckpt")), weights_only=True).eval()
    with torch.no_grad():
        expected = task(torch.tensor(NEW))[:, 0].tolist()
    # The file's columns come between the line number and the prediction.
    columns = ["index", "line", "input/prediction", "b", "note", "a", "prediction"]
    assert [list(row) for row in rows] == [columns] * 3
    assert [(row["index"], row["input/prediction"], row["note"]) for row in rows] == [
        (str(n), str(n), "text") for n in range(3)
    ]
    assert [float(row["prediction"]) for row in rows] == pytest.approx(expected, rel=1e-5)

    for last, target in (("7", ["target"]), ("", [])):  # targets are shown only if all rows have them
        write(workspace / "known.csv", [[1, 2, 5], [3, 4, last]], "a,b,y")
        assert lit(f"predict --run {run} --table known.csv --data.eval_batch_size=1").status == 0
        rows = predicted(run, "table_known")
        assert [list(row) for row in rows] == [["index", "line", *"aby", "prediction", *target]] * 2
        assert [float(row["target"]) for row in rows if target] == [5, 7][: 2 * len(target)]

    (workspace / "other.csv").write_text("b;line;a\n-1.0;first;0.5\n3.5;;2.0\n0;;-0.25\n")  # a different delimiter
    assert lit(f"predict --run {run} --table other.csv").status == 0
    rows = predicted(run, "table_other")
    assert [(row["line"], row["input/line"]) for row in rows] == [("2", "first"), ("3", ""), ("4", "")]
    assert [float(row["prediction"]) for row in rows] == pytest.approx(expected, rel=1e-5)

    # Blank lines are skipped.
    (workspace / "gaps.csv").write_text('\na,b,note\n1,2,"two\nlines"\n\n3,4,\n\n\n5,6,\n\n')
    assert lit(f"predict --run {run} --table gaps.csv").status == 0
    found = [(row["index"], row["line"], row["a"]) for row in predicted(run, "table_gaps")]
    assert found == [("0", "3", "1"), ("1", "6", "3"), ("2", "9", "5")]  # the first row spans two lines


def test_predictions_of_the_test_split_include_their_line_numbers(lit, run):
    assert lit(f"predict --run {run}").status == 0
    lines = (run.parents[2] / "train.csv").read_text().splitlines()
    rows = predicted(run, "test")
    assert len(rows) == 12
    for row in rows:
        assert f"{row['a']},{row['b']},{row['y']}" == lines[int(row["line"]) - 1]
        assert int(row["index"]) == int(row["line"]) - 2
        assert float(row["target"]) == float(row["y"])


BAD = {
    "absent.csv": (None, ["no such file: absent.csv"]),
    "column.csv": ("A,b\n1,2\n", ["no column 'a'", "did you mean A?"]),
    "hole.csv": ("a,b\n1,2\n3,\n", ["hole.csv, line 3, column 'b': the cell is empty"]),
}


def test_predict_works_without_the_training_table_and_errors_take_one_line(lit, run, workspace):
    for name, (text, words) in BAD.items():
        if text is not None:
            (workspace / name).write_text(text)
        result = lit(f"predict --run {run} --table {name}")
        assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
        assert [word for word in words if word not in result.err] == []
    assert "CSV cannot predict on a folder of images" in lit(f"predict --run {run} --images .").err
    assert "table is not an option of test" in lit(f"test --run {run} --table new.csv").err
    assert not (run / "predictions").exists()

    assert lit(f"predict --run {run} --table new.csv").status == 0
    before = predicted(run)
    (workspace / "train.csv").unlink()
    assert lit(f"predict --run {run} --table new.csv").status == 0
    assert predicted(run) == before
    for command in ("test", "fit"):
        result = lit(f"{command} --run {run}", "--trainer.max_epochs=9" if command == "fit" else "")
        assert (result.status, len(result.err.splitlines())) == (2, 1)
        assert "no such file: train.csv" in result.err
