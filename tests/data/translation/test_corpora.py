"""Tests that corpora read existing files, download missing ones, and split the pairs without leaks."""

import gzip
import io
import urllib.error
import zipfile

import pytest

from lit_engine.errors import DataError
from lit_project.data.parallel_text.corpora import Multi30k, ParallelText, Tatoeba

LINES = [f"sentence {i}\tphrase {i}\tattribution" for i in range(60)]


def archive():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("_about.txt", "about")
        file.writestr("fra.txt", "\n".join(LINES))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Replace the network with a fake one that serves only the addresses in `answers`."""
    answers = {}
    asked = []

    def urlopen(request, timeout):
        asked.append(request.full_url)
        if request.full_url not in answers:
            raise urllib.error.URLError("no route to host")
        return io.BytesIO(answers[request.full_url])

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return answers, asked


def tatoeba(root, **options):
    return Tatoeba(root=root, val_size=5, test_size=5, seed=1, **options)


def total(data):
    return sum(len(data.pairs(split)) for split in ("train", "val", "test"))


@pytest.mark.parametrize("name", ["fra-eng.zip", "fra.txt"])
def test_tatoeba_reads_existing_files_without_downloading(tmp_path, name, network):
    path = tmp_path / "tatoeba" / name
    path.parent.mkdir()
    path.write_bytes(archive() if name.endswith("zip") else "\n".join(LINES).encode())
    data = tatoeba(tmp_path)
    assert total(data) == 60
    assert all(s.startswith("sentence") and t.startswith("phrase") and "\t" not in t for s, t in data.pairs("train"))
    assert tatoeba(tmp_path, source="fr", target="en").pairs("val") == [(t, s) for s, t in data.pairs("val")]
    assert network[1] == []


def test_tatoeba_is_downloaded_once(tmp_path, network):
    answers, asked = network
    answers[Tatoeba.ADDRESS] = archive()
    assert total(tatoeba(tmp_path)) == total(tatoeba(tmp_path)) == 60
    assert asked == [Tatoeba.ADDRESS]
    assert [path.name for path in (tmp_path / "tatoeba").iterdir()] == ["fra-eng.zip"]


def test_rejects_a_download_that_is_not_an_archive(tmp_path, network):
    network[0][Tatoeba.ADDRESS] = b"<html>please log in</html>"
    with pytest.raises(DataError, match="could not be downloaded"):
        tatoeba(tmp_path).prepare_data()
    assert list((tmp_path / "tatoeba").iterdir()) == []


def test_multi30k_keeps_its_official_splits(tmp_path, network):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for number, name in enumerate(("train", "val", "test_2016_flickr")):
        for language in ("en", "fr"):
            text = "".join(f"{language} {number} {i}.\n" for i in range(12 - number)).encode()
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
    data = Multi30k(root=tmp_path, source="fr", target="en")
    assert [len(data.pairs(split)) for split in ("train", "val", "test")] == [12, 11, 10]
    assert data.pairs("test")[3] == ("fr 2 3.", "en 2 3.")
    assert network[1] == []


@pytest.mark.parametrize("given", [(), ("val",), ("val", "test")])
def test_parallel_text_takes_missing_splits_from_train(tmp_path, given):
    for name in ("train", "val", "test"):
        for language in ("en", "fr"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{name} {language} {i}\n" for i in range(50)))
    files = {name: [str(tmp_path / f"{name}.en"), str(tmp_path / f"{name}.fr")] for name in ("train", *given)}
    data = ParallelText(**files, root=tmp_path, val_size=7, test_size=9)
    sizes = {"val": 50 if "val" in given else 7, "test": 50 if "test" in given else 9}
    for name, size in sizes.items():
        assert len(data.pairs(name)) == size
        assert all(source.startswith(name if name in given else "train") for source, _ in data.pairs(name))
    left = 50 - sum(size for name, size in sizes.items() if name not in given)
    assert len(data.pairs("train")) == left


def test_pairs_that_share_a_sentence_with_a_given_split_are_dropped(tmp_path, capsys):
    """Of 60 pairs, 20 share a source and 10 share a target with the given file."""
    pairs = [(f"source {i}", f"target {i}") for i in range(60)]
    theirs = [(f"SOURCE {i}!", f"autre {i}") for i in range(20)]
    theirs += [(f"other {i}", f"target {i}") for i in range(20, 30)]
    for name, own in (("train", pairs), ("given", theirs)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in own))
    files = {"train": str(tmp_path / "train.tsv"), "val": str(tmp_path / "given.tsv")}
    data = ParallelText(**files, root=tmp_path, test_size=7, lowercase=True)
    data.setup("fit")
    assert len(data.pairs("val")) == 30
    assert sorted([*data.pairs("train"), *data.pairs("test")]) == sorted(pairs[30:])
    nothing = {"sources": 0, "targets": 0, "pairs": 0}
    assert data.report["overlap_of_val_and_test"] == nothing
    assert data.report["overlap_with_train"] == {"val": nothing, "test": nothing}
    assert "30 of 60 pairs share a sentence with the given evaluation pairs and were dropped" in capsys.readouterr().out
