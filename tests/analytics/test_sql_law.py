"""The joint law of two aggregates, by enumeration: the sum of their charges bounds every loss.

Two parts with two levels each on one group; the second has what the first left. Every transcript
that noise from a window can lead to is made by the code itself, and its chance under a table and
under its neighbour is computed from the laws of the noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from expost.analytics import pricing
from expost.analytics.contribution import GroupValues
from expost.analytics.refinement import RACE, Job
from expost.analytics.refinement_noise import LaplaceLevels, StoppingRule
from expost.analytics.sql_request import CheckedQuery, check_query
from expost.analytics.sql_run import _Run
from tests.analytics import laws
from tests.analytics.test_refinement_law import Unread, Watched

COSTS = (0.25, 0.5)
WINDOW = range(-3, 5)
TOTAL = 0.8


class Levels(LaplaceLevels):
    """Levels whose estimates are set from outside, and are read only when they are paid for."""

    def estimates(self, counts: Any, randomness: Any) -> Any:
        return Watched({})


class TwoLevels(_Run):
    """A run whose parts see the values of one branch of the enumeration."""

    values: dict[tuple[int, int], int]

    def _values(self, requests: Any) -> list[GroupValues]:
        self.groups = ["all"]
        zero = np.zeros(1, dtype=np.int64)
        return [GroupValues(("all",), zero) for _ in requests]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> CheckedQuery:
    """Two counts of one group at levels of 0.25 and 0.5, with a total of 0.8."""
    options = {"source": pa.table({"u": ["a"]}), "user": "u", "epsilon": TOTAL, "within": 0.5}
    sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT u) AS people FROM t"
    question = check_query(sql, {**options, "one_row_per_user": True})

    def job(self: Any, groups: int, most: Any, **_: Any) -> Job:
        costs = tuple(cost for cost in COSTS if Fraction(cost) <= self.total)
        least = np.array([4.0, 2.0][: len(costs)])
        wide = np.ones(len(costs))
        rule = StoppingRule(0.5, 0.9, "paper", 1.0, least, wide, wide * 9)
        return Job(Levels(costs, 1), rule, self.total, RACE, 1, len(costs) - 1)

    monkeypatch.setattr(pricing.CheckedCount, "job", job)
    return question


Leaf = tuple[Any, dict[tuple[int, int], int]]


def transcripts(checked: CheckedQuery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaf]:
    """Every transcript, with the values that were looked at: (part, level) → value."""
    from expost.analytics import query

    make = query.refinement_of
    values: dict[tuple[int, int], int] = {}
    parts: list[int] = []

    def watched(request: Any, progress: Any, groups: Any, seen: Any, randomness: Any) -> Any:
        refinement = make(request, progress, groups, seen, randomness)
        part = len(parts)
        parts.append(part)
        own = {(level, 0): value for (p, level), value in values.items() if p == part}
        refinement._estimates.values, refinement._estimates.counting = own, refinement
        return refinement

    monkeypatch.setattr(query, "refinement_of", watched)
    pending: list[dict[tuple[int, int], int]] = [{}]
    while pending:
        values = pending.pop()
        parts.clear()
        run = TwoLevels(checked, _Plain())
        try:
            run.measure()
        except Unread as unread:
            place = (parts[-1], unread.args[0])
            pending.extend({**values, place: value} for value in WINDOW)
            continue
        released = tuple((result.answers, result.unanswered) for _, _, result in run.parts.values())
        yield (str(released), run.spent), values


class _Plain:
    """Randomness that is not asked."""

    simulated = True


def law(
    leaves: list[Leaf], checked: CheckedQuery, counts: tuple[int, int]
) -> dict[tuple[str, Fraction], float]:
    """The chance of every transcript if these are the true values of the two parts."""
    chances: dict[tuple[str, Fraction], float] = defaultdict(float)
    for transcript, values in leaves:
        product = 1.0
        for part, count in enumerate(counts):
            looks = [values[part, n] - count for n in range(len(COSTS)) if (part, n) in values]
            product *= laws.path(COSTS, looks) if looks else 1.0
        chances[transcript] += product
    return chances


def excess(one: Any, other: Any, charge: Callable[[Any], float]) -> float:
    """By how much the worst transcript exceeds its charge, in one direction."""
    return max(math.log(one[key] / other[key]) - charge(key) for key in one)


def test_the_sum_of_the_charges_bounds_every_loss(checked, monkeypatch):
    """A person is in both aggregates; both directions; some transcript is near equality."""
    leaves = list(transcripts(checked, monkeypatch))
    spent = {transcript[1] for transcript, _ in leaves}
    assert len(leaves) > 400
    assert min(spent) == Fraction(1, 2)
    assert max(spent) <= Fraction(TOTAL)
    assert Fraction(3, 4) in spent  # the second part had what the first left
    one, other = law(leaves, checked, (0, 0)), law(leaves, checked, (1, 1))
    for a, b in ((one, other), (other, one)):
        worst = excess(a, b, lambda key: float(key[1]))
        assert worst <= 1e-9
        assert worst >= -1e-9
        assert excess(a, b, lambda key: float(key[1]) - 0.25) > 0.2  # a mutant: one part is free
