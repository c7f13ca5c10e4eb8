"""A cap on what a person adds to all groups together: what is kept, and what it costs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.analytics.cap_ladder import capped_totals, ladder_amounts, user_amounts
from expost.analytics.contribution import Measure, pair_sums, run_totals, select
from expost.analytics.refinement_goals import GIVEN, RACE
from expost.tables.sources import as_table
from expost.tables.typed_columns import held
from tests.analytics import laws
from tests.analytics.test_refinement_law import law_of, loss, small_job

GROUPS = "abcd"
Row = tuple[int, str, int]


def pairs_of(rows: list[Row], kind: str, *, numbered: bool = False) -> tuple[Any, Measure]:
    """The pairs of a table, in memory, and a measure without its cap."""
    users, groups, values = zip(*rows, strict=True) if rows else ((), (), ())
    schema = pa.schema([("u", pa.int64()), ("g", pa.string()), ("v", pa.float64())])
    table = as_table(pa.table({"u": users, "g": groups, "v": values}, schema=schema))
    summed = Measure("sum", "v", None, low=-9, high=9)
    measure = Measure("rows", rows=None) if kind == "rows" else summed
    chosen = select(table, ["g"], "u", measure)
    return pair_sums(chosen, measure, list(GROUPS), numbered=numbered), measure


def capped(measure: Measure, cap: int) -> Measure:
    """The measure with a cap on all groups together."""
    name = "rows" if measure.kind == "rows" else "amount"
    return replace(measure, **{name: cap}, in_all=True)


def kept(rows: list[Row], kind: str, cap: int, *, numbered: bool = False) -> dict[str, int]:
    """What the cap keeps of every group."""
    pairs, measure = pairs_of(rows, kind, numbered=numbered)
    with held(pairs) as table:
        query = capped_totals(
            table, user_amounts(table), capped(measure, cap), "0" * 32, list(GROUPS)
        )
        values = run_totals(query)
    return dict(zip(values.groups, values.first.tolist(), strict=True))


def whole(rows: list[Row], kind: str) -> dict[str, int]:
    """What one person has in every group, clipped to the bounds of a value."""
    sums: dict[str, int] = defaultdict(int)
    for _, group, value in rows:
        sums[group] += 1 if kind == "rows" else max(-9, min(9, value))
    return dict(sums)


TABLE = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(GROUPS), st.integers(-20, 20)), max_size=30
)


@settings(max_examples=25, deadline=None)
@given(TABLE, st.sampled_from(["rows", "sum"]), st.integers(1, 12))
def test_one_person_moves_all_groups_by_at_most_the_cap(rows, kind, cap):
    """Every person removed in turn. Catches a cap per group, and a choice that others change."""
    here = kept(rows, kind, cap)
    for user in {user for user, _, _ in rows}:
        there = kept([row for row in rows if row[0] != user], kind, cap)
        alone = kept([row for row in rows if row[0] == user], kind, cap)
        moved = {group: here.get(group, 0) - there.get(group, 0) for group in GROUPS}
        assert sum(map(abs, moved.values())) <= cap
        assert all(moved[group] == alone.get(group, 0) for group in GROUPS)


@settings(max_examples=25, deadline=None)
@given(TABLE, st.sampled_from(["rows", "sum"]), st.integers(1, 12))
def test_every_group_keeps_its_part(rows, kind, cap):
    """In proportion to within a unit; everything if it fits. Numbers of groups change nothing."""
    rows = [(0, group, value) for _, group, value in rows]
    sums, told = whole(rows, kind), kept(rows, kind, cap)
    total = sum(map(abs, sums.values()))
    for group, value in sums.items():
        assert abs(told[group] - value * min(1, cap / max(total, 1))) < 1 + 1e-9
        assert abs(told[group]) <= abs(value)
    assert sum(map(abs, told.values())) >= min(total, cap - 1)


@pytest.mark.parametrize("kind", ["rows", "sum"])
def test_numbered_groups_are_the_same(kind):
    """The salted order is that of names, whether DuckDB has names or numbers."""
    generator = np.random.default_rng(5)
    rows = [
        (int(user), GROUPS[group], int(value))
        for user, group, value in zip(
            generator.integers(0, 9, 400),
            generator.integers(0, 4, 400),
            generator.integers(-20, 21, 400),
            strict=True,
        )
    ]
    assert kept(rows, kind, 7) == kept(rows, kind, 7, numbered=True)


def test_a_person_with_a_million_rows():
    """One person changes nothing beyond the cap, and large sums do not overflow."""
    users = np.concatenate([np.zeros(1_000_000, dtype=np.int64), np.arange(1, 100)])
    table = pa.table({"u": users, "g": ["a"] * len(users), "v": np.full(len(users), 2.0**31)})
    measure = Measure("sum", "v", None, low=0, high=2**31, amount=2**31, in_all=True)
    chosen = select(as_table(table), ["g"], "u", measure)
    with held(pair_sums(chosen, measure, ["a"])) as pairs:
        people = user_amounts(pairs)
        values = run_totals(capped_totals(pairs, people, measure, "salt", ["a"]))
        amounts, clipped = ladder_amounts(people, [2**30, 2**31, 2**36], [2**31])
    assert values.first.tolist() == [100 * 2**31]
    assert amounts == (100 * 2**30, 100 * 2**30, 2**36 - 2**31)
    assert clipped == (0,)


@settings(max_examples=25, deadline=None)
@given(TABLE, st.sampled_from(["rows", "sum"]))
def test_the_amounts_of_the_ladder(rows, kind):
    """Against plain Python; one person more moves a step by at most its width, in all by theirs."""

    def amounts(rows: list[Row]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pairs, _ = pairs_of(rows, kind)
        with held(pairs) as table:
            return ladder_amounts(user_amounts(table), steps, [3, 40])

    steps = [1, 2, 4, 8, 16]
    here = amounts(rows)
    expected, clipped = [0] * 5, [0, 0]
    for user in {user for user, _, _ in rows}:
        own = [row for row in rows if row[0] == user]
        total = sum(map(abs, whole(own, kind).values()))
        for number, (low, high) in enumerate(zip([0, *steps], steps, strict=False)):
            expected[number] += min(max(total - low, 0), high - low)
        beyond = 0
        if kind == "sum":
            for group, value in whole(own, kind).items():
                wide = sum(value for _, name, value in own if name == group)
                beyond += abs(wide - value)
        clipped = [whole + min(beyond, cap) for whole, cap in zip(clipped, (3, 40), strict=True)]
        there = amounts([row for row in rows if row[0] != user])
        widths = [high - low for low, high in zip([0, *steps], steps, strict=False)]
        moved = [a - b for a, b in zip(here[0], there[0], strict=True)]
        assert all(0 <= one <= width for one, width in zip(moved, widths, strict=True))
        assert all(0 <= a - b <= c for a, b, c in zip(here[1], there[1], (3, 40), strict=True))
    assert here == (tuple(expected), tuple(clipped))


CAP = 2
JOBS = [(RACE, (0.5, 1.0), 1.0), (GIVEN, (0.5, 1.0), 1.0), (RACE, (0.4, 0.9), 0.9)]


def of_the_cap(costs: tuple[float, ...], noise: list[int]) -> float:
    """The chance of noise for a change of the cap."""
    return laws.path(tuple(cost / CAP for cost in costs), noise)


@pytest.fixture(scope="module", params=JOBS, ids=str)
def leaves(request: pytest.FixtureRequest) -> Any:
    order, costs, total = request.param
    return small_job(order, costs, total, 1), costs


@pytest.mark.parametrize("other", [(2, 2), (1, 1), (0, 2), (3, 1), (2, 3), (4, 2), (2, 4), (3, 3)])
def test_a_person_in_two_groups_costs_the_largest_one(leaves, other):
    """Every transcript, both directions: |k| = 2 in all, and the charge is that of m = 1."""
    law = [law_of(leaves[0], leaves[1], list(counts), of_the_cap) for counts in ((2, 2), other)]
    assert loss(*law) <= 1e-9
    assert loss(*law[::-1]) <= 1e-9


def test_it_is_used_up_and_a_cap_per_group_is_not_enough(leaves):
    """Equality for some transcript; a person who moves both groups by the cap tells more."""
    law = [
        law_of(leaves[0], leaves[1], list(counts), of_the_cap)
        for counts in ((2, 2), (3, 1), (4, 2), (4, 4))
    ]
    assert max(loss(law[0], law[1]), loss(law[0], law[2])) == pytest.approx(0, abs=1e-9)
    assert loss(law[0], law[3]) > 0.1


@pytest.mark.parametrize("order", [2, 8])
def test_a_change_in_many_groups_in_rho(order):
    """All changes k of three groups with Σ|k| ≤ C: the Rényi divergence is at most order·ρ."""
    cap, rho = 4, 0.3
    noise, values = cap**2 / (2 * rho), np.arange(-150, 151)

    def divergence(change: int) -> float:
        here, there = laws.gaussian(noise, values), laws.gaussian(noise, values - change)
        terms = order * np.log(here) + (1 - order) * np.log(there)
        return float(np.log(np.exp(terms).sum()) / (order - 1))

    alone = {change: divergence(change) for change in range(-cap, cap + 1)}
    changes = [k for k in product(alone, repeat=3) if sum(map(abs, k)) <= cap]
    losses = [sum(alone[change] for change in k) for k in changes]
    assert max(losses) <= order * rho * (1 + 1e-9)
    assert max(losses) == pytest.approx(alone[cap], rel=1e-9)


def test_values_that_are_no_number_count_nothing():
    """NaN, infinite and missing values of a person."""
    table = pa.table(
        {"u": [1, 1, 1, 1], "g": ["a"] * 4, "v": [math.nan, math.inf, None, 3.0]},
        schema=pa.schema([("u", pa.int64()), ("g", pa.string()), ("v", pa.float64())]),
    )
    measure = Measure("sum", "v", None, low=0, high=9, amount=5, in_all=True)
    chosen = select(as_table(table), ["g"], "u", measure)
    with held(pair_sums(chosen, measure, ["a"])) as pairs:
        people = user_amounts(pairs)
        assert run_totals(capped_totals(pairs, people, measure, "salt", ["a"])).first.tolist() == [
            3
        ]
