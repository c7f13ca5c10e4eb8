"""The exact (ε, δ) guarantee of Gaussian noise on real numbers.

Gaussian noise of standard deviation σ on a statistic of ℓ2 sensitivity Δ is μ-Gaussian DP with
μ = Δ/σ, and satisfies (ε, δ)-DP exactly for

    δ ≥ Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)

(Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13). It needs noise that is
exactly normal, or a rounding of such noise (:mod:`expost.randomness.exact_gaussian`). Discrete
Gaussian noise does not satisfy it; use :func:`expost.privacy.conversions.gaussian_for` there.

Both functions of this module err towards more noise. The difference above is computed in floating
point; each term has a relative error of at most (10 + z²)·10⁻¹⁵, where z is its argument, and this
is added to δ.

Tests: ``tests/privacy/test_gaussian_profile.py``.
"""

from __future__ import annotations

import math
from functools import lru_cache

from expost.errors import InvalidInput


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return an upper bound on the δ of μ-Gaussian DP at ε.

    Parameters
    ----------
    epsilon : float
        ε ≥ 0, finite.
    mu : float
        μ > 0: the sensitivity divided by the standard deviation.

    Returns
    -------
    float
        δ, at most 1.
    """
    first, second = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    total, other = _tail(first), _tail(second)
    other = 0.0 if other == 0 else math.exp(min(700.0, epsilon + math.log(other)))
    slack = 1e-15 * ((10 + first**2) * total + (10 + second**2 + epsilon) * other)
    return min(1.0, max(0.0, total - other) + slack + 1e-300)


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ, rounded down, for which μ-Gaussian DP implies (ε, δ)-DP.

    Parameters
    ----------
    epsilon : float
        ε > 0, finite.
    delta : float
        δ with 0 < δ < 1.

    Returns
    -------
    float
        μ > 0, with ``gaussian_delta(epsilon, mu) <= delta``.

    Raises
    ------
    InvalidInput
        If an argument is out of range, or so small that no μ can be certified.
    """
    if not 0 < epsilon < math.inf:
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give a number strictly between 0 and 1")
    # The least guess is safe: the probability that the loss exceeds ε is then far below δ.
    low, high = epsilon / (40 + math.sqrt(-2 * math.log(delta)) + epsilon), 1.0
    if gaussian_delta(epsilon, low) > delta:
        raise InvalidInput("delta", delta, "it is too small for this ε; give a larger δ")
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * low:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def _tail(z: float) -> float:
    """Return Φ(z), accurate in relative terms for negative z."""
    return 0.5 * math.erfc(-z / math.sqrt(2))
