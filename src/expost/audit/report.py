"""The report of an empirical audit, and the claims that it compares with, as numbers.

The definitions are those of docs/theory.md: Σ_o (A(o) − e^{ε̃(o)}A′(o))₊ ≤ δ, and
Σ_o A(o)^α (e^{ε̃(o)}A′(o))^{1−α} ≤ 1. A pure claim is the first with δ = 0. A zCDP claim is a Rényi
claim at every order; it is checked at ``ORDERS``. Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.guarantees import ApproxDP, Guarantee

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
