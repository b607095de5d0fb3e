"""What `--find` suggests."""

import math

import pytest

from lit_project.tuning import steepest
from tiny import TINY

RATES = [10 ** (-6 + 7 * i / 99) for i in range(100)]


def valley(rate):
    """Falls by a logistic curve around 1e-3, explodes beyond 1."""
    return 2.3 - 1.5 / (1 + math.exp(-4 * (math.log10(rate) + 3))) + max(rate - 1, 0) ** 2


def test_the_rate_where_the_loss_falls_fastest():
    assert steepest(RATES, [valley(rate) for rate in RATES]) == pytest.approx(1e-3, rel=0.3)


def test_a_running_mean_that_begins_too_low_changes_nothing():
    biased = [valley(rate) * (1 - 0.5 ** (i + 1)) for i, rate in enumerate(RATES)]
    assert steepest(RATES, biased) == pytest.approx(1e-3, rel=0.3)


def test_losses_that_are_not_finite_end_the_curve():
    losses = [valley(rate) for rate in RATES[:80]] + [float("nan")] * 20
    assert steepest(RATES, losses) == pytest.approx(1e-3, rel=0.3)


@pytest.mark.parametrize("losses", [[], [1.0], [1.0] * 100, RATES], ids=["none", "one", "flat", "rising"])
def test_no_descent_no_suggestion(losses):
    assert steepest(RATES, losses) is None


def test_find_lr_from_the_command_line_trains_nothing(lit):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --find lr")
    assert result.status == 0
    assert (result.run / "figures" / "lr_finder.png").stat().st_size > 5000
    assert not (result.run / "checkpoints").exists()
    suggestion = next(line for line in result.out.splitlines() if line.startswith("suggested: "))
    option = suggestion.split()[1]
    assert 1e-5 < float(option.partition("=")[2]) < 1
    assert lit(f"fit -c configs/quickstart.yaml {TINY} {option} --trainer.max_epochs=1").status == 0


def test_find_batch_size_from_the_command_line(lit):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --data.batch_size=1000 --find batch_size")
    assert result.status == 0
    assert "suggested: --data.batch_size=" in result.out


def test_there_is_nothing_else_to_find(lit):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --find luck")
    assert result.status == 2
    assert "find" in result.err
    assert lit(f"test -c configs/quickstart.yaml {TINY} --find lr").status == 2
