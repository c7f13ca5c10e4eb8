"""COUNT(DISTINCT x): one person changes at most m groups, each by at most r."""

from __future__ import annotations

import random

import ibis
import pyarrow as pa
import pytest

from expost.analytics.contribution import Measure, distinct_totals, run_totals, select

GROUPS = ("a", "b", "c")


def sizes(rows: list[tuple[str, str, str]], most: int | None, cap: int) -> list[int]:
    names = ("u", "g", "x")
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    table = ibis.memtable(pa.table({name: pa.array(c, pa.string()) for name, c in columns.items()}))
    chosen = select(table, ["g"], "u", text="x")
    measure = Measure("rows", rows=cap)
    query = distinct_totals(chosen, measure, GROUPS, most, "s", limit=9, collated=False)
    return run_totals(query).on(GROUPS).first.tolist()


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
