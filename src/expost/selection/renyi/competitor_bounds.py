"""Bounds F_j on how much a competitor j adds to the Rényi moment of a winner.

At order α and shift s, let u = e^{−γ_j·x} be the probability that j is kept at drop level x. The
moment contains one factor for each competitor; the factor of j is at most exp F_j(u).

``paper``
    F = K_j at every level, with K_j = e^{(α−1)ε_j(α) − αγ_j s} < 1 (``lem:rdp-to-conv-ratio``;
    docs/theory.md corrects its proof).
``closed-form``
    F = −m_α·ln(1 − K_j·u), with m_α = ((α−1)/α)^{2α−1}.
``sharp``
    F = max_b α·ln(1−A·b^p) − (α−1)·ln(1−C·b) for *any* order β of j's curve, with p = β/(β−1),
    A = u·e^{−ε_j(β)} and C = u·e^{−γ_j s} (:func:`highest`).

All three fall as the level grows, so the value at the first level of a cell bounds the cell. Every
bound is padded up by 2^{−44} of the terms of its sum, and by the effect of rounding on ln(1−·) for
a probability near 1. Proofs: docs/theory.md. Tests: ``tests/theorems/test_renyi.py``,
``tests/selection/test_competitor_bounds.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from expost.arrays import Floats, Integers

_PAD = 2.0**-44
_ULPS = 2.0**-50  # relative error of a probability after a few rounding steps
_HALVINGS = 30  # of a bracket that is at most e wide
_G_ERROR = 2.0**-46  # of the terms of g: its rounding error, with room
_SMALLEST = 5e-324
_WIDENING = 2.0**-42  # times β − 1: how far the bracket is widened, in ln b
_RATIO = 1.12  # of neighbouring orders β of a curve that are tried
_NEGLIGIBLE = 1e-16  # keep probability below which a cell shares the bound of the one before
_TYPICAL = 0.02  # keep probability of the typical level for which a second β is chosen
_MOST_ROWS = 100_000  # rows kept for reuse; about 1 kB each
_TOGETHER = 1 << 14  # numbers that are worked on together; more would leave the cache

_rows: dict[tuple[bytes, float, float], Floats] = {}
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
        return np.array([_rows[name] for name in self._names(order, shift)])

    def _names(self, order: float, shift: float) -> list[tuple[bytes, float, float]]:
        """Return what the rows of one order and shift are known by."""
        gaps = (self.rates * shift).tolist()
        return [(key, float(order), gap) for key, gap in zip(self._keys, gaps, strict=True)]

    def remember(self, points: Iterable[tuple[float, float]]) -> None:
        """Put the ``sharp`` bounds of some orders and shifts into the table, many rows at once."""
        if len(_rows) > _MOST_ROWS:
            _rows.clear()
        missing = {
            name: group
            for point in points
            for group, name in enumerate(self._names(*point))
            if name not in _rows
        }
        names, most = list(missing), max(1, _TOGETHER // self.keeping.shape[1])
        for first in range(0, len(names), most):
            part = names[first : first + most]
            orders, gaps = (np.array([[name[at]] for name in part]) for at in (1, 2))
            groups = np.array([missing[name] for name in part])
            _rows.update(zip(part, self._bounds(orders, gaps, groups), strict=True))

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
        # falls with the level.
        matter = int((self.keeping >= _NEGLIGIBLE).any(axis=0).sum()) + 1
        cells = keeping[:, :matter]
        bounds = []
        for cell in (np.zeros_like(typical), typical):
            at_cell = highest(order, betas, curves, gap, keeping[rows, cell][:, None])
            best = np.argmin(at_cell, axis=1)
            chosen = curves[rows, best][:, None]
            bounds.append(highest(order, betas[rows, best][:, None], chosen, gap, cells))
        missing = keeping.shape[1] - cells.shape[1]
        return np.pad(np.minimum(*bounds), ((0, 0), (0, missing)), mode="edge")


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
        rarity = -np.log(np.maximum(kept, _SMALLEST))
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
