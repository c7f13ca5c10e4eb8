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
   looks before (:class:`Tail`). The bound is where it seems to be after the last one.

The wanted share is the quantile that was asked for and a margin of noise: what noise hides cannot
be bounded. Everything but the looks is post-processing.

*One end of a column.* The cells beyond the distance v from an outer quartile are taken as a process
with independent increments around a shape T·(1 − v/R)^k. Increments are normal; their variance is
proportional to their mean, so that a column with a few frequent numbers is as possible as a smooth
one. For a shape the looks then have a posterior in closed form. Each R and k is weighted by its
likelihood with the best T, and by how common it is.
Tests: ``tests/facts/test_ranges.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from expost.arrays import Floats

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
