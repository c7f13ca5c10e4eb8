"""Charges of Algorithms 2 and 3: (T1) and (T2) by Rényi curves, (T3) by privacy profiles.

Statements and proofs: docs/theory.md, whose symbols are used here. For a winner i, an order α, a
shift s and public weights w (Σ ≤ 1) the charge by (T1) is::

    min over s of s(ε′+γ_i) + ε_i(α) + ln(I_i/w_i)/(α−1),

where I_i is the sum over the drop level of the probability of keeping i times exp(Σ_j F_j). By (T3)
it is s(ε′+γ_i) + ln(I_i/keep_i) + ε_i with I_i·δ_i(ε_i) at most the outcome's share of δ, and
"nothing" of Algorithm 2 needs no δ.

F_j bounds how much a competitor j adds to the moment, where it is kept with probability
u = e^{−γ_j·x} at the drop level x (docs/theory.md, "Three choices of F_j"):

- ``paper``: K_j = e^{(α−1)ε_j(α) − αγ_j s} < 1 at every level (``lem:rdp-to-conv-ratio``);
- ``closed-form``: −m_α·ln(1 − K_j·u), with m_α = ((α−1)/α)^{2α−1};
- ``sharp``: max_b α·ln(1−A·b^p) − (α−1)·ln(1−C·b) for *any* order β of j's curve, with
  p = β/(β−1), A = u·e^{−ε_j(β)} and C = u·e^{−γ_j s} (:func:`highest`).

All three fall as the level grows, so the value at the first level of a cell bounds the cell. Every
bound is padded up by 2^{−44} of the terms of its sum, and by the effect of rounding on ln(1−·) for
a probability near 1. Order and shift are parameters of the analysis only: they do not depend on
data, so every search gives a valid charge. Each outcome may use its own. Results are rounded up.
Tests: ``tests/theorems/test_renyi.py`` (enumeration, mutants),
``tests/theorems/test_profile_charges.py``, ``tests/selection/test_renyi_charges.py``,
``tests/selection/test_competitor_bounds.py``.
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

from expost.arrays import Floats, Integers
from expost.privacy.profiles import Profile
from expost.selection.drop_law import LevelLattice

_PAD = 2.0**-44
_ULPS = 2.0**-50  # relative error of a probability after a few rounding steps
_HALVINGS = 30  # of a bracket that is at most e wide
_G_ERROR = 2.0**-46  # of the terms of g: its rounding error, with room
_WIDENING = 2.0**-42  # times β − 1: how far the bracket is widened, in ln b
_RATIO = 1.12  # of neighbouring orders β of a curve that are tried
_NEGLIGIBLE = 1e-16  # keep probability below which a cell shares the bound of the one before
_TYPICAL = 0.02  # keep probability of the typical level for which a second β is chosen
_MOST_FACTOR_ROWS = 100_000  # rows kept for reuse; about 1 kB each
_TOGETHER = 1 << 14  # numbers that are worked on together; more would leave the cache

_factor_rows: dict[tuple[bytes, float, float], Floats] = {}
"""Bounds computed so far, by group (content), order and gap: attempts of one job share them."""


@dataclass(frozen=True, eq=False)
class Competitors:
    """Groups of equal competitors."""

    orders: Floats
    curves: Floats
    rates: Floats
    keeping: Floats
    _keys: tuple[bytes, ...] = field(init=False, repr=False)
    _choices: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        common = blake2b(self.orders.tobytes(), digest_size=16)
        keys = []
        for curve, kept in zip(self.curves, self.keeping, strict=True):
            state = common.copy()
            state.update(np.ascontiguousarray(curve).tobytes())
            state.update(np.ascontiguousarray(kept).tobytes())
            keys.append(state.digest())
        object.__setattr__(self, "_keys", tuple(keys))
        choices = [0]
        for index, order in enumerate(self.orders):
            if order >= _RATIO * self.orders[choices[-1]]:
                choices.append(index)
        object.__setattr__(self, "_choices", np.array(choices))

    def factors(self, method: str, index: int, shift: float) -> Floats | None:
        """Return F (groups × cells) at order ``orders[place]``, or None if there is no bound."""
        if method == "sharp":
            return self._sharp(self.orders[index], shift)
        return self._closed(index, shift, paper=method == "paper")

    def slopes(self, method: str, indices: Integers, shifts: Floats) -> Floats:
        """Return the limit of F/u for u → 0 (orders × shifts × groups), to guide a search.

        The maximum over b of (α−1)·e^{−γs}·b − α·e^{−ε(β)}·b^p has a closed form. No charge depends
        on the result.
        """
        order, gap = self.orders[indices][:, None, None], shifts[:, None] * self.rates
        best = np.full((len(indices), *gap.shape), np.inf)
        with np.errstate(over="ignore"):
            for beta_place in self._choices if method == "sharp" else ():
                beta, divergence = self.orders[beta_place], self.curves[:, beta_place]
                best = np.minimum(best, _slope_at_zero(order, gap, beta, divergence))
            own = self.curves[:, indices].T[:, None, :]
            best = np.minimum(best, _slope_at_zero(order, gap, order, own))
            if method == "paper":
                best = np.where(gap < own * (1 - 1e-12), np.inf, best)
        return best

    def _closed(self, index: int, shift: float, *, paper: bool) -> Floats | None:
        """Return the bound of ``paper`` or ``closed-form``, or None where it does not apply."""
        order = self.orders[index]
        log_k = (order - 1) * self.curves[:, index] - order * self.rates * shift
        log_k = log_k + _PAD * ((order - 1) * self.curves[:, index] + order * self.rates * shift)
        if paper:  # the theorem requires ℓ ≥ 0, that is γ_j·s ≥ ε_j
            if np.any(self.rates * shift < self.curves[:, index] * (1 - 1e-12)):
                return None
            return np.broadcast_to(np.exp(log_k)[:, None], self.keeping.shape)
        if np.any(log_k + np.log(self.keeping[:, 0]) >= 0):
            return None
        inside = np.exp(log_k)[:, None] * self.keeping
        exponent = np.exp((2 * order - 1) * np.log1p(-1 / order))
        return np.asarray(
            exponent * (-np.log1p(-inside) * (1 + _PAD) + _ULPS * inside / (1 - inside))
        )

    def _sharp(self, order: float, shift: float) -> Floats:
        """Return the smaller of two ``sharp`` bounds for each curve.

        One uses the order β that is best at the first level, the other the one that is best at
        a typical level. Rows that were computed before, also for another list of candidates, are
        taken from the table.
        """
        self.remember([(order, shift)])
        return np.array([_factor_rows[name] for name in self._names(order, shift)])

    def _names(self, order: float, shift: float) -> list[tuple[bytes, float, float]]:
        """Return what the rows of one order and shift are known by."""
        gaps = (self.rates * shift).tolist()
        return [(key, float(order), gap) for key, gap in zip(self._keys, gaps, strict=True)]

    def remember(self, points: Iterable[tuple[float, float]]) -> None:
        """Put the ``sharp`` bounds of some orders and shifts into the table, many rows at once."""
        if len(_factor_rows) > _MOST_FACTOR_ROWS:
            _factor_rows.clear()
        missing = {
            name: group
            for point in points
            for group, name in enumerate(self._names(*point))
            if name not in _factor_rows
        }
        names, most = list(missing), max(1, _TOGETHER // self.keeping.shape[1])
        for first in range(0, len(names), most):
            part = names[first : first + most]
            orders, gaps = (np.array([[name[at]] for name in part]) for at in (1, 2))
            groups = np.array([missing[name] for name in part])
            _factor_rows.update(zip(part, self._bounds(orders, gaps, groups), strict=True))

    def _bounds(self, order: Floats, gap: Floats, groups: Integers) -> Floats:
        """Compute the ``sharp`` bounds of some groups, one order and gap (columns) for each.

        β = α is among the orders that are tried, so no bound exceeds the other two methods'.
        """
        own = np.searchsorted(self.orders, order)
        tried = np.sort(np.hstack([np.tile(self._choices, (len(own), 1)), own]), axis=1)
        betas, rows = self.orders[tried], np.arange(len(groups))
        curves, keeping = self.curves[groups[:, None], tried], self.keeping[groups]
        typical = np.minimum((keeping > _TYPICAL).sum(axis=1), keeping.shape[1] - 1)
        # Where hardly anything is kept, the bound of the last cell that matters serves as well: it
        # falls with the level. That cell is the group's own: rows depend on nothing but their name.
        matter = np.minimum((keeping >= _NEGLIGIBLE).sum(axis=1), keeping.shape[1] - 1)
        cells = keeping[:, : matter.max() + 1]
        bounds = []
        for cell in (np.zeros_like(typical), typical):
            at_cell = highest(order, betas, curves, gap, keeping[rows, cell][:, None])
            best = np.argmin(at_cell, axis=1)
            chosen = curves[rows, best][:, None]
            bounds.append(highest(order, betas[rows, best][:, None], chosen, gap, cells))
        every = np.minimum(np.arange(keeping.shape[1]), matter[:, None])
        return np.take_along_axis(np.minimum(*bounds), every, axis=1)


def _slope_at_zero(order: Floats, gap: Floats, beta: Floats, divergence: Floats) -> Floats:
    """Return the maximum over b ∈ [0, 1] of (α−1)·e^{−γs}·b − α·e^{−ε(β)}·b^p."""
    linear = (order - 1) * np.exp(-gap)
    log_peak = (beta - 1) * (np.log((order - 1) * (beta - 1) / (order * beta)) - gap + divergence)
    inside = linear * np.exp(np.minimum(log_peak, 0.0)) / beta
    return np.where(log_peak < 0, inside, linear - order * np.exp(-divergence))


def highest(
    order: float | Floats, beta: Floats, divergence: Floats, gap: Floats, kept: Floats
) -> Floats:
    """Return an upper bound of max over b ∈ [0, 1] of α·ln(1−A·b^p) − (α−1)·ln(1−C·b), and of 0.

    The derivative has the sign of g(b) = (α−1)C − αAp·b^{p−1} + AC(αp−α+1)·b^p, which falls up to
    b₁ = α(p−1)/(C(α(p−1)+1)) and rises after it. So the maximum is at b = 1, or at the first root
    b* of g, which lies between b₀ = ((α−1)C/(αAp))^{β−1} and e·b₀. With b_l ≤ b* ≤ b_r it is at
    most α·ln(1−A·b_l^p) − (α−1)·ln(1−C·b_r). The bracket is checked after the bisection, so the
    bound does not depend on how it was found. Every rounding goes towards a larger bound; the error
    budget is in docs/theory.md ("Three choices of F_j").
    """
    power, slack = beta / (beta - 1), beta - 1  # p − 1 = 1/slack
    cross = order * power - order + 1
    constant = (order - 1) * np.exp(-gap)
    falling = order * power * np.exp(-divergence)
    rising = kept * np.exp(-divergence - gap) * cross

    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        # The analytic bracket, in ln b.
        rarity = -np.log(np.maximum(kept, 5e-324))
        log_b1, doubt = np.log1p(-1 / cross) + gap + rarity, _PAD * (1 + gap + rarity)
        top, under = np.minimum(log_b1 + doubt, 0.0), log_b1 - doubt
        terms = np.log((order - 1) / (order * power)) + divergence - gap
        doubt = slack * _PAD * (1 + divergence + gap)
        bottom = np.minimum(slack * terms - doubt, np.minimum(top, under))
        ceiling = np.minimum(slack * (terms + np.log(power)) + doubt, top)

        # Bisection. b and b^{p−1} at the left end are multiplied, which is fast and good enough:
        # the result is checked below.
        low, width = bottom + np.zeros_like(top), ceiling - bottom
        b, q = np.exp(low), np.exp(low / slack)
        up_b, up_q = np.exp(width), np.exp(width / slack)
        for _ in range(_HALVINGS):
            width = width / 2
            up_b, up_q = np.sqrt(up_b), np.sqrt(up_q)
            middle_b, middle_q = b * up_b, q * up_q
            rises = middle_q * (falling - rising * middle_b) <= constant
            b, q = np.where(rises, middle_b, b), np.where(rises, middle_q, q)
            low = np.where(rises, low + width, low)

        # The certificate: g at both ends of the widened bracket.
        margin = slack * _WIDENING
        left = np.minimum(np.maximum(low - margin, bottom), under)
        right = np.minimum(low + width + margin, ceiling)
        above, doubt_left = _slope(left, slack, constant, falling, rising)
        below, doubt_right = _slope(right, slack, constant, falling, rising)
        left = np.where(above > doubt_left, left, bottom)
        right = np.where(below < -doubt_right, right, ceiling)
        big_a, big_c = kept * np.exp(-divergence), kept * np.exp(-gap)
        inner = _padded(order, big_a * np.exp(power * left), big_c * np.exp(right))
        # fmax ignores NaN: at b = 1 the value of A may be 1, where f = −∞.
        best = np.fmax(inner, _padded(order, big_a, big_c))
    return np.maximum(best, 0.0)


def _slope(
    t: Floats, slack: Floats, constant: Floats, falling: Floats, rising: Floats
) -> tuple[Floats, Floats]:
    """Return g(e^t) up to a positive factor, and a bound of its rounding error.

    The bound is infinite where the argument of an exponential is too large for it.
    """
    q, b = np.exp(t / slack), np.exp(t)
    value = constant - q * (falling - rising * b)
    error = _G_ERROR * (constant + q * (falling + rising * b))
    return value, np.where(np.abs(t) * np.maximum(1, 1 / slack) <= 64, error, np.inf)


def _padded(order: float | Floats, a: Floats, c: Floats) -> Floats:
    """Return α·ln(1−a) − (α−1)·ln(1−c), padded up.

    The relative error of a and c is 2^{−50}; this matters where they are near 1.
    """
    gain, loss = order * np.log1p(-a), (order - 1) * np.log1p(-c)
    doubt = order * a / (1 - a) + (order - 1) * c / (1 - c)
    return np.asarray(gain - loss + _PAD * (np.abs(gain) + np.abs(loss)) + _ULPS * doubt)


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
            pairs = [(self.allowed[order], problem.shift(shift)) for order, shift in new]
            problem.competitors.remember((problem.orders[at], shift) for at, shift in pairs)
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
