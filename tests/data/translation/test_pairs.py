"""Tests that parallel text is read in every format, and that errors name the file and line."""

import gzip
import zipfile

import pytest

from lit_engine.errors import DataError
from lit_project.data.parallel_text.corpora import read_aligned, read_tsv
from lit_project.text.files import read_lines

TEXT = "Hi.\tSalut !\nIt's 5.\tC'est 5.\n"
PAIRS = [("Hi.", "Salut !"), ("It's 5.", "C'est 5.")]


@pytest.fixture
def write(tmp_path):
    def write(name, data):
        path = tmp_path / name
        data = data.encode() if isinstance(data, str) else data
        if name.endswith(".gz"):
            data = gzip.compress(data)
        if name.endswith(".zip"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("_about.txt", "not\nthis")
                archive.writestr("fra.txt", data)
        else:
            path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zip"])
def test_reads_tab_separated_files(write, name):
    assert read_tsv(write(name, TEXT)) == PAIRS


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_aligned_files(write, suffix):
    source, target = write(f"a.en{suffix}", "Hi.\nIt's 5.\n"), write(f"a.fr{suffix}", "Salut !\nC'est 5.")
    assert read_aligned(source, target) == PAIRS


def test_only_line_feeds_end_a_line(write):
    assert read_lines(write("a.en", "a\u2028b\x0cc\nd\n")) == ["a\u2028b\x0cc", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nno tab here\n", r"a\.txt, line 2: no tab.*no tab here"),
        ("a\tb\nc\tb\na\t\n", r"a\.txt, line 3: the right side is empty"),
        ("", r"a\.txt is empty"),
        (b"a\tb\nc\t\xe9t\xe9\n", r"a\.txt, line 2: not valid UTF-8.*byte 3"),
    ],
)
def test_bad_lines_in_tab_separated_files_are_reported(write, text, message):
    with pytest.raises(DataError, match=message):
        read_tsv(write("a.txt", text))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\n", "a\n\u00a0\n", r"a\.fr, line 2: empty"),
        ("", "", r"a\.en is empty"),
        ("1\n2\n3\n", "1\n2\n", r"a\.en has 3 lines, but .*a\.fr has 2"),
    ],
)
def test_bad_lines_in_aligned_files_are_reported(write, source, target, message):
    with pytest.raises(DataError, match=message):
        read_aligned(write("a.en", source), write("a.fr", target))


def test_missing_and_damaged_files_are_reported(tmp_path, write):
    with pytest.raises(DataError, match=r"b\.txt does not exist"):
        read_tsv(tmp_path / "b.txt")
    for name in ("a.txt.gz", "a.zip"):
        whole = write(name, TEXT * 99).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            read_tsv(tmp_path / name)
