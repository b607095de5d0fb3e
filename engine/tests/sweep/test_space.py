"""Sweep parameters are drawn from distributions as defined by W&B, and errors name the parameter."""

import datetime
import math

import optuna
import pytest
from scipy import stats

from lit_engine.errors import UserError
from lit_engine.tools.sweep.space import DISTRIBUTIONS, parse_parameters

COUNT = 800
# Options and cumulative distribution function of each distribution.
CONTINUOUS = {
    "uniform": ({"min": 1.0, "max": 3.0}, stats.uniform(1, 2).cdf),
    "log_uniform": ({"min": -3, "max": 2}, lambda x: (math.log(x) + 3) / 5),  # exponents of e
    "log_uniform_values": ({"min": 0.001, "max": 10.0}, lambda x: math.log(x / 0.001) / math.log(1e4)),
}


def draws(content, count=COUNT):
    """Return values of one parameter in a random search."""
    (parameter,) = parse_parameters({"x": content})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [parameter.suggest(study.ask()) for _ in range(count)]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_follow_the_distribution(name):
    options, cdf = CONTINUOUS[name]
    found = draws({"distribution": name, **options})
    assert stats.kstest([cdf(value) for value in found], "uniform").pvalue > 0.001


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name.startswith("q_")])
def test_quantised_draws_are_multiples_of_q_within_the_limits(name):
    options, _ = CONTINUOUS[name.removeprefix("q_")]
    found = draws({"distribution": name, **options, "q": 0.1}, 200)
    assert all(math.isclose(value * 10, round(value * 10), abs_tol=1e-9) for value in found)
    assert len(set(found)) > 3
    assert all(len(repr(value)) < 12 for value in found)  # no 0.30000000000000004
    if name == "q_log_uniform_values":
        assert min(found) >= 0.1
        assert max(found) <= 10


def test_quantised_limits_need_not_be_multiples_of_q():
    assert set(draws({"distribution": "q_uniform", "min": 0.05, "max": 0.35, "q": 0.1}, 100)) == {0.1, 0.2, 0.3}


@pytest.mark.parametrize(("low", "high", "q", "values"), [
    (-1, 1, 0.5, [-1, -0.5, 0, 0.5, 1]), (-10, 5, 5, [-10, -5, 0, 5]), (-0.3, -0.1, 0.1, [-0.3, -0.2, -0.1]),
])  # fmt: skip
def test_multiples_of_q_may_be_negative(low, high, q, values):
    (parameter,) = parse_parameters({"x": {"distribution": "q_uniform", "min": low, "max": high, "q": q}})
    assert parameter.values() == pytest.approx(values)


def test_values_in_a_list_keep_their_types():
    values = [None, True, 3, 0.5, "text", [128, 64], {"class_path": "X"}]
    found = draws({"values": values}, 200)
    assert {repr(value) for value in found} == {repr(value) for value in values}


def test_infers_the_distribution_defaults_q_to_1_and_parses_number_strings():
    assert set(draws({"min": 2, "max": 5})) == {2, 3, 4, 5}
    assert draws({"value": [1, None]}, 3) == [[1, None]] * 3
    assert set(draws({"distribution": "q_uniform", "min": 0, "max": 1}, 50)) == {0, 1}
    assert max(draws({"min": "1e-4", "max": 1.0e-3})) <= 1e-3  # YAML reads 1e-4 as a string


def test_parameters_in_groups_have_dotted_names():
    section = {
        "model": {"parameters": {"optimizer": {"parameters": {"lr": {"values": [1, 2]}}}, "net": {"value": "x"}}}
    }
    found = parse_parameters({**section, "seed": {"value": 3}})
    assert [(p.name, p.values()) for p in found] == [
        ("model.optimizer.lr", [1, 2]),
        ("model.net", ["x"]),
        ("seed", [3]),
    ]
    with pytest.raises(UserError, match=r"parameter model\.net is given twice"):
        parse_parameters({**section, "model.net": {"value": 1}})
    with pytest.raises(UserError, match=r"model\.parameters must be a mapping"):
        parse_parameters({"model": {"parameters": {}}})


def test_parameter_values_contains_every_grid_value():
    q_uniform = {"distribution": "q_uniform", "min": 0.0, "max": 0.3, "q": 0.1}
    contents = {"a": {"values": [1, None]}, "b": {"value": 7}, "c": {"min": 1, "max": 3}, "d": q_uniform}
    grids = [parameter.values() for parameter in parse_parameters(contents)]
    assert grids == [[1, None], [7], [1, 2, 3], [0.0, 0.1, 0.2, 0.3]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (0.1, "needs value, values, both min and max, or a distribution (constant, categorical, int_uniform"),
        ({"distribution": "log_unifrom_values", "min": 1, "max": 2}, "log_uniform_values, q_log_uniform_values); got"),
        ({"distribution": "uniform", "min": 1.0}, "missing a required argument: 'max'"),
        ({"min": 1.0, "max": 2.0, "step": 0.1}, "got an unexpected keyword argument 'step'"),
        ({"min": 2.0, "max": 1.0}, "`low <= high` must hold"),
        ({"min": "a", "max": 1.0}, "could not convert string to float: 'a'"),
        ({"values": []}, "`choices` must contain one or more elements"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "`low > 0` must hold"),
        ({"distribution": "int_uniform", "min": 0.5, "max": 1}, "int_uniform needs integers"),
        ({"distribution": "log_uniform", "min": 32, "max": 1024}, "math range error"),
        ({"values": [datetime.date(2024, 1, 1)]}, "type date is not JSON serializable"),
    ],
)
def test_errors_contain_the_name_of_the_parameter(content, message):
    with pytest.raises(UserError) as error:
        parse_parameters({"x": content})
    assert "parameter x: " in str(error.value)
    assert message in str(error.value)
