"""What a selection will do, from its public settings alone: chances, run counts, repeats. No data, no charge.

Everything here is for planning and may use floating point: no guarantee rests on it.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, exp, log

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput
from expost.rationals import Number, exact_positive

Floats = npt.NDArray[np.float64]


def repeats_for(success: Number, failure: Number, epsilon: Number, overhead: Number, drop_rate: Number | None = None) -> int:
    """Copies T_i for which a good output is found with probability 1 − β (``theorem:goodness-guarantee``).

    ``success`` is α, the chance that one run of some candidate is good; ``failure`` is β. T_i = ⌈(1/α)·(2/β)^{ε_i/ε′}·ln(2/β)⌉,
    with the drop rate in the place of ε_i if it is larger. Rounded up.
    """
    alpha, beta = exact_positive(success, "success"), exact_positive(failure, "failure")
    if alpha >= 1 or beta >= 1:
        raise InvalidInput("success, failure", (success, failure), "give probabilities strictly between 0 and 1")
    exponent = exact_positive(epsilon if drop_rate is None else drop_rate, "epsilon") / exact_positive(overhead, "overhead")
    logarithm = log(2.0) - log(beta)
    log_copies = float(exponent) * logarithm + log(logarithm) - log(alpha)
    if log_copies < 600:
        return ceil(Fraction(exp(log_copies) * (1 + 1e-12)))
    return int(2 ** ceil(log_copies / log(2.0)))
