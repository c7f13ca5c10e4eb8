"""Exact confidence bounds of a probability (Clopper and Pearson 1934), and the runs needed.

The lower bound for k of n is the p at which P(Bin(n, p) ≥ k) equals the tail probability; the upper
bound is its mirror image. Let t be the log-odds of p. The logarithm of the tail probability is
increasing and concave in t (its slope is E[X | X ≥ k] − np, which decreases). Newton's method
started on the left of the root therefore stays on the left: stopping early only widens the
interval. The tail probability is I_p(k, n−k+1), computed by the continued fraction of the
incomplete beta function, whose value F also gives the slope k/F. Rounding: the root is moved
outwards by 1e-9 in log-odds, and by the largest possible rounding error of the logarithms of
factorials, 2^{−48} of the largest. Tests: ``tests/audit/test_bounds.py`` (against SciPy, and exact
coverage).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.rationals import count_of

Counts = npt.NDArray[np.int64]

_OUTWARDS, _LOST = 1e-9, 2.0**-48
_NEWTON_STEPS = 60
_FRACTION_TERMS = 100_000
_MOST_RUNS = 10**8


def clopper_pearson(
    counts: npt.ArrayLike, total: int, tails: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of probabilities, given ``counts`` out of ``total``.

    Each bound is wrong with probability at most its tail.
    """
    k, tail = np.broadcast_arrays(
        np.asarray(counts, dtype=np.int64), np.asarray(tails, dtype=float)
    )
    if total < 1 or np.any((k < 0) | (k > total)):
        raise InvalidInput("counts", total, "pass counts between 0 and a total of at least 1")
    if np.any(~((tail > 0) & (tail <= 0.25))):
        raise InvalidInput("tails", tails, "pass error probabilities > 0 and at most 0.25")
    pairs = np.stack(
        [np.concatenate([k.ravel(), total - k.ravel()]).astype(float), np.tile(tail.ravel(), 2)]
    )
    distinct, where = np.unique(pairs, axis=1, return_inverse=True)
    odds = _lower_log_odds(distinct[0], total, distinct[1])[where.ravel()]
    low, high = np.split(odds, 2)
    return _probability(low).reshape(k.shape), _probability(-high).reshape(k.shape)


def _lower_log_odds(k: Floats, total: int, tail: Floats) -> Floats:
    """Return the log-odds of the lower bound, moved outwards; −∞ where the count is 0."""
    result = np.full(len(k), -np.inf)
    seen = k > 0
    if not seen.any():
        return result
    a, wanted = k[seen], np.log(tail[seen])
    log_beta = np.array(
        [math.lgamma(count) + math.lgamma(total - count + 1) for count in a]
    ) - math.lgamma(total + 1)
    t = _chernoff_log_odds(a, total, wanted)
    for _ in range(_NEWTON_STEPS):
        fraction = _beta_fraction(a, total - a + 1, t)
        log_tail = (
            -a * np.logaddexp(0, -t)
            - (total - a + 1) * np.logaddexp(0, t)
            - log_beta
            - np.log(a)
            + np.log(fraction)
        )
        step = (wanted - log_tail) * fraction / a
        t = t + np.maximum(step, 0.0)
        if np.all(step < 1e-10):
            break
    result[seen] = t - _OUTWARDS - _LOST * math.lgamma(total + 2) * fraction / a
    return result


def _chernoff_log_odds(a: Floats, total: int, wanted: Floats) -> Floats:
    """Return a starting point near the root, on its left.

    There Chernoff's bound of ln P(X ≥ k), which is −n·KL(k/n, p), equals ``wanted``.
    """
    rest = total - a
    at_best = a * np.log(a / total) + rest * np.log(np.maximum(rest, 1) / total)
    # The lower end comes from a still weaker bound, (e·n·p/k)^k.
    low, high = np.log(a / total) - 1 + wanted / a, np.log(a / np.maximum(rest, 0.5))
    for _ in range(30):
        middle = (low + high) / 2
        bound = -a * np.logaddexp(0, -middle) - rest * np.logaddexp(0, middle) - at_best
        low, high = np.where(bound <= wanted, middle, low), np.where(bound <= wanted, high, middle)
    return np.asarray(low)


def _beta_fraction(a: Floats, b: Floats, t: Floats) -> Floats:
    """Return F with I_p(a, b) = p^a (1−p)^b F / (a·B(a, b)), where p has log-odds t.

    Lentz's method on the standard continued fraction.
    """
    p = _probability(t)
    c, d = np.ones_like(p), 1 / (1 - (a + b) * p / (a + 1))
    value = d.copy()
    for m in range(1, _FRACTION_TERMS):
        even = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / (1 + even * d), 1 + even / c
        value *= d * c
        odd = -(a + m) * (a + b + m) * p / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + odd * d), 1 + odd / c
        change = d * c
        value *= change
        if np.all(np.abs(change - 1) < 1e-14):
            break
    return value


def _probability(log_odds: Floats) -> Floats:
    """Convert log-odds to probabilities."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.logaddexp(0, -log_odds)))


def log_ratio_bound(count: int, other: int, total: int, tail: float) -> float:
    """Return a lower bound of ln(P/P′), given both counts out of ``total`` runs.

    The bound is −∞ if the counts give no information.
    """
    low, high = clopper_pearson([count, other], total, tail)
    return math.log(low[0] / high[1]) if low[0] > 0 else -math.inf


def runs_needed(
    loss: float, shown: float, chance: float, *, confidence: float = 0.95, comparisons: int = 4
) -> int:
    """Return the number of runs on each data set that an audit needs to show a given loss.

    Parameters
    ----------
    loss : float
        The true privacy loss ε of the event.
    shown : float
        The lower bound that the audit should reach; more than 0 and below ``loss``.
    chance : float
        Probability of the event on the data set where it is more likely. On the other data set it
        is ``chance · exp(−loss)``.
    confidence : float, default=0.95
        Confidence of the audit.
    comparisons : int, default=4
        Number of bounds that share the error probability.

    Returns
    -------
    int
        Number of counted runs. With the default pilot share of 0.2 an audit makes a quarter more
        runs, for its pilot.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or if more than 10^8 runs are needed.

    Notes
    -----
    The counts are set to their means. Use the result for planning: about half of all audits of
    this size show a little less.
    """
    if not 0 < chance < 1:
        raise InvalidInput("chance", chance, "pass a probability strictly between 0 and 1")
    if not 0 < shown < loss:
        raise InvalidInput("shown", shown, f"pass a number > 0 and below the true loss, {loss}")
    tail = (1 - confidence) / count_of(comparisons, "comparisons", at_least=1)

    def shows(runs: int) -> bool:
        return (
            log_ratio_bound(
                round(runs * chance), round(runs * chance * math.exp(-loss)), runs, tail
            )
            >= shown
        )

    most = 16
    while not shows(most):
        most *= 2
        if most > _MOST_RUNS:
            raise InvalidInput(
                "shown", shown, f"more than {_MOST_RUNS:g} runs would be needed; ask for less"
            )
    least = most // 2
    while most - least > max(1, most // 500):
        middle = (least + most) // 2
        least, most = (least, middle) if shows(middle) else (middle, most)
    return most
