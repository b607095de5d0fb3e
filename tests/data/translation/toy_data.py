"""Helper for testing parallel corpora."""

from lit_project.data.parallel_text.toy_grammar import ToyGrammar


def toy(tmp_path, **options):
    return ToyGrammar(**{"root": tmp_path, "size": 900, "val_size": 60, "test_size": 60, "seed": 1, **options})
