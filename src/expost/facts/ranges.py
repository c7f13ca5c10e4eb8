"""The range of a column of numbers, from noisy counts of intervals.

Every look is a histogram: the line is cut into intervals, each cell is in one of them, so one
person changes one count by one, however many intervals there are. Where the next look cuts is
decided by what was released before, and by nothing else:

1. *Quartiles.* Bisection, all three at once, on public points (32 per power of two, and 0), then
   inside the interval that is left.
2. *Tails.* From the outer quartiles outwards, intervals whose lengths are multiples of the distance
   between the quartile and the median, then powers of two. Where quartile and median are equal
   (most values are 0, say), powers of two from there.
3. *Bounds.* Two looks at the points beyond which the wanted share of the cells seems to be. All
   looks at a tail together are explained by shapes T·(1 − v/R)^k of what is beyond a distance v;
   the bound is the median of where these shapes put the wanted share.

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

Look = Callable[[Floats, float], tuple[Floats, float]]
"""A noisy look at disjoint counts with a precision 1/σ²: what is released, and the true σ."""

SHARES = {"quartiles": 0.15, "middle": 0.15, "tails": 0.2, "bounds": 0.46, "histogram": 0.04}
"""How the precision of a column is divided."""
_QUARTILES = (0.25, 0.5, 0.75)
_PER_OCTAVE = 32
_INSIDE = 4  # further bisections between two public points
_NEAR = (1.0, 1.5, 2.0)  # ends of intervals of a tail, in distances between quartile and median
_OCTAVES = 44
_POWERS = (1.0, 1.5, 2.0, 3.0, 5.0, 9.0)  # of the shapes that a tail may have
_MISFIT = 0.08  # relative error of every shape
_ATOM_SURPRISE = 0.3  # e-folds by which a tail is less common that is twice as long
_SURPRISE = 0.7  # the same for one that is twice as long or as short as usual
_MARGIN = 1.4  # standard deviations above the wanted quantile
_FIRST = 0.4  # of the precision of the bounds goes to the first of two looks
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


@dataclass
class _Tail:
    """One end of a column, by the distance from an outer quartile outwards.

    ``looks`` holds what was released: from and up to a distance, the count, and its precision.
    """

    sign: int
    anchor: float
    spread: float
    unit: float
    whole: bool
    position: float = 0.0
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

    def move(self, target: float) -> None:
        """Move to where ``target`` cells seem to be beyond: the median of a posterior.

        The tail is taken as T·(1 − v/R)^k beyond the distance v. Each R and k is weighted by its
        likelihood with the best T, and by how common it is.
        """
        begins, ends, counts, precisions = (
            np.array(part) for part in zip(*self.looks, strict=True)
        )
        precisions = 1 / (1 / precisions + (_MISFIT * counts) ** 2)  # no tail has such a shape
        scale = self.unit if self.atom else self.spread
        reach = scale * 2.0 ** np.arange(-1.0 if not self.atom else 0.0, _OCTAVES, 0.25)
        lengths, powers = (part.ravel() for part in np.meshgrid(reach, _POWERS, indexing="ij"))

        def beyond(distance: Floats) -> Floats:
            left = np.maximum(0.0, 1.0 - distance[None, :] / lengths[:, None])
            return np.asarray(left ** powers[:, None])

        shape = beyond(begins) - beyond(ends)
        weighted = shape * precisions
        total = np.maximum(weighted @ counts, 0.0) / np.maximum(
            (weighted * shape).sum(axis=1), 1e-300
        )
        errors = counts - total[:, None] * shape
        score = -0.5 * (errors**2 * precisions).sum(axis=1)
        octaves = np.log2(lengths / scale / (1 + powers))
        score -= _ATOM_SURPRISE * octaves if self.atom else _SURPRISE * np.abs(octaves)
        with np.errstate(divide="ignore"):
            share = np.minimum(1.0, target / np.maximum(total, 1e-300)) ** (1 / powers)
        crossing = lengths * (1.0 - share)
        order = np.argsort(crossing, kind="stable")
        weight = np.cumsum(np.exp(score - score.max())[order])
        self.position = float(crossing[order][np.searchsorted(weight, weight[-1] / 2)])


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
        _Tail(sign, anchor, abs(anchor - median), unit, whole)
        for sign, anchor in ((-1, low), (1, high))
    ]
    margin = _MARGIN / math.sqrt(part["bounds"])
    targets = [quantiles[0] * cells + margin, (1 - quantiles[1]) * cells + margin]
    _look_beyond(numbers, look, tails, part["middle"])
    _look_at_intervals(numbers, look, tails, part["tails"])
    for share in (_FIRST, 1 - _FIRST, 0.0):
        for tail, target in zip(tails, targets, strict=True):
            tail.move(target)
        if share:
            _look_beyond(numbers, look, tails, share * part["bounds"])
    ends = [tail.point(tail.position) for tail in tails]
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
    numbers: DistinctNumbers, look: Look, tails: list[_Tail], precision: float
) -> None:
    """Look at how many cells are beyond the positions of both tails."""
    cuts = [tail.point(tail.position) for tail in tails]
    counts, deviation = look(numbers.cut([cuts[0]], [cuts[1]]), precision)
    for tail, count in zip(tails, (counts[0], counts[2]), strict=True):
        tail.note(tail.position, math.inf, float(count), deviation**-2)


def _look_at_intervals(
    numbers: DistinctNumbers, look: Look, tails: list[_Tail], precision: float
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
