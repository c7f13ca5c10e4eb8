"""The zCDP guarantee of a Gaussian mechanism that an (ε, δ) target allows.

The result is the largest ρ that the tight conversion admits. The search returns the lower end of
its bracket, so the result never exceeds the target.

Tests: ``tests/privacy/test_dpsgd.py``.
"""

from __future__ import annotations

from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZCDP


def gaussian_for(epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDP:
    """Return the zCDP guarantee of a Gaussian mechanism that is calibrated to (ε, δ).

    Parameters
    ----------
    epsilon : float
        The target ε > 0, finite.
    delta : float
        The target δ, 0 < δ < 1.
    neighbours : str, default "add-remove"
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.

    Returns
    -------
    ZCDP
        A guarantee that never exceeds the target and is within 1e-9 of it.

    Raises
    ------
    InvalidInput
        If the target is not valid.
    """
    if not 0 < epsilon < float("inf"):
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    low, high = 0.0, epsilon
    while ZCDP(high).to_approx(delta).epsilon <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if not low < middle < high:  # neighbouring floats, among the subnormal ones
            break
        if ZCDP(middle).to_approx(delta).epsilon <= epsilon:
            low = middle
        else:
            high = middle
    return ZCDP(low, neighbours)
