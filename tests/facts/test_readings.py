"""How cells read: by their text alone, whatever the type of their column is."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pytest

from expost.facts.readings import (
    DATE,
    DAY_ZERO,
    FRACTION,
    GAP,
    LONG,
    SHORT,
    TRUTH,
    WHOLE,
    array_counts,
    read_cell,
    table_counts,
)
from expost.randomness.source import SimulationRandomness


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (None, GAP), ("", GAP), ("  ", GAP), ("nan", GAP), ("-inf", GAP), ("1e999", GAP),
        ("7", WHOLE), (" 7.0 ", WHOLE), ("1e3", WHOLE), ("-0.0", WHOLE), ("2.5", FRACTION),
        ("Yes", TRUTH), ("false", TRUTH), ("2024-02-29", DATE), ("2024-02-29 12:30:00", DATE),
        ("2023-02-29", SHORT), ("12:30", SHORT), ("Prof-specialty", SHORT), ("x" * 61, LONG),
        ("one two three four five six seven", LONG), ("\x00", SHORT), ("\ud800", SHORT),
    ],
)  # fmt: skip
def test_each_cell_has_one_reading(text: str | None, kind: int) -> None:
    assert read_cell(text).kind == kind


def test_days_are_counted_from_2000() -> None:
    assert read_cell("2000-01-03").value == 2
    assert date.fromordinal(DAY_ZERO) == date(2000, 1, 1)


@pytest.mark.parametrize(
    "cells",
    [
        np.array([1, 0, 3]),
        np.array([1.0, 0.0, 3.0]),
        np.array(["1", "0.0", "3"]),
        np.array(["1", 0, 3.0], dtype=object),
        np.array([1, 0, 3], dtype=np.int8),
    ],
)
def test_the_type_of_an_array_decides_nothing(cells: Any) -> None:
    counts = array_counts({"x": cells}, None, SimulationRandomness(0)).columns["x"]
    assert counts.names() == {"0": 1, "1": 1, "3": 1}
    assert counts.of_kinds().tolist() == [0, 0, 3, 0, 0, 0, 0]


def test_a_person_counts_with_one_row_and_blank_rows_do_not_count() -> None:
    columns = {
        "x": np.array([1, 2, 3, None, 5, 6], dtype=object),
        "who": np.array(["a", "a", "a", "b", None, "c"], dtype=object),
    }
    seen = set()
    for seed in range(40):
        table = array_counts(columns, "who", SimulationRandomness(seed))
        assert table.rows_per_person == {3: 1, 1: 1}
        names = table.columns["x"].names()
        assert sum(names.values()) == 2
        assert "6" in names
        seen |= set(names)
    assert seen == {"1", "2", "3", "6"}  # every row of a person may be chosen


def test_persons_are_those_of_counts() -> None:
    """Texts that read as the same number are different persons, as they are in counts."""
    ibis = pytest.importorskip("ibis")
    table = ibis.memtable(
        {"who": ["007", "7", "7", "a " * 40], "x": ["red", "blue", "blue", "red"]}
    )
    counts = table_counts(table, ["x"], "who", SimulationRandomness(0))
    assert counts.rows_per_person == {1: 2, 2: 1}
    assert counts.columns["x"].names() == {"red": 2, "blue": 1}
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t (who VARCHAR COLLATE NOCASE, x VARCHAR)")
    connection.raw_sql("INSERT INTO t VALUES ('A', 'red'), ('a', 'blue'), ('b', 'red')")
    counts = table_counts(
        connection.table("t"), ["x"], "who", SimulationRandomness(0), collated=True
    )
    assert counts.rows_per_person == {1: 1, 2: 1}
