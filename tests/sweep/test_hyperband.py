"""Hyperband by W&B's rule: brackets, thresholds, and what is judged."""

import pytest

from lit_project.errors import UserError
from lit_project.sweep.hyperband import Hyperband, hyperband_of


def section(**options):
    return {"type": "hyperband", **options}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"min_iter": 3}, (3, 9, 27)),  # eta is 3 unless given
        ({"min_iter": 2, "eta": 2}, (2, 4, 8)),
        ({"max_iter": 27, "s": 2}, (3, 9)),
        ({"max_iter": 5, "s": 2, "eta": 2}, (1, 2)),
        ({"max_iter": 5, "s": 9, "eta": 2}, (1, 2)),  # no bracket before the first iteration
    ],
)
def test_brackets(options, first):
    assert hyperband_of(section(**options)).brackets[: len(first)] == first


def test_only_the_best_part_goes_on():
    rule = Hyperband((2,), eta=2)
    histories = [[9, 1], [9, 2], [9, 3], [9, 4]]  # at iteration 2 the border of the best half is 3
    assert [rule.is_over(history, histories) for history in histories] == [False, False, False, True]


def test_nothing_ends_before_the_first_bracket():
    assert not Hyperband((3,)).is_over([5, 5], [[5, 5], [1, 1, 1]])


def test_the_first_trial_at_a_bracket_goes_on():
    assert not Hyperband((1,)).is_over([5], [[5]])


def test_a_trial_is_judged_by_its_best_or_strictly_by_its_last():
    histories = [[1, 9], [5, 2], [5, 3]]  # at iteration 2: 2, 3, 9; the border of the best third is 3
    assert not Hyperband((2,), eta=3).is_over([1, 9], histories)
    assert Hyperband((2,), eta=3, strict=True).is_over([1, 9], histories)


def test_the_last_bracket_that_was_reached_counts():
    rule = Hyperband((1, 3), eta=2)
    assert not rule.is_over([3, 3, 1], [[1, 1, 2], [3, 3, 1]])  # worse at the first, better at the second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs min_iter, or max_iter and s"),
        ({"min_iter": 1, "max_iter": 2}, "not both"),
        ({"max_iter": 9}, "max_iter needs s"),
        ({"min_iter": 0}, "min_iter must be a whole number of at least 1, got 0"),
        ({"min_iter": 1, "eta": 1}, "eta must be above 1"),
        ({"max_iter": 2, "s": 2, "eta": 3}, "no bracket is left"),
        ({"min_iter": 1, "maximum": 2}, "hyperband has no maximum"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        hyperband_of(section(**options))


def test_other_rules_are_refused():
    with pytest.raises(UserError, match="the type must be hyperband"):
        hyperband_of({"type": "envelope"})
