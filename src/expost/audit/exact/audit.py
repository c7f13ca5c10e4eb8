"""The exact audit: a selector's law on two neighbouring data sets, and beside each claimed charge the smallest that would have done.

``exact_audit(selector, mechanisms)`` takes the library's own selectors over mechanisms given as tables (:class:`FiniteMechanism`),
Algorithm 1 over bare queries, and Laplace noise reduction, and needs no sampling. A *tightness* is smallest/claimed: 1 means that no
smaller charge would be valid, more than 1 that the claim is false. It speaks of the instance at hand: a small tightness shows no slack
in a theorem (for that, attack it: :mod:`reproduction.counterexamples.search`), while a large one refutes it.

Only for made-up data: the report states the laws in full. Definitions: :mod:`expost.audit.exact.smallest_charges`, docs/theory.md. Rounding: sums are
bracketed (:mod:`expost.audit.exact.dropping_laws`); "consistent" uses the worse ends, and allows :data:`TOLERANCE` nats (relative to charges above 1).
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.audit.exact.finite_mechanism import FiniteMechanism
from expost.audit.exact.selector_laws import Data, exact_laws
from expost.audit.exact.smallest_charges import (
    ApproxMeasure,
    LawPair,
    Measure,
    PureMeasure,
    RenyiMeasure,
)
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.failure import Score
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.candidate import Candidate
from expost.selection.selector import Selector

TOLERANCE = 1e-9
ZCDP_ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""The orders at which a zCDP claim, which speaks of all orders, is looked at."""


@dataclass(frozen=True)
class OutcomeAudit:
    """One class of outcomes: the release of candidate ``index``, or of nothing (None).

    ``chances`` on the data set and on its neighbour; the true smallest charge lies in [``at_least``, ``smallest``]. Under pure DP
    ``worst_output`` is the output at which the loss is largest (None where there is none to name).
    """

    index: int | None
    chances: tuple[float, float]
    claimed: float
    smallest: float
    at_least: float
    worst_output: float | None = None

    @property
    def tightness(self) -> float:
        """smallest/claimed; 0 for what is free and costs nothing."""
        if self.claimed == 0:
            return 0.0 if self.smallest <= TOLERANCE else math.inf
        return self.smallest / self.claimed


@dataclass(frozen=True)
class ClaimAudit:
    """One claim: ``kind`` pure, renyi (at ``order``) or approx (at ``delta``).

    ``used`` is what the claim sums up at the claimed charges (the largest excess over a charge; Σ A^α(e^c·A′)^{1−α}; Σ(A − e^c·A′)₊), and
    ``allowed`` what it may be at most (0; 1; δ). ``tightness`` is the least common factor on all charges that leaves the claim true
    (upper end); ``tightness_at_least`` its lower end.
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
    """What an exact audit found: a claim for each order (one for pure and approximate charges).

    ``unseen`` bounds the chance of outcomes that were not looked at (0 for tables; far noise in noise reduction).
    """

    selector: dict[str, Any]
    theorem: str
    claims: tuple[ClaimAudit, ...]
    unseen: float

    @property
    def consistent(self) -> bool:
        """Every claim holds on this instance, brackets and rounding counted against it."""
        return all(claim.consistent for claim in self.claims)

    @property
    def violated(self) -> bool:
        """Some claim is false on this instance, brackets and rounding counted in its favour."""
        return any(claim.violated for claim in self.claims)

    @property
    def tightness(self) -> float:
        """The largest tightness of a claim."""
        return max(claim.tightness for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        """A JSON form."""
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
                f"    {'nothing' if row.index is None else row.index!s:>7}  chances {row.chances[0]:.4g}, {row.chances[1]:.4g}"
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
    """The exact law of what ``selector`` releases, and the smallest valid charges beside those it claims.

    ``mechanisms``  tables, or candidates whose mechanisms are tables (to give repeats, promises, rates or priorities); for Algorithm 1
                    candidates of bare queries, for noise reduction candidates of ``DiscreteLaplace``
    ``data``        with queries: a pair of neighbouring, made-up data sets
    ``score``       with noise reduction: the score that ``select`` would be given
    ``orders``      where a zCDP claim is looked at (other claims say their own orders)

    A table that breaks the promise of its candidate is refused: the theorems assume promises.
    """
    if not isinstance(selector, Selector):
        raise InvalidInput(
            "selector", type(selector).__name__, "give a selector such as RandomDropping(0.1)"
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
    """Candidates as they are, tables with the pure promise that they keep."""
    if not isinstance(mechanisms, (list, tuple)) or not mechanisms:
        raise InvalidInput(
            "mechanisms", type(mechanisms).__name__, "give a list of FiniteMechanism or Candidate"
        )
    candidates = []
    for place, each in enumerate(mechanisms):
        if isinstance(each, FiniteMechanism) and math.isinf(each.pure_epsilon()):
            raise InvalidCandidate(
                f"mechanisms[{place}]",
                "an output of chance 0 on one side",
                "no ε holds: use as_candidate(guarantee=…)",
            )
        candidates.append(each.as_candidate() if isinstance(each, FiniteMechanism) else each)
    return candidates


def measures_of(
    charges: Charges, pair: LawPair, orders: Sequence[float] = ZCDP_ORDERS
) -> list[tuple[Measure, Floats]]:
    """What the charges claim: measures, each with the claimed number of every class ("nothing" last)."""
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
    return np.array([number(charge) for charge in charges], dtype=float)


def audit_claim(
    measure: Measure, claimed: Floats, pair: LawPair, *, rows: bool = True
) -> ClaimAudit:
    """One claim against the laws; ``rows=False`` leaves the single outcomes out."""
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
    if not isinstance(measure, PureMeasure) or place >= len(measure.worst):
        return None
    return measure.pair.outputs[measure.worst[place]]


def require_promises(
    candidates: Sequence[Candidate], orders: Sequence[float] = ZCDP_ORDERS
) -> None:
    """Refuse tables that break the promises of their candidates."""
    for place, candidate in enumerate(candidates):
        _require_kept(candidate, place, orders)


def _require_kept(candidate: Candidate, place: int, orders: Sequence[float]) -> None:
    """Refuse a table that breaks its promise (beyond rounding)."""
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
            "the table breaks it; a charge assumes that it is kept",
        )
