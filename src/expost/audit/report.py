"""The report of an empirical audit, and the claims that it compares with, as numbers.

The definitions are those of docs/theory.md: Σ_o (A(o) − e^{ε̃(o)}A′(o))₊ ≤ δ, and
Σ_o A(o)^α (e^{ε̃(o)}A′(o))^{1−α} ≤ 1. A pure claim is the first with δ = 0. A zCDP claim is a Rényi
claim at every order; it is checked at ``ORDERS``.

Confidence bounds of a probability are exact (Clopper and Pearson 1934). The lower bound for k of n
is the p at which P(Bin(n, p) ≥ k) equals the tail probability; the upper bound is its mirror image.
Let t be the log-odds of p. The logarithm of the tail probability is increasing and concave in t
(its slope is E[X | X ≥ k] − np, which decreases). Newton's method started on the left of the root
therefore stays on the left: stopping early only widens the interval. The tail probability is
I_p(k, n−k+1), computed by the continued fraction of the incomplete beta function, whose value F
also gives the slope k/F. Rounding: the root is moved outwards by 1e-9 in log-odds, and by the
largest possible rounding error of the logarithms of factorials, 2^{−48} of the largest.

Tests: ``tests/audit/test_empirical.py``, ``tests/audit/test_bounds.py`` (against SciPy, and exact
coverage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.guarantees import ApproxDP, Guarantee
from expost.rationals import count_of

ORDERS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class ApproxClaims:
    """The ε̃ of each class, and the δ that all classes share."""

    epsilons: Floats
    delta: float


@dataclass(frozen=True)
class RenyiClaims:
    """Rényi orders, and the charges as an array of shape (orders, classes)."""

    orders: tuple[float, ...]
    charges: Floats


def claimed_numbers(guarantees: Sequence[Guarantee]) -> ApproxClaims | RenyiClaims:
    """Return the claims as numbers; raise an error unless all have the same terms."""
    first = guarantees[0]
    for guarantee in guarantees:
        first.require_same_terms(guarantee)
    if first.as_zcdp() is not None:
        return claimed_numbers([guarantee.to_renyi(ORDERS) for guarantee in guarantees])
    if (stated := first.as_renyi()) is not None:
        curves = [guarantee.to_renyi(stated.orders).epsilons for guarantee in guarantees]
        return RenyiClaims(stated.orders, np.array(curves, dtype=float).T)
    pairs = [_pair(guarantee) for guarantee in guarantees]
    return ApproxClaims(
        np.array([pair.epsilon for pair in pairs]), max(pair.delta for pair in pairs)
    )


def _pair(guarantee: Guarantee) -> ApproxDP:
    """Return a pure or approximate guarantee as (ε, δ)."""
    pair = guarantee.as_approx()
    if pair is None:
        raise InvalidInput("claim", guarantee, "pass PureDP, ApproxDP, ZCDP or RenyiDP")
    return pair


CONSISTENT, VIOLATED = "consistent", "violated"


@dataclass(frozen=True)
class OutcomeFinding:
    """What was found for one class of outcomes; bounds hold together at the confidence.

    ``claimed``: the claimed ε, at ``order`` for a Rényi guarantee. ``event`` gives the bound;
    ``side`` is where it is more likely. ``runs``: counted runs of this class on the data and the
    neighbour.
    """

    index: int | None
    claimed: float
    lower_bound: float
    event: str
    side: str
    runs: tuple[int, int]
    order: float | None = None

    @property
    def tightness(self) -> float | None:
        """``lower_bound / claimed``; None if the claimed loss is 0."""
        return self.lower_bound / self.claimed if self.claimed > 0 else None

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds the claim."""
        return self.lower_bound > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form. The first four keys are stable."""
        return {
            "index": self.index,
            "claimed": self.claimed,
            "lower_bound": self.lower_bound,
            "tightness": self.tightness,
            "event": self.event,
            "more_likely_on": self.side,
            "runs": list(self.runs),
        } | ({} if self.order is None else {"order": self.order})


@dataclass(frozen=True)
class JointFinding:
    """What was found for all outcomes together, against the largest value that the claim allows.

    The measured quantity is Σ (P − e^{ε̃}P′)₊, which may be at most δ, or the Rényi sum at
    ``order``, which may be at most 1.
    """

    limit: float
    lower_bound: float
    order: float | None = None

    @property
    def violated(self) -> bool:
        """Whether the lower bound exceeds the limit."""
        return self.lower_bound > self.limit

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"limit": self.limit, "lower_bound": self.lower_bound} | (
            {} if self.order is None else {"order": self.order}
        )


@dataclass(frozen=True)
class AuditReport:
    """Verdict and findings of an empirical audit.

    Parameters
    ----------
    confidence : float
        Confidence of the verdict and of all bounds together.
    outcomes : tuple of OutcomeFinding
        One finding per class of outcomes.
    joint : JointFinding
        The finding for all outcomes together.
    delta : float
        The δ of the claim; 0 for pure and Rényi claims.
    runs : int
        Runs on each data set, including the pilot.
    pilot : int
        Runs on each data set that chose the events. They are not counted.
    comparisons : int
        Number of bounds that share the error probability.
    failed : tuple of int
        Counted runs that raised an error, on the data and on the neighbour.
    unseen : tuple of int
        Counted runs that ended in a class which the pilot did not see. They are not judged.
    simulated : bool
        Whether the runs used seeded randomness.
    blind : bool
        Whether values were released that no event looks at.

    Notes
    -----
    The verdict "violated" means that the claim is false at this confidence: a true claim gets
    this verdict with probability at most 1 − confidence. The verdict "consistent" means that these
    runs and these events do not show the claim to be false. It is not a proof.
    """

    confidence: float
    outcomes: tuple[OutcomeFinding, ...]
    joint: JointFinding
    delta: float
    runs: int
    pilot: int
    comparisons: int
    failed: tuple[int, int]
    unseen: tuple[int, int]
    simulated: bool
    blind: bool = False

    @property
    def verdict(self) -> str:
        """Return "violated" or "consistent"."""
        wrong = self.joint.violated or any(finding.violated for finding in self.outcomes)
        return VIOLATED if wrong else CONSISTENT

    @property
    def violated(self) -> bool:
        """Whether the claim is false at the stated confidence."""
        return self.verdict == VIOLATED

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; its first three keys are stable."""
        return {
            "verdict": self.verdict,
            "confidence": self.confidence,
            "outcomes": [finding.as_dict() for finding in self.outcomes],
            "joint": self.joint.as_dict(),
            "delta": self.delta,
            "runs": self.runs,
            "pilot": self.pilot,
            "corrected_for": self.comparisons,
            "failed": list(self.failed),
            "unseen": list(self.unseen),
            "simulated": self.simulated,
            "blind": self.blind,
        }


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
