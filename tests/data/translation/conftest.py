"""Fixture for small corpora."""

import pytest

from lit_project.data.parallel_text.corpora import ParallelText


@pytest.fixture
def corpus(tmp_path):
    """Return a function that creates a corpus from the given pairs and 40 filler pairs for the held-out splits."""

    def corpus(pairs, **options):
        lines = [f"{s}\t{t}" for s, t in [*pairs, *((f"filler {i}", f"bourre {i}") for i in range(40))]]
        (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
        sizes = {"val_size": 5, "test_size": 5, "seed": 1}
        if options.pop("held_out", False):  # all `pairs` stay in train
            (tmp_path / "other.tsv").write_text("filler\tbourre\n")
            options["val"] = options["test"] = str(tmp_path / "other.tsv")
        return ParallelText(str(tmp_path / "train.tsv"), root=tmp_path, **{**sizes, **options})

    return corpus
