"""The report of an empirical audit: claimed and measured losses, and a verdict.

One entry per class of outcomes; all bounds hold together at the stated confidence.
Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONSISTENT, VIOLATED = "consistent", "violated"


@dataclass(frozen=True)
class OutcomeFinding:
    """What was found for one class of outcomes.

    Parameters
    ----------
    index : int or None
        Index of the winning candidate. None: nothing was released.
    claimed : float
        The promised ε; for a Rényi promise, its value at ``order``.
    lower_bound : float
        Lower bound of the true ε. The bounds of all outcomes hold together at the confidence of
        the report.
    event : str
        The event that gives the bound.
    side : str
        The data set on which the event is more likely: "data" or "neighbour".
    runs : tuple of int
        Counted runs that ended in this class, on the data and on the neighbour.
    order : float, optional
        The Rényi order, for Rényi promises.
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
    """What was found for all outcomes together.

    The measured quantity is Σ (P − e^{ε̃}P′)₊, which may be at most δ, or the Rényi sum at
    ``order``, which may be at most 1.

    Parameters
    ----------
    limit : float
        The largest value that the claim allows: δ, or 1.
    lower_bound : float
        Lower bound of the quantity at the confidence of the report.
    order : float, optional
        The Rényi order, for Rényi promises.
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
        wrong = self.joint.violated or any(each.violated for each in self.outcomes)
        return VIOLATED if wrong else CONSISTENT

    @property
    def violated(self) -> bool:
        """Whether the claim is false at the stated confidence."""
        return self.verdict == VIOLATED

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form. The first three keys are stable.

        The key ``corrected_for`` holds ``comparisons``; the other keys have the names of the
        fields.
        """
        return {
            "verdict": self.verdict,
            "confidence": self.confidence,
            "outcomes": [each.as_dict() for each in self.outcomes],
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
