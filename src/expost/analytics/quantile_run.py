"""Quantiles and histograms of many groups, each to the rank error that is wanted.

**What is released, and what it costs.** For every group: its size at some levels of a noise path,
then trees of draws (``quantile_search``) and looks at flat histograms (``flat_looks``). Which of
them comes next, at which rate, with which base measure and at which cuts, is decided from what was
released before. A group
that paid c_0 for its size, e_i per level for trees of l_i levels and f_j for looks has cost c_0 +
Σ l_i·e_i + Σ f_j (in ρ: c_0 + Σ l_i·e_i²/8 + Σ f_j).

*Theorem.* A person has rows in at most m groups, at most r in each. Then everything released is
ex-post ε̃-DP with ε̃ = the sum of the m largest group costs; in ρ the same sum never exceeds the
total, which is a zCDP filter. *Proof.* Let two tables differ in person u. The transcript is a
sequence of draws; the conditional probability of each one, given those before, is the same for both
tables if u has no row in its group. In u's groups it changes by a factor of at most e^{cost of this
draw} (``quantile_search``, ``flat_looks``; the path of a size costs its last level). The costs of
the draws are a function of the transcript, and so is their sum per group; u is in at most m groups.
In ρ, the costs of the next draws are chosen by what was released and the sum is kept below the
total, so the fully adaptive composition of zCDP applies (Whitehouse et al. 2023). ∎ Sums are exact
rationals, and a draw is paid for before it is made.

**Confidence.** An attempt draws cells x for the ranks, looks at the counts at cuts x (and x + 1
where one value may hold many rows), and has fresh noise of a known law, whatever led to the cuts.
Let A = P(≤ x) and B = P(< x) ≤ A. Bounds of A from below and of B from above fail with probability
at most β each, for any β. Let β₀ be the attempt's part of 1 − confidence, and w the wanted error. A
rank λ is *answered* if "A ≥ λ − w" and "B ≤ λ + w" are both sure, each at β = aβ₀ (a =
:data:`_FOR_ANSWER`). Its interval is then the one at β₀/2 per side, cut to λ ± w. If it is not
answered, its interval is the one at (1 − a)β₀/2 per side.

*Lemma.* P(the interval is wrong) ≤ β₀, answered or not. *Proof.* Wrong is A < rank_low or B >
rank_high. If A ≥ λ − w and B ≤ λ + w, the cut changes nothing, and a bound is wrong only if it is
wrong at β₀/2, because bounds are narrower at a larger β. If A < λ − w, the group is answered only
if the false claim "A ≥ λ − w" is sure: at most aβ₀. Where it is not answered, its bounds are wrong
with at most 2·(1 − a)β₀/2. Together at most β₀. B > λ + w likewise; as B ≤ A, not both. ∎ A claim
about λ ± w can be wrong on one side only, so each side has most of β₀: this is why an answer costs
less than an interval.

The part of an attempt is fixed by what was released before it, and the parts add up to at most
1 − confidence, so an answer of any attempt, however it is chosen, has its interval with the stated
confidence.

**Strategy.** Sizes are looked at until they are known to some percent, or surely too small. Groups
whose attempt fits into an equal share of the total are tried first, then the others, largest first,
with what is left. What cannot be answered is drawn and looked at as well as is free: up to the cost
of the m-th most expensive group, so that the charge does not rise.
Tests: ``tests/analytics/test_quantile_run.py`` (never overspends, joint law by enumeration,
coverage).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.analytics.flat_looks import (
    FINER,
    Look,
    half_width_at,
    half_widths,
    rank_bounds,
    share_bounds,
    surely_at_least,
    surely_at_most,
    take_look,
)
from expost.analytics.quantile_search import (
    CellCounts,
    LearnedMeasure,
    Source,
    distance_bound,
    first_share,
    search,
    tree_levels,
)
from expost.analytics.refinement_goals import LAWS
from expost.analytics.refinement_noise import geometric_grid
from expost.arrays import Integers
from expost.rationals import round_down, round_up

_ATTEMPTS, _FIRST_MISS = 3, 0.8  # at most; of the chance of a miss that is left, per attempt
_FOR_ANSWER = 0.8  # of the chance of a miss goes to each side of an answer
_SIZE_PART, _FIRST_SIZE = 64, 2**20  # the size of a group costs at most 1/64 of its share
_SURE, _LARGEST = 12, 1e15  # a size that is below by so many scales is too small; no larger group
_KNOWN = 40  # a size of so many scales is known well enough
# The half-width of the look, in parts of the wanted error: more per factor e of a smaller miss.
# These and the rates of draws are such that 95 % of ranks are answered at the least cost in a
# simulation of the noise alone, for 1 to 15 ranks; any are valid.
_OF_ERROR, _PER_FOLD, _MOST_OF_ERROR = {"laplace": 0.14, "gaussian": 0.2}, 0.05, 0.6
_SEARCH = 3.6
# Parts of its best cost that a last attempt may cost: much the same noise in ε and in ρ.
_LEAST_ATTEMPT = {"laplace": 0.7, "gaussian": 0.5}
_MOST_ATTEMPT = {"laplace": 1.25, "gaussian": 1.5}
_RATIO = {"laplace": 1.02, "gaussian": 1.15}  # rates of looks are powers: tables are reused
_FEW_CELLS = 4096  # with so few cells a value may hold many rows: cuts on both sides of it
_LOOK_PART = Fraction(1, 5)  # of the cost goes to the look where no error is wanted
_WORTHWHILE = 4  # what is free must be at least this part of the cost of others
_MOST_LEARNED_CELLS = 2**22  # of all ranks together; more would take time and memory
_BRACKET = 2  # values for an interval lie this many wanted errors beside the rank


@dataclass(frozen=True)
class QuantileAnswer:
    """A value near a rank: intervals in values and in ranks, and what its group cost."""

    group: Any
    at: float
    estimate: float
    low: float
    high: float
    rank_low: float
    rank_high: float
    spent: float


@dataclass(frozen=True)
class BinAnswer:
    """The share of a group's rows in one bin, its interval, and what the group cost."""

    group: Any
    start: float
    end: float
    share: float
    low: float
    high: float
    spent: float


@dataclass(frozen=True)
class QuantileJob:
    """The public settings of a run. ``bins`` are edges in grid units; ``within`` None: no goal."""

    law: str
    total: Fraction
    most_groups: int
    most_rows: int
    ranks: tuple[Fraction, ...]
    within: float | None
    confidence: float
    low: int
    high: int
    bins: tuple[int, ...] = ()
    value_intervals: bool = False

    @property
    def pairs(self) -> bool:
        """Whether cuts lie on both sides of a cell from the first attempt on."""
        return self.high - self.low < _FEW_CELLS

    def targets(self, ranks: Sequence[Fraction]) -> list[Fraction]:
        """Return the ranks that are searched for: those wanted and, if asked for, brackets."""
        wider = set(ranks)
        if self.value_intervals and self.within is not None:
            step = Fraction(self.within).limit_denominator(10**6) * _BRACKET
            wider |= {rank + side for rank in ranks for side in (-step, step)}
        return sorted(rank for rank in wider if 0 < rank < 1)


@dataclass(frozen=True)
class QuantileAttempt:
    """What one attempt does: the targets, the rate per level (an ε), the rate of the look."""

    targets: tuple[Fraction, ...]
    rate: Fraction
    look: Fraction
    cost: Fraction


@dataclass(frozen=True)
class Known:
    """What is known about one quantile: cell, low and high cell, and the interval of its rank."""

    units: tuple[int, int, int]
    rank_low: float
    rank_high: float

    def merged(self, later: Known, wanted: float) -> Known:
        """Return the nearer cell, and the cells between which both intervals place the quantile."""
        nearer = later if later.error(wanted) <= self.error(wanted) else self
        low = max(self.units[1], later.units[1])
        high = max(low, min(self.units[2], later.units[2]))
        return replace(nearer, units=(nearer.units[0], low, high))

    def error(self, wanted: float) -> float:
        """Return how far the rank may be from the wanted one."""
        return max(wanted - self.rank_low, self.rank_high - wanted)


@dataclass
class _Group:
    """What is known of a group: its cost, its size and its best results so far."""

    cost: Fraction = Fraction(0)
    size: float = 0.0
    spread: float = math.inf  # scale of the noise of the size
    attempts: int = 0
    missed: float = 0.0  # of the chance of a miss, used by attempts
    cells: dict[int, Known] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    bins: Look | None = None
    bins_answered: bool = False


def plan_attempt(
    job: QuantileJob,
    ranks: Sequence[Fraction],
    size: float,
    miss: float,
    before: int = 0,
    limit: Fraction | None = None,
) -> QuantileAttempt:
    """Return the attempt that answers ``ranks`` of a group of this size with good chances.

    ``before``: how many attempts were made; later ones have higher rates. ``limit``: what a last
    attempt may cost; it does with a little less than is best, and takes a little more.
    """
    assert job.within is not None
    targets = tuple(job.targets(ranks))
    rows = max(1e-9, job.within * size) / job.most_rows / (1 + before / 4)
    width = _width_of_answers(job, targets, _FOR_ANSWER * miss)
    part = min(_MOST_OF_ERROR, _OF_ERROR[job.law] - _PER_FOLD * math.log(_FOR_ANSWER * miss))
    look = _look_rate(job.law, width, part * rows)
    share = first_share(targets)
    rate = Fraction(_SEARCH * 2 * max(share, 1 - share) / (1 - part) / rows)
    levels = tree_levels(len(targets))
    cost = draws_cost(job.law, levels, rate) + look
    if limit is not None and limit >= _LEAST_ATTEMPT[job.law] * cost:
        part = min(_MOST_ATTEMPT[job.law], float(limit / cost)) * (1 - 1e-9)
        look = _rounded(part * float(look), _RATIO[job.law], down=True)
        rate *= Fraction(part if job.law == "laplace" else part**0.5)
    return QuantileAttempt(targets, rate, look, draws_cost(job.law, levels, rate) + look)


def _width_of_answers(job: QuantileJob, targets: Sequence[Fraction], miss: float) -> float:
    """The largest half-width of a claim about a target, in scales of a look at their cells."""
    assert job.within is not None
    each_side = 2 if job.pairs else 1
    cells, widths = len(targets) * each_side + 1, [0.0]
    for index, rank in enumerate(map(float, targets)):
        left = (index + 1) * each_side
        claims = (left, rank - job.within), (cells - left, 1 - rank - job.within)
        widths += [half_width_at(job.law, n, cells, at, miss) for n, at in claims if at > 0]
    return max(widths)


def _look_rate(law: str, width: float, rows: float) -> Fraction:
    """The rate at which a half-width of ``width`` scales is ``rows`` (per row of a person)."""
    scale = rows / max(width, 1e-9)
    return _rounded(1 / scale if law == "laplace" else 0.5 / scale**2, _RATIO[law])


def _rounded(rate: float, ratio: float, *, down: bool = False) -> Fraction:
    """A rate, rounded to a power of ``ratio``."""
    power = math.log(rate) / math.log(ratio)
    return Fraction(ratio ** (math.floor(power) if down else math.ceil(power - 1e-9)))


def draws_cost(law: str, levels: int, rate: Fraction) -> Fraction:
    """Return what a tree costs: e per level, or e²/8 in ρ."""
    return levels * (rate if law == "laplace" else rate**2 / 8)


class QuantileRun:
    """A running job. ``rows`` are the private counts of the groups; ``spent`` is the charge."""

    def __init__(
        self, job: QuantileJob, groups: Sequence[Any], rows: Sequence[CellCounts], source: Source
    ) -> None:
        self.job, self.names, self._rows, self._source = job, groups, rows, source
        self._groups = [_Group() for _ in groups]
        self._most = max(1, min(job.most_groups, len(groups)))
        self._costs = [_NO] * len(groups)  # ascending
        self._size_levels = 1
        ranks = job.targets(job.ranks)
        learns = len(groups) > 1 and len(ranks) * (job.high - job.low) <= _MOST_LEARNED_CELLS
        ranks = ranks if learns else []
        self._learned = {rank: LearnedMeasure(job.low, job.high) for rank in ranks}

    @property
    def spent(self) -> Fraction:
        """The sum of the m largest group costs."""
        return sum(self._costs[-self._most :], _NO)

    def answers(self, grid: Fraction) -> tuple[list[QuantileAnswer], list[QuantileAnswer]]:
        """Return the ranks that are answered and the others, in the unit of the data."""
        told: tuple[list[QuantileAnswer], list[QuantileAnswer]] = ([], [])
        for name, group in zip(self.names, self._groups, strict=True):
            for rank, wanted in enumerate(self.job.ranks):
                spent, at = round_up(group.cost), float(wanted)
                known = group.cells.get(rank)
                if known is None:
                    ends = float(self.job.low * grid), float(self.job.high * grid)
                    answer = QuantileAnswer(name, at, math.nan, *ends, 0.0, 1.0, spent)
                else:
                    cell, first, last = known.units
                    values = float(cell * grid), float(first * grid), float(last * grid)
                    ranks = known.rank_low, known.rank_high
                    answer = QuantileAnswer(name, at, *values, *ranks, spent)
                told[0 if rank in group.answered else 1].append(answer)
        return told

    def histograms(self, edges: Sequence[float]) -> list[BinAnswer]:
        """Return the shares of the bins of all groups that were looked at."""
        told = []
        for name, group in zip(self.names, self._groups, strict=True):
            if group.bins is None:
                continue
            shares = bin_shares(group.bins, self.job.confidence)
            for ends, share in zip(pairwise(edges), shares, strict=True):
                told.append(BinAnswer(name, *ends, *share, round_up(group.cost)))
        return told

    def group_costs(self) -> list[float]:
        """Return the costs of all groups, largest first."""
        return [round_up(cost) for cost in reversed(self._costs)]

    def _pay(self, index: int, amount: Fraction) -> None:
        """Add to the cost of a group, before anything is drawn for it."""
        group = self._groups[index]
        self._costs.pop(bisect_left(self._costs, group.cost))
        group.cost += amount
        insort(self._costs, group.cost)

    def run(self) -> None:
        """Look at sizes, try what fits an equal share, then what is left, then what is free."""
        share = self.job.total / self._most
        self._look_at_sizes(share)
        order = sorted(range(len(self._groups)), key=lambda index: -self._groups[index].size)
        if self.job.within is None:
            for index in order:
                self._without_goal(index, share - self._groups[index].cost)
            return
        if self._most > 1:  # else a share is all there is
            for index in order:
                self._try(index, share)
        for index in order:
            if self._open(index) or not self._done(index):
                self._try(index, self._allowance(index), finally_=True)
        free = self._costs[-self._most] if self._costs else _NO
        for index in order:
            group = self._groups[index]
            if not group.cells and free - group.cost >= free / _WORTHWHILE:
                self._without_goal(index, free - group.cost)

    def _look_at_sizes(self, share: Fraction) -> None:
        """Refine sizes along their noise paths until each is known well, or costs enough."""
        job = self.job
        last = round_down(share / _SIZE_PART)
        costs = geometric_grid(last / _FIRST_SIZE, last, 2)
        levels = LAWS[job.law](costs, job.most_rows * FINER)
        sizes = np.array([rows.size for rows in self._rows], dtype=np.int64)
        estimates = levels.estimates(sizes * FINER, self._source.randomness) / FINER
        scales = levels.scales / FINER
        self._size_levels, needed = len(costs), self._least_size(share)
        self._costs = [Fraction(costs[-1])] * len(sizes)  # until it is known how far each went
        for index, group in enumerate(self._groups):
            for level, cost in enumerate(costs):
                group.cost = Fraction(cost)
                group.size, group.spread = float(estimates[level, index]), float(scales[level])
                known = group.size >= _KNOWN * group.spread
                hopeless = group.size + _SURE * group.spread < needed
                if job.within is not None and (known or hopeless):
                    break
        self._costs = sorted(group.cost for group in self._groups)

    def _least_size(self, share: Fraction) -> float:
        """About the size from which on an attempt at a group fits into its share; 0 if any does."""
        job, size = self.job, 1.0
        if job.within is None or not job.ranks:
            return 0.0
        miss, enough = 1 - job.confidence, share / Fraction(_LEAST_ATTEMPT[job.law])
        while size < _LARGEST and plan_attempt(job, job.ranks, size, miss).cost > enough:
            size *= 1.25
        return size / 1.25

    def _allowance(self, index: int) -> Fraction:
        """The most that a group may cost in all, so that the charge stays within the total."""
        others = list(self._costs[-self._most :])
        own = self._groups[index].cost
        if own in others:
            others.remove(own)
        else:
            others.pop(0)
        return self.job.total - sum(others, _NO)

    def _open(self, index: int) -> list[int]:
        """The ranks that are not answered yet."""
        group = self._groups[index]
        return [rank for rank in range(len(self.job.ranks)) if rank not in group.answered]

    def _done(self, index: int) -> bool:
        """Whether nothing is left to do for the bins."""
        return not self.job.bins or self._groups[index].bins_answered

    def _try(self, index: int, limit: Fraction, *, finally_: bool = False) -> None:
        """Make attempts at a group while they fit; then its histogram.

        ``finally_``: no more than ``limit`` will be allowed, so the last attempt has what is left.
        """
        group, job = self._groups[index], self.job
        while (ranks := self._open(index)) and group.attempts < _ATTEMPTS:
            room, left = limit - group.cost, 1 - job.confidence - group.missed
            if left <= 0:
                break
            wanted, miss = [job.ranks[rank] for rank in ranks], _FIRST_MISS * left
            attempt = plan_attempt(job, wanted, group.size, miss, group.attempts)
            if finally_ and self._is_last(group, wanted, left - miss, room - attempt.cost):
                miss = left
                attempt = plan_attempt(job, wanted, group.size, miss, group.attempts, room)
            if attempt.cost > room:
                break
            group.missed = 1 - job.confidence if miss == left else group.missed + miss
            self._attempt(index, attempt, miss)
        if job.bins and not group.bins_answered:
            self._look_at_bins(index, limit)

    def _is_last(
        self, group: _Group, wanted: Sequence[Fraction], left: float, room: Fraction
    ) -> bool:
        """Whether no other attempt at a rank would be made, or fit, after the next one."""
        job, before = self.job, group.attempts + 1
        if before == _ATTEMPTS:
            return True
        other = plan_attempt(job, wanted[:1], group.size, left, before)
        return other.cost * Fraction(_LEAST_ATTEMPT[job.law]) > room

    def _attempt(self, index: int, attempt: QuantileAttempt, miss: float) -> None:
        """Search, look, and keep what is better than before."""
        group, job = self._groups[index], self.job
        self._pay(index, attempt.cost)
        cells = self._search(index, attempt.targets, attempt.rate)
        self._learn(attempt.targets, cells)
        pairs = job.pairs or group.attempts > 0
        group.attempts += 1
        look = self._look(index, self._edges(cells, pairs), attempt.look)
        for target, cell in zip(attempt.targets, cells, strict=True):
            if target in job.ranks:
                self._judge(group, job.ranks.index(target), cell, look, miss)

    def _search(self, index: int, ranks: Sequence[Fraction], rate: Fraction) -> list[int]:
        """Draw cells for some ranks; the caller has paid."""
        rows, most_rows = self._rows[index], self.job.most_rows
        return search(rows, ranks, rate, most_rows, self._source, self._learned)

    def _learn(self, ranks: Sequence[Fraction], cells: Sequence[int]) -> None:
        """Draw the next groups near these cells rather than elsewhere."""
        for rank, cell in zip(ranks, cells, strict=True):
            if rank in self._learned:
                self._learned[rank].learn(cell)

    def _edges(self, cells: Sequence[int], pairs: bool) -> Integers:
        """Edges of a histogram with cuts at these cells, on both sides of them for ``pairs``."""
        job = self.job
        cuts = {cell + side for cell in cells for side in ((0, 1) if pairs else (0,))}
        inner = sorted(cut for cut in cuts if job.low < cut <= job.high)
        return np.array([job.low, *inner, job.high + 1], dtype=np.int64)

    def _look(self, index: int, edges: Integers, rate: Fraction) -> Look:
        """The rows between edges, with noise; the caller has paid."""
        counts, job = self._rows[index].histogram(edges), self.job
        return take_look(edges, counts, job.law, rate, job.most_rows, self._source.randomness)

    def _judge(self, group: _Group, rank: int, cell: int, look: Look, miss: float) -> None:
        """Keep a cell and its intervals, unless the one before is nearer to the rank."""
        wanted = float(self.job.ranks[rank])
        # The last cut at or below x bounds P(< x) … and the first one above bounds P(≤ x).
        at = int(np.searchsorted(look.edges, cell, side="left"))
        above = int(np.searchsorted(look.edges, cell + 1, side="right")) - 1
        within, sure, side = self.job.within or 1.0, miss * _FOR_ANSWER, miss / 2
        answered = self.job.within is not None and (
            surely_at_least(look, above, wanted - within, sure)
            and surely_at_most(look, at, wanted + within, sure)
        )
        if self.job.within is not None and not answered:
            side = miss * (1 - _FOR_ANSWER) / 2
        low, high = rank_bounds(look, above, at, side)
        if low > high:  # the value has many rows: P(< x) is below the rank, P(≤ x) above it
            low, high = min(low, wanted), max(high, wanted)
        if answered:
            low, high = max(low, wanted - within), min(high, wanted + within)
            group.answered.add(rank)
        known = Known((cell, *value_bounds(look, wanted, miss / 2)), low, high)
        before = group.cells.get(rank)
        group.cells[rank] = known if before is None else before.merged(known, wanted)

    def _look_at_bins(self, index: int, limit: Fraction) -> None:
        """Look at the bins once, at the rate that makes their shares as exact as is wanted."""
        group, job = self._groups[index], self.job
        assert job.within is not None
        rows = max(1e-9, job.within * group.size) / job.most_rows
        cells = len(job.bins) - 1
        width = half_widths(job.law, 1, max(1, cells - 1), (1 - job.confidence) / 2).max()
        rate = _look_rate(job.law, float(width), rows)
        if group.cost + rate > limit:
            return
        self._pay(index, rate)
        group.bins, group.bins_answered = self._look(index, np.array(job.bins), rate), True

    def _without_goal(self, index: int, amount: Fraction) -> None:
        """Spend an amount on the best values that it buys."""
        group, job = self._groups[index], self.job
        levels = tree_levels(len(job.ranks))
        look = amount * _LOOK_PART if levels > 1 else _NO
        per_level = (amount - look) / max(1, levels)
        rate = per_level if job.law == "laplace" else _root_down(8 * per_level)
        if not job.ranks or rate <= 0:
            return
        self._pay(index, draws_cost(job.law, levels, rate) + look)
        cells = self._search(index, job.ranks, rate)
        miss = 1 - job.confidence
        if look:
            seen = self._look(index, self._edges(cells, job.pairs), look)
            for rank, cell in enumerate(cells):
                self._judge(group, rank, cell, seen, miss)
        else:
            self._bound_by_law(group, cells[0], rate, miss)
        self._learn(job.ranks, cells)

    def _bound_by_law(self, group: _Group, cell: int, rate: Fraction, miss: float) -> None:
        """Keep the one cell that was drawn, with a rank interval from the law of the draw.

        The level at which a size stopped may depend on its noise where there is a goal: the chance
        of a miss is divided by the number of levels.
        """
        job, wanted = self.job, self.job.ranks[0]
        eta = rate / (2 * job.most_rows * max(wanted, 1 - wanted))
        source = replace(self._source, learned=self._learned.get(wanted))
        away = distance_bound(eta, source, miss / 2)
        one = miss / 2 / (1 if job.within is None else self._size_levels)
        scales = -math.log(2 * one) if job.law == "laplace" else -NormalDist().inv_cdf(one)
        least = group.size - scales * group.spread - 1  # a step of noise, and rounding
        error = away / least if least > 0 else 1.0
        low, high = max(0.0, float(wanted) - error), min(1.0, float(wanted) + error)
        group.cells[0] = Known((cell, job.low, job.high), low, high)


def value_bounds(look: Look, rank: float, miss: float) -> tuple[int, int]:
    """Return cells between which a quantile lies; each end fails with probability ≤ ``miss``.

    From the left, cuts are passed while their rank is surely at most ``rank`` (a fixed sequence);
    from the right likewise.
    """
    edges, cells = look.edges, len(look.counts)
    low, high = int(edges[0]), int(edges[-1]) - 1
    for cut in range(1, cells):
        if not surely_at_most(look, cut, rank, miss):
            break
        low = int(edges[cut])
    for cut in range(cells - 1, 0, -1):
        if not surely_at_least(look, cut, rank, miss):
            break
        high = int(edges[cut]) - 1
    return low, max(low, high)


def bin_shares(look: Look, confidence: float) -> list[tuple[float, float, float]]:
    """Return share, low and high of every bin of a look; each interval has the confidence."""
    whole = max(1.0, float(look.counts.sum()))
    shares = []
    for cell in range(len(look.counts)):
        low, high = share_bounds(look, cell, (1 - confidence) / 2)
        shares.append((min(1.0, max(0.0, float(look.counts[cell]) / whole)), low, high))
    return shares


def _root_down(value: Fraction) -> Fraction:
    """A rational not above √value, near it."""
    root = Fraction(math.sqrt(value) * (1 - 1e-12))
    return root if root * root <= value else Fraction(0)


_NO = Fraction(0)
