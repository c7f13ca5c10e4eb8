"""Does a mechanism keep its promise? Run it on two neighbouring data sets, count, and compare with the claim.

Source: the ex-post definitions (docs/theory.md), exact binomial bounds (Clopper and Pearson 1934), Bonferroni over all bounds;
events are fixed on pilot runs that are not counted. Assumed: the two data sets are neighbours under the claim's relation, and
runs are independent. Rounding: every bound is rounded towards "consistent". The chance of calling a true claim violated is at
most 1 − confidence. Tests: ``tests/audit/test_empirical.py`` (must catch, must not accuse), ``tests/audit/test_bounds.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from expost.audit.claims import ApproxClaims, claims_of
from expost.audit.empirical.events import UNREAD, Cells, Events, Feature, cells_from
from expost.audit.empirical.lower_bounds import judge
from expost.audit.empirical.observations import (
    SIDES,
    AuditProgress,
    Setup,
    Workers,
    chunks,
    counted_runs,
    pilot_runs,
)
from expost.audit.empirical.subjects import Claim, Key, Selection, Subject, as_subject
from expost.audit.empirical.tested_events import family_from
from expost.audit.report import AuditReport, OutcomeFinding
from expost.errors import InvalidInput
from expost.execution.failure import Score
from expost.privacy.guarantees import Guarantee
from expost.rationals import Number, count_of
from expost.selection.candidate import Candidate

FEWEST_RUNS = 50


def audit(
    subject: Any,
    data: Any,
    neighbour: Any,
    *,
    runs: int,
    candidates: Sequence[Candidate] | None = None,
    score: Score | None = None,
    claim: Claim | None = None,
    events: Events | None = None,
    delta: Number | None = None,
    confidence: float = 0.95,
    pilot: float = 0.2,
    workers: int = 1,
    simulation_seed: int | None = None,
    progress: AuditProgress | None = None,
) -> AuditReport:
    """Audit a subject on two neighbouring data sets.

    ``subject``          a ``Selector`` (with ``candidates``, and ``score`` if it needs one), a function ``(data, randomness) → output``
                         with a ``guarantee``, or a function that returns a ``Release``: then the claim is what that says it spent
    ``claim``            what to hold it to instead: a promise, ``Charges``, or a mapping from winning index to promise
    ``events``           a function of the released value: a number is cut at quantiles of the pilot, any other result is a label; or named
                         predicates. By default: whether the target was met, and the value itself if it is a number
    ``delta``            audit a mechanism's Rényi or zCDP promise as the (ε, δ) it implies; without it, as the Rényi promise it is
    ``runs``             on each data set; the share ``pilot`` of them chooses the events and is not counted
    ``workers``          processes; with more than one, everything audited must be importable by name
    ``simulation_seed``  seeded coins, for tests; by default every run has real ones
    ``progress``         called with (runs done, runs in all)

    The report shows how data and neighbour differ: audit on data that you may look at.
    """
    checked = as_subject(subject, candidates, score, claim)
    total = count_of(runs, "runs", at_least=FEWEST_RUNS)
    first = _pilot_size(total, pilot)
    _check_confidence(confidence)
    _check_events(events)
    if simulation_seed is not None:
        count_of(simulation_seed, "simulation_seed", at_least=0)
    if delta is not None and isinstance(checked, Selection):
        raise InvalidInput(
            "delta",
            delta,
            "a selector's charges are audited as they are; give delta to the selector instead",
        )
    setup = Setup(checked, data, neighbour, events, simulation_seed)
    tell = _Teller(progress, 2 * total)
    with Workers(setup, count_of(workers, "workers", at_least=1)) as pool:
        seen: list[list[tuple[Key, Feature]]] = [[], []]
        todo = chunks(first, 0)
        for chunk, found in sorted(
            tell.each(pool.results(pilot_runs, todo)), key=lambda pair: pair[0]
        ):
            seen[chunk.side] += found
        together = seen[0] + seen[1]
        promises = _promises(checked, together, delta)
        blind = events is None and _blind(together)
        cells = cells_from(together, list(promises))
        claims = claims_of(list(promises.values()))
        trial = np.array([cells.count(side)[:-1] for side in seen])
        family = family_from(trial, first, cells, claims)
        counts = np.zeros((2, len(cells) + 1), dtype=np.int64)
        for chunk, found in tell.each(
            pool.results(counted_runs, chunks(total - first, len(todo)), cells)
        ):
            counts[chunk.side] += found
    judged, joint = judge(counts[:, :-1], total - first, cells, family, claims, confidence)
    outcomes = []
    for place, (key, found) in enumerate(zip(cells.keys, judged, strict=True)):
        ended = counts[:, family.members[place]].sum(axis=1)
        if key.index is not None or ended.any():  # nothing released, ever: no such outcome
            outcome = (
                found.claimed,
                found.lower_bound,
                found.event,
                SIDES[found.side],
                (int(ended[0]), int(ended[1])),
            )
            outcomes.append(OutcomeFinding(key.index, *outcome, found.order))
    return AuditReport(
        confidence=confidence,
        outcomes=tuple(outcomes),
        joint=max(joint, key=lambda each: each.lower_bound - each.limit),
        delta=claims.delta if isinstance(claims, ApproxClaims) else 0.0,
        runs=total,
        pilot=first,
        comparisons=family.comparisons,
        failed=_failures(counts, cells),
        unseen=(int(counts[0, -1]), int(counts[1, -1])),
        simulated=simulation_seed is not None,
        blind=blind,
    )


class _Teller:
    """Progress over both phases."""

    def __init__(self, progress: AuditProgress | None, total: int) -> None:
        if progress is not None and not callable(progress):
            raise InvalidInput(
                "progress", type(progress).__name__, "give a function, or leave it out"
            )
        self._progress, self._total, self._done = progress, total, 0

    def each(self, results: Any) -> Any:
        for chunk, found in results:
            self._done += chunk.runs
            if self._progress is not None:
                self._progress(self._done, self._total)
            yield chunk, found


def _promises(
    subject: Subject, seen: Sequence[tuple[Key, Feature]], delta: Number | None
) -> dict[Key, Guarantee]:
    """Every class with what is promised of it."""
    if all(feature == Feature("failed") for _, feature in seen):
        raise InvalidInput(
            "subject", "failed", "every run of the pilot raised an error: there is nothing to audit"
        )
    found = subject.known()
    if found is None:
        keys = sorted(
            {key for key, _ in seen},
            key=lambda key: (key.index is None, key.index or 0, repr(key.spent)),
        )
        found = {key: _required(subject.claim_for(key)) for key in keys}
    return (
        found
        if delta is None
        else {key: _converted(promise, delta, found) for key, promise in found.items()}
    )


def _converted(promise: Guarantee, delta: Number, found: Mapping[Key, Guarantee]) -> Guarantee:
    """The (ε, δ) of a Rényi promise. Charges that differ by outcome would each take an order of its own, which is not sound."""
    if promise.as_approx() is not None:
        raise InvalidInput(
            "delta",
            delta,
            f"it converts a Rényi or zCDP promise; this one is {promise}: leave delta out",
        )
    if len(set(found.values())) > 1:
        raise InvalidInput(
            "delta",
            delta,
            "outcomes differ in their Rényi charges, which cannot be converted one by one; leave it out",
        )
    return promise.to_approx(delta)


def _blind(seen: Sequence[tuple[Key, Feature]]) -> bool:
    """Whether values were released that no event looks at; refused if then nothing at all tells outcomes apart."""
    blind = any(feature.number is None and feature.label in UNREAD for _, feature in seen)
    if blind and len(set(seen)) == 1:
        raise InvalidInput(
            "events",
            None,
            "outputs that are not numbers are not looked into: give a function of the value (--event)",
        )
    return blind


def _required(promise: Guarantee | None) -> Guarantee:
    if promise is None:
        raise InvalidInput(
            "claim",
            None,
            "the mechanism has no guarantee of its own: say what it promises, e.g. PureDP(0.5)",
        )
    return promise


def _failures(counts: np.ndarray[Any, np.dtype[np.int64]], cells: Cells) -> tuple[int, int]:
    places = [place for place, cell in enumerate(cells.cells) if cell.label == "failed"]
    data, neighbour = counts[:, places].sum(axis=1)
    return int(data), int(neighbour)


def _pilot_size(runs: int, pilot: object) -> int:
    if isinstance(pilot, bool) or not isinstance(pilot, (int, float)) or not 0.05 <= pilot <= 0.8:
        raise InvalidInput(
            "pilot", pilot, "give the share of runs that chooses the events, from 0.05 to 0.8"
        )
    return max(1, math.ceil(runs * pilot))


def _check_confidence(confidence: object) -> None:
    if (
        isinstance(confidence, bool)
        or not isinstance(confidence, (int, float))
        or not 0.5 <= confidence < 1
    ):
        raise InvalidInput("confidence", confidence, "give a number ≥ 0.5 and < 1")


def _check_events(events: object) -> None:
    if events is None or callable(events):
        return
    if (
        not isinstance(events, Mapping)
        or not events
        or not all(callable(each) for each in events.values())
    ):
        raise InvalidInput(
            "events",
            type(events).__name__,
            "give a function of the value, or a dict of named predicates",
        )
