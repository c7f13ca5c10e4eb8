"""COUNT(DISTINCT x): one person changes at most m groups, each by at most r."""

from __future__ import annotations

import random
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest

import expost
from expost.analytics.contribution import (
    GroupValues,
    Measure,
    distinct_totals,
    run_totals,
    select,
)
from expost.analytics.sql_request import check_query

GROUPS = ("a", "b", "c")


def values(
    rows: list[tuple[str, str, str]], most: int | None, cap: int, limit: int = 9
) -> GroupValues:
    names = ("u", "g", "x")
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    table = ibis.memtable(pa.table({name: pa.array(c, pa.string()) for name, c in columns.items()}))
    chosen = select(table, ["g"], "u", text="x")
    measure = Measure("rows", rows=cap)
    query = distinct_totals(chosen, measure, GROUPS, most, "s", limit=limit, collated=False)
    return run_totals(query).on(GROUPS)


def sizes(rows: list[tuple[str, str, str]], most: int | None, cap: int) -> list[int]:
    return values(rows, most, cap).first.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_one_person_changes_m_groups_by_r_each(seed):
    """Random tables of four persons; each person is removed in turn. Some reach the bound."""
    dice = random.Random(seed)
    most, cap = dice.choice([1, 2]), dice.choice([1, 2])
    rows = [(f"p{dice.randrange(4)}", dice.choice(GROUPS), dice.choice("vwxyz")) for _ in range(14)]
    whole = sizes(rows, most, cap)
    for person in {row[0] for row in rows}:
        less = sizes([row for row in rows if row[0] != person], most, cap)
        changes = [one - other for one, other in zip(whole, less, strict=True)]
        assert all(0 <= change <= cap for change in changes)
        assert sum(change > 0 for change in changes) <= most


def test_the_bound_is_reached_and_caps_keep_what_they_say():
    rows = [("p", group, value) for group in "ab" for value in "vwxyz"]
    assert sizes(rows, 2, 2) == [2, 2, 0]
    assert sorted(sizes(rows, 1, 3)) == [0, 0, 3]
    assert sizes(rows, None, 9) == [5, 5, 0]
    assert sizes([*rows, ("q", "a", "v")], None, 9) == [5, 5, 0]


@pytest.mark.parametrize("seed", range(12))
def test_one_person_changes_what_is_kept_and_removed_by_the_limit(seed):
    dice = random.Random(seed)
    most, cap, limit = dice.choice([None, 1, 2]), dice.choice([1, 2]), dice.choice([1, 3])
    rows = [(f"p{dice.randrange(4)}", dice.choice(GROUPS), dice.choice("vwxyz")) for _ in range(30)]
    whole = values(rows, most, cap, limit)
    for person in {row[0] for row in rows}:
        less = values([row for row in rows if row[0] != person], most, cap, limit)
        assert abs(whole.kept[0] - less.kept[0]) <= limit
        assert abs(whole.removed[0] - less.removed[0]) <= limit


def test_what_is_removed_is_told_in_values():
    """Common values that somebody keeps are not removed; those that one person has alone are."""
    common = [(f"p{n}", "a", value) for n in range(9) for value in "vw"]
    assert [told[0] for told in amounts(common, None, 1, 9)] == [2, 0]
    alone = [("q", "a", f"x{n}") for n in range(6)]
    assert [told[0] for told in amounts([*common, *alone], None, 2, 9)] == [4, 4]
    assert [told[0] for told in amounts([*common, *alone], None, 2, 3)] == [4, 3]


def amounts(rows: Any, most: int | None, cap: int, limit: int) -> tuple[Any, Any]:
    told = values(rows, most, cap, limit)
    return told.kept, told.removed


def test_an_answer_is_not_within_the_error_where_the_caps_remove_most_values():
    """Before, 600 of 3,300 values were "within 10 %": hardly any of the rows was removed."""
    dice = np.random.default_rng(1)
    users, many = np.repeat(np.arange(5_000), 10), np.repeat(np.arange(5_000, 5_030), 100)
    table = pa.table(
        {
            "u": np.concatenate([users, many]),
            "x": np.concatenate([dice.integers(0, 300, len(users)), 300 + np.arange(len(many))]),
        }
    )
    for seed in range(3):
        result = expost.query(
            "SELECT COUNT(DISTINCT x) AS n FROM t",
            source={"t": table},
            user="u",
            epsilon=10,
            within=0.1,
            simulation=True,
            randomness=expost.SimulationRandomness(seed),
        )
        told = [row.values["n"].value for row in result.rows if row.answered]
        assert told == pytest.approx([3300] * len(told), rel=0.1)


def test_what_is_removed_may_cost_half_and_a_person_counts_with_what_the_caps_allow():
    sql, table = "SELECT COUNT(DISTINCT x) AS n, COUNT(*) AS m FROM t", {"u": ["p"], "x": ["v"]}
    checked = check_query(sql, {"source": {"t": table}, "user": "u", "epsilon": 4})
    values, rows = (request.with_rows(2) for request in checked.requests)
    assert (values.limit(1), rows.limit(1)) == (2, 10)
    assert values.cost_of_dropped(1) == values.total / 2
    assert (rows.caps_in_all, rows.cost_of_dropped(1)) == (True, 0)  # known from the ladder
