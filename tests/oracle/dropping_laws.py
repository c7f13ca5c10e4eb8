"""Exact output laws of Algorithms 2 and 3 over finite mechanisms: bracketed sums over drop levels.

Arrays have the shape (…, candidate, output): the probability of each output of a candidate, outputs
in ascending order of score; leading axes hold many instances. Given the level k, consider the
probability of an outcome divided by e^{−γhk}, the probability that one copy of the winner is kept.
This quotient *increases* with k (every competitor is dropped more often, and so are the other
copies of the winner), and so does the probability of nothing. A cell of consecutive levels is
therefore bounded by its mass, which has a closed form, times the value at its first level (from
below) or at the first level of the next cell (from above). Cells of one level are exact. The upper
value of the unbounded last cell is the one at which every copy that can be dropped is dropped (up
to a negligible probability). Ties go to the lower index, as in the selectors.

Rounding: the ends of the brackets are moved apart by a relative 1e-10 (:data:`ROUNDING`), which is
more than 400,000 additions can lose.
Tests: ``tests/audit/test_exact.py`` (against the independently written laws of ``tests/theorems``,
and against listing all kept sets).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.selection.drop_law import DropLaw, log_cell_masses

ROUNDING = 1e-10
_CHUNK = 1 << 21  # size of the arrays that are processed at a time
_LIMIT = 650.0  # e^{−650} is still a normal float, and 1 − copies·e^{−650} is 1
_NEGLIGIBLE = 30.0  # copies·keep = e^{−30}: beyond this nothing competes


@dataclass(frozen=True, eq=False)
class OutputLaw:
    """Brackets of the probability of each outcome (…, candidate, output), and of nothing (…)."""

    low: Floats
    high: Floats
    nothing_low: Floats
    nothing_high: Floats

    @classmethod
    def exactly(cls, chances: Floats, nothing: Floats) -> OutputLaw:
        """Return a law that is known up to rounding."""
        down, up = 1 - ROUNDING, 1 + ROUNDING
        return cls(chances * down, chances * up, nothing * down, nothing * up)

    def divided(self, low: Floats, high: Floats) -> OutputLaw:
        """Condition on the event that the outcome is not "nothing".

        The probability of that event lies between ``low`` and ``high``.
        """
        zero = np.zeros_like(self.nothing_low)
        return OutputLaw(
            self.low / high[..., None, None], self.high / low[..., None, None], zero, zero
        )

    def total(self) -> tuple[Floats, Floats]:
        """Return a bracket of the sum of all probabilities; it contains 1."""
        return self.low.sum((-1, -2)) + self.nothing_low, self.high.sum(
            (-1, -2)
        ) + self.nothing_high


@dataclass(frozen=True, eq=False)
class DropLevels:
    """The levels of k₀ + Geom(e^{−overhead}), divided into cells.

    ``edges`` are the first levels of the cells, counted from k₀. The overhead and the rates are per
    step of the lattice.
    """

    overhead: float
    rates: Floats  # candidates
    copies: Floats  # candidates
    minimum: int
    edges: Floats

    @classmethod
    def of(
        cls, law: DropLaw, copies: Sequence[int], *, singles: int = 400_000, growth: float = 1.001
    ) -> DropLevels:
        """Divide a selector's drop law into ``singles`` single levels, then growing cells.

        Each of those cells is larger than the one before by the factor ``growth``.
        """
        rates, counts = rates_of(law, len(copies)), np.array(copies, dtype=float)
        return cls.build(float(law.overhead), rates, counts, law.minimum, singles, growth)

    @classmethod
    def build(
        cls,
        overhead: float,
        rates: Floats,
        copies: Floats,
        minimum: int,
        singles: int = 400_000,
        growth: float = 1.001,
    ) -> DropLevels:
        """Make cells up to where copies are almost never kept, and one unbounded cell beyond."""
        if not rates.any():  # everything is kept at every level
            return cls(overhead, rates, copies, minimum, np.zeros(1))
        slowest = float(rates[rates > 0].min())
        enough = (_NEGLIGIBLE + np.log(max(1.0, float(copies.sum())))) / slowest - minimum
        last = max(1.0, min(enough, 700.0 / overhead))
        single = np.arange(min(float(singles), np.ceil(last)))
        if last <= singles:
            return cls(overhead, rates, copies, minimum, single)
        count = int(np.ceil(np.log(last / singles) / np.log(growth)))
        grown = np.ceil(singles * growth ** np.arange(count))
        return cls(overhead, rates, copies, minimum, np.unique(np.concatenate([single, grown])))

    @classmethod
    def coarse(
        cls, overhead: float, rates: Floats, copies: Floats, minimum: int, resolution: float
    ) -> DropLevels:
        """Make few cells: fast, with wide brackets.

        Over a cell, the logarithm of the probability to be kept falls by about ``resolution``.
        """
        if not rates.any():
            return cls(overhead, rates, copies, minimum, np.zeros(1))
        slowest, fastest = float(rates[rates > 0].min()), float(rates.max())
        enough = max(1.0, (12.0 + np.log(max(1.0, float(copies.sum())))) / slowest - minimum)
        count = int(np.ceil(enough * (fastest + overhead) / resolution)) + 1
        return cls(
            overhead, rates, copies, minimum, np.unique(np.floor(np.linspace(0.0, enough, count)))
        )

    def blocks(self, size: int) -> Iterator[_Block]:
        """Yield the cells in blocks; each cell takes ``size`` numbers."""
        masses = np.exp(
            np.array(
                [
                    log_cell_masses(self.edges, self.overhead, rate, self.minimum)
                    for rate in self.rates
                ]
            )
        )
        plain = np.exp(log_cell_masses(self.edges, self.overhead, 0.0))
        levels = np.append(self.edges, np.finfo(float).max / (1 + self.rates.max()) / 2)
        width = np.diff(levels)
        step = max(2, _CHUNK // max(1, size))
        for start in range(0, len(self.edges), step):
            stop = min(start + step, len(self.edges))
            # First levels of these cells, and of the next one.
            exponent = self.rates[:, None] * (levels[start : stop + 1] + self.minimum)
            exponent = np.minimum(exponent, _LIMIT)
            yield _Block(
                np.exp(-exponent),
                -np.expm1(-exponent),
                masses[:, start:stop],
                plain[start:stop],
                width[start:stop] == 1.0,
            )


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive cells.

    Probabilities to keep and to drop at their first levels (and at that of the next cell), their
    masses, and which cells are single levels.
    """

    keep: Floats  # candidates × levels
    drop: Floats
    masses: Floats  # candidates × cells: Σ P(k)·keep(k)
    plain: Floats  # cells: Σ P(k)
    single: npt.NDArray[np.bool_]

    def ends_of(self, values: Floats) -> tuple[Floats, Floats]:
        """Turn values at the first levels (last axis) into lower and upper values of each cell."""
        return values[..., :-1], np.where(self.single, values[..., :-1], values[..., 1:])


@dataclass(frozen=True, eq=False)
class _Sums:
    """Running brackets: outcomes, nothing, and the event that something is kept."""

    outcomes: list[Floats]
    nothing: list[Floats]
    something: list[Floats]

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> _Sums:
        """Return sums of zero."""
        return cls(*([np.zeros(each), np.zeros(each)] for each in (shape, shape[:-2], shape[:-2])))

    def add(self, block: _Block, terms: Floats, log_nothing: Floats) -> None:
        """Add a block.

        ``terms`` (…, candidate, output, level) are divided by the probability to be kept;
        ``log_nothing`` (…, level) is ln of the probability of nothing.
        """
        for side, values in enumerate(block.ends_of(terms)):
            self.outcomes[side] += np.einsum("...iok,ik->...io", values, block.masses)
        for side, values in enumerate(block.ends_of(log_nothing)):
            self.nothing[side] += np.exp(values) @ block.plain
            self.something[1 - side] += -np.expm1(values) @ block.plain

    def law(self, *, conditioned: bool) -> OutputLaw:
        """Return the law, rounded outwards; ``conditioned`` on something being kept."""
        down, up = 1 - ROUNDING, 1 + ROUNDING
        (low, high), (least, most) = self.outcomes, self.nothing
        law = OutputLaw(low * down, high * up, least * down, most * up)
        return law.divided(self.something[0] * down, self.something[1] * up) if conditioned else law


def rates_of(law: DropLaw, count: int) -> Floats:
    """Return the drop rate per step of each candidate."""
    rates = np.zeros(count)
    for each, rate in zip(law.groups, law.rates, strict=True):
        rates[list(each.members)] = float(rate)
    return rates


def tails(q: Floats) -> tuple[Floats, Floats]:
    """Return P(output > o) and P(output ≤ o) for o = −1, 0, ….

    Each is summed from its own end, so that small values stay accurate.
    """
    zero = np.zeros_like(q[..., :1])
    above = np.concatenate([np.cumsum(q[..., ::-1], axis=-1)[..., ::-1], zero], axis=-1)
    return np.minimum(above, 1.0), np.minimum(
        np.concatenate([zero, np.cumsum(q, axis=-1)], axis=-1), 1.0
    )


def log_miss(block: _Block, hit: Floats, miss: Floats) -> Floats:
    """Return ln(1 − keep·hit) (…, candidate, event, level): one copy is dropped or misses.

    hit + miss = 1; both are passed so that small values stay accurate.
    """
    keep, drop = block.keep[:, None, :], block.drop[:, None, :]
    hits = keep * hit[..., None]
    with np.errstate(divide="ignore"):
        return np.where(
            hits < 0.5, np.log1p(-np.minimum(hits, 0.5)), np.log(drop + keep * miss[..., None])
        )


def share_of_copies(block: _Block, log_left: Floats, mass: Floats, copies: Floats) -> Floats:
    """Return (left^T − (left − keep·mass)^T)/keep, computed without cancellation.

    This is for the best of T copies being in an event of probability ``mass``.
    """
    keep = block.keep[:, None, :]
    if np.all(copies == 1):
        return np.broadcast_to(mass[..., None], (*mass.shape, keep.shape[-1]))
    count = copies[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.minimum(keep * mass[..., None] / np.exp(log_left), 1.0)
        gain = np.exp(count * log_left) * -np.expm1(count * np.log1p(-part)) / keep
    return np.where(mass[..., None] > 0, gain, 0.0)


def _others(log_strict: Floats, log_loose: Floats) -> Floats:
    """Return Σ of the first over earlier candidates plus Σ of the second over later ones.

    The candidate axis is the third from the end.
    """
    before, after = np.zeros_like(log_strict), np.zeros_like(log_loose)
    before[..., 1:, :, :] = np.cumsum(log_strict[..., :-1, :, :], axis=-3)
    after[..., :-1, :, :] = np.cumsum(log_loose[..., :0:-1, :, :], axis=-3)[..., ::-1, :, :]
    return before + after


def random_dropping(q: Floats, levels: DropLevels, *, conditioned: bool) -> OutputLaw:
    """Return the law of Algorithm 3, the best kept output; ``conditioned`` on one being kept."""
    above, at_most = tails(q)
    sums = _Sums.empty(q.shape)
    for block in levels.blocks(q.size + q[..., 0].size):
        one = log_miss(block, above, at_most)  # no output above o, for o = −1, 0, …
        all_copies = levels.copies[:, None, None] * one
        others = _others(all_copies[..., :-1, :], all_copies[..., 1:, :])
        terms = np.exp(others) * share_of_copies(block, one[..., 1:, :], q, levels.copies)
        sums.add(block, terms, all_copies[..., 0, :].sum(-2))
    return sums.law(conditioned=conditioned)


def above_threshold(q: Floats, levels: DropLevels, bar: int) -> OutputLaw:
    """Return the law of Algorithm 2: the first kept output of the list at ``bar`` or above."""
    passes, fails = q[..., bar:].sum(-1, keepdims=True), q[..., :bar].sum(-1, keepdims=True)
    good = np.where(np.arange(q.shape[-1]) >= bar, q, 0.0)
    sums = _Sums.empty(q.shape)
    for block in levels.blocks(q.size):
        none, found = _first_pass(block, passes, fails, levels.copies)
        before = _others(none, np.zeros_like(none))
        terms = np.exp(before) * found * good[..., None]
        sums.add(block, terms, none[..., 0, :].sum(-2))
    return sums.law(conditioned=False)


def first_pass_or_first(
    q: Floats, levels: DropLevels, bar: int, order: Sequence[int], *, conditioned: bool
) -> OutputLaw:
    """Return the law of Algorithm 3 with a target.

    The outcome is the first kept output that passes, by public priority (``order``); if none
    passes, the first kept one.
    """
    ranked = q[..., order, :]
    places = DropLevels(
        levels.overhead, levels.rates[order], levels.copies[order], levels.minimum, levels.edges
    )
    passes, fails = (
        ranked[..., bar:].sum(-1, keepdims=True),
        ranked[..., :bar].sum(-1, keepdims=True),
    )
    good = np.where(np.arange(q.shape[-1]) >= bar, ranked, 0.0)
    sums = _Sums.empty(q.shape)
    for block in places.blocks(q.size):
        none, found = _first_pass(block, passes, fails, places.copies)
        one = log_miss(block, passes, fails)
        dropped = places.copies[:, None, None] * log_miss(
            block, np.ones_like(passes), np.zeros_like(passes)
        )
        # At least one copy is kept, and all kept copies fail.
        failed = share_of_copies(block, one, fails, places.copies)
        failed = np.divide(
            failed, fails[..., None], out=np.zeros_like(none), where=fails[..., None] > 0
        )
        passing = np.exp(_others(none, np.zeros_like(none))) * found * good[..., None]
        failing = np.exp(_others(dropped, none)) * failed * (ranked - good)[..., None]
        sums.add(block, passing + failing, dropped[..., 0, :].sum(-2))
    law, back = sums.law(conditioned=conditioned), np.argsort(order)
    return OutputLaw(
        law.low[..., back, :], law.high[..., back, :], law.nothing_low, law.nothing_high
    )


def _first_pass(
    block: _Block, passes: Floats, fails: Floats, copies: Floats
) -> tuple[Floats, Floats]:
    """Return ln P(no kept copy passes) and P(one does)/(keep·P(pass)), per candidate and level."""
    one = log_miss(block, np.minimum(passes, 1.0), np.minimum(fails, 1.0))
    none = copies[:, None, None] * one
    hit = block.keep[:, None, :] * passes[..., None]
    found = np.divide(-np.expm1(none), hit, out=np.zeros_like(none), where=hit > 0)
    return none, found
