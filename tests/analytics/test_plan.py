"""Plans: what they say is what a request then costs, and no data are read."""

from __future__ import annotations

import math

import pytest

import expost
from expost import SimulationRandomness
from expost.analytics.count_plan import plan_count
from expost.errors import InvalidInput


@pytest.mark.parametrize("delta", [None, 1e-6])
@pytest.mark.parametrize("size", [1000, 10_000, 100_000])
def test_a_group_costs_about_what_was_planned(size, delta):
    """One group of the size, m = 1. The noise moves the stop by a level or two, ratio 1.2 to √2."""
    planned = plan_count(
        groups=1, sizes=(size,), epsilon=2, delta=delta, within=0.1, max_groups_per_user=1
    )
    (row,) = planned.sizes
    spent = sorted(
        expost.count(
            {"a": size},
            keys=["a"],
            epsilon=2,
            delta=delta,
            max_groups_per_user=1,
            randomness=SimulationRandomness(seed),
            simulation=True,
        ).spent
        for seed in range(9)
    )
    assert row.cost / 2 < spent[4] < row.cost * 2
    assert row.groups is None


def test_all_or_so_many():
    """What is affordable for everybody is answered for all; else the total is divided."""
    planned = plan_count(groups=1000, epsilon=1, within=0.1, max_groups_per_user=10)
    costs = {each.size: each for each in planned.sizes}
    assert costs[10**6].groups is None
    assert costs[100].groups is not None
    assert planned.max_groups_per_user == 10
    if costs[100].cost is not None:
        assert costs[100].groups == int(planned.for_values / costs[100].cost)


@pytest.mark.parametrize("cap", [None, 1, 3])
@pytest.mark.parametrize("kind", ["count", "sum", "mean"])
def test_the_smallest_size_is_that_from_which_all_are_answered(kind, cap):
    """Would catch the size of the level at which all groups are looked at, four times as large."""
    asked = {"groups": 5, "epsilon": 1, "within": 0.05, "max_groups_per_user": cap}
    if kind != "count":
        asked |= {"kind": kind, "column": "v", "bounds": (0, 100), "max_rows_per_user": 1}
    size = math.ceil(plan_count(**asked).smallest)
    below, here = plan_count(**asked, sizes=(size - 1, size)).sizes
    assert here.groups is None
    assert below.groups is not None


def test_larger_groups_are_cheaper():
    costs = [each.cost for each in plan_count(groups=50, epsilon=5, max_groups_per_user=5).sizes]
    known = [cost for cost in costs if cost is not None]
    assert known == sorted(known, reverse=True)


def test_auto_says_that_m_is_assumed():
    planned = plan_count(groups=100, epsilon=1, max_groups_per_user="auto")
    assert planned.assumed
    assert planned.for_values < planned.total
    assert planned.as_dict()["max_groups_per_user_assumed"] is True


def test_private_keys_have_a_threshold():
    planned = plan_count(epsilon=2, delta=1e-6, private_keys=True, max_groups_per_user=10)
    assert planned.threshold is not None
    assert 100 < planned.threshold < 200


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_sums_and_means(kind):
    asked = {"kind": kind, "column": "v", "bounds": (0, 100), "max_rows_per_user": 1}
    planned = plan_count(groups=10, epsilon=1, max_groups_per_user=2, **asked)
    assert planned.sizes[-1].cost is not None


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidInput, match="within"):
        plan_count(groups=10, epsilon=1, within=2)
