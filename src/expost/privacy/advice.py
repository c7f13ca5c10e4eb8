"""Warnings about guarantees that are valid but protect little.

The numbers that a warning depends on (ε, δ and the number of rows) are public.
Tests: ``tests/privacy/test_advice.py``.
"""

from __future__ import annotations

import warnings

from expost.privacy.base import Guarantee

LARGE_EPSILON = 20.0


def weaknesses(guarantee: Guarantee, rows: int | None = None) -> list[str]:
    """Return what is weak about a guarantee: ε above 20, or δ of at least 1/rows.

    Parameters
    ----------
    guarantee : Guarantee
        What is about to be spent. Guarantees without an ε are not judged.
    rows : int, optional
        The public number of rows; without it δ is not judged.
    """
    pair = guarantee.as_approx()
    found: list[str] = []
    if pair is None:
        return found
    if pair.epsilon > LARGE_EPSILON:
        found.append(
            f"epsilon = {pair.epsilon:.3g} is very large: above {LARGE_EPSILON:g} the output may "
            "reveal almost everything about a person. Use a smaller epsilon."
        )
    if rows and pair.delta * rows >= 1:
        found.append(
            f"delta = {pair.delta:.3g} is at least 1/{rows}, one over the number of rows: this "
            "allows a method that publishes a random person's row. Use a delta far below "
            f"1/{rows}."
        )
    return found


def warn_if_weak(guarantee: Guarantee, rows: int | None = None, *, stacklevel: int = 2) -> None:
    """Warn about what is weak (:func:`weaknesses`).

    Parameters
    ----------
    guarantee, rows
        As in :func:`weaknesses`.
    stacklevel : int
        As in :func:`warnings.warn`; 2 names the caller of this function.
    """
    for text in weaknesses(guarantee, rows):
        warnings.warn(text, stacklevel=stacklevel + 1)
