"""How many copies of a candidate find a good output (``theorem:goodness-guarantee``).

Public numbers only. Tests: ``tests/theorems/test_plan.py``.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, exp, log

from expost.errors import InvalidInput
from expost.rationals import Number, exact_positive


def repeats_for(
    success: Number,
    failure: Number,
    epsilon: Number,
    overhead: Number,
    drop_rate: Number | None = None,
) -> int:
    """Return the number of copies with which a good output is found with probability 1 − β.

    Parameters
    ----------
    success : number
        α, the probability that one run of some candidate is good.
    failure : number
        β, the accepted probability of failure.
    epsilon : number
        ε_i of the candidate.
    overhead : number
        ε′ of the selector.
    drop_rate : number, optional
        The drop rate, if it is not ε_i.

    Returns
    -------
    int
        T_i = ⌈(1/α)·(2/β)^{ε_i/ε′}·ln(2/β)⌉, with the drop rate in place of ε_i if one is given.
        Rounded up (``theorem:goodness-guarantee``).
    """
    alpha, beta = exact_positive(success, "success"), exact_positive(failure, "failure")
    if alpha >= 1 or beta >= 1:
        raise InvalidInput(
            "success, failure", (success, failure), "give probabilities strictly between 0 and 1"
        )
    rate = exact_positive(epsilon if drop_rate is None else drop_rate, "epsilon")
    logarithm = log(2.0) - log(beta)
    log_copies = (
        float(rate / exact_positive(overhead, "overhead")) * logarithm + log(logarithm) - log(alpha)
    )
    if log_copies < 600:
        return ceil(Fraction(exp(log_copies) * (1 + 1e-12)))
    return int(2 ** ceil(log_copies / log(2.0)))
