"""The joint law of two aggregates, by enumeration: the sum of their charges bounds every loss.

Two parts with two levels each on one group; the second has what the first left. Every transcript
that noise from a window can lead to is made by the code itself, and its chance under a table and
under its neighbour is computed from the laws of the noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from expost.analytics import pricing, sql_run
from expost.analytics.contribution import GroupValues
from expost.analytics.quantile_run import Known, QuantileRun
from expost.analytics.quantile_search import Source, search
from expost.analytics.refinement import Job
from expost.analytics.refinement_goals import RACE
from expost.analytics.refinement_noise import LaplaceLevels, StoppingRule
from expost.analytics.sql_request import CheckedQuery, check_query
from expost.analytics.sql_run import QueryRun
from tests.analytics import laws
from tests.analytics.test_refinement_law import Unread, Watched

COSTS = (0.25, 0.5)
WINDOW = range(-3, 5)
TOTAL = 0.8


class Levels(LaplaceLevels):
    """Levels whose estimates are set from outside, and are read only when they are paid for."""

    def estimates(self, counts: Any, randomness: Any) -> Any:
        return Watched({})


class TwoLevels(QueryRun):
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

    def watched(
        request: Any, progress: Any, groups: Any, seen: Any, randomness: Any, **_: Any
    ) -> Any:
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


class OneDraw(QuantileRun):
    """A run of quantiles that is one draw from four cells, at a rate of at most a half."""

    def run(self) -> None:
        rate = min(self.job.total, Fraction(1, 2))
        self._pay(0, rate)
        (cell,) = search(self._rows[0], self.job.ranks, rate, 1, self._source)
        self._groups[0].cells[0] = Known((cell, 0, 3), 0.0, 1.0)


class Decided:
    """Estimates that a script decides on, each by its law given those before."""

    def __init__(self, script: Any, count: int) -> None:
        self._script, self._count = script, count
        self._seen: list[int] = []

    def __getitem__(self, place: Any) -> Any:
        level, groups = int(place[0]), place[1]
        if isinstance(groups, np.ndarray):
            return np.array([self[level, group] for group in groups], dtype=float)
        while level >= len(self._seen):
            before = [value - self._count for value in self._seen]
            known = laws.path(COSTS, before) if before else 1.0
            chances = [laws.path(COSTS, [*before, value - self._count]) for value in WINDOW]
            self._seen.append(WINDOW[self._script.decide([p / known for p in chances])])
        return self._seen[level]


def joint_law(
    checked: CheckedQuery, monkeypatch: pytest.MonkeyPatch, count: int, cells: tuple[int, ...]
) -> dict[Any, float]:
    """The law of a count and a median in one run, where these are the true count and cells."""
    from expost.analytics import query
    from tests.analytics import test_quantile_search as trees

    make = query.refinement_of

    def run(script: Any) -> Any:
        script.simulated = True

        def refinement(
            request: Any, progress: Any, groups: Any, seen: Any, _: Any, **__: Any
        ) -> Any:
            made = make(request, progress, groups, seen, None)
            made._estimates = Decided(script, count)
            return made

        def draws(job: Any, request: Any, groups: Any, cells: Any, _: Any) -> Any:
            return OneDraw(job, groups, [cells["all"]], Source(0, trees.LAST, script))

        monkeypatch.setattr(query, "refinement_of", refinement)
        monkeypatch.setattr(sql_run, "quantile_run_of", draws)
        job = CountAndMedian(checked, script)
        job.cells = trees.rows_of(*cells)
        job.measure()
        released = [(part.answers, part.unanswered) for _, _, part in job.parts.values()]
        return str(released), job.spent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees.quantile_search, "weighted_choice", trees.choose)
        patch.setattr(trees.quantile_search, "base_measure", lambda a, b: np.arange(b - a + 2))
        law = trees.law(run)
    monkeypatch.setattr(query, "refinement_of", make)
    return law


class CountAndMedian(QueryRun):
    """A run of a count and a median whose private values are set."""

    cells: Any

    def _values(self, requests: Any) -> list[Any]:
        self.groups = ["all"]
        return [GroupValues(("all",), np.zeros(1, dtype=np.int64)), {"all": self.cells}]


def test_a_count_and_a_median_cost_their_sum(checked, monkeypatch):
    """All looks of the count and all cells, both directions; the count has what is left."""
    options = {"source": pa.table({"u": ["a"], "x": [1]}), "user": "u", "epsilon": TOTAL}
    options |= {"bounds": {"x": (0, 3)}, "one_row_per_user": True, "within": 0.5}
    question = check_query("SELECT COUNT(*) AS n, MEDIAN(x) AS m FROM t", options)
    question = replace(question, weights=(Fraction(2), Fraction(1)))
    drawn = TOTAL / 3
    for table, person in (((1, 2), 0), ((0, 3, 3), 3), ((), 1)):
        one = joint_law(question, monkeypatch, 0, table)
        other = joint_law(question, monkeypatch, 1, (*table, person))
        assert set(one) == set(other)
        charges = {key[1] for key in one}
        assert len(charges) > 1
        assert max(charges) <= Fraction(TOTAL)
        for a, b in ((one, other), (other, one)):
            assert excess(a, b, lambda key: float(key[1])) <= 1e-9
            assert excess(a, b, lambda key: float(key[1]) - drawn) > 0.01  # a mutant: a free draw
