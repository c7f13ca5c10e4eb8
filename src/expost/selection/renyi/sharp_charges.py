"""Charges of Algorithms 2 and 3: (T1) and (T2) by Rényi curves, (T3) by privacy profiles.

Statements and proofs: docs/theory.md, whose symbols are used here. For a winner i, an order α, a
shift s and public weights w (Σ ≤ 1) the charge by (T1) is::

    min over s of s(ε′+γ_i) + ε_i(α) + ln(I_i/w_i)/(α−1),

where I_i is the sum over the drop level of the probability of keeping i times exp(Σ_j F_j)
(:mod:`expost.selection.renyi.competitor_bounds`). By (T3) it is s(ε′+γ_i) + ln(I_i/keep_i) + ε_i
with I_i·δ_i(ε_i) at most the outcome's share of δ, and "nothing" of Algorithm 2 needs no δ.

Order and shift are parameters of the analysis only: they do not depend on data, so every search
gives a valid charge. Each outcome may use its own. Results are rounded up.

Tests: ``tests/theorems/test_renyi.py`` (enumeration, mutants),
``tests/theorems/test_profile_charges.py``, ``tests/selection/test_renyi_charges.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.privacy.profiles import Profile
from expost.selection.drop_law import LevelLattice
from expost.selection.renyi.competitor_bounds import Competitors

SHIFT_GRID = 100  # shifts in ratios of 2^(1/11): a power of two times a shift is one, too
_SHIFT_RANGE = (2.0**-6, 2.0**3)  # times the natural shift
_GUIDE_STRIDE = 4  # of the shifts that the guide looks at
_GUIDE_CELLS = 4  # every so many cells are enough for the guide
_MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1)])  # order, shift
_GUIDE_MARGIN = 1.02  # the guide is about as low as the charge
_DRIVERS = 12  # the search follows at most this many outcomes; the others use its points, too


@dataclass(frozen=True, eq=False)
class Problem:
    """Groups of equal copies to be priced."""

    orders: Floats
    curves: Floats
    rates: Floats
    copies: Floats
    overhead: float
    step: Fraction
    natural_shift: float
    minimum: int
    log_weights: Floats
    log_weight_nothing: float
    conditioned: bool
    earlier_only: bool
    method: str
    log_delta: float | None
    profiles: tuple[Profile, ...] = ()
    lattice: LevelLattice = field(init=False)
    competitors: Competitors = field(init=False)

    def __post_init__(self) -> None:
        h = float(self.step)
        lattice = LevelLattice.build(self.overhead * h, self.rates * h, self.copies, self.minimum)
        object.__setattr__(self, "lattice", lattice)
        object.__setattr__(
            self, "competitors", Competitors(self.orders, self.curves, self.rates, lattice.keeping)
        )

    @property
    def outcomes(self) -> int:
        """The number of outcomes: the groups and, in Algorithm 2, the outcome "nothing"."""
        return len(self.rates) + (1 if self.earlier_only else 0)

    def shift(self, index: int) -> float:
        """Return the shift at place ``place`` of the grid, a multiple of the lattice step."""
        low, high = _SHIFT_RANGE
        wanted = self.natural_shift * low * (high / low) ** (index / (SHIFT_GRID - 1))
        return max(1, round(float(wanted) / float(self.step))) * float(self.step)

    def evaluate(self, index: int, shift: float) -> Floats:
        """Return the charge of each outcome at one order and one shift, padded up.

        The charge is ∞ where the method gives no bound.
        """
        factors = self.competitors.factors(self.method, index, shift)
        if factors is None:
            return np.full(self.outcomes, np.inf)
        order = float(self.orders[index])
        charges = self._charges(factors, index, order, shift)
        if self.log_delta is None:
            return charges
        return charges + self.conversion(order)

    def _charges(self, factors: Floats, index: int, order: float, shift: float) -> Floats:
        """Return the Rényi charges at one order and one shift, padded up."""
        # Algorithm 2: only earlier copies compete (cumsum); the winner is not its own competitor.
        weighted = self.copies[:, None] * factors
        others = (
            np.cumsum(weighted, axis=0) if self.earlier_only else weighted.sum(axis=0)[None, :]
        ) - factors
        others = np.maximum(others * (1 + 1e-12), 0.0)
        log_moment = log_sum(self.lattice.log_masses + others)
        # Drawn again until something is kept: divide by 1 − P_⊥, which is the same for all data.
        if self.conditioned:
            log_moment = log_moment - math.log1p(-self.lattice.nothing)
        divergence = self.curves[:, index]
        charges = (
            shift * (self.overhead + self.rates)
            + divergence
            + (log_moment - self.log_weights) / (order - 1)
        )
        if self.earlier_only:
            log_nothing = log_sum(
                (self.lattice.log_masses_nothing + weighted.sum(axis=0) * (1 + 1e-12))[None, :]
            )[0]
            nothing = shift * self.overhead + (log_nothing - self.log_weight_nothing) / (order - 1)
            charges = np.append(charges, nothing)
        # 2^{−44} of the terms that were added; 1e3 bounds the logarithms, as in rationals.pad_up.
        magnitude = (
            shift * (self.overhead + float(self.rates.max()))
            + float(divergence.max())
            + 1e3 / (order - 1)
        )
        return np.asarray(charges + 2.0**-44 * magnitude)

    def conversion(self, order: float) -> float:
        """Return what the conversion from order α to an (ε̃, δ) claim adds to a charge.

        The method "paper" uses the paper's own lemma.
        """
        assert self.log_delta is not None
        if self.method == "paper":
            return -self.log_delta / (order - 1)
        return math.log1p(-1 / order) - (self.log_delta + math.log(order)) / (order - 1)


@dataclass(frozen=True, eq=False)
class Priced:
    """The best charge found for each outcome, and where it was found."""

    charges: Floats
    orders: Floats
    shifts: Floats
    bounds: tuple[str, ...]

    def or_less(self, other: Priced) -> Priced:
        """Return the smaller charge of each outcome; both must give it the same share of δ."""
        less = other.charges < self.charges
        return Priced(
            np.where(less, other.charges, self.charges),
            np.where(less, other.orders, self.orders),
            np.where(less, other.shifts, self.shifts),
            tuple(np.where(less, other.bounds, self.bounds).tolist()),
        )


def sharpest_charges(
    problem: Problem, indices: Sequence[int] | None = None, *, known: Floats | None = None
) -> Priced:
    """Search the best order and shift of every outcome.

    The charge has a single valley (docs/theory.md, "One valley"), which can be narrow: DP-SGD
    curves explode beyond one order. So the search begins at the best point of a guide that looks at
    *every* order, and goes downhill. ``tests/selection/test_renyi_charges.py`` compares it with all
    points.
    """
    allowed = list(range(len(problem.orders))) if indices is None else list(indices)
    search = _Search(problem, allowed)
    # A few outcomes drive the search; every point that is evaluated counts for all of them.
    spread = np.linspace(0, problem.outcomes - 1, min(problem.outcomes, _DRIVERS))
    starts = {
        driver: point
        for driver in np.unique(spread.round().astype(int)).tolist()
        for point, charge in [search.guide(driver)]
        if charge < (math.inf if known is None else known[driver] * _GUIDE_MARGIN)
    }
    search.visit(starts.values())
    drivers = np.array(list(starts), dtype=int)
    for stride in (3, 1):
        while search.visit(search.neighbours(drivers, stride)):
            pass
    return search.result()


class _Search:
    """The points evaluated so far, and the best of them for each outcome."""

    def __init__(self, problem: Problem, allowed: list[int]) -> None:
        self.problem, self.allowed = problem, allowed
        self.best = np.full(problem.outcomes, np.inf)
        self.where = np.zeros((problem.outcomes, 2), dtype=int)
        self.seen: set[tuple[int, int]] = set()
        grid = range(0, SHIFT_GRID, _GUIDE_STRIDE)
        self._places, self._shifts = np.array(allowed), np.array([*map(problem.shift, grid)])
        self._orders = problem.orders[self._places][:, None]
        self._slopes = problem.competitors.slopes(problem.method, self._places, self._shifts)

    def guide(self, outcome: int) -> tuple[tuple[int, int], float]:
        """Return the best point of an outcome if F were linear in u, and its charge there.

        All orders are looked at, and some of the shifts and cells.
        """
        problem, indices, orders = self.problem, self._places, self._orders
        nothing = outcome == len(problem.rates)
        last = outcome + 1 if problem.earlier_only and not nothing else len(problem.rates)
        copies = problem.copies[:last].copy()
        masses, weight = problem.lattice.log_masses_nothing, problem.log_weight_nothing
        charges = self._shifts * problem.overhead
        if not nothing:
            copies[outcome] -= 1
            masses, weight = problem.lattice.log_masses[outcome], problem.log_weights[outcome]
            divergence = problem.curves[outcome, indices][:, None]
            charges = charges + self._shifts * problem.rates[outcome] + divergence
        starts = np.arange(0, len(masses), _GUIDE_CELLS)
        with np.errstate(over="ignore", invalid="ignore"):
            others = (copies * self._slopes[..., :last]) @ problem.lattice.keeping[:last, starts]
            moments = log_sum(np.logaddexp.reduceat(masses, starts) + others)
            charges = charges + (moments - weight) / (orders - 1)
        if problem.log_delta is not None:
            charges = charges + np.array([[problem.conversion(order)] for order in orders[:, 0]])
        charges = np.where(np.isnan(charges), np.inf, charges)
        order, shift = np.unravel_index(int(np.argmin(charges)), charges.shape)
        return (int(order), int(shift) * _GUIDE_STRIDE), float(charges[order, shift])

    def visit(self, points: Iterable[tuple[int, int]]) -> bool:
        """Evaluate new points; return whether any outcome improved by more than 0.01 %."""
        improved, problem = False, self.problem
        new = [point for point in dict.fromkeys(points) if point not in self.seen]
        self.seen.update(new)
        if problem.method == "sharp":  # all at once: most of the time is that of single calls
            places = [(self.allowed[order], problem.shift(shift)) for order, shift in new]
            problem.competitors.remember((problem.orders[at], shift) for at, shift in places)
        for point in new:
            charges = problem.evaluate(self.allowed[point[0]], problem.shift(point[1]))
            better = charges < self.best
            improved |= bool(np.any(charges < self.best * (1 - 1e-4) - 1e-12))
            self.best[better] = charges[better]
            self.where[better] = point
        return improved

    def neighbours(self, drivers: npt.NDArray[np.int64], stride: int) -> list[tuple[int, int]]:
        """Return the points around the best point of each driving outcome."""
        centres = {(int(a), int(q)) for a, q in self.where[drivers]}
        return [
            (int(a + da), int(q + dq))
            for a, q in centres
            for da, dq in _MOVES * stride
            if 0 <= a + da < len(self.allowed) and 0 <= q + dq < SHIFT_GRID
        ]

    def result(self) -> Priced:
        """Return the best charges with their orders and shifts."""
        orders = np.array([self.problem.orders[self.allowed[a]] for a, _ in self.where])
        shifts = np.array([self.problem.shift(int(q)) for _, q in self.where])
        bounds = ("T1",) * len(self.problem.rates)
        return Priced(self.best, orders, shifts, (*bounds, *["T2"] * self.problem.earlier_only))


def log_sum(rows: Floats) -> Floats:
    """Return ln Σ exp along the last axis."""
    # Subtract the peak first: exp of a large logarithm would overflow.
    peak = rows.max(axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.log(np.exp(rows - peak).sum(axis=-1)) + peak[..., 0])


_PAD = 2.0**-44
_CHORDS = (0.0, 0.5, 0.8, 0.95)  # where a chord begins, times γ·s
_LEAST_DELTA = 1e-40  # smaller values of a profile are of no use
_FLOOR = 1e-300
_POINTS = 1025  # of a table of a profile: steps of 1.1 %
_STRIDE = 4  # of the shifts that are tried first
_MOST_ROWS = 50_000  # kept for reuse; about 1 kB each

_rows: dict[tuple[Profile, bytes], dict[float, Floats]] = {}
"""ln ρ in every cell, by profile, cells and γ·s: the attempts of one job share them."""


def log_ratios(profile: Profile, gaps: Floats, keeping: Floats) -> Floats:
    """Return upper bounds of ln ρ(u) for one profile."""
    # A profile is convex in e^ε: each chord below γs gives a valid ρ, and the least is taken.
    ends = gaps[:, None] * np.array([*_CHORDS, 1.0])
    deltas = tabulated(profile, ends * (1 - _PAD))
    last, u = deltas[:, -1:], keeping[None, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        high = np.exp(gaps)[:, None]  # where it is ∞, ρ − 1 is below the floor
        # Q = 0 and Q′ = 1 at worst.
        best = -np.log1p(-np.minimum(u * np.exp(-gaps)[:, None] * (1 + _PAD), 1.0))
        for start, delta in zip(ends.T[:-1, :, None], deltas.T[:-1, :, None], strict=True):
            room = high * -np.expm1(start - gaps[:, None]) * (1 - _PAD)  # e^{γs} − e^{t₀}
            slope = np.maximum(delta - last, 0.0) / room * (1 + _PAD)
            fall = u * last / (1 - u * slope) * (1 + _PAD)  # e^{γs} − e^t
            valid = (u * slope < 1) & (fall <= room)
            best = np.where(valid, np.minimum(best, -np.log1p(-fall / high)), best)
    return np.asarray(best * (1 + _PAD) + _FLOOR)


def log_moments(problem: Problem, shifts: Floats) -> Floats:
    """Return ln I_i of each group and, in Algorithm 2, ln E[R] of "nothing", rounded up."""
    lattice = problem.lattice
    ratios = known_ratios(problem, shifts).transpose(1, 0, 2)  # shifts × groups × cells
    weighted = problem.copies[:, None] * ratios
    everything = weighted.sum(axis=1, keepdims=True)
    others = (np.cumsum(weighted, axis=1) if problem.earlier_only else everything) - ratios
    rows = lattice.log_masses + np.maximum(others, 0.0) * (1 + 1e-12)
    if problem.earlier_only:
        nothing = lattice.log_masses_nothing + everything * (1 + 1e-12)
        rows = np.concatenate([rows, nothing], axis=1)
    return log_sum(rows) + _PAD


def losses(problem: Problem, shift: float, moments: Floats) -> Floats:
    """Return s(ε′+γ_i) + ln(I_i/keep_i) of each group, and sε′ + ln E[R], rounded up."""
    rates, log_keep = problem.rates, problem.lattice.log_keep
    if problem.earlier_only:
        rates, log_keep = np.append(rates, 0.0), np.append(log_keep, 0.0)
    total = shift * (problem.overhead + rates)
    return np.asarray(total * (1 + _PAD) + (moments - log_keep) + _PAD * (1 + np.abs(log_keep)))


def log_targets(problem: Problem, moments: Floats) -> Floats:
    """Return ln of the δ_i(ε_i) that each group may have: I_i·δ_i(ε_i) is its share of δ."""
    assert problem.log_delta is not None
    # Rounded down: a smaller δ_i(ε_i) needs a larger ε_i.
    kept = math.log1p(-problem.lattice.nothing) if problem.conditioned else 0.0
    return problem.log_weights + problem.log_delta + kept - moments[: len(problem.rates)] - _PAD


def price_by_profiles(problem: Problem) -> Priced:
    """Return the charge of each outcome by (T3), at the best shift of the grid."""
    known: dict[int, Floats] = {}
    best, where = np.full(problem.outcomes, np.inf), np.zeros(problem.outcomes, dtype=int)

    def visit(indices: Iterable[int]) -> None:
        new = [index for index in indices if 0 <= index < SHIFT_GRID and index not in known]
        shifts = np.array([problem.shift(index) for index in new])
        known.update(zip(new, log_moments(problem, shifts), strict=True) if new else ())
        for index in new:
            charges = losses(problem, problem.shift(index), known[index])
            targets = log_targets(problem, known[index])
            for group, (profile, target) in enumerate(zip(problem.profiles, targets, strict=True)):
                charges[group] += least_epsilon(profile, target)
            better = charges < best
            best[better], where[better] = charges[better], index

    visit(range(0, SHIFT_GRID, _STRIDE))
    for stride in (2, 1):
        visit(sorted({int(index) + by for index in where for by in (-stride, stride)}))
    shifts = np.array([problem.shift(int(index)) for index in where])
    return Priced(best, np.full(len(best), np.nan), shifts, ("T3",) * len(best))


def tabulated(profile: Profile, epsilons: Floats) -> Floats:
    """Return upper bounds of δ(ε) from a table of the profile.

    A profile is convex in e^ε, so it lies below the chord between two points of the table.
    """
    grid, deltas = _table(profile)  # type: ignore[arg-type]  # profiles are hashable
    inside = np.minimum(epsilons, grid[-1])  # beyond the table: its last value
    index = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, len(grid) - 2)
    part = np.expm1(inside - grid[index]) / np.expm1(grid[index + 1] - grid[index]) * (1 - _PAD)
    return np.asarray((deltas[index] + part * (deltas[index + 1] - deltas[index])) * (1 + _PAD))


def least_epsilon(profile: Profile, log_deltas: Floats) -> Floats:
    """Return an ε with ln δ(ε) ≤ ``log_deltas``, about the least one; ∞ where none is known.

    It is the point where the chord between two points of the table reaches δ, rounded up.
    """
    grid, deltas = _table(profile)  # type: ignore[arg-type]
    # Rounded down, so that the ε at which the chord reaches it is not too small.
    wanted = np.exp(log_deltas) * (1 - _PAD)
    after = np.searchsorted(-deltas, -wanted)  # the first point with δ ≤ wanted
    index = np.clip(after, 1, len(grid) - 1)
    high, low = deltas[index - 1], deltas[index]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip((high - wanted) / (high - low) * (1 + _PAD), 0.0, 1.0)
    rise = np.log1p(part * np.expm1(grid[index] - grid[index - 1]))
    shifted = np.minimum(grid[index - 1] + rise * (1 + _PAD), grid[index])
    return np.where(after == 0, 0.0, np.where(after == len(grid), np.inf, shifted))


@lru_cache(maxsize=4096)
def _table(profile: Profile) -> tuple[Floats, Floats]:
    """Return values of ε, ascending, and bounds of δ there, made non-increasing."""
    floor = float(profile.delta(np.array([math.inf]))[0])
    top = 2.0**-10
    while top < 2.0**20 and float(profile.delta(np.array([top]))[0]) > 1.01 * floor + _LEAST_DELTA:
        top *= 2
    grid = np.concatenate([[0.0], np.geomspace(top * 1e-5, top, _POINTS - 1)])
    return grid, np.minimum.accumulate(np.maximum(profile.delta(grid), _FLOOR))


def known_ratios(problem: Problem, shifts: Floats) -> Floats:
    """Return :func:`log_ratios` of all groups (groups × shifts × cells).

    Rows that were computed before, also for another list of candidates, are taken from the table.
    """
    if sum(map(len, _rows.values())) > _MOST_ROWS:
        _rows.clear()
    charges = []
    keeping = np.ascontiguousarray(problem.lattice.keeping)
    for profile, rate, kept in zip(problem.profiles, problem.rates, keeping, strict=True):
        gaps = rate * shifts
        rows = _rows.setdefault((profile, blake2b(kept, digest_size=16).digest()), {})
        missing = np.array([gap for gap in gaps.tolist() if gap not in rows])
        if len(missing):
            rows.update(zip(missing.tolist(), log_ratios(profile, missing, kept), strict=True))
        charges.append([rows[gap] for gap in gaps.tolist()])
    return np.array(charges)
