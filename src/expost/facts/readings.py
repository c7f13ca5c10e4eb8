"""What each cell of a table can be read as, how often in a column, and the range of its numbers.

What a cell becomes depends on its text alone, never on the type of its column or on other cells:
the number 1, the text "1" and the text "1.0" are the same. So a cell that turns a column of whole
numbers into text changes nothing else. No cell makes this fail.

A row counts if some described cell of it is not empty. With a user column each person counts with
one of their rows, chosen uniformly and independently of everybody else; rows without a user do not
count. So one person changes, in each column, one count by one.

**Ranges.** Every look is a histogram: the line is cut into intervals, each cell is in one of them,
so one person changes one count by one, however many intervals there are. Where the next look cuts
is decided by what was released before, and by nothing else:

1. *Quartiles.* Bisection, all three at once, on public points (32 per power of two, and 0), then
   inside the interval that is left.
2. *Tails.* From the outer quartiles outwards, intervals whose lengths are multiples of the distance
   between the quartile and the median, then powers of two. Where quartile and median are equal
   (most values are 0, say), powers of two from there.
3. *Bounds.* Four looks at the points beyond which the wanted share of the cells seems to be, by all
   looks before (:class:`Tail`). The bound is where it seems to be after the last one.

The wanted share is the quantile that was asked for and a margin of noise: what noise hides cannot
be bounded. Everything but the looks is post-processing.

*One end of a column.* The cells beyond the distance v from an outer quartile are taken as a process
with independent increments around a shape T·(1 − v/R)^k. Increments are normal; their variance is
proportional to their mean, so that a column with a few frequent numbers is as possible as a smooth
one. For a shape the looks then have a posterior in closed form. Each R and k is weighted by its
likelihood with the best T, and by how common it is.
Tests: ``tests/facts/test_readings.py``, ``tests/facts/test_ranges.py``,
``tests/facts/test_describe.py``.
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


_NEAR = (1.0, 1.5, 2.0)  # ends of intervals of a tail, in distances between quartile and median
_OCTAVES = 44
_PER_OCTAVE = 6  # lengths R that are tried
_POWERS = (0.7, 1.0, 1.5, 2.5, 5.0, 9.0)  # of the shapes that a tail may have
_LIKELY = 24  # shapes that are worth a closer look
_MISFIT = 0.08  # relative error of every shape, where they are first compared
_ROUGH = 0.02  # variance of an increment, in units of T times its mean
_STRAY = 0.02  # of the cells are anywhere
_ATOM_SURPRISE = 0.3  # e-folds by which a tail is less common that is twice as long
_SURPRISE = 0.7  # the same for one that is twice as long or as short as usual
_EMPTY = 3.0  # e-folds by which it is more common that nothing is beyond a frequent number
_FINE = 16  # points between two cuts


@dataclass
class Tail:
    """One end of a column, by the distance from an outer quartile outwards.

    ``looks`` holds what was released: from and up to a distance, the count, and its precision.
    """

    sign: int
    anchor: float
    spread: float
    unit: float
    whole: bool
    looks: list[tuple[float, float, float, float]] = field(default_factory=list)

    @property
    def atom(self) -> bool:
        """Whether the quartile and the median are the same point."""
        return self.spread < self.unit

    def point(self, distance: float) -> float:
        """Return the number at a distance."""
        return self.anchor + self.sign * distance

    def distances(self) -> list[float]:
        """Return where the intervals of the tail begin."""
        steps = [2.0**power for power in range(_OCTAVES)]
        ends = [self.unit * step for step in steps]
        if not self.atom:
            ends = [self.spread * step for step in (*_NEAR, *steps[2:])]
        if self.whole:
            ends = [float(math.floor(end)) for end in ends]
        return [0.0, *sorted({end for end in ends if end > 0})]

    def note(self, begin: float, end: float, count: float, precision: float) -> None:
        """Note a released count."""
        self.looks.append((begin, end, count, precision))

    def crossing(self, target: float) -> float:
        """Return from where on at most ``target`` cells are beyond, as likely as not."""
        return _Posterior(self).crossing(target)


class _Posterior:
    """What all looks at a tail say about the cells between two cuts, for each likely shape.

    ``mean`` and ``variance`` are those of the cells between neighbouring cuts, ``prior`` is their
    variance before the looks, ``weight`` is that of the shapes.
    """

    def __init__(self, tail: Tail) -> None:
        begins, ends, counts, precisions = (
            np.array(part) for part in zip(*tail.looks, strict=True)
        )
        self.whole = tail.whole
        self.cuts = np.unique(np.concatenate([begins, ends[np.isfinite(ends)], [0.0]]))
        inside = (begins[:, None] <= self.cuts) & (self.cuts < ends[:, None])
        sums = inside.astype(np.float64)
        self.lengths, self.powers, score = _shapes(tail)
        self._take_likely(score, sums, counts, precisions)
        self._update(sums, counts, precisions)

    def _take_likely(self, score: Floats, sums: Floats, counts: Floats, precisions: Floats) -> None:
        """Keep the shapes that fit best if the cells follow them, each with its best T."""
        shape = self._between(self.cuts)
        seen = shape @ sums.T
        soft = 1 / (1 / precisions + (_MISFIT * counts) ** 2)  # no tail has such a shape
        total = (seen * soft) @ counts / np.maximum((seen**2 * soft).sum(axis=1), 1e-300)
        total = np.maximum(total, 1.0)
        fit = score - 0.5 * ((counts - total[:, None] * seen) ** 2 * soft).sum(axis=1)
        likely = np.argsort(-fit, kind="stable")[:_LIKELY]
        self.lengths, self.powers = self.lengths[likely], self.powers[likely]
        self.expected, self.score = total[likely, None] * shape[likely], score[likely]
        self.prior = _ROUGH * total[likely, None] * self.expected

    def _update(self, sums: Floats, counts: Floats, precisions: Floats) -> None:
        """Condition on the looks; weight the shapes by their likelihood."""
        precision = (sums.T * precisions) @ sums + np.eye(len(self.cuts)) / self.prior[:, None, :]
        self.variance = np.linalg.inv(precision)
        errors = counts - self.expected @ sums.T
        pull = (errors * precisions) @ sums
        moved = (self.variance @ pull[:, :, None])[:, :, 0]
        self.mean = self.expected + moved
        fit = (errors**2 * precisions).sum(axis=1) - (pull * moved).sum(axis=1)
        spread = np.linalg.slogdet(precision)[1] + np.log(self.prior).sum(axis=1)
        score = self.score - 0.5 * (fit + spread)
        weight = np.exp(score - score.max())
        self.weight = weight / weight.sum()

    def _between(self, cuts: Floats) -> Floats:
        """Return the share of the cells of each shape between neighbouring cuts; the last: beyond.

        A small share is anywhere, so that no interval is impossible.
        """
        beyond = self._beyond(cuts)
        between = beyond - np.pad(beyond[:, 1:], ((0, 0), (0, 1)))
        return (1 - _STRAY) * between + _STRAY / len(cuts)

    def _beyond(self, distances: Floats) -> Floats:
        """Return the share of the cells of each shape that is beyond distances."""
        left = np.maximum(0.0, 1.0 - distances[None, :] / self.lengths[:, None])
        return np.asarray(left ** self.powers[:, None])

    def _probability(self, target: float, mean: Floats, variance: Floats) -> Floats:
        """Return how likely at most ``target`` cells are beyond some points."""
        by_shape = _normal_cdf((target - mean) / np.sqrt(np.maximum(variance, 1e-12)))
        return np.asarray(self.weight @ by_shape)

    def crossing(self, target: float) -> float:
        """Return from where on at most ``target`` cells are beyond with probability 1/2."""
        mean = np.cumsum(self.mean[:, ::-1], axis=1)[:, ::-1]
        both = np.cumsum(np.cumsum(self.variance[:, ::-1, ::-1], axis=1), axis=2)[:, ::-1, ::-1]
        variance = np.diagonal(both, axis1=1, axis2=2)
        likely = self._probability(target, mean, variance) >= 0.5
        after = int(np.argmax(likely)) if likely.any() else len(self.cuts)
        if after in (0, len(self.cuts)):
            return float(self.cuts[max(after - 1, 0)])
        at = after - 1
        points = np.linspace(self.cuts[at], self.cuts[after], _FINE + 1)[1:]
        points = np.unique(np.ceil(points)) if self.whole else points
        share = self._share_beyond(at, points)
        together = self.variance[:, at, after:].sum(axis=1)[:, None]
        doubt = variance[:, after, None] + 2 * share * together
        doubt = doubt + share**2 * self.variance[:, at, at, None]
        doubt = doubt + share * (1 - share) * self.prior[:, at, None]  # inside the interval
        inner = mean[:, after, None] + share * self.mean[:, at, None]
        likely = self._probability(target, inner, doubt) >= 0.5
        return float(points[int(np.argmax(likely)) if likely.any() else -1])

    def _share_beyond(self, at: int, points: Floats) -> Floats:
        """Return which share of the cells between two cuts is beyond points between them."""
        begin, end = self.cuts[at : at + 2]
        beyond = self._beyond(np.array([begin, *points, end]))
        stray = _STRAY / len(self.cuts) * (end - points) / (end - begin)
        inside = (1 - _STRAY) * (beyond[:, 1:-1] - beyond[:, -1:]) + stray
        whole = (1 - _STRAY) * (beyond[:, :1] - beyond[:, -1:]) + _STRAY / len(self.cuts)
        return np.asarray(inside / whole)


def _shapes(tail: Tail) -> tuple[Floats, Floats, Floats]:
    """Return the lengths R and powers k of shapes, and the logarithm of how common they are."""
    scale = tail.unit if tail.atom else tail.spread
    reach = scale * 2.0 ** np.arange(0.0 if tail.atom else -1.0, _OCTAVES, 1 / _PER_OCTAVE)
    lengths, powers = (part.ravel() for part in np.meshgrid(reach, _POWERS, indexing="ij"))
    octaves = np.log2(lengths / scale / (1 + powers))
    if tail.atom:
        return lengths, powers, _EMPTY * (lengths == scale) - _ATOM_SURPRISE * octaves
    return lengths, powers, -_SURPRISE * np.abs(octaves)


def _normal_cdf(x: Floats) -> Floats:
    """Return the normal distribution function to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x) / math.sqrt(2))
    series = 0.254829592 + t * (
        -0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))
    )
    tail = 0.5 * t * series * np.exp(-0.5 * x * x)
    return np.asarray(np.where(x > 0, 1 - tail, tail))


Look = Callable[[Floats, float], tuple[Floats, float]]
"""A noisy look at disjoint counts with a precision 1/σ²: what is released, and the true σ."""

SHARES = {"quartiles": 0.15, "middle": 0.12, "tails": 0.2, "bounds": 0.51, "histogram": 0.02}
"""How the precision of a column is divided."""
_QUARTILES = (0.25, 0.5, 0.75)
_POINTS = 32
_INSIDE = 4  # further bisections between two public points
_LOOKS = 4  # at the bounds
_MARGIN = 1.8  # standard deviations above the wanted quantile
_CELLS = 8  # of the histogram
_HALF = [
    math.ldexp(1 + step / _POINTS, power) for power in range(-20, 61) for step in range(_POINTS)
]
POINTS = np.array([*(-point for point in reversed(_HALF)), 0.0, *_HALF])
"""The public points at which counts are first compared."""


@dataclass(frozen=True)
class DistinctNumbers:
    """The different numbers of a column, ascending, with their counts. Private."""

    values: Floats = field(repr=False)
    counts: Floats = field(repr=False)

    def cut(self, below: list[float], above: list[float]) -> Floats:
        """Return the counts of the intervals between cuts.

        A cut in ``below`` separates x < t from x ≥ t, one in ``above`` x ≤ t from x > t. Cuts
        ascend, those in ``below`` first.
        """
        upto = np.concatenate([[0.0], np.cumsum(self.counts)])
        first = np.searchsorted(self.values, below, side="left")
        last = np.searchsorted(self.values, above, side="right")
        edges = np.concatenate([[0.0], upto[first], upto[last], [upto[-1]]])
        return np.asarray(np.diff(np.maximum.accumulate(edges)))


@dataclass(frozen=True)
class Range:
    """Where the numbers of a column are, as released."""

    low: float
    high: float
    median: float
    outside: float
    edges: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    deviation: float = 0.0


def find_range(
    numbers: DistinctNumbers,
    look: Look,
    precision: float,
    cells: float,
    quantiles: tuple[float, float],
    *,
    whole: bool,
) -> Range:
    """Return where the numbers of a column are.

    ``cells``: how many numbers there are, as released. ``quantiles``: between which the bounds
    should be, if noise allows it.
    """
    low, median, high, unit = _quartiles(numbers, look, precision, cells, whole)
    part = {name: share * precision for name, share in SHARES.items()}
    tails = [
        Tail(sign, anchor, abs(anchor - median), unit, whole)
        for sign, anchor in ((-1, low), (1, high))
    ]
    margin = _MARGIN / math.sqrt(part["bounds"])
    targets = [quantiles[0] * cells + margin, (1 - quantiles[1]) * cells + margin]
    _look_beyond(numbers, look, tails, [0.0, 0.0], part["middle"])
    _look_at_intervals(numbers, look, tails, part["tails"])
    for number in range(_LOOKS + 1):
        distances = [tail.crossing(wanted) for tail, wanted in zip(tails, targets, strict=True)]
        if number < _LOOKS:
            _look_beyond(numbers, look, tails, distances, part["bounds"] / _LOOKS)
    ends = [tail.point(distance) for tail, distance in zip(tails, distances, strict=True)]
    bounds = _usable(*ends, positive=low > 0, unit=unit, whole=whole)
    return _with_histogram(
        numbers, look, part["histogram"], bounds, median, max(targets) / cells, whole
    )


def _quartiles(
    numbers: DistinctNumbers, look: Look, precision: float, cells: float, whole: bool
) -> tuple[float, float, float, float]:
    """Return the quartiles by bisection, and how exactly they are known."""
    steps = math.ceil(math.log2(len(POINTS))) + _INSIDE
    ends = [[0, len(POINTS) - 1] for _ in _QUARTILES]  # the last point below, and the last possible
    inside: list[list[float]] = []
    for _ in range(steps):
        if any(first < last for first, last in ends):
            middles = [POINTS[(first + last + 1) // 2] for first, last in ends]
        else:
            inside = inside or [_interval(first) for first, _ in ends]
            middles = [_middle(low, high, whole) for low, high in inside]
            if all(m == low for m, (low, _) in zip(middles, inside, strict=True)):
                break
        cuts = sorted(set(middles))
        noisy, _ = look(numbers.cut(cuts, []), SHARES["quartiles"] * precision / steps)
        upto = dict(zip(cuts, np.cumsum(noisy)[:-1].tolist(), strict=True))
        for index, (share, middle) in enumerate(zip(_QUARTILES, middles, strict=True)):
            below = upto[middle] <= share * cells
            if inside:
                inside[index][0 if below else 1] = middle
            elif ends[index][0] < ends[index][1]:
                at = (sum(ends[index]) + 1) // 2
                ends[index] = [at, ends[index][1]] if below else [ends[index][0], at - 1]
    inside = inside or [_interval(first) for first, _ in ends]
    low, median, high = sorted(interval[0] for interval in inside)
    unit = 1.0 if whole else max(end - start for start, end in inside)
    return low, median, high, unit


def _interval(first: int) -> list[float]:
    """Return the interval from a public point to the next one."""
    last = first + 1 == len(POINTS)
    return [float(POINTS[first]), float(2 * POINTS[first] if last else POINTS[first + 1])]


def _middle(low: float, high: float, whole: bool) -> float:
    """Return the middle of an interval; its lower end if there is none."""
    return float(math.floor((low + high) / 2)) if whole else (low + high) / 2


def _look_beyond(
    numbers: DistinctNumbers,
    look: Look,
    tails: list[Tail],
    distances: list[float],
    precision: float,
) -> None:
    """Look at how many cells are beyond a distance in both tails."""
    cuts = [tail.point(distance) for tail, distance in zip(tails, distances, strict=True)]
    counts, deviation = look(numbers.cut([cuts[0]], [cuts[1]]), precision)
    for tail, distance, count in zip(tails, distances, (counts[0], counts[2]), strict=True):
        tail.note(distance, math.inf, float(count), deviation**-2)


def _look_at_intervals(
    numbers: DistinctNumbers, look: Look, tails: list[Tail], precision: float
) -> None:
    """Look at the intervals of both tails, from the quartiles outwards."""
    distances = [tail.distances() for tail in tails]
    below, above = (
        [tail.point(distance) for distance in some]
        for tail, some in zip(tails, distances, strict=True)
    )
    noisy, deviation = look(numbers.cut(below[::-1], above), precision)
    counts = noisy[: len(below)][::-1], noisy[len(below) + 1 :]
    for tail, some, of in zip(tails, distances, counts, strict=True):
        for begin, end, count in zip(some, [*some[1:], math.inf], of.tolist(), strict=True):
            tail.note(begin, end, count, deviation**-2)


def _usable(
    low: float, high: float, *, positive: bool, unit: float, whole: bool
) -> tuple[float, float]:
    """Return bounds that differ, at whole numbers where the column has such."""
    low = max(low, 0.0) if positive else low  # where a quarter of the cells is above 0
    if whole:
        low, high = float(round(low)), float(round(high))
    least = max(unit, abs(low) * 2.0**-40)  # so that the bounds differ as floats, too
    return (low, high) if high - low >= least else (low, low + least)


def _with_histogram(
    numbers: DistinctNumbers,
    look: Look,
    precision: float,
    bounds: tuple[float, float],
    median: float,
    outside: float,
    whole: bool,
) -> Range:
    """Return the range with a histogram of what is inside."""
    low, high = bounds
    cells = int(min(_CELLS, high - low + 1)) if whole else _CELLS
    width = (high - low + 1) / cells if whole else (high - low) / cells
    edges = [low + width * number for number in range(cells + 1)]
    noisy, deviation = look(numbers.cut(edges, []), precision)
    median = min(max(median, low), high)
    counts = tuple(float(count) for count in noisy[1:-1])
    return Range(low, high, median, outside, tuple(edges), counts, deviation)
