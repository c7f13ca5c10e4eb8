"""How much a competitor j can add to the Rényi moment of a winner: bounds F_j on the logarithm of its factor.

At order α and shift s, with u = e^{−γ_j·x} the chance that j is kept at drop level x, the factor of j is at most exp F_j(u):

* ``paper``        F = K_j at every level, K_j = e^{(α−1)ε_j(α) − αγ_j s} < 1 (``lem:rdp-to-conv-ratio``, proof mended in docs/theory.md)
* ``closed-form``  F = −m_α·ln(1 − K_j·u), m_α = ((α−1)/α)^{2α−1}
* ``sharp``        F = max_b α·ln(1−A·b^p) − (α−1)·ln(1−C·b) for *any* order β of j's curve: p = β/(β−1), A = u·e^{−ε_j(β)},
                   C = u·e^{−γ_j s}

All three fall as the level grows, so the first level of a cell bounds the cell. The maximum of ``sharp`` is bracketed: with
b_l ≤ b* ≤ b_r it is at most α·ln(1−A·b_l^p) − (α−1)·ln(1−C·b_r), which needs no trust in how the root was found. Every bound is padded
by 2^{−44} of the terms it was added from, and by what the rounding of a probability near 1 does to ln(1−·).
Proofs: docs/theory.md. Tests: ``tests/theorems/test_renyi.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats

METHODS = ("sharp", "closed-form", "paper")

_PAD = 2.0**-44
_ULPS = 2.0**-50  # of a probability that took a few roundings
_CLIMBS = 16  # Newton steps at most; a dozen reach the root to rounding
_CHOICES = 48  # how many orders β of a curve are tried


@dataclass(frozen=True, eq=False)
class Competitors:
    """Groups of equal competitors: curves (groups × orders), drop rates per unit of x, and keep chances (groups × cells)."""

    orders: Floats
    curves: Floats
    rates: Floats
    keeping: Floats

    def factors(self, method: str, place: int, shift: float) -> Floats | None:
        """F (groups × cells) at order ``orders[place]``; None where the method says nothing."""
        if method == "sharp":
            return self._sharp(self.orders[place], shift)
        return self._closed(place, shift, paper=method == "paper")

    def _closed(self, place: int, shift: float, *, paper: bool) -> Floats | None:
        order = self.orders[place]
        log_k = (order - 1) * self.curves[:, place] - order * self.rates * shift
        log_k = log_k + _PAD * ((order - 1) * self.curves[:, place] + order * self.rates * shift)
        if paper:  # as stated: ℓ ≥ 0, that is γ_j·s ≥ ε_j
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
        """The bound with the order β that is best at the first level, and again at a typical level, of each curve."""
        step = max(1, len(self.orders) // _CHOICES)
        tried = np.arange(0, len(self.orders), step)
        betas, curves = self.orders[tried][None, :], self.curves[:, tried]
        gap = (self.rates * shift)[:, None]
        result: Floats | None = None
        for cell in (0, self.keeping.shape[1] // 3):
            at_cell = highest(order, betas, curves, gap, self.keeping[:, cell : cell + 1])
            best = np.argmin(at_cell, axis=1)
            rows = np.arange(len(best))
            bound = highest(
                order, betas[0, best][:, None], curves[rows, best][:, None], gap, self.keeping
            )
            result = bound if result is None else np.minimum(result, bound)
        assert result is not None
        return result


def highest(order: float, beta: Floats, divergence: Floats, gap: Floats, kept: Floats) -> Floats:
    """An upper bound of max over b ∈ [0, 1] of α·ln(1−A·b^p) − (α−1)·ln(1−C·b), and of 0.

    ``divergence`` = ε_j(β), ``gap`` = γ_j·s, ``kept`` = u. The derivative has the sign of
    g(b) = (α−1)C − αAp·b^{p−1} + AC(αp−α+1)·b^p, which falls up to b₁ = α(p−1)/(C(α(p−1)+1)) and rises after: the maximum
    is at g's first root, if there is one below min(b₁, 1), or at b = 1. Worked in t = ln b and divided by u.
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

        # The first root solves t = m(t) = (β−1)·ln(((α−1)C + AC(αp−α+1)·e^{pt})/(αAp)). m is convex and m(−∞) = `start`, so Newton's
        # steps from there climb to the root and do not pass it.
        margin = 1e-11 * (
            beta - 1
        )  # in t; far above the rounding of t, far below what the bound would feel
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
            low = np.where(
                slope(low) >= 0, low, fallback
            )  # g ≥ 0 at b_l: the first root is not below it
        high = np.minimum(climbed + 2 * margin + 4 * step, top)
        for _ in range(12):
            short = slope(high) > 0
            if not short.any():
                break
            high = np.where(short, np.minimum(high + 8 * (high - climbed), top), high)
        high = np.where(
            slope(high) > 0, top, np.minimum(high + margin, top)
        )  # g ≤ 0 at b_r, or b_r is all there is
        inner = _padded(order, kept * big_a * np.exp(power * low), kept * big_c * np.exp(high))
        end = _padded(order, kept * big_a, kept * big_c)
        best = np.fmax(
            np.where(slope(top) <= 0, inner, -np.inf), end
        )  # fmax: b = 1 may have A = 1, where f = −∞
    return np.maximum(best, 0.0)


def _padded(order: float, a: Floats, c: Floats) -> Floats:
    """α·ln(1−a) − (α−1)·ln(1−c), padded up; a and c are known to 2^{−50} of themselves, which matters where they are near 1."""
    gain, loss = order * np.log1p(-a), (order - 1) * np.log1p(-c)
    doubt = order * a / (1 - a) + (order - 1) * c / (1 - c)
    return np.asarray(gain - loss + _PAD * (np.abs(gain) + np.abs(loss)) + _ULPS * doubt)
