"""Capping, the private choice of m, and the share of dropped pairs.

Samples have fixed seeds; a check rejects at 1e-6.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics import cap_choice, contribution
from expost.analytics.cap_choice import amount_candidates, cap_candidates, choose_cap
from expost.analytics.contribution import (
    GroupValues,
    Measure,
    measured,
    pair_columns,
    run_totals,
    totals,
)
from expost.analytics.pricing import removed_share
from expost.tables.sources import as_table

FALSE_ALARM = 1e-6


def capped(pairs: list[tuple[int, str]], most: int, keys: list[str] | None = None) -> Any:
    users, groups = [user for user, _ in pairs], [group for _, group in pairs]
    schema = pa.schema([("u", pa.int64()), ("g", pa.string())])
    table = as_table(pa.table({"u": users, "g": groups}, schema=schema))
    rows = measured(pair_columns(table, "g", "u"), Measure(), keys, "salt")
    return run_totals(totals(rows, most, "salt", most))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd")), max_size=25))
def test_one_user_changes_nobody_elses_groups(pairs):
    """Every user removed in turn: at most m counts move, by one each. Catches a shared choice."""
    for most in (1, 2):
        here = dict(
            zip(*(lambda v: (v.groups, v.first.tolist()))(capped(pairs, most)), strict=True)
        )
        for user in {user for user, _ in pairs}:
            found = capped([pair for pair in pairs if pair[0] != user], most)
            there = dict(zip(found.groups, found.first.tolist(), strict=True))
            moved = [here.get(g, 0) - there.get(g, 0) for g in "abcd"]
            assert set(moved) <= {0, 1}
            assert sum(moved) <= most


def test_other_groups_do_not_use_up_the_cap():
    """Only the listed groups count towards m. Catches a cap before the list is applied."""
    pairs = [(user, group) for user in range(50) for group in "abcdefgh"]
    found = capped(pairs, 1, ["a"])
    assert dict(zip(found.groups, found.first.tolist(), strict=True)) == {"a": 50}
    assert found.removed == (0,)


def test_dropped_pairs_are_counted_up_to_m_per_user():
    """Ten users in eight groups, m = 3: three kept and three counted as dropped, each."""
    found = capped([(user, group) for user in range(10) for group in "abcdefgh"], 3)
    assert (found.kept, found.removed) == ((30,), (30,))


def law(users: dict[int, int], groups: int, share: Fraction, rate: float) -> list[float]:
    """The exponential mechanism, written down once more."""
    everybody = sum(users.values())
    above = [
        sum(n for size, n in users.items() if size > cap) - float(share) * everybody
        for cap in range(groups + 1)
    ]
    quality = [-max(above[cap], -above[cap - 1]) for cap in range(1, groups + 1)]
    weights = [(groups // (cap + 1)) ** 2 * math.exp(rate * q / 2) for cap, q in enumerate(quality)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_choice_of_m_is_private(size):
    """Adding a user of any size changes every chance by at most e^η, exactly."""
    users, share, rate = {1: 6, 2: 3, 3: 2, 5: 1}, Fraction(1, 40), 0.3
    more = users | {size: users.get(size, 0) + 1}
    for a, b in zip(law(users, 6, share, rate), law(more, 6, share, rate), strict=True):
        assert abs(math.log(a / b)) <= rate + 1e-12


def test_the_choice_of_m_has_its_law():
    """Catches a rate that is off, and a mutant that takes the best without noise."""
    users, share, rate = {1: 6, 2: 3, 3: 2, 5: 1}, Fraction(1, 40), Fraction(3, 10)
    randomness = SimulationRandomness(2)
    draws = [choose_cap(users, cap_candidates(6), share, rate, randomness) for _ in range(20_000)]
    observed = np.bincount(draws, minlength=7)[1:]
    expected = 20_000 * np.array(law(users, 6, share, float(rate)))
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def mass_law(users, caps, share, rate, span, monkeypatch):
    """The chances with which ``choose_cap`` chooses by mass, from the weights that it inverts."""
    seen = []

    def remember(weights, distances, rate):
        pairs = zip(weights, distances, strict=True)
        seen.append([weight * math.exp(-float(rate) * one) for weight, one in pairs])
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(cap_choice, "ExponentialLaw", remember)
        patch.setattr(cap_choice.coins, "invert", lambda law, randomness: 0)
        choose_cap(users, caps, share, rate, SimulationRandomness(0), span=span)
    return [weight / sum(seen[0]) for weight in seen[0]]


@pytest.mark.parametrize("span", [1, 10])
@pytest.mark.parametrize("size", [1, 2, 5, 9, 10**6])
@pytest.mark.parametrize("users", [{}, {1: 6, 2: 3, 3: 2, 5: 1}, {7: 40, 1000: 3}])
def test_the_choice_by_mass_is_private(users, size, span, monkeypatch):
    """Adding a user of any size changes every chance by at most e^η: catches mass without a cap."""
    caps, share, rate = cap_candidates(30), Fraction(1, 60), Fraction(3, 10)
    more = users | {size: users.get(size, 0) + 1}
    here, there = (mass_law(table, caps, share, rate, span, monkeypatch) for table in (users, more))
    assert max(abs(math.log(a / b)) for a, b in zip(here, there, strict=True)) <= rate + 1e-9


def test_the_choice_by_mass_looks_at_rows(monkeypatch):
    """One user in a hundred has half of all rows: few users are above 1, many rows are."""
    users, share, rate = {1: 9900, 99: 100}, Fraction(1, 40), Fraction(1)
    chances = mass_law(users, [1, 10, 99, 200], share, rate, 10, monkeypatch)
    assert chances[2] > 0.99
    randomness = SimulationRandomness(1)
    assert choose_cap(users, [1, 10, 99, 200], share, rate, randomness) == 1


def test_a_choice_has_its_weights():
    """Without users two caps are as good as each other: their weights decide, 4 to 1."""
    randomness, users = SimulationRandomness(4), {1: 0}
    draws = [choose_cap(users, [1, 2], Fraction(1), Fraction(1), randomness) for _ in range(2000)]
    assert stats.binomtest(draws.count(1), 2000, 0.8).pvalue > FALSE_ALARM


def test_a_choice_takes_few_coins():
    """Catches proposals that are accepted or not: 1.7 million of them for one sum."""
    drawn = []

    class Counted(SimulationRandomness):
        def bits(self, count: int) -> int:
            drawn.append(count)
            return super().bits(count)

    users, caps = {900_000: 10_000, 3: 5}, amount_candidates(1000)
    choice = choose_cap(users, caps, Fraction(1, 40), Fraction(1), Counted(1))
    assert choice >= 900_000
    assert sum(drawn) <= 256


@pytest.mark.parametrize("law_name", ["laplace", "gaussian"])
def test_the_share_of_dropped_pairs_is_covered(law_name):
    """2,000 draws: the interval holds the true share at least as often as promised."""
    randomness, hits = SimulationRandomness(3), 0
    values = GroupValues((), np.zeros(0, np.int64), kept=(9000,), removed=(1000,))
    for _ in range(2000):
        found = removed_share(values, 5, Fraction(1, 20), law_name, 0.9, randomness)
        hits += found["low"] <= 0.1 <= found["high"]
    assert hits >= stats.binom.isf(1 - FALSE_ALARM, 2000, 0.9)


def test_auto_states_m_and_its_price():
    """m is chosen near the quantile, its cost is part of the total, and capping is warned of."""
    generator = np.random.default_rng(1)
    users = np.repeat(np.arange(3000), 3)
    groups = [f"g{place}" for place in generator.integers(0, 40, len(users))]
    keys = [f"g{place}" for place in range(40)]
    table = pa.table({"u": users, "g": groups})
    asked: dict[str, Any] = {"by": "g", "user": "u", "keys": keys, "epsilon": 3, "simulation": True}
    seed = SimulationRandomness(1)
    result = expost.count(table, **asked, max_groups_per_user="auto", randomness=seed)
    assert result.max_groups_per_user in (2, 3, 4)
    assert result.public["shares"]["max_groups_per_user"] > 0
    assert result.spent <= 3
    low = expost.count(table, **asked, max_groups_per_user=1, randomness=seed)
    assert low.dropped_share["estimate"] > 0.2
    assert "Capping, not noise" in low.warnings[0]
    assert "count in one group" in low.protects


def test_what_is_removed_does_not_depend_on_the_order_of_rows() -> None:
    """Rows that are clipped to one value differ in what is clipped; the engine must not choose.

    Without the order by what they were, DuckDB chose by what else there was to sort: one person
    more moved the removed amount by several times its sensitivity.
    """
    measure = contribution.Measure("sum", "v", 1, Fraction(1), 10, 20)
    people = 2000
    rows = [(f"p{number}", "g", value) for number in range(people) for value in (0, 10)]
    seen = set()
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(rows))
        users, groups, values = zip(*(rows[index] for index in order), strict=True)
        table = ibis.memtable({"u": users, "g": groups, "v": values})
        chosen = contribution.select(table, ["g"], "u", measure)
        pairs = contribution.measured(chosen, measure, ["g"], "salt", collated=False)
        told = contribution.run_totals(contribution.totals(pairs, 1, "salt", 200))
        seen.add((told.kept, told.removed))
    assert len(seen) == 1


def test_one_text_per_person_before_spellings_are_merged() -> None:
    """A person who is written in two ways: which groups are kept depends on them and the salt."""
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t (u VARCHAR COLLATE NOCASE, g VARCHAR)")
    connection.raw_sql(
        "INSERT INTO t SELECT (CASE WHEN (i + j) % 2 = 0 THEN 'x' ELSE 'X' END) || i, 'g' || j "
        "FROM range(20000) a(i), range(2) b(j)"
    )
    table = connection.table("t")
    seen = set()
    for ordered in (table, table.order_by(ibis.desc("g")), table.order_by("u")):
        chosen = contribution.select(ordered, ["g"], "u", collated=True)
        pairs = contribution.measured(chosen, contribution.Measure(), ["g0", "g1"], "s")
        assert pairs.count().execute() == 40_000
        told = contribution.run_totals(contribution.totals(pairs, 1, "s", 9))
        seen.add((tuple(told.first.tolist()), told.removed))
        assert all(text[0] == "X" for text in pairs[contribution.USER].execute())  # the smallest
    assert len(seen) == 1
