"""What a charge means for one person, in words: the same sentence on every screen and report.

Tests: ``tests/certificates/test_person_words.py``.
"""

from __future__ import annotations

import math

from expost.rationals import charge_text


def certainty_text(epsilon: float) -> str:
    """Return e^ε/(1 + e^ε) in per cent, rounded up, with enough digits to stay below 100."""
    percent = 100 / (1 + math.exp(-min(epsilon, 700.0)))
    for digits in range(1, 5):
        shown = math.ceil(percent * 10**digits - 1e-8) / 10**digits  # 3/4 may end a bit above 75
        if shown < 100:
            return f"{shown:.{digits}f}"
    return "100"


def person_words(epsilon: float, delta: float = 0.0, unit: str = "person") -> str:
    """Return what a charge means for one person, or one row: the same sentence at every door.

    By Bayes' rule, even odds become at most e^ε if what was released is at most e^ε times as likely
    with the person as without. With δ > 0 the odds exceed e^(ε + t) with a probability of at most
    δ / (1 − e^(−t)), for every t > 0. Rounded up.
    Test: ``tests/certificates/test_person_words.py``.
    """
    text = (
        f"someone undecided before whether one {unit} is in the data can be at most "
        f"{certainty_text(epsilon)} % certain afterwards"
    )
    if delta:
        text += f"; this limit may fail with a small probability (about δ = {charge_text(delta)})"
    return text
