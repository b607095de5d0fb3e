"""The translation quickstart reaches the result stated in its header with its original settings."""

import json

import pytest


@pytest.mark.slow
def test_the_quickstart_learns_its_grammar(lit, workspace):
    result = lit("fit -c configs/translation_quickstart.yaml --run_name=quality")
    assert result.status == 0, result.err
    assert json.loads((result.run / "metrics.json").read_text())["test"]["test/bleu"] >= 95
