"""What each cell of a table can be read as, and how often each reading occurs in a column.

What a cell becomes depends on its text alone, never on the type of its column or on other cells:
the number 1, the text "1" and the text "1.0" are the same. So a cell that turns a column of whole
numbers into text changes nothing else. No cell makes this fail.

A row counts if some described cell of it is not empty. With a user column each person counts with
one of their rows, chosen uniformly and independently of everybody else; rows without a user do not
count. So one person changes, in each column, one count by one.
Tests: ``tests/facts/test_readings.py``, ``tests/facts/test_describe.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.execution.calls import call_or_failure
from expost.randomness.source import Randomness
from expost.tables import typed_columns
from expost.tables.cells import label_text

GAP, TRUTH, WHOLE, FRACTION, DATE, SHORT, LONG = range(7)
"""How a cell reads; each cell has exactly one reading."""
DAY_ZERO = date(2000, 1, 1).toordinal()
"""Dates are counted in days from here: the bounds of numbers are finest near 0."""
_TRUTHS = ("true", "false", "yes", "no")
_LONGEST_NAME, _MOST_WORDS = 60, 6  # of a text that may be the name of a category


class Reading(NamedTuple):
    """How a cell reads: the kind, its number or day, and the name that it has as a category."""

    kind: int
    value: float = math.nan
    label: str | None = None


def read_cell(text: str | None) -> Reading:
    """Return the reading of a cell that is written as ``text``."""
    label = label_text(text)
    if label is None:
        return Reading(GAP)
    label = label.encode("utf-8", "backslashreplace").decode()  # a name may be written to a file
    if label.lower() in _TRUTHS:
        return Reading(TRUTH, math.nan, label)
    number = call_or_failure(float, label)
    if isinstance(number, float):
        return Reading(WHOLE if number.is_integer() else FRACTION, number, label)
    moment = call_or_failure(datetime.fromisoformat, label)
    if isinstance(moment, datetime):
        return Reading(DATE, float(moment.toordinal() - DAY_ZERO), label)
    if len(label) <= _LONGEST_NAME and len(label.split()) <= _MOST_WORDS:
        return Reading(SHORT, math.nan, label)
    return Reading(LONG)


@dataclass(frozen=True)
class ColumnCounts:
    """How many persons have each reading in one column. Private: never shown as it is."""

    kinds: Integers = field(repr=False)
    values: Floats = field(repr=False)
    labels: tuple[str | None, ...] = field(repr=False)
    counts: Integers = field(repr=False)

    def of_kinds(self) -> Floats:
        """Return the number of cells of each kind of reading."""
        return np.bincount(self.kinds, weights=self.counts, minlength=7).astype(np.float64)

    def names(self) -> dict[str, int]:
        """Return how often each name occurs, of all cells that can be one; in order of names."""
        listed = ((label, int(n)) for label, n in zip(self.labels, self.counts, strict=True))
        return {label: n for label, n in sorted((a, b) for a, b in listed if a is not None) if n}

    def firsts_and_repeats(self) -> Floats:
        """Return how many different names occur, and how many cells repeat one of them.

        A person more changes one of the two by one.
        """
        counts = list(self.names().values())
        return np.array([len(counts), sum(counts) - len(counts)], dtype=np.float64)

    def numbers(self, kinds: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the different numbers of some kinds of readings, ascending, and their counts."""
        chosen = np.isin(self.kinds, kinds) & (self.counts > 0)
        order = np.argsort(self.values[chosen], kind="stable")
        return self.values[chosen][order], self.counts[chosen][order].astype(np.float64)


@dataclass(frozen=True)
class TableCounts:
    """The counts of all described columns, and of persons by their number of rows.

    ``named`` are columns whose cells are names, also if they look like numbers; public knowledge.
    """

    columns: Mapping[str, ColumnCounts] = field(repr=False)
    rows_per_person: Mapping[int, int] | None = field(repr=False, default=None)
    named: tuple[str, ...] = ()


class _Coded(NamedTuple):
    """A column as numbers of readings: one code per row, and what each code reads as."""

    codes: Integers
    readings: list[Reading]


def table_counts(
    table: Any,
    names: Sequence[str],
    user: str | None,
    randomness: Randomness,
    *,
    collated: bool = False,
) -> TableCounts:
    """Return the counts of an Ibis table; one query reads the columns as text.

    Persons are those of counts: exact texts, or where text may be ``collated`` those that the
    engine calls equal. Otherwise facts and counts would protect different persons.
    """
    engine = typed_columns.engine_of(table)
    texts = {
        f"c{index}": typed_columns.column_text(table[name], engine, False)
        for index, name in enumerate(names)
    }
    if user is not None:
        who = typed_columns.column_text(table[user], engine, collated)
        same = typed_columns.ibis_module().window(group_by=table[user])
        texts["who"] = who.min().over(same) if collated else who
    fetched = typed_columns.fetch(table.select(**texts))
    columns = {name: _coded(fetched[f"c{index}"]) for index, name in enumerate(names)}
    persons = None if user is None else _coded(fetched["who"], _person)
    return counted(columns, names, persons, randomness)


def array_counts(
    columns: Mapping[str, Array], user: str | None, randomness: Randomness
) -> TableCounts:
    """Return the counts of columns of cells, which may be of any type."""
    coded = {name: _coded([_text(cell) for cell in cells]) for name, cells in columns.items()}
    persons = None if user is None else coded.pop(user)
    return counted(coded, list(coded), persons, randomness)


def _text(cell: Any) -> str | None:
    """Return the text of a cell; None if it has none. Days of NumPy are written as ISO dates."""
    if type(cell) is str:
        return cell
    if isinstance(cell, np.datetime64):
        return None if np.isnat(cell) else str(cell.astype("datetime64[D]"))
    text = call_or_failure(label_text, cell)
    return text if isinstance(text, str) else None


def _coded(
    texts: Sequence[str | None], read: Callable[[str | None], Reading] = read_cell
) -> _Coded:
    """Return a column as codes; each different text is read once."""
    known: dict[str | None, int] = {}
    codes = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
    return _Coded(codes, [read(text) for text in known])


def _person(text: str | None) -> Reading:
    """Return the reading of a cell of the user column: the text itself."""
    return Reading(GAP) if text is None else Reading(SHORT, math.nan, text)


def counted(
    columns: Mapping[str, _Coded],
    names: Sequence[str],
    persons: _Coded | None,
    randomness: Randomness,
) -> TableCounts:
    """Count readings over the rows that count."""
    length = len(next(iter(columns.values())).codes)
    filled = np.zeros(length, dtype=np.bool_)
    for name in names:
        gaps = np.array([reading.kind == GAP for reading in columns[name].readings], dtype=bool)
        filled |= ~gaps[columns[name].codes] if length else filled
    rows, per_person = np.flatnonzero(filled), None
    if persons is not None:
        rows, per_person = _one_row_each(persons, rows, randomness)
    return TableCounts({name: _counts(columns[name], rows) for name in names}, per_person)


def _one_row_each(
    users: _Coded, rows: Integers, randomness: Randomness
) -> tuple[Integers, dict[int, int]]:
    """Return one row of each person, chosen uniformly, and how many persons have how many rows.

    The choice of a person depends on their own rows and on coins of their own.
    """
    labels: dict[str | None, int] = {}
    persons = np.array(
        [labels.setdefault(reading.label, len(labels)) for reading in users.readings], dtype=int
    )
    of_row = persons[users.codes[rows]] if len(rows) else np.zeros(0, dtype=np.int64)
    if None in labels:
        known = of_row != labels[None]
        rows, of_row = rows[known], of_row[known]
    order = np.lexsort((randomness.words(len(rows)), of_row))
    first = np.diff(of_row[order], prepend=-1) != 0
    sizes = np.bincount(of_row)
    numbers, persons_with = np.unique(sizes[sizes > 0], return_counts=True)
    per_person = dict(zip(numbers.tolist(), persons_with.tolist(), strict=True))
    return rows[order][first], per_person


def _counts(column: _Coded, rows: Integers) -> ColumnCounts:
    """Return the counts of a column; texts that read the same are counted together."""
    merged: dict[tuple[int, str | None], int] = {}
    index = [merged.setdefault((r.kind, r.label), len(merged)) for r in column.readings]
    firsts: dict[int, Reading] = {}
    for reading, row in zip(column.readings, index, strict=True):
        firsts.setdefault(row, reading)
    readings = [firsts[row] for row in range(len(merged))]
    codes = np.array(index, dtype=np.int64)[column.codes[rows]] if len(rows) else rows
    return ColumnCounts(
        np.array([reading.kind for reading in readings], dtype=np.int64),
        np.array([reading.value for reading in readings], dtype=np.float64),
        tuple(reading.label for reading in readings),
        np.bincount(codes, minlength=len(readings)).astype(np.int64),
    )
