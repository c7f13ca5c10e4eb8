"""Two questions on one path of noise: all transcripts of both, in both directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

from expost.analytics.means import MeanRefinement, mean_rule
from expost.analytics.refinement import Job, Refinement
from expost.analytics.refinement_goals import GIVEN, RACE
from expost.analytics.refinement_noise import GroupPaths, LaplaceLevels, StoppingRule, half_width
from tests.analytics import laws

COSTS = (0.4, 0.8, 1.6)
WINDOW = range(-1, 5)
TABLE, NEIGHBOURS = (3, 2), ((2, 2), (3, 1), (2, 1))


def job(levels: int, least: float, order: str, most: int) -> Job:
    """A question: the first levels, the estimate that is good enough at the first of them."""
    noise = LaplaceLevels(COSTS[:levels])
    widths = half_width(noise, 0.5)
    enough = np.array([least, least / 2, least / 3])[:levels]
    rule = StoppingRule(0.5, 0.5, "test", 1.0, enough, widths, widths)
    return Job(noise, rule, Fraction(2 * COSTS[levels - 1]), order, most, 0)


class Unread(Exception):
    """A noisy value is looked at that has not been decided on yet."""


class Watched:
    """Stands in for the noisy values of a path: hands out those that were decided on."""

    def __init__(self, values: dict[tuple[int, int], int]) -> None:
        self.values = values

    def __getitem__(self, cell: Any) -> Any:
        if isinstance(cell, np.ndarray):  # the levels of a question
            return self
        level, groups = cell
        if isinstance(groups, np.ndarray):
            return np.array([self[level, group] for group in groups], dtype=float)
        if (int(level), int(groups)) not in self.values:
            raise Unread(int(level), int(groups))
        return float(self.values[int(level), int(groups)])


Looks = frozenset[tuple[int, int, int]]


def transcripts(order: str, most: int) -> Iterator[tuple[tuple[Any, ...], Fraction, Looks]]:
    """All that both questions release and charge, and the noisy values that they saw.

    The second question wants a smaller error, and is asked only if the first charge is small: who
    asks may decide by all that was released.
    """
    first, second = job(2, 4.0, order, most), job(3, 6.0, order, most)
    pending: list[dict[tuple[int, int], int]] = [{}]
    while pending:
        values = pending.pop()
        path: Any = GroupPaths(COSTS, Watched(values), np.full(2, -1))  # type: ignore[arg-type]
        released: list[Any] = []
        charge = Fraction(0)
        try:
            for question in (first, second):
                if question is second and charge > Fraction(most) * Fraction(COSTS[1]):
                    break
                run = Refinement(question, ["a", "b"], np.zeros(2, dtype=np.int64), None, path)  # type: ignore[arg-type]
                released += [tuple(run), tuple(run.unanswered), run.spent]
                charge += run.spent
                path = run.path
        except Unread as cell:
            pending.extend({**values, cell.args: value} for value in WINDOW)
            continue
        yield tuple(released), charge, frozenset((n, g, z) for (n, g), z in values.items())


def chance(looks: Looks, counts: tuple[int, int], *, fresh: bool = False) -> float:
    """The chance of these noisy values: looks at a group are a prefix of its path."""
    product = 1.0
    for group, count in enumerate(counts):
        noise = [value - count for _, g, value in sorted(looks) if g == group]
        if fresh:
            for cost, value in zip(COSTS, noise, strict=False):
                product *= float(laws.laplace(cost, value))
        elif noise:
            product *= laws.path(COSTS, noise)
    return product


@pytest.fixture(
    scope="module",
    params=[(RACE, 2), (GIVEN, 2), (RACE, 1)],
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def both(request: pytest.FixtureRequest) -> tuple[int, dict[Any, tuple[Fraction, set[Looks]]]]:
    order, most = request.param
    leaves: dict[Any, tuple[Fraction, set[Looks]]] = {}
    for released, charge, looks in transcripts(order, most):
        levels = [sorted(n for n, g, _ in looks if g == group) for group in (0, 1)]
        assert all(found == list(range(len(found))) for found in levels)
        leaves.setdefault(released, (charge, set()))[1].add(looks)
    return most, leaves


def worst(
    leaves: Any, other: tuple[int, int], charged: Any = None, *, fresh: bool = False
) -> float:
    """The largest loss beyond the charge, over all transcripts and both directions."""
    excess = -math.inf
    for released, (charge, seen) in leaves.items():
        here, there = (
            sum(chance(looks, counts, fresh=fresh) for looks in seen) for counts in (TABLE, other)
        )
        paid = float(charge if charged is None else charged(released))
        excess = max(excess, abs(math.log(here / there)) - paid)
    return excess


def test_both_questions_tell_what_both_cost(both):
    """A person in one group, or (m = 2) in both."""
    most, leaves = both
    assert any(len(released) == 6 and released[5] > 0 for released in leaves)
    assert any(len(released) == 6 and released[5] == 0 for released in leaves)
    excess = [worst(leaves, other) for other in NEIGHBOURS[: 2 if most == 1 else 3]]
    assert max(excess) <= 1e-9
    assert max(excess) >= -1e-9  # near equality: nothing is charged in vain


def test_mutants(both):
    """A second question that is free, or has fresh noise for the price of the difference."""
    most, leaves = both
    other = NEIGHBOURS[0 if most == 1 else 2]
    assert worst(leaves, other, lambda released: released[2]) > 0.1
    assert worst(leaves, other, fresh=True) > 0.1


class OneMean(MeanRefinement):
    """A mean that shows both of its noisy sums, and stops where they are large."""

    def __init__(self, asked: Job, path: GroupPaths) -> None:
        zero = np.zeros(1, dtype=np.int64)
        super().__init__(asked, ["a"], zero, zero, None, path, low=0, high=1)  # type: ignore[arg-type]

    def _size(self, level: int, group: Any) -> Any:
        return self._estimates[level, group] + self._second[level, group]

    def _answer(self, group: int) -> Any:
        level = int(self._charge.level[group])
        return level, self._estimates[level, group], self._second[level, group]


def mean_transcripts() -> Iterator[tuple[tuple[Any, ...], Fraction, dict[Any, int]]]:
    """All that two questions about one mean release and charge, and both noisy sums."""
    window = range(-1, 3)
    pending: list[dict[tuple[int, int, int], int]] = [{}]
    while pending:
        values = pending.pop()
        sums = [
            {(n, g): z for (which, n, g), z in values.items() if which == number}
            for number in (0, 1)
        ]
        first, second = (Watched(known) for known in sums)
        path: Any = GroupPaths(COSTS[:2], first, np.full(1, -1), second)  # type: ignore[arg-type]
        released: list[Any] = []
        charge = Fraction(0)
        try:
            for levels, within in ((1, 0.5), (2, 0.25)):
                noise = LaplaceLevels(COSTS[:levels])
                rule = mean_rule(
                    noise, confidence=0.5, low=0, high=1, within=within, plus_minus=None
                )
                rule = replace(rule, least=np.array([3.0, 2.0][:levels]))
                run = OneMean(Job(noise, rule, Fraction(1), RACE, 1, levels - 1), path)
                released += [tuple(run), tuple(run.unanswered), run.spent]
                charge += run.spent
                path = run.path
        except Unread as cell:
            number = next(n for n, known in enumerate(sums) if cell.args not in known)
            pending.extend({**values, (number, *cell.args): value} for value in window)
            continue
        yield tuple(map(str, released)), charge, values


def test_both_questions_about_a_mean_tell_what_both_cost():
    """A row of value 0 or 1 changes one of the two sums by 1; both are on one path."""
    leaves: dict[Any, tuple[Fraction, list[Any]]] = {}
    for released, charge, values in mean_transcripts():
        leaves.setdefault(released, (charge, []))[1].append(values)
    assert len({charge for charge, _ in leaves.values()}) > 1
    assert len(leaves) > 100

    def law(seen: list[Any], counts: tuple[int, int], fresh: bool) -> float:
        whole = 0.0
        for values in seen:
            product = 1.0
            for number, count in enumerate(counts):
                own = [values[number, n, 0] - count for n in range(2) if (number, n, 0) in values]
                if fresh:
                    for cost, noise in zip(COSTS, own, strict=False):
                        product *= float(laws.laplace(cost, noise))
                else:
                    product *= laws.path(COSTS[:2], own)
            whole += product
        return whole

    def excess(other: tuple[int, int], *, fresh: bool = False, free: bool = False) -> float:
        worst = -math.inf
        for released, (charge, seen) in leaves.items():
            ratio = law(seen, (1, 1), fresh) / law(seen, other, fresh)
            paid = float(Fraction(released[2]) if free else charge)
            worst = max(worst, abs(math.log(ratio)) - paid)
        return worst

    for other in ((0, 1), (1, 0), (2, 1)):
        assert -1e-9 <= excess(other) <= 1e-9
        assert excess(other, free=True) > 0.1
        assert excess(other, fresh=True) > 0.1
