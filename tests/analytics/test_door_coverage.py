"""Coverage at the door: count, rows, sum and mean by the public calls, for every group.

1,000 intervals per statistic on skewed rows with gaps; misses reject at 1e-6 a check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import expost
from expost import SimulationRandomness

GROUPS, CALLS, MOST_ROWS, FALSE_ALARM = 250, 4, 8, 1e-6


def rows() -> tuple[pa.Table, dict[str, dict[str, float]]]:
    """People of one group each with 1 to 8 rows, and the truth per statistic and group."""
    generator = np.random.default_rng(9)
    sizes = np.maximum(20, generator.pareto(1.2, GROUPS) * 40).astype(int).clip(max=4000)
    group = np.repeat(np.arange(GROUPS), sizes)
    numbers = np.minimum(generator.geometric(0.5, len(group)), MOST_ROWS)
    users, groups = np.repeat(np.arange(len(group)), numbers), np.repeat(group, numbers)
    values = np.minimum(np.floor(generator.exponential(9, len(users))), 40)
    known = generator.random(len(users)) > 0.1
    truth = {
        "count": np.bincount(group, minlength=GROUPS),
        "rows": np.bincount(groups, minlength=GROUPS),
        "sum": np.bincount(groups[known], values[known], GROUPS),
    }
    truth["mean"] = truth["sum"] / np.bincount(groups[known], minlength=GROUPS)
    table = pa.table({"u": users, "g": groups, "v": pa.array(values, mask=~known)})
    return table, {kind: dict(enumerate(numbers)) for kind, numbers in truth.items()}


TABLE, TRUTH = rows()


@pytest.mark.parametrize("kind", ["count", "rows", "sum", "mean"])
def test_misses_are_within_the_stated_rate(kind):
    """Catches a rank without the person, intervals of a single sum, and a bias that is hidden."""
    missed = looked = 0
    for seed in range(CALLS):
        options: dict[str, Any] = {
            "by": "g",
            "user": "u",
            "keys": range(GROUPS),
            "epsilon": 2.0,
            "max_groups_per_user": 1,
            "randomness": SimulationRandomness(seed),
            "simulation": True,
        }
        if kind != "count":
            options["max_rows_per_user"] = MOST_ROWS
        if kind in ("count", "rows"):
            found = expost.count(TABLE, count_rows=kind == "rows", **options)
        else:
            found = getattr(expost, kind)(TABLE, "v", bounds=(0, 40), **options)
        for answer in (*found.answers, *found.unanswered):
            truth = TRUTH[kind][int(answer.group)]
            looked += 1
            missed += not answer.low - 1e-6 <= truth <= answer.high + 1e-6
    assert looked == GROUPS * CALLS
    assert missed <= stats.binom.isf(FALSE_ALARM, looked, 0.1)
    assert missed >= stats.binom.isf(1 - FALSE_ALARM, looked, 0.05)
