"""The claim for each class of outcomes as numbers: ex-post (ε̃, δ), or Rényi charges at some orders.

The definitions are those of docs/theory.md: Σ_o (A(o) − e^{ε̃(o)}A′(o))₊ ≤ δ, and
Σ_o A(o)^α (e^{ε̃(o)}A′(o))^{1−α} ≤ 1. A pure claim is the first with δ = 0. A zCDP claim is a Rényi
claim at every order; it is checked at the orders in ``ORDERS``.
Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.guarantees import ApproxDP, Guarantee

ORDERS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class ApproxClaims:
    """The ε̃ of each class, and the δ that all classes share."""

    epsilons: Floats
    delta: float


@dataclass(frozen=True)
class RenyiClaims:
    """Rényi orders, and the charges as an array of shape (orders, classes)."""

    orders: tuple[float, ...]
    charges: Floats


def claims_of(promises: Sequence[Guarantee]) -> ApproxClaims | RenyiClaims:
    """Return the claims as numbers; raise an error unless all have the same terms."""
    first = promises[0]
    for promise in promises:
        first.require_same_terms(promise)
    if first.as_zcdp() is not None:
        return claims_of([promise.to_renyi(ORDERS) for promise in promises])
    if (stated := first.as_renyi()) is not None:
        curves = [promise.to_renyi(stated.orders).epsilons for promise in promises]
        return RenyiClaims(stated.orders, np.array(curves, dtype=float).T)
    pairs = [_pair(promise) for promise in promises]
    return ApproxClaims(
        np.array([pair.epsilon for pair in pairs]), max(pair.delta for pair in pairs)
    )


def _pair(promise: Guarantee) -> ApproxDP:
    """Return a pure or approximate promise as (ε, δ)."""
    pair = promise.as_approx()
    if pair is None:
        raise InvalidInput("claim", promise, "pass PureDP, ApproxDP, ZCDP or RenyiDP")
    return pair
