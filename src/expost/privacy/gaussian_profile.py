"""The exact (ε, δ) guarantee of Gaussian noise on real numbers.

Gaussian noise of standard deviation σ on a statistic of ℓ2 sensitivity Δ is μ-Gaussian DP with
μ = Δ/σ, and satisfies (ε, δ)-DP exactly for

    δ ≥ Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)

(Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13). It needs noise that is
exactly normal, or a rounding of such noise (:mod:`expost.randomness.exact_gaussian`). Discrete
Gaussian noise does not satisfy it; use :func:`expost.privacy.conversions.gaussian_for` there.

Evaluated like this, e^ε overflows and Φ underflows where δ is an ordinary number. Since
e^ε·φ(−μ/2 − ε/μ) = φ(μ/2 − ε/μ), the same is

    δ = φ(u)·(R(u) − R(v)),   u = ε/μ − μ/2,   v = ε/μ + μ/2,   R(x) = Φ(−x)/φ(x),

where R, the Mills ratio, is about 1/x for large x. The functions of this module err towards more
noise:

* ε/μ is rounded down. It then belongs to a smaller ε, whose δ is larger.
* u and v have one rounding each, of a relative 2^{−53}. Because 0 < 1/R(x) − x < 1/x, this changes
  R by a relative 2^{−53} at most, and it changes −u²/2 by 2^{−52}·u².
* R is evaluated with a relative error below 3·10⁻¹⁵ (:func:`_mills`). Twice that is added to the
  difference, for each term, and 10⁻¹⁵·(10 + u²) to the logarithm of δ.

Tests: ``tests/privacy/test_gaussian_profile.py``.
"""

from __future__ import annotations

import math
from functools import lru_cache

from expost.errors import InvalidInput

_RELATIVE = 6e-15
_TERMS = 80
_DENSITY = 1 / math.sqrt(2 * math.pi)


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
    ratio = math.nextafter(epsilon / mu, 0.0)
    low, high = ratio - mu / 2, ratio + mu / 2
    if low > 40:  # δ < φ(40)·R(40), which is smaller than any float
        return math.nextafter(0.0, 1.0)
    other = _mills(high)
    if low >= 0:
        first = _mills(low)
        part = first - other + _RELATIVE * (first + other)
        return min(1.0, _up(math.log(part * _DENSITY) - low**2 / 2 + 1e-15 * (10 + low**2)))
    # Φ(−u) is at least ½ here, so that nothing underflows but what is subtracted.
    less = _DENSITY * math.exp(-(low**2) / 2) * other
    total = 0.5 * math.erfc(low / math.sqrt(2)) * (1 + _RELATIVE)
    return min(1.0, total - less * (1 - _RELATIVE - min(1.0, 1e-15 * (10 + low**2))))


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
        If an argument is out of range, or ε is so small that no μ can be certified.
    """
    if not 0 < epsilon < math.inf:
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give a number strictly between 0 and 1")
    # The least guess is safe: u > 40, where the bound on δ is the smallest number there is.
    low, high = epsilon / (42 + epsilon), 1.0
    if low < 1e-300:
        raise InvalidInput("epsilon", epsilon, "it is too small; give a larger one")
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * low:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def _mills(x: float) -> float:
    """Return R(x) = Φ(−x)/φ(x) for x ≥ 0.

    Below 3 as √(π/2)·e^{z²}·erfc(z) with z = x/√2. The rounding of z changes this by less than
    2^{−52}, because it is the same z in both factors; z² < 4.5 is rounded, too. From 3 on by
    Laplace's continued fraction 1/(x + 1/(x + 2/(x + …))). Its convergents lie on both sides of R;
    the 79th and the 80th differ by less than a relative 10⁻¹⁸ (a test computes them exactly at 3;
    the larger x, the closer). All terms are positive, so that no rounding grows.
    """
    if x < 3:
        z = x / math.sqrt(2)
        return math.sqrt(math.pi / 2) * math.exp(z * z) * math.erfc(z)
    tail = x
    for number in range(_TERMS, 0, -1):
        tail = x + number / tail
    return 1 / tail


def _up(exponent: float) -> float:
    """Return e^exponent, rounded up also where floats are sparse."""
    return math.nextafter(math.exp(min(exponent, 1.0)), math.inf)
