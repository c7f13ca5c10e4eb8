"""Values near wanted ranks: the exponential mechanism on a grid, in a tree of disjoint intervals.

**One draw.** The rows of an interval of grid cells are given, and a share λ of them should lie
below the answer. For a cell x let S(x) be the rows below x less λ times all rows of the interval,
and d(x) the distance of 0 from [S(x), S(x + 1)]: 0 if the wanted row lies in x. Cell x is drawn
with probability proportional to μ(x)·e^{−η·d(x)}, exactly (``randomness.weighted_choice``), with a
public base measure μ.

*Cost.* A person adds at most r rows to the interval. Each moves S(x) by 1 − λ if it lies below x
and by −λ otherwise, so every d(x) moves by at most r·max(λ, 1 − λ) up or down: the utilities −d
move within a range of width 2r·max(λ, 1 − λ). With η = e/(2r·max(λ, 1 − λ)) the draw is e-DP and,
because its range is bounded, e²/8-zCDP (Cesar and Rogers 2021). A person without rows in the
interval changes nothing.

**A tree.** The rank nearest to the middle is drawn first from all rows, then the ranks below it
from the rows below the drawn cell, and those above it from the rows at or above that cell (Kaplan,
Schnapp and Stemmer 2022). The intervals of one level are disjoint, but the r rows of a person may
lie in several of them. Let r_i of them lie in interval i, Σ r_i ≤ r. The draws of a level are
independent given those before, and interval i costs this person e·r_i/r (group privacy of the same
calculation), so the level costs e. In ρ: Σ (e·r_i/r)²/8 ≤ e²/8. A tree of ⌈log₂(q + 1)⌉ levels for
q ranks therefore costs the sum over its levels.

**A bound for one draw.** Some cell has d = 0. So P(d(x) > t) ≤ (Σ μ/min μ)·e^{−ηt}, whatever the
data are (:func:`distance_bound`).

The base measure is half uniform in value, and half uniform in the logarithm of the distance from
zero (or from the bound that is nearest to zero): amounts of every size are found at a small ε.

**Learned measures.** For a rank that was drawn in other groups before, half of μ is that measure,
the other half is uniform in the logarithm of the distance from those cells
(:class:`LearnedMeasure`). μ is then a function of what was released, and given that, the draw costs
what it costs with any μ; in an adaptive composition nothing else is asked. Where groups are alike,
small ones are found at a smaller ε; where they are not, no cell has less than half of its mass.
Tests: ``tests/analytics/test_quantile_search.py`` (law by enumeration in both
directions).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from expost.arrays import Integers
from expost.randomness.samplers import weighted_choice
from expost.randomness.source import Randomness
from expost.rationals import round_down

MOST_CELLS = 2**20
_SHORT = 10**6
_CELL = 2**10  # the least mass of one cell, so that all masses are at most 2^33
_MOST_LEARNED = 32  # groups from which a measure is learned: those that are drawn first


@dataclass(frozen=True)
class CellCounts:
    """The rows of one group: cells that occur, ascending, and how many rows each has. Private."""

    cells: Integers
    counts: Integers

    @classmethod
    def empty(cls) -> CellCounts:
        """Return the counts of a group without rows."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @property
    def size(self) -> int:
        """The number of rows."""
        return int(self.counts.sum())

    def between(self, start: int, end: int) -> CellCounts:
        """Return the rows in cells from ``start`` up to, not including, ``end``."""
        first, last = np.searchsorted(self.cells, (start, end))
        return CellCounts(self.cells[first:last], self.counts[first:last])

    def histogram(self, edges: Integers) -> Integers:
        """Return the rows in the cells between neighbouring edges."""
        upto = np.concatenate([[0], np.cumsum(self.counts)])
        return np.asarray(np.diff(upto[np.searchsorted(self.cells, edges)]))


@lru_cache(maxsize=16)
def base_measure(low: int, high: int) -> Integers:
    """Return the cumulative masses of the cells ``low`` … ``high``: whole numbers, from 0 on."""
    cells = np.arange(low, high + 1)
    nearest = min(max(low, 0), high)
    away = 1.0 / (1 + np.abs(cells - nearest))
    masses = (_CELL * (1 + len(cells) * away / away.sum())).astype(np.int64)
    return np.concatenate([[0], np.cumsum(masses)]).astype(np.int64)


class LearnedMeasure:
    """The base measure of one rank, and what the cells that were drawn for it say; public."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._number = low, 0
        self.upto = self._before = base_measure(low, high)
        self._near = np.zeros(high - low + 1)

    def learn(self, cell: int) -> None:
        """Give cells near one that was released more mass."""
        if self._number == _MOST_LEARNED:
            return
        self._number += 1
        away = 1.0 / (1 + np.abs(np.arange(len(self._near)) + (self._low - cell)))
        self._near += away / away.sum()
        masses = (self._near * (int(self._before[-1]) / self._number)).astype(np.int64)
        self.upto = self._before.copy()
        self.upto[1:] += np.cumsum(masses)


def draw_cell(
    rows: CellCounts, interval: tuple[int, int], share: Fraction, eta: Fraction, source: Source
) -> int:
    """Draw a cell of ``interval`` (its end is not in it) near the given share of its rows."""
    start, end = interval
    upto = np.concatenate([[0], np.cumsum(rows.counts)]).astype(np.int64)
    # S in units of 1/denominator: runs of empty cells, and cells with rows between them.
    scores = upto * share.denominator - int(upto[-1]) * share.numerator
    starts = np.concatenate([[start], rows.cells + 1])
    ends = np.concatenate([rows.cells, [end]])
    here = np.maximum(0, np.maximum(scores[:-1], -scores[1:]))
    first, last = np.concatenate([starts, rows.cells]), np.concatenate([ends, rows.cells + 1])
    measure = source.measure
    masses = measure[last - source.low] - measure[first - source.low]
    distances = np.concatenate([np.abs(scores), here])
    run = weighted_choice(masses, distances, eta / share.denominator, source.randomness)
    offset = int(measure[first[run] - source.low])
    point = offset + source.randomness.below(int(masses[run]))
    return source.low + int(np.searchsorted(measure, point, side="right")) - 1


@dataclass(frozen=True)
class Source:
    """The public grid (``low`` … ``high``) with its base measure, and the randomness."""

    low: int
    high: int
    randomness: Randomness
    learned: LearnedMeasure | None = None

    @property
    def measure(self) -> Integers:
        """The cumulative base measure of the grid."""
        return base_measure(self.low, self.high) if self.learned is None else self.learned.upto


def tree_levels(ranks: int) -> int:
    """Return how many levels the tree of this many ranks has: ⌈log₂(ranks + 1)⌉."""
    return ranks.bit_length()


def first_share(ranks: Sequence[Fraction]) -> float:
    """Return the rank that is drawn first, from all rows."""
    return float(ranks[_middle(ranks, 0, len(ranks), Fraction(1, 2))])


def search(
    rows: CellCounts,
    ranks: Sequence[Fraction],
    rate: Fraction,
    most_rows: int,
    source: Source,
    learned: Mapping[Fraction, LearnedMeasure] | None = None,
) -> list[int]:
    """Return a cell near each rank (ascending); costs ``rate`` (an ε) per level of the tree.

    ``learned``: measures of some ranks, which depend on nothing but what was released.
    """
    cells = [source.low] * len(ranks)
    for index, interval, share in _tree(ranks, cells, (source.low, source.high + 1)):
        eta = rate / (2 * most_rows * max(share, 1 - share))
        own = replace(source, learned=learned.get(ranks[index])) if learned else source
        cells[index] = draw_cell(rows.between(*interval), interval, share, eta, own)
    return cells


def _tree(
    ranks: Sequence[Fraction], cells: list[int], interval: tuple[int, int]
) -> Iterator[tuple[int, tuple[int, int], Fraction]]:
    """Yield what to draw: index, interval of cells, share of its rows; parents come first."""
    pending = [(0, len(ranks), interval, Fraction(0), Fraction(1))]
    while pending:
        first, last, (start, end), below, above = pending.pop()
        if first == last:
            continue
        if start == end:  # nothing is left below the cell that was drawn: the same cell again
            cells[first:last] = [start] * (last - first)
            continue
        index = _middle(ranks, first, last, (below + above) / 2)
        # Any share is valid; a short one keeps the scores of 2^43 rows inside 64 bits.
        share = ((ranks[index] - below) / (above - below)).limit_denominator(_SHORT)
        yield index, (start, end), share
        cell = cells[index]
        pending.append((first, index, (start, cell), below, ranks[index]))
        pending.append((index + 1, last, (cell, end), ranks[index], above))


def _middle(ranks: Sequence[Fraction], first: int, last: int, middle: Fraction) -> int:
    """The rank nearest to the middle among those that keep the tree as low as it can be."""
    levels = tree_levels(last - first)
    fits = [
        index
        for index in range(first, last)
        if max(tree_levels(index - first), tree_levels(last - index - 1)) < levels
    ]
    return min(fits, key=lambda index: abs(ranks[index] - middle))


def distance_bound(eta: Fraction, source: Source, miss: float) -> float:
    """Return t such that one draw is more than t rows away with probability at most ``miss``."""
    measure = source.measure
    least = int(np.diff(measure).min())
    return math.log(int(measure[-1]) / least / miss) / round_down(eta) * (1 + 1e-12)
