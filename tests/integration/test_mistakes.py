"""Tests that mistakes in commands for the template's tasks and networks cause a one-line error with a hint."""

import pytest

CASES = {
    "fit quickstart --model.net=TimmNet --model.net.model_name=resnet10": "similar: resnet10t, ",
    "fit quickstart -c regression_quickstart": "regression_quickstart.yaml is a complete config",
    "fit translation_two_optimizers --lr 0.25": "has several optimizers",
    "predict -c regression_quickstart --allow_untrained=true --probabilities": "Regressor does not support",
    "repeat fashion_mnist_mlp --folds 2": "FashionMNIST has its own test split, so folds are not supported",
}


@pytest.mark.parametrize("command", CASES)
def test_mistakes_cause_a_one_line_error(lit, command):
    result = lit(command)
    assert (result.status, result.err.count("\n")) == (2, 1), result.err
    assert CASES[command] in result.err
