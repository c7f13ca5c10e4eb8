"""Events: how outputs are told apart, and the cells they fall into.

An event function maps a released value to a label or to a number. Each label is a cell. Numbers are
divided at quantiles; if only a few values occur, each value is a cell. The cells are made from the
pilot runs alone and then fixed: the counted runs do not influence what is counted, as the
confidence statement requires. Outcomes that the pilot did not see fall into a cell "other" of their
class. Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from expost.audit.empirical.subjects import Key, Observation
from expost.errors import InvalidInput
from expost.mechanisms.outcome import FAILED, NOTHING

Events = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]
"""A function of the value, or named predicates; the predicates that hold form the label."""

FEW_VALUES = 16
QUANTILES = 16
MOST_LABELS = 64
OTHER = "(other)"
UNREAD = ("value", "passed", "missed")
"""Labels of released values that no event looked at, if they come without a number."""


class Feature(NamedTuple):
    """What is kept of an output: a label, and a number if there is one."""

    label: str
    number: float | None = None


def feature_of(seen: Observation, events: Events | None) -> Feature:
    """Return the feature of a run; by default whether it passed, and the value if a number."""
    if seen.value is NOTHING or seen.value is FAILED:
        return Feature("nothing" if seen.value is NOTHING else "failed")
    label = (
        "" if seen.passed is None or events is not None else "passed" if seen.passed else "missed"
    )
    if events is None:
        return _number(label, _as_float(seen.value))
    try:
        found = _named(seen.value, events) if isinstance(events, Mapping) else events(seen.value)
        if isinstance(found, np.generic):
            found = found.item()
        if isinstance(found, Real) and not isinstance(found, bool):
            return _number(label, float(found))
        return Feature(found if isinstance(found, str) else repr(found))
    except Exception as error:
        raise InvalidInput(
            "events", type(error).__name__, "the event function raised this error on an output"
        ) from error


def _named(value: Any, events: Mapping[str, Callable[[Any], Any]]) -> str:
    """Join the names of the predicates that hold."""
    return " and ".join(name for name, holds in events.items() if holds(value)) or "none of them"


def _as_float(value: Any) -> float | None:
    """Return the value as a float, or None if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(label: str, value: float | None) -> Feature:
    """Return the feature of a value that may be a number; NaN becomes a label."""
    if value is None:
        return Feature(label or "value")
    return Feature(f"{label} nan".strip()) if math.isnan(value) else Feature(label, value)


class Cell(NamedTuple):
    """A cell of outcomes: the place of its class, a label, and an interval.

    The interval is (low, high], or the single value low = high, or None for a label alone.
    """

    place: int
    label: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cells:
    """A partition of all outcomes of the known classes, made from the pilot runs."""

    keys: tuple[Key, ...]
    cells: tuple[Cell, ...]
    lookup: Mapping[Key, Mapping[str, _Label]]

    def __len__(self) -> int:
        return len(self.cells)

    def find(self, key: Key, feature: Feature) -> int | None:
        """Return the cell of an outcome; None for a class that the pilot did not see."""
        labels = self.lookup.get(key)
        if labels is None:
            return None
        return labels.get(feature.label, labels[OTHER]).find(feature.number, labels[OTHER].first)

    def count(self, seen: Iterable[tuple[Key, Feature]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Count the outcomes in each cell; the last number counts those of unknown classes."""
        counts = np.zeros(len(self) + 1, dtype=np.int64)
        for (key, feature), times in Counter(seen).items():
            place = self.find(key, feature)
            counts[len(self) if place is None else place] += times
        return counts


@dataclass(frozen=True)
class _Label:
    """The first cell of a label, and how its numbers are divided."""

    first: int
    values: tuple[float, ...] = ()
    cuts: tuple[float, ...] = ()

    def find(self, number: float | None, other: int) -> int:
        """Return the cell of a number, or ``other`` for a value that the pilot did not see."""
        if self.values and number is not None:
            place = bisect_left(self.values, number)
            return (
                self.first + place
                if place < len(self.values) and self.values[place] == number
                else other
            )
        return self.first + (bisect_left(self.cuts, number) if number is not None else 0)


def cells_from(pilot: Sequence[tuple[Key, Feature]], keys: Sequence[Key]) -> Cells:
    """Make the cells of the classes ``keys`` from the pilot's outputs on both data sets."""
    numbers: dict[Key, dict[str, list[float]]] = {key: {} for key in keys}
    frequent: dict[Key, Counter[str]] = {key: Counter() for key in keys}
    for key, feature in pilot:
        if key in numbers:
            found = numbers[key].setdefault(feature.label, [])
            frequent[key][feature.label] += 1
            if feature.number is not None:
                found.append(feature.number)
    cells: list[Cell] = []
    lookup: dict[Key, dict[str, _Label]] = {}
    for place, key in enumerate(keys):
        lookup[key] = {}
        for label, _ in frequent[key].most_common(MOST_LABELS):
            lookup[key][label] = made = _cut(numbers[key][label], len(cells))
            cells.extend(_described(place, label, made))
        lookup[key][OTHER] = _Label(len(cells))
        cells.append(Cell(place, OTHER))
    return Cells(tuple(keys), tuple(cells), lookup)


def _cut(numbers: Sequence[float], first: int) -> _Label:
    """Divide the numbers of a label: single values if there are few, else at quantiles."""
    if not numbers:
        return _Label(first)
    distinct = sorted(set(numbers))
    if len(distinct) <= FEW_VALUES:
        return _Label(first, values=tuple(distinct))
    cuts = np.quantile(np.array(numbers), np.arange(1, QUANTILES) / QUANTILES, method="lower")
    return _Label(first, cuts=tuple(float(cut) for cut in np.unique(cuts)))


def _described(place: int, label: str, made: _Label) -> list[Cell]:
    """List the cells of a label."""
    if made.values:
        return [Cell(place, label, value, value) for value in made.values]
    if made.cuts:
        ends = [-math.inf, *made.cuts, math.inf]
        return [Cell(place, label, low, high) for low, high in pairwise(ends)]
    return [Cell(place, label)]


def describe(cells: Sequence[Cell], longest: int = 60) -> str:
    """Describe a union of cells in words; adjacent intervals are joined."""
    parts: list[str] = []
    for label in dict.fromkeys(cell.label for cell in cells):
        named = [cell for cell in cells if cell.label == label]
        intervals = sorted(
            (cell.low, cell.high)
            for cell in named
            if cell.low is not None and cell.high is not None
        )
        shown = [_interval(low, high) for low, high in _joined(intervals)]
        prefix = f"{label} " if label else ""
        parts += [f"{prefix}{each}" for each in shown] or [label]
    text = ", ".join(parts)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _joined(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join adjacent intervals."""
    joined: list[tuple[float, float]] = []
    for low, high in intervals:
        if joined and low == joined[-1][1] and low != high:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def _interval(low: float, high: float) -> str:
    """Describe an interval in words."""
    if low == high:
        return f"= {low:.4g}"
    if low == -math.inf:
        return f"≤ {high:.4g}"
    return f"> {low:.4g}" if high == math.inf else f"({low:.4g}, {high:.4g}]"
