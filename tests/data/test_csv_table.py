"""Tests that users' CSV files are read correctly, and that error messages contain the line and column."""

import random

import pytest
import torch

from lit_engine.data.tables import CSVFile
from lit_engine.errors import DataError
from lit_project.data.tables import CSV

ROWS = [(f"{n}.5", f"{-n}", f"{n * n}") for n in range(20)]


def write(folder, text, encoding="utf-8"):
    file = folder / "table.csv"
    file.write_bytes(text.encode(encoding))
    return file


def lines(rows=ROWS, header="a,b,y", delimiter=","):
    return "\n".join([header, *(delimiter.join(row) for row in rows)]) + "\n"


def all_rows(data):
    parts = [torch.cat(split, dim=1) for split in data.splits.values()]
    return sorted(torch.cat(parts).tolist())


EXPECTED = sorted([float(a), float(b), float(y)] for a, b, y in ROWS)


@pytest.mark.parametrize(
    "text",
    [
        lines(),
        lines().replace("\n", "\r\n"),
        "\ufeff" + lines(),
        lines().replace("\n3.5", "\n\n3.5") + "\n\n",
        lines(header='"a","b","y"').replace("\n3.5", '\n"3.5"'),
        lines(header=" a ,b , y").replace(",", ", "),
    ],
    ids=["plain", "windows", "byte order mark", "blank lines", "quotes", "spaces"],
)
def test_all_rows_are_read(tmp_path, text):
    data = CSV(write(tmp_path, text), "y")
    assert (data.feature_names, data.target_names) == (["a", "b"], ["y"])
    assert all_rows(data) == EXPECTED


def test_columns_are_selected_by_name_and_unused_columns_may_contain_text(tmp_path):
    rows = [(a, "", y, "some text", b) for a, b, y in ROWS]
    file = write(tmp_path, lines(rows, "a,hole,y,note,b"))
    data = CSV(file, ["b", "y"], ["a"])
    assert (data.feature_names, data.target_names) == (["a"], ["b", "y"])
    assert (data.input_size, data.output_size) == (1, 2)
    assert all_rows(data) == EXPECTED
    swapped = CSV(file, "y", ["b", "a"])
    assert all_rows(swapped) == sorted([b, a, y] for a, b, y in EXPECTED)
    unnamed = [(str(n), *row) for n, row in enumerate(ROWS)]  # pandas also writes row numbers
    assert all_rows(CSV(write(tmp_path, lines(unnamed, ",a,b,y")), "y")) == EXPECTED


def test_numpy_reader_rounds_like_python_and_is_used_only_for_plain_numbers(tmp_path, monkeypatch):
    """The fast reader rounds like Python. It is not used if any cell is not a plain number."""
    draw = random.Random(0)
    rows = [[f"{draw.gauss(0, 1) * 10.0 ** draw.randint(-45, 37):.{draw.randint(1, 20)}g}" for _ in range(3)]
            for _ in range(1000)] + [["1e-320", "-0", "+.5"], ["3.402823e38", " 7 ", "1\u00a0"]]  # fmt: skip
    text = "\n".join(",".join(row) for row in [["a", "2", "y"], *rows])
    found = CSVFile(write(tmp_path, text)).read(["y", "a"])
    assert found.tolist() == [[float(row[2]), float(row[0])] for row in rows]
    assert CSVFile(write(tmp_path, text))._numbers is not None
    assert CSVFile(write(tmp_path, text + '\n"1",2,3'))._numbers is None
    assert CSVFile(write(tmp_path, text + "\n1,2,1e39"))._numbers is None
    for other in ("2", '"2"'):  # also if only the slow reader accepts one of the cells
        assert CSVFile(write(tmp_path, f"a,b\n1\x1c,{other}\n")).read(["a"]).tolist() == [[1]]


@pytest.mark.parametrize(("delimiter", "mark"), [(";", ";"), ("\t", "\t"), ("tab", "\t"), (r"\t", "\t")])
def test_columns_are_separated_by_the_given_delimiter(tmp_path, delimiter, mark):
    text = lines(delimiter=mark, header=mark.join("aby"))
    assert all_rows(CSV(write(tmp_path, text), "y", delimiter=delimiter)) == EXPECTED


def changed(line, column, text):
    """Return the table with one cell replaced. Lines are numbered as in an editor."""
    rows = [list(row) for row in ROWS]
    rows[line - 2][column] = text
    return lines(rows)


@pytest.mark.parametrize(
    ("text", "kwargs", "message"),
    [
        (
            changed(5, 1, ""),
            {},
            "line 5, column 'b': the cell is empty: fill it or delete the row; exclude the column with",
        ),
        (changed(5, 1, " NA "), {}, "line 5, column 'b': 'NA' is not a finite number; exclude the column with"),
        (changed(2, 2, "nan"), {}, "line 2, column 'y': 'nan' is not a finite number; targets must be numbers"),
        (changed(3, 0, "1_000"), {}, "line 3, column 'a': '1_000' is not"),
        (changed(3, 0, "inf"), {}, "line 3, column 'a': 'inf' is not"),
        (changed(21, 0, "1e39"), {}, "line 21, column 'a': '1e39' is not"),
        (changed(3, 0, "1,5"), {}, "line 3: 4 values for the 3 columns of line 1"),
        ("\n\n" + changed(3, 0, '"1\n2"'), {}, "line 5, column 'a': '1\\\\n2' is not"),
        (lines(header="age,b,y"), {"feature_names": ["agee"]}, "no column 'agee'; did you mean age?"),
        (lines(), {"target_names": "target"}, "no column 'target'; available: a, b, y"),
        (lines(header="a;b;y", delimiter=";"), {}, "no column 'y'; line 1 has no ',': is the delimiter ';'?"),
        (lines(header="a,y,y"), {}, "2 columns named 'y'"),
        (lines(header="a,a,y"), {}, "table.csv has 2 columns named 'a'"),
        (lines(), {"feature_names": ["a", "y"]}, "'y' is listed twice among features and targets"),
        (lines(), {"target_names": ["y", "y"]}, "'y' is listed twice"),
        (lines(), {"feature_names": []}, "has no feature column"),
        ("\n\n", {}, "is empty"),
        (lines([]), {}, "has a header but no rows"),
        (lines(ROWS[:3]), {}, "3 rows are too few"),
        (lines(), {"delimiter": ",,"}, "delimiter must be one character, got ',,'"),
    ],
)
def test_errors_report_the_location_of_invalid_input(tmp_path, text, kwargs, message):
    with pytest.raises(DataError, match=message):
        CSV(write(tmp_path, text), **{"target_names": "y", "feature_names": None, **kwargs})
