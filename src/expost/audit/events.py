"""Events: how outputs are told apart, the cells they fall into, and what their counts prove.

An event function maps a released value to a label or to a number. Each label is a cell. Numbers are
divided at quantiles; if only a few values occur, each value is a cell. The cells are made from the
pilot runs alone and then fixed: the counted runs do not influence what is counted, as the
confidence statement requires. Outcomes that the pilot did not see fall into a cell "other" of their
class. Tested are all cells, all classes, and the unions of cells that the pilot chose. Half of the
error probability goes to the cells and classes, half to the few chosen unions; within each half all
bounds get an equal share (Bonferroni).

Lower bounds of the privacy loss (:func:`judge`) hold together at the confidence. *(ε̃, δ)*: for
every event E inside class i, P(E) ≤ e^{ε̃(i)}P′(E) + δ, so ln((P(E) − δ)/P′(E)) is a lower bound of
any valid ε̃(i). Over all classes, P(U) − Σ_i e^{ε̃(i)}P′(U ∩ i) ≤ δ for every U. *Rényi, order α*:
Σ_o A^α A′^{1−α} over the outcomes of a class is at least the same sum over cells of the class,
because a^α b^{1−α} is jointly convex and homogeneous; it increases in a and decreases in b.

Tests: ``tests/audit/test_empirical.py``, ``tests/audit/test_bounds.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Floats, Integers
from expost.audit.report import (
    ApproxClaims,
    Counts,
    JointFinding,
    OutcomeFinding,
    RenyiClaims,
    clopper_pearson,
)
from expost.audit.subjects import Observation, OutputKey
from expost.errors import InvalidInput
from expost.mechanisms import FAILED, NOTHING

Events = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]
"""A function of the value, or named predicates; the predicates that hold form the label."""

SIDES = ("data", "neighbour")
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
        result = _named(seen.value, events) if isinstance(events, Mapping) else events(seen.value)
        if isinstance(result, np.generic):
            result = result.item()
        if isinstance(result, Real) and not isinstance(result, bool):
            return _number(label, float(result))
        return Feature(result if isinstance(result, str) else repr(result))
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
    """A cell of outcomes: the index of its class, a label, and an interval.

    The interval is (low, high], or the single value low = high, or None for a label alone.
    """

    class_index: int
    label: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cells:
    """A partition of all outcomes of the known classes, made from the pilot runs."""

    keys: tuple[OutputKey, ...]
    cells: tuple[Cell, ...]
    lookup: Mapping[OutputKey, Mapping[str, _Label]]

    def __len__(self) -> int:
        return len(self.cells)

    def find(self, key: OutputKey, feature: Feature) -> int | None:
        """Return the cell of an outcome; None for a class that the pilot did not see."""
        labels = self.lookup.get(key)
        if labels is None:
            return None
        return labels.get(feature.label, labels[OTHER]).find(feature.number, labels[OTHER].first)

    def count(self, seen: Iterable[tuple[OutputKey, Feature]]) -> Integers:
        """Count the outcomes in each cell; the last number counts those of unknown classes."""
        counts = np.zeros(len(self) + 1, dtype=np.int64)
        for (key, feature), times in Counter(seen).items():
            cell = self.find(key, feature)
            counts[len(self) if cell is None else cell] += times
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
            index = bisect_left(self.values, number)
            return (
                self.first + index
                if index < len(self.values) and self.values[index] == number
                else other
            )
        return self.first + (bisect_left(self.cuts, number) if number is not None else 0)


def cells_from(pilot: Sequence[tuple[OutputKey, Feature]], keys: Sequence[OutputKey]) -> Cells:
    """Make the cells of the classes ``keys`` from the pilot's outputs on both data sets."""
    numbers: dict[OutputKey, dict[str, list[float]]] = {key: {} for key in keys}
    frequent: dict[OutputKey, Counter[str]] = {key: Counter() for key in keys}
    for key, feature in pilot:
        if key in numbers:
            seen = numbers[key].setdefault(feature.label, [])
            frequent[key][feature.label] += 1
            if feature.number is not None:
                seen.append(feature.number)
    cells: list[Cell] = []
    lookup: dict[OutputKey, dict[str, _Label]] = {}
    for index, key in enumerate(keys):
        lookup[key] = {}
        for label, _ in frequent[key].most_common(MOST_LABELS):
            lookup[key][label] = cut = _cut(numbers[key][label], len(cells))
            cells.extend(_described(index, label, cut))
        lookup[key][OTHER] = _Label(len(cells))
        cells.append(Cell(index, OTHER))
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


def _described(index: int, label: str, cut: _Label) -> list[Cell]:
    """List the cells of a label."""
    if cut.values:
        return [Cell(index, label, value, value) for value in cut.values]
    if cut.cuts:
        ends = [-math.inf, *cut.cuts, math.inf]
        return [Cell(index, label, low, high) for low, high in pairwise(ends)]
    return [Cell(index, label)]


def describe_cells(cells: Sequence[Cell], longest: int = 60) -> str:
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
        parts += [f"{prefix}{interval}" for interval in shown] or [label]
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


_PILOT_TAIL = 0.1  # tail of the pilot's bounds: a rare event is chosen only if it shows clearly


@dataclass(frozen=True)
class Union:
    """A union of cells of one class, chosen for one direction.

    ``side`` is the data set on which the union is more likely.
    """

    class_index: int
    side: int
    cells: Integers


@dataclass(frozen=True)
class Joint:
    """A union of cells of all classes for one direction, and its parts by claimed ε̃."""

    side: int
    cells: Integers
    parts: tuple[tuple[float, Integers], ...]


@dataclass(frozen=True)
class EventFamily:
    """All events to be tested, and the number of bounds this takes."""

    members: tuple[Integers, ...]
    unions: tuple[Union, ...]
    joints: tuple[Joint, ...]
    cells: int

    @cached_property
    def union_of(self) -> dict[tuple[int, int], int]:
        """The number of the union chosen for each class and direction."""
        return {(union.class_index, union.side): number for number, union in enumerate(self.unions)}

    @property
    def fixed_bounds(self) -> int:
        """Both ends on both data sets for each cell, and for each class of several cells."""
        return 4 * (self.cells + sum(len(cells) > 1 for cells in self.members))

    @property
    def chosen_bounds(self) -> int:
        """Two per union; for a joint event one, plus one per part."""
        return 2 * len(self.unions) + sum(1 + len(joint.parts) for joint in self.joints)

    @property
    def comparisons(self) -> int:
        """The number of all bounds."""
        return self.fixed_bounds + self.chosen_bounds

    def tails(self, confidence: float) -> tuple[float, float]:
        """The error probability of each fixed and each chosen bound; in sum ≤ 1 − confidence."""
        share = (1 - confidence) / 2
        return share / self.fixed_bounds, share / max(1, self.chosen_bounds)


def family_from(
    pilot: Counts, runs: int, cells: Cells, claims: ApproxClaims | RenyiClaims
) -> EventFamily:
    """Choose the events from the pilot's counts (data sets × cells) of ``runs`` runs on each."""
    class_of = np.array([cell.class_index for cell in cells.cells])
    order = np.argsort(class_of, kind="stable")
    members = tuple(
        np.split(order, np.searchsorted(class_of[order], np.arange(1, len(cells.keys))))
    )
    delta = claims.delta if isinstance(claims, ApproxClaims) else 0.0
    worth = [
        index for index, cells_ in enumerate(members) if len(cells_) > 1 and pilot[:, cells_].any()
    ]
    unions = tuple(
        _best_prefixes(
            pilot,
            runs,
            [(index, side, members[index]) for index in worth for side in (0, 1)],
            delta,
        )
    )
    joints = (
        tuple(_joints(pilot, runs, class_of, claims)) if isinstance(claims, ApproxClaims) else ()
    )
    return EventFamily(members, unions, joints, len(cells))


def _likelihood_order(
    pilot: Counts, cells: Integers, side: int, weights: Floats | float = 0.0
) -> tuple[Integers, Floats]:
    """Sort cells by decreasing log ratio of their pilot frequencies, minus ``weights``.

    Returns the sorted cells and their numbers.
    """
    ratio = np.log((pilot[side, cells] + 0.5) / (pilot[1 - side, cells] + 0.5)) - weights
    order = np.argsort(-ratio, kind="stable")
    return cells[order], ratio[order]


def _best_prefixes(
    pilot: Counts, runs: int, wanted: Sequence[tuple[int, int, Integers]], delta: float
) -> Iterator[Union]:
    """For each class and direction, choose one of the unions {ratio ≥ r}.

    It is the one with the largest bound of ln((P − δ)/P′) on the pilot.
    """
    if not wanted:
        return
    ordered = [_likelihood_order(pilot, cells, side)[0] for _, side, cells in wanted]
    sides = [side for _, side, _ in wanted]
    here = np.concatenate(
        [np.cumsum(pilot[side, cells]) for side, cells in zip(sides, ordered, strict=True)]
    )
    there = np.concatenate(
        [np.cumsum(pilot[1 - side, cells]) for side, cells in zip(sides, ordered, strict=True)]
    )
    low, high = (
        clopper_pearson(here, runs, _PILOT_TAIL)[0],
        clopper_pearson(there, runs, _PILOT_TAIL)[1],
    )
    bounds = _log_ratio(low, high, delta)
    ends = np.cumsum([len(cells) for cells in ordered])
    for (index, side, _), cells, values in zip(
        wanted, ordered, np.split(bounds, ends[:-1]), strict=True
    ):
        yield Union(index, side, cells[: int(np.argmax(values)) + 1])


def _joints(pilot: Counts, runs: int, class_of: Integers, claims: ApproxClaims) -> Iterator[Joint]:
    """For each direction, choose the union over all classes that exceeds its claims the most."""
    epsilon_of = claims.epsilons[class_of]
    levels = np.unique(epsilon_of)
    for side in (0, 1):
        ordered, excess = _likelihood_order(pilot, np.arange(len(class_of)), side, epsilon_of)
        ordered = ordered[excess > 0]
        if not len(ordered):
            continue
        low, _ = clopper_pearson(np.cumsum(pilot[side, ordered]), runs, _PILOT_TAIL)
        excesses = low.copy()
        for level in levels:
            inside = np.where(epsilon_of[ordered] == level, pilot[1 - side, ordered], 0)
            _, high = clopper_pearson(np.cumsum(inside), runs, _PILOT_TAIL)
            excesses -= np.where(
                np.cumsum(epsilon_of[ordered] == level) > 0, weight(level) * high, 0.0
            )
        chosen = ordered[: int(np.argmax(excesses)) + 1]
        parts = [(float(level), chosen[epsilon_of[chosen] == level]) for level in levels]
        yield Joint(side, chosen, tuple((level, cells) for level, cells in parts if len(cells)))


def weight(epsilon: float) -> float:
    """Return e^ε, capped so that sums do not overflow; the cap cannot change a verdict."""
    return float(np.exp(min(epsilon, 600.0)))


def event_counts(counts: Counts, unions: Sequence[Integers], side: int) -> Counts:
    """Count the runs in each union."""
    return np.array([int(counts[side, cells].sum()) for cells in unions], dtype=np.int64)


@dataclass(frozen=True)
class Bounded:
    """Simultaneous bounds, data sets × events, for cells, whole classes and chosen unions."""

    cell_low: Floats
    cell_high: Floats
    class_low: Floats
    class_high: Floats
    union_low: Floats
    union_high: Floats


def bounded(counts: Counts, runs: int, family: EventFamily, confidence: float) -> Bounded:
    """Compute Clopper–Pearson bounds of every event at its share of the error probability."""
    fixed, chosen = family.tails(confidence)
    cells = clopper_pearson(counts, runs, fixed)
    classes = clopper_pearson(
        [event_counts(counts, family.members, side) for side in (0, 1)], runs, fixed
    )
    sets = [union.cells for union in family.unions]
    unions = clopper_pearson([event_counts(counts, sets, side) for side in (0, 1)], runs, chosen)
    return Bounded(*cells, *classes, *unions)


def judge(
    counts: Counts,
    runs: int,
    cells: Cells,
    family: EventFamily,
    claims: ApproxClaims | RenyiClaims,
    confidence: float,
) -> tuple[list[OutcomeFinding], list[JointFinding]]:
    """Return the best lower bound of each class, and those for all outcomes together."""
    bounds = bounded(counts, runs, family, confidence)
    nothing_shown = []
    for key, members in zip(cells.keys, family.members, strict=True):
        here, there = counts[:, members].sum(axis=1).tolist()
        nothing_shown.append(OutcomeFinding(key.index, 0.0, 0.0, "", SIDES[0], (here, there)))
    if isinstance(claims, RenyiClaims):
        return _judge_renyi(nothing_shown, bounds, cells, family, claims)
    _, chosen = family.tails(confidence)
    bests = [
        _judge_class(finding, index, bounds, cells, family, claims)
        for index, finding in enumerate(nothing_shown)
    ]
    return bests, [_judge_joint(counts, runs, family, side, claims, chosen) for side in (0, 1)]


def _judge_class(
    best: OutcomeFinding,
    index: int,
    bounds: Bounded,
    cells: Cells,
    family: EventFamily,
    claims: ApproxClaims,
) -> OutcomeFinding:
    """Find the event of a class that gives the largest lower bound of its ε̃."""
    members = family.members[index]
    best = replace(best, claimed=float(claims.epsilons[index]))
    for side in (0, 1):
        events = [(bounds.class_low[side, index], bounds.class_high[1 - side, index], members)]
        low, high = bounds.cell_low[side, members], bounds.cell_high[1 - side, members]
        if len(members) > 1:
            top = int(np.argmax(_log_ratio(low, high, claims.delta)))
            events.append((low[top], high[top], members[top : top + 1]))
        if (number := family.union_of.get((index, side))) is not None:
            events.append(
                (
                    bounds.union_low[side, number],
                    bounds.union_high[1 - side, number],
                    family.unions[number].cells,
                )
            )
        for lower, upper, event in events:
            value = float(_log_ratio(lower, upper, claims.delta))
            if value > best.lower_bound:
                words = _words(cells, event, len(members))
                best = replace(best, lower_bound=value, event=words, side=SIDES[side])
    return best


def _log_ratio(low: Floats, high: Floats, delta: float) -> Floats:
    """Return ln((low − δ)/high); −∞ where low ≤ δ."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(low - delta, 0.0)) - np.log(high))


def _words(cells: Cells, event: Integers, size: int) -> str:
    """Describe an event in words."""
    return "any" if len(event) == size else describe_cells([cells.cells[cell] for cell in event])


def _judge_joint(
    counts: Counts, runs: int, family: EventFamily, side: int, claims: ApproxClaims, tail: float
) -> JointFinding:
    """Bound Σ (P − e^{ε̃}P′)₊ from below in one direction."""
    value = 0.0
    for joint in family.joints:
        if joint.side == side:
            low, _ = clopper_pearson(event_counts(counts, [joint.cells], side), runs, tail)
            _, high = clopper_pearson(
                event_counts(counts, [part for _, part in joint.parts], 1 - side), runs, tail
            )
            value = float(
                low[0]
                - sum(
                    weight(level) * upper
                    for (level, _), upper in zip(joint.parts, high, strict=True)
                )
            )
    return JointFinding(claims.delta, max(0.0, value))


def _judge_renyi(
    nothing_shown: Sequence[OutcomeFinding],
    bounds: Bounded,
    cells: Cells,
    family: EventFamily,
    claims: RenyiClaims,
) -> tuple[list[OutcomeFinding], list[JointFinding]]:
    """Bound the Rényi moments of each class, and their sum, at every order and direction."""
    bounds_of: list[list[OutcomeFinding]] = [[] for _ in family.members]
    joint: list[JointFinding] = []
    for number, order in enumerate(claims.orders):
        for side in (0, 1):
            total = 0.0
            for index, (moment, event) in enumerate(_moments(bounds, cells, family, order, side)):
                claimed = float(claims.charges[number, index])
                total += weight(moment - (order - 1) * claimed)
                value = max(0.0, moment / (order - 1))
                bound = replace(
                    nothing_shown[index], claimed=claimed, lower_bound=value, order=order
                )
                bounds_of[index].append(
                    replace(bound, event=event if value > 0 else "", side=SIDES[side])
                )
            joint.append(JointFinding(1.0, total, order))
    return [max(candidates_, key=_tightness) for candidates_ in bounds_of], joint


def _moments(
    bounds: Bounded, cells: Cells, family: EventFamily, order: float, side: int
) -> Iterator[tuple[float, str]]:
    """For each class, yield ln of a lower bound of Σ A^α A′^{1−α}, and the event that gives it."""
    by_cell = _log_moment(bounds.cell_low[side], bounds.cell_high[1 - side], order)
    by_class = _log_moment(bounds.class_low[side], bounds.class_high[1 - side], order)
    by_union = _log_moment(bounds.union_low[side], bounds.union_high[1 - side], order)
    for index, members in enumerate(family.members):
        moments = [
            (float(np.logaddexp.reduce(by_cell[members])), "all cells"),
            (float(by_class[index]), "any"),
        ]
        if (number := family.union_of.get((index, side))) is not None:
            moments.append(
                (float(by_union[number]), _words(cells, family.unions[number].cells, len(members)))
            )
        yield max(moments)


def _log_moment(low: Floats, high: Floats, order: float) -> Floats:
    """Return ln(low^α · high^{1−α})."""
    with np.errstate(divide="ignore"):
        return np.asarray(order * np.log(low) - (order - 1) * np.log(high))


def _tightness(bound: OutcomeFinding) -> float:
    """Return lower bound / claim; ∞ if a claim of 0 is exceeded."""
    if bound.claimed > 0:
        return bound.lower_bound / bound.claimed
    return np.inf if bound.lower_bound > 0 else 0.0
