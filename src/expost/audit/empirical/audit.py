"""The empirical audit: run a mechanism on two neighbouring data sets and compare with its claim.

Source: the ex-post definitions (docs/theory.md), exact binomial bounds (Clopper and Pearson 1934)
and the Bonferroni correction over all bounds. The events are fixed on pilot runs, which are not
counted. Assumed: the two data sets are neighbours under the relation of the claim, and the runs
are independent. Rounding: every bound is rounded towards "consistent". The probability that a true
claim is reported as violated is at most 1 − confidence.
Tests: ``tests/audit/test_empirical.py`` (false claims are detected, true claims are not reported
as violated), ``tests/audit/test_bounds.py``.
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
    """Audit a mechanism or a selector by running it on two neighbouring data sets.

    Parameters
    ----------
    subject : Selector or callable
        A ``Selector`` (pass ``candidates`` too, and ``score`` if it needs one); or a function
        ``(data, randomness) → output`` with an attribute ``guarantee``; or a function that returns
        a ``Release``. For the last, the claim is the charge that the release states.
    data, neighbour : object
        Two data sets that are neighbours under the relation of the claim.
    runs : int
        Number of runs on each data set, at least 50.
    candidates : sequence of Candidate, optional
        The candidates of a selector.
    score : callable, optional
        The score function of a selector.
    claim : Guarantee, Charges or mapping, optional
        The claim to test instead of the subject's own. A mapping has one promise per index of the
        winner, and one for None (nothing was released).
    events : callable or mapping, optional
        A function of the released value. A number is divided at quantiles of the pilot; any other
        result is used as a label. Or a mapping from names to predicates. Default: whether the
        target was met, and the value itself if it is a number.
    delta : number, optional
        Audit a Rényi or zCDP promise of a mechanism as the (ε, δ) promise that it implies. Default:
        audit the Rényi promise itself.
    confidence : float, default=0.95
        Confidence of the verdict, at least 0.5 and below 1.
    pilot : float, default=0.2
        Share of the runs that chooses the events, from 0.05 to 0.8. These runs are not counted.
    workers : int, default=1
        Number of processes. With more than one, everything that is audited must be importable by
        name.
    simulation_seed : int, optional
        Seed of the randomness, for tests. Default: every run draws fresh randomness.
    progress : callable, optional
        Called with the number of runs done and the total number of runs.

    Returns
    -------
    AuditReport
        The verdict, with one finding per class of outcomes.

    Raises
    ------
    InvalidInput
        If an argument is not valid, if there is no claim, if every run of the pilot failed, or if
        nothing distinguishes the outputs.

    Notes
    -----
    The report shows how the data and its neighbour differ. Audit only on data that you may look at.
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
            "a selector's charges are audited as they are; pass delta to the selector instead",
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
        if key.index is not None or ended.any():  # leave "nothing" out if it never occurred
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
    """Report progress over both phases."""

    def __init__(self, progress: AuditProgress | None, total: int) -> None:
        if progress is not None and not callable(progress):
            raise InvalidInput(
                "progress", type(progress).__name__, "pass a function, or leave it out"
            )
        self._progress, self._total, self._done = progress, total, 0

    def each(self, results: Any) -> Any:
        """Pass the results on and count their runs."""
        for chunk, found in results:
            self._done += chunk.runs
            if self._progress is not None:
                self._progress(self._done, self._total)
            yield chunk, found


def _promises(
    subject: Subject, seen: Sequence[tuple[Key, Feature]], delta: Number | None
) -> dict[Key, Guarantee]:
    """Return every class of outcomes with its promise."""
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
    """Convert a Rényi promise to (ε, δ).

    Charges that differ by outcome would each use an order of their own, which is not sound.
    """
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
            "outcomes differ in their Rényi charges, which cannot be converted one by one; "
            "leave it out",
        )
    return promise.to_approx(delta)


def _blind(seen: Sequence[tuple[Key, Feature]]) -> bool:
    """Whether values were released that no event looks at.

    Raises an error if, in addition, all outcomes of the pilot look the same.
    """
    blind = any(feature.number is None and feature.label in UNREAD for _, feature in seen)
    if blind and len(set(seen)) == 1:
        raise InvalidInput(
            "events",
            None,
            "outputs that are not numbers are not examined: pass a function of the value "
            "(on the command line: --event)",
        )
    return blind


def _required(promise: Guarantee | None) -> Guarantee:
    """Return the promise, or raise an error if there is none."""
    if promise is None:
        raise InvalidInput(
            "claim",
            None,
            "the mechanism has no guarantee of its own: pass what it promises, e.g. PureDP(0.5)",
        )
    return promise


def _failures(counts: np.ndarray[Any, np.dtype[np.int64]], cells: Cells) -> tuple[int, int]:
    """Count the failed runs on the data and on the neighbour."""
    places = [place for place, cell in enumerate(cells.cells) if cell.label == "failed"]
    data, neighbour = counts[:, places].sum(axis=1)
    return int(data), int(neighbour)


def _pilot_size(runs: int, pilot: object) -> int:
    """Return the number of pilot runs on each data set."""
    if isinstance(pilot, bool) or not isinstance(pilot, (int, float)) or not 0.05 <= pilot <= 0.8:
        raise InvalidInput(
            "pilot", pilot, "pass the share of runs that chooses the events, from 0.05 to 0.8"
        )
    return max(1, math.ceil(runs * pilot))


def _check_confidence(confidence: object) -> None:
    """Raise an error unless 0.5 ≤ confidence < 1."""
    if (
        isinstance(confidence, bool)
        or not isinstance(confidence, (int, float))
        or not 0.5 <= confidence < 1
    ):
        raise InvalidInput("confidence", confidence, "pass a number ≥ 0.5 and < 1")


def _check_events(events: object) -> None:
    """Raise an error unless ``events`` is a function or a mapping of predicates."""
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
            "pass a function of the value, or a dict of named predicates",
        )
