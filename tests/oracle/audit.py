"""The exact audit: the law of a selector on two data sets, and the smallest valid charges.

A *law* is the probability distribution of what is released. ``exact_audit(selector, mechanisms)``
handles the library's own selectors over mechanisms given as tables (:class:`FiniteMechanism`),
Algorithm 1 over bare queries, and Laplace noise reduction. It needs no sampling. The *tightness* is
smallest/claimed: 1 means that no smaller charge is valid, more than 1 that the claim is false. It
is a statement about one instance. A tightness well below 1 does not show that a theorem has slack
(for that, search for attacks: :mod:`reproduction.counterexamples.search`); a tightness above 1
refutes the theorem.

Only for made-up data: the report states the laws in full. Definitions:
:mod:`tests.oracle.smallest_charges`, docs/theory.md. Rounding: sums are bracketed
(:mod:`tests.oracle.dropping_laws`); "consistent" uses the worse ends and allows
:data:`TOLERANCE` nats (relative to the charge for charges above 1).
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.calls import Score
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.candidate import Candidate
from expost.selection.selector import Selector
from tests.oracle.finite_mechanism import FiniteMechanism
from tests.oracle.selector_laws import Data, exact_laws
from tests.oracle.smallest_charges import (
    ApproxMeasure,
    LawPair,
    Measure,
    PureMeasure,
    RenyiMeasure,
)

TOLERANCE = 1e-9
ZCDP_ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""The orders at which a zCDP claim is checked; the claim itself covers all orders."""


@dataclass(frozen=True)
class OutcomeAudit:
    """One class of outcomes: candidate ``index`` was released, or nothing (None).

    Parameters
    ----------
    index : int or None
        Index of the released candidate. None: nothing was released.
    chances : tuple of float
        Probabilities of the class on the data set and on its neighbour.
    claimed : float
        The claimed charge.
    smallest, at_least : float
        The smallest valid charge lies in [``at_least``, ``smallest``].
    worst_output : float, optional
        Under pure DP, the output with the largest loss, if there is one.
    """

    index: int | None
    chances: tuple[float, float]
    claimed: float
    smallest: float
    at_least: float
    worst_output: float | None = None

    @property
    def tightness(self) -> float:
        """``smallest / claimed``; for a claim of 0, it is 0 if valid and ∞ if not."""
        if self.claimed == 0:
            return 0.0 if self.smallest <= TOLERANCE else math.inf
        return self.smallest / self.claimed


@dataclass(frozen=True)
class ClaimAudit:
    """The audit of one claim.

    Parameters
    ----------
    kind : str
        "pure", "renyi" (at ``order``) or "approx" (at ``delta``).
    order, delta : float or None
        The Rényi order, or the δ, of the claim.
    outcomes : tuple of OutcomeAudit
        One entry per class of outcomes.
    used : float
        The quantity that the claim bounds, at the claimed charges: the largest excess of a log
        ratio over its charge (pure), Σ A^α(e^c·A′)^{1−α} (Rényi), or Σ(A − e^c·A′)₊ (approx).
    allowed : float
        The largest valid value of ``used``: 0, 1 or δ.
    tightness, tightness_at_least : float
        Upper and lower end of the smallest common factor on all charges with which the claim is
        still true.
    consistent : bool
        Whether the claim holds, with brackets and rounding counted against it.
    violated : bool
        Whether the claim is false, with brackets and rounding counted in its favour.
    """

    kind: str
    order: float | None
    delta: float | None
    outcomes: tuple[OutcomeAudit, ...]
    used: float
    allowed: float
    tightness: float
    tightness_at_least: float
    consistent: bool
    violated: bool


@dataclass(frozen=True)
class ExactReport:
    """The report of an exact audit.

    Parameters
    ----------
    selector : dict
        The settings of the selector.
    theorem : str
        The theorem on which the claimed charges rest.
    claims : tuple of ClaimAudit
        One claim per order; a single claim for pure and approximate charges.
    unseen : float
        Upper bound of the probability of outcomes that were not examined: 0 for tables, the tail
        of the noise for noise reduction.
    """

    selector: dict[str, Any]
    theorem: str
    claims: tuple[ClaimAudit, ...]
    unseen: float

    @property
    def consistent(self) -> bool:
        """Whether every claim holds on this instance, brackets and rounding counted against it."""
        return all(claim.consistent for claim in self.claims)

    @property
    def violated(self) -> bool:
        """Whether a claim is false on this instance, brackets and rounding in its favour."""
        return any(claim.violated for claim in self.claims)

    @property
    def tightness(self) -> float:
        """The largest tightness of all claims."""
        return max(claim.tightness for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {
            "consistent": self.consistent,
            "violated": self.violated,
            "tightness": self.tightness,
        }

    def __str__(self) -> str:
        verdict = "violated" if self.violated else "consistent" if self.consistent else "undecided"
        lines = [
            f"{self.selector['name']} ({self.theorem}): {verdict}, tightness {self.tightness:.4f}"
        ]
        for claim in self.claims:
            at = "" if claim.order is None else f" at order {claim.order:g}"
            at += "" if claim.delta is None else f" at δ = {claim.delta:g}"
            lines.append(f"  {claim.kind}{at}: tightness {claim.tightness:.4f}")
            lines += [
                f"    {'nothing' if row.index is None else row.index!s:>7}"
                f"  chances {row.chances[0]:.4g}, {row.chances[1]:.4g}"
                f"  claimed {row.claimed:.6g}  smallest {row.smallest:.6g}"
                for row in claim.outcomes
            ]
        return "\n".join(lines)


def exact_audit(
    selector: Selector,
    mechanisms: Sequence[FiniteMechanism | Candidate],
    *,
    data: Data | None = None,
    score: Score | None = None,
    orders: Sequence[float] = ZCDP_ORDERS,
) -> ExactReport:
    """Compute the exact law of what ``selector`` releases, and the smallest valid charges.

    Parameters
    ----------
    selector : Selector
        One of the library's selectors.
    mechanisms : sequence of FiniteMechanism or Candidate
        Tables, or candidates whose mechanisms are tables (to set repeats, promises, drop rates or
        priorities). For Algorithm 1, candidates of bare queries; for noise reduction, candidates
        of ``DiscreteLaplace``.
    data : tuple, optional
        For queries and noise reduction: a pair of neighbouring data sets. Use made-up data.
    score : callable, optional
        For noise reduction: the score function that ``select`` would get.
    orders : sequence of float, optional
        The orders at which a zCDP claim is checked. Other claims have their own orders.

    Returns
    -------
    ExactReport
        The claims with their tightness, and the probabilities of all outcomes.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or if no exact law is known for the selector.
    InvalidCandidate
        If a table breaks the promise of its candidate: the theorems assume that promises are kept.

    Notes
    -----
    The report states the output distribution in full. Use made-up data only.
    """
    if not isinstance(selector, Selector):
        raise InvalidInput(
            "selector", type(selector).__name__, "pass a selector such as RandomDropping(0.1)"
        )
    candidates = candidates_of(mechanisms)
    require_promises(candidates, orders)
    charges = selector.charges(candidates)
    pair = exact_laws(selector, candidates, data, score)
    claims = tuple(
        audit_claim(measure, claimed, pair)
        for measure, claimed in measures_of(charges, pair, orders)
    )
    return ExactReport(selector.settings(), selector._theorem(candidates), claims, pair.unseen)


def candidates_of(mechanisms: Sequence[FiniteMechanism | Candidate]) -> list[Candidate]:
    """Return candidates unchanged, and tables as candidates with their exact pure guarantee."""
    if not isinstance(mechanisms, (list, tuple)) or not mechanisms:
        raise InvalidInput(
            "mechanisms", type(mechanisms).__name__, "pass a list of FiniteMechanism or Candidate"
        )
    candidates = []
    for place, each in enumerate(mechanisms):
        if isinstance(each, FiniteMechanism) and math.isinf(each.pure_epsilon()):
            raise InvalidCandidate(
                f"mechanisms[{place}]",
                "an output of probability 0 on one data set only",
                "no ε is valid: use as_candidate(guarantee=…)",
            )
        candidates.append(each.as_candidate() if isinstance(each, FiniteMechanism) else each)
    return candidates


def measures_of(
    charges: Charges, pair: LawPair, orders: Sequence[float] = ZCDP_ORDERS
) -> list[tuple[Measure, Floats]]:
    """Return the measures that the charges claim, each with one number per class.

    The number of the class "nothing" comes last.
    """
    listed = [*(charges[place] for place in range(len(charges))), charges.nothing]
    if charges.nothing.as_pure() is not None:
        return [(PureMeasure(pair), _column(listed, lambda charge: charge.epsilon))]
    if (delta := charges.nothing.shared_delta) is not None:
        return [(ApproxMeasure(pair, delta), _column(listed, lambda charge: charge.epsilon))]
    if (stated := charges.nothing.as_renyi()) is not None:
        at = enumerate(stated.orders)
        return [
            (RenyiMeasure(pair, order), _column(listed, lambda charge, k=k: charge.epsilons[k]))
            for k, order in at
        ]
    return [
        (RenyiMeasure(pair, order), _column(listed, lambda charge, a=order: a * charge.rho))
        for order in orders
    ]


def _column(charges: Sequence[Guarantee], number: Any) -> Floats:
    """Return one number of each charge as an array."""
    return np.array([number(charge) for charge in charges], dtype=float)


def audit_claim(
    measure: Measure, claimed: Floats, pair: LawPair, *, rows: bool = True
) -> ClaimAudit:
    """Check one claim against the laws; ``rows=False`` omits the single outcomes."""
    here, there = pair.here, pair.there
    chances = np.array([np.append(law.high.sum(-1), law.nothing_high) for law in (here, there)])
    outcomes = tuple(
        OutcomeAudit(
            None if place == pair.classes - 1 else place,
            (min(1.0, float(chances[0, place])), min(1.0, float(chances[1, place]))),
            float(claimed[place]),
            measure.smallest(claimed, place, worse=True),
            measure.smallest(claimed, place, worse=False),
            _worst_output(measure, place),
        )
        for place in range(pair.classes if rows else 0)
    )
    slack = claimed + TOLERANCE * np.maximum(claimed, 1.0)
    return ClaimAudit(
        kind={PureMeasure: "pure", RenyiMeasure: "renyi", ApproxMeasure: "approx"}[type(measure)],
        order=measure.order if isinstance(measure, RenyiMeasure) else None,
        delta=measure.delta if isinstance(measure, ApproxMeasure) else None,
        outcomes=outcomes,
        used=measure.used(claimed, worse=True),
        allowed=measure.allowed,
        tightness=measure.factor(claimed, worse=True),
        tightness_at_least=measure.factor(claimed, worse=False),
        consistent=measure.used(slack, worse=True) <= measure.allowed,
        violated=measure.used(slack, worse=False) > measure.allowed,
    )


def _worst_output(measure: Measure, place: int) -> float | None:
    """Return the output of a class with the largest loss, under pure DP."""
    if not isinstance(measure, PureMeasure) or place >= len(measure.worst):
        return None
    return measure.pair.outputs[measure.worst[place]]


def require_promises(
    candidates: Sequence[Candidate], orders: Sequence[float] = ZCDP_ORDERS
) -> None:
    """Raise an error if a table breaks the guarantee of its candidate."""
    for place, candidate in enumerate(candidates):
        _require_kept(candidate, place, orders)


def _require_kept(candidate: Candidate, place: int, orders: Sequence[float]) -> None:
    """Raise an error if a table breaks its guarantee by more than rounding."""
    table, promise = candidate.mechanism, candidate.guarantee
    if not isinstance(table, FiniteMechanism):
        return
    if (pure := promise.as_pure()) is not None:
        kept = table.pure_epsilon() <= pure.epsilon + TOLERANCE
    elif (pair := promise.as_approx()) is not None:
        kept = table.hockey_stick(pair.epsilon + TOLERANCE) <= pair.delta
    else:
        curve = promise.as_renyi() or promise.to_renyi(tuple(orders))
        listed = zip(curve.orders, curve.epsilons, strict=True)
        kept = all(table.renyi(order) <= epsilon + TOLERANCE for order, epsilon in listed)
    if not kept:
        raise InvalidCandidate(
            f"mechanisms[{place}].guarantee",
            promise,
            "the table breaks it; charges assume that promises are kept",
        )
