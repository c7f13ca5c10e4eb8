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
    A = u·e^{−ε_j(β)} and C = u·e^{−γ_j s}.

All three fall as the level grows, so the value at the first level of a cell bounds the cell. The
maximum of ``sharp`` is bracketed: with b_l ≤ b* ≤ b_r it is at most
α·ln(1−A·b_l^p) − (α−1)·ln(1−C·b_r), whatever method found the root. Rounding: every bound is
padded up by 2^{−44} of the terms of its sum, and by the effect of rounding on ln(1−·) for a
probability near 1.

Proofs: docs/theory.md. Tests: ``tests/theorems/test_renyi.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from expost.arrays import Floats, Integers

METHODS = ("sharp", "closed-form", "paper")

_PAD = 2.0**-44
_ULPS = 2.0**-50  # relative error of a probability after a few rounding steps
_CLIMBS = 16  # at most this many Newton steps; twelve reach the root up to rounding
_CHOICES = 48  # number of orders β of a curve that are tried
_TYPICAL = 0.02  # keep probability of the typical level for which a second β is chosen
_MOST_ROWS = 100_000  # rows kept for reuse; about 1 kB each

_rows: dict[tuple[bytes, float, float], Floats] = {}
"""Bounds computed so far, by group (content), order and gap: attempts of one job share them."""


@dataclass(frozen=True, eq=False)
class Competitors:
    """Groups of equal competitors.

    Parameters
    ----------
    orders : array of shape (orders,)
        Rényi orders of the curves.
    curves : array of shape (groups, orders)
        Rényi divergence of one copy of each group.
    rates : array of shape (groups,)
        Drop rates γ, per unit of x.
    keeping : array of shape (groups, cells)
        Probability that a copy is kept at the first level of each cell.
    """

    orders: Floats
    curves: Floats
    rates: Floats
    keeping: Floats
    _keys: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        common = blake2b(self.orders.tobytes(), digest_size=16)
        keys = []
        for curve, kept in zip(self.curves, self.keeping, strict=True):
            state = common.copy()
            state.update(np.ascontiguousarray(curve).tobytes())
            state.update(np.ascontiguousarray(kept).tobytes())
            keys.append(state.digest())
        object.__setattr__(self, "_keys", tuple(keys))

    def factors(self, method: str, place: int, shift: float) -> Floats | None:
        """Return F (groups × cells) at order ``orders[place]``, or None if there is no bound."""
        if method == "sharp":
            return self._sharp(self.orders[place], shift)
        return self._closed(place, shift, paper=method == "paper")

    def _closed(self, place: int, shift: float, *, paper: bool) -> Floats | None:
        """Return the bound of ``paper`` or ``closed-form``, or None where it does not apply."""
        order = self.orders[place]
        log_k = (order - 1) * self.curves[:, place] - order * self.rates * shift
        log_k = log_k + _PAD * ((order - 1) * self.curves[:, place] + order * self.rates * shift)
        if paper:  # the theorem requires ℓ ≥ 0, that is γ_j·s ≥ ε_j
            if np.any(self.rates * shift < self.curves[:, place] * (1 - 1e-12)):
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
        gaps = self.rates * shift
        names = [(key, float(order), float(gap)) for key, gap in zip(self._keys, gaps, strict=True)]
        missing = np.array([place for place, name in enumerate(names) if name not in _rows], int)
        if len(missing):
            if len(_rows) > _MOST_ROWS:
                _rows.clear()
                missing = np.arange(len(names))
            bounds = self._bounds(order, gaps[missing][:, None], missing)
            for place, bound in zip(missing, bounds, strict=True):
                _rows[names[place]] = bound
        return np.array([_rows[name] for name in names])

    def _bounds(self, order: float, gap: Floats, groups: Integers) -> Floats:
        """Compute the ``sharp`` bounds of some groups."""
        step = max(1, len(self.orders) // _CHOICES)
        betas = self.orders[::step][None, :]
        curves, keeping = self.curves[groups][:, ::step], self.keeping[groups]
        typical = np.minimum((keeping > _TYPICAL).sum(axis=1), keeping.shape[1] - 1)
        rows = np.arange(len(groups))
        bounds = []
        for cell in (np.zeros_like(typical), typical):
            at_cell = highest(order, betas, curves, gap, keeping[rows, cell][:, None])
            best = np.argmin(at_cell, axis=1)
            chosen = curves[rows, best][:, None]
            bounds.append(highest(order, betas[0, best][:, None], chosen, gap, keeping))
        return np.minimum(*bounds)


def highest(order: float, beta: Floats, divergence: Floats, gap: Floats, kept: Floats) -> Floats:
    """Return an upper bound of max over b ∈ [0, 1] of α·ln(1−A·b^p) − (α−1)·ln(1−C·b), and of 0.

    Parameters
    ----------
    order : float
        α.
    beta : array
        β, the order at which the competitor's curve is read.
    divergence : array
        ε_j(β).
    gap : array
        γ_j·s.
    kept : array
        u, the probability that the competitor is kept.

    Returns
    -------
    array
        The bound, padded up; at least 0.

    Notes
    -----
    The derivative has the sign of g(b) = (α−1)C − αAp·b^{p−1} + AC(αp−α+1)·b^p. This function
    falls up to b₁ = α(p−1)/(C(α(p−1)+1)) and rises after it. So the maximum is at the first root
    of g, if there is one below min(b₁, 1), or at b = 1. The code works with t = ln b, and with g
    divided by u.
    """
    power = beta / (beta - 1)
    big_a, big_c = np.exp(-divergence), np.exp(-gap)  # A/u, C/u
    cross = order * power - order + 1
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        log_b1 = np.log(order * (power - 1) / (order * (power - 1) + 1)) + gap - np.log(kept)
        top = np.minimum(log_b1, 0.0)

        def slope(t: Floats) -> Floats:
            rise = (order - 1) * big_c + kept * big_a * big_c * cross * np.exp(power * t)
            return rise - order * big_a * power * np.exp((power - 1) * t)

        # The first root solves t = m(t) = (β−1)·ln(((α−1)C + AC(αp−α+1)·e^{pt})/(αAp)). m is
        # convex and m(−∞) = `start`, so Newton steps from `start` rise to the root and do not
        # pass it.
        # `margin` (in t) is far above the rounding of t, and too small to change the bound.
        margin = 1e-11 * (beta - 1)
        start = np.minimum(
            (beta - 1) * (np.log((order - 1) / (order * power)) + divergence - gap) + 0.0 * top, top
        )
        climbed, step = start, np.zeros_like(start)
        for _ in range(_CLIMBS):
            added = kept * big_a * big_c * cross * np.exp(power * climbed)
            rise = (order - 1) * big_c + added
            ahead = (beta - 1) * np.log(rise / (order * big_a * power)) - climbed
            higher = np.clip(
                climbed + ahead / np.maximum(1 - beta * added / rise, 1e-9), climbed, top
            )
            step, climbed = higher - climbed, higher
            if np.all((step <= margin) | (climbed >= top)):
                break
        low = climbed - margin - 1e-12 * np.abs(climbed)
        for fallback in (start - margin - 1e-12 * np.abs(start), np.full_like(start, -np.inf)):
            # If g ≥ 0 at b_l, the first root is not below b_l.
            low = np.where(slope(low) >= 0, low, fallback)
        high = np.minimum(climbed + 2 * margin + 4 * step, top)
        for _ in range(12):
            short = slope(high) > 0
            if not short.any():
                break
            high = np.where(short, np.minimum(high + 8 * (high - climbed), top), high)
        # Either g ≤ 0 at b_r, or b_r is the end of the interval.
        high = np.where(slope(high) > 0, top, np.minimum(high + margin, top))
        inner = _padded(order, kept * big_a * np.exp(power * low), kept * big_c * np.exp(high))
        end = _padded(order, kept * big_a, kept * big_c)
        # fmax ignores NaN: at b = 1 the value of A may be 1, where f = −∞.
        best = np.fmax(np.where(slope(top) <= 0, inner, -np.inf), end)
    return np.maximum(best, 0.0)


def _padded(order: float, a: Floats, c: Floats) -> Floats:
    """Return α·ln(1−a) − (α−1)·ln(1−c), padded up.

    The relative error of a and c is 2^{−50}; this matters where they are near 1.
    """
    gain, loss = order * np.log1p(-a), (order - 1) * np.log1p(-c)
    doubt = order * a / (1 - a) + (order - 1) * c / (1 - c)
    return np.asarray(gain - loss + _PAD * (np.abs(gain) + np.abs(loss)) + _ULPS * doubt)
