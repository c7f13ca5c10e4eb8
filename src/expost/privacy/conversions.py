"""The Gaussian-like mechanism that an (ε, δ) target allows: the largest ρ, with the tight conversion."""

from __future__ import annotations

from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZCDP


def gaussian_for(epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDP:
    """The zCDP promise of a Gaussian mechanism calibrated to (ε, δ): never above it, and within 1e-9 of it."""
    if not 0 < epsilon < float("inf"):
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    low, high = 0.0, epsilon
    while ZCDP(high).to_approx(delta).epsilon <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if ZCDP(middle).to_approx(delta).epsilon <= epsilon:
            low = middle
        else:
            high = middle
    return ZCDP(low, neighbours)
