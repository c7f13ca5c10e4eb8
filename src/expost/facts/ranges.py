"""The range of a column of numbers, from noisy counts of intervals.

Every look is a histogram: the line is cut into intervals, each cell is in one of them, so one
person changes one count by one, however many intervals there are. Where the next look cuts is
decided by what was released before, and by nothing else:

1. *Quartiles.* Bisection, all three at once, on public points (32 per power of two, and 0), then
   inside the interval that is left.
2. *Tails.* From the outer quartiles outwards, intervals whose lengths are multiples of the distance
   between the quartile and the median, then powers of two. Where quartile and median are equal
   (most values are 0, say), powers of two from there.
3. *Bounds.* Four looks at the points beyond which the wanted share of the cells seems to be, by all
   looks before (:mod:`expost.facts.tails`). The bound is where it seems to be after the last one.

The wanted share is the quantile that was asked for and a margin of noise: what noise hides cannot
be bounded. Everything but the looks is post-processing.
Tests: ``tests/facts/test_ranges.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from expost.arrays import Floats
from expost.facts.tails import Tail

Look = Callable[[Floats, float], tuple[Floats, float]]
"""A noisy look at disjoint counts with a precision 1/σ²: what is released, and the true σ."""

SHARES = {"quartiles": 0.15, "middle": 0.12, "tails": 0.2, "bounds": 0.51, "histogram": 0.02}
"""How the precision of a column is divided."""
_QUARTILES = (0.25, 0.5, 0.75)
_PER_OCTAVE = 32
_INSIDE = 4  # further bisections between two public points
_LOOKS = 4  # at the bounds
_MARGIN = 1.8  # standard deviations above the wanted quantile
_CELLS = 8  # of the histogram
_HALF = [
    math.ldexp(1 + step / _PER_OCTAVE, power)
    for power in range(-20, 61)
    for step in range(_PER_OCTAVE)
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
