"""What is claimed of each class of outcomes, as numbers: ex-post (ε̃, δ), or ex-post Rényi charges at one or more orders.

The definitions are those of docs/theory.md: Σ_o (A(o) − e^{ε̃(o)}A′(o))₊ ≤ δ, and Σ_o A(o)^α (e^{ε̃(o)}A′(o))^{1−α} ≤ 1. Pure
claims are the first with δ = 0. A zCDP claim is a Rényi claim at every order; it is looked at at those of ``ORDERS``.
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
    """ε̃ by class, and the δ that they share."""

    epsilons: Floats
    delta: float


@dataclass(frozen=True)
class RenyiClaims:
    """Orders, and charges as orders × classes."""

    orders: tuple[float, ...]
    charges: Floats


def claims_of(promises: Sequence[Guarantee]) -> ApproxClaims | RenyiClaims:
    """The claims as numbers; refused unless all are on the same terms."""
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
    pair = promise.as_approx()
    if pair is None:
        raise InvalidInput("claim", promise, "give PureDP, ApproxDP, ZCDP or RenyiDP")
    return pair
