"""What an audit found: claimed against measured, outcome by outcome, and a verdict at a stated confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONSISTENT, VIOLATED = "consistent", "violated"


@dataclass(frozen=True)
class OutcomeFinding:
    """One class of outcomes: the winner's ``index`` (None: nothing was released).

    ``claimed``      the ε that was promised; of a Rényi promise, at ``order``
    ``lower_bound``  what the runs show it to be at least, simultaneously for all outcomes at the report's confidence
    ``event``        the event that shows it, more likely on ``side``
    ``runs``         counted runs that ended here: on the data, on the neighbour
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
        """lower_bound / claimed; None where nothing was claimed to be lost."""
        return self.lower_bound / self.claimed if self.claimed > 0 else None

    @property
    def violated(self) -> bool:
        return self.lower_bound > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; the first four keys are the contract."""
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
    """All outcomes together: Σ (P − e^{ε̃}P′)₊ against δ, or the Rényi sum at ``order`` against 1."""

    limit: float
    lower_bound: float
    order: float | None = None

    @property
    def violated(self) -> bool:
        return self.lower_bound > self.limit

    def as_dict(self) -> dict[str, Any]:
        return {"limit": self.limit, "lower_bound": self.lower_bound} | (
            {} if self.order is None else {"order": self.order}
        )


@dataclass(frozen=True)
class AuditReport:
    """Verdict and findings.

    ``violated`` means: at this confidence the claim is false (it is said of a true claim with chance at most 1 − confidence).
    ``consistent`` means that these runs and these events do not show it to be false; it proves nothing.
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
        wrong = self.joint.violated or any(each.violated for each in self.outcomes)
        return VIOLATED if wrong else CONSISTENT

    @property
    def violated(self) -> bool:
        return self.verdict == VIOLATED

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; the first three keys are the contract.

        ``runs`` on each data set, of which ``pilot`` chose the events; ``corrected_for`` bounds that share the error; ``failed``
        and ``unseen`` counted runs (data, neighbour) that raised, or ended in an outcome that the pilot never met, not judged;
        ``blind``: values were released that no event looked at.
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
