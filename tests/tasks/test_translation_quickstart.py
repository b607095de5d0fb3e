"""Tests that the translation quickstart reaches a high BLEU score with its original settings."""

import json

import pytest


@pytest.mark.slow
def test_quickstart_reaches_a_test_bleu_of_95(lit, workspace):
    result = lit("fit -c configs/translation_quickstart.yaml --run_name=quality")
    assert result.status == 0, result.err
    assert json.loads((result.run / "metrics.json").read_text())["test"]["test/bleu"] >= 95
