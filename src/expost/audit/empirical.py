"""The empirical audit: run a mechanism on two neighbouring data sets and compare with its claim.

Source: the ex-post definitions (docs/theory.md), exact binomial bounds (Clopper and Pearson 1934)
and the Bonferroni correction over all bounds. The events are fixed on pilot runs, which are not
counted. Assumed: the two data sets are neighbours under the relation of the claim, and the runs
are independent. Rounding: every bound is rounded towards "consistent". The probability that a true
claim is reported as violated is at most 1 − confidence.

Runs are divided into chunks, whose size does not depend on the number of workers. Every chunk draws
from its own source of operating-system entropy, or from a simulation seed, the data set and its
number, so that a test gives the same counts on any machine. Workers are spawned, not forked.

Tests: ``tests/audit/test_empirical.py`` (false claims are detected, true claims are not reported
as violated), ``tests/audit/test_bounds.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from expost.arrays import Integers
from expost.audit.events import (
    UNREAD,
    Cells,
    Events,
    Feature,
    cells_from,
    family_from,
    feature_of,
    judge,
)
from expost.audit.report import ApproxClaims, AuditReport, claimed_numbers
from expost.audit.subjects import Claim, OutputKey, Selection, Subject, as_subject
from expost.errors import ExpostError, InvalidInput
from expost.execution.calls import Score
from expost.execution.workers import Processes
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness, SimulationRandomness
from expost.rationals import Number, count_of
from expost.selection.candidate import Candidate, check_callbacks

AuditProgress = Callable[[int, int], None]

_CHUNKS = 64  # about this many per data set and phase: enough for progress and many workers
_LEAST_IN_CHUNK, _MOST_IN_CHUNK = 5, 1000

DATA, NEIGHBOUR = 0, 1


@dataclass(frozen=True)
class Setup:
    """Everything that a worker needs."""

    subject: Subject
    data: Any
    neighbour: Any
    events: Events | None
    simulation_seed: int | None


class Chunk(NamedTuple):
    """Some runs on one of the two data sets."""

    side: int
    number: int
    runs: int


def pilot_runs(setup: Setup, chunk: Chunk) -> list[tuple[OutputKey, Feature]]:
    """Run a chunk and return its outcomes."""
    data = setup.data if chunk.side == DATA else setup.neighbour
    randomness = _source(setup, chunk)
    observed = []
    for _ in range(chunk.runs):
        seen = setup.subject.observe(data, randomness)
        observed.append((seen.key, feature_of(seen, setup.events)))
    return observed


def counted_runs(setup: Setup, chunk: Chunk, cells: Cells) -> Integers:
    """Run a chunk and count its outcomes in each cell."""
    return cells.count(pilot_runs(setup, chunk))


def _source(setup: Setup, chunk: Chunk) -> Randomness:
    """Return the randomness of a chunk."""
    if setup.simulation_seed is None:
        return Randomness()
    return SimulationRandomness((setup.simulation_seed << 64) + (chunk.side << 48) + chunk.number)


def chunks(runs: int, first: int) -> list[Chunk]:
    """Divide ``runs`` runs on each data set into chunks, numbered from ``first``."""
    size = min(_MOST_IN_CHUNK, max(_LEAST_IN_CHUNK, -(-runs // _CHUNKS)))
    sizes = [min(size, runs - start) for start in range(0, runs, size)]
    return [
        Chunk(side, first + number, length)
        for number, length in enumerate(sizes)
        for side in (DATA, NEIGHBOUR)
    ]


class AuditWorkers:
    """Run chunks: in this process for one worker, else in spawned processes. A context manager."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup: Any = setup
        self._pool = None if workers == 1 else Processes(workers)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._open.enter_context(self._pool)
            try:
                self._setup = self._open.enter_context(self._pool.share(self._setup))
            except Exception as error:  # pickle raises whatever an object's reduction raises
                raise InvalidInput(
                    "workers",
                    self._pool.tasks,
                    f"the subject cannot be sent to another process ({type(error).__name__}): "
                    "define it at the top level of a module, or pass workers=1",
                ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def results(
        self, work: Callable[..., Any], todo: Sequence[Chunk], *arguments: Any
    ) -> Iterator[tuple[Chunk, Any]]:
        """Yield the result of each chunk when it is done."""
        if self._pool is None:
            for chunk in todo:
                yield chunk, work(self._setup, chunk, *arguments)
            return
        waiting: dict[Future[Any], Chunk] = {
            self._pool.submit(_work, work, self._setup, chunk, *arguments): chunk for chunk in todo
        }
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise ExpostError(
                "a worker process of the audit ended unexpectedly; try workers=1 to see why"
            ) from None


def _work(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run a chunk in a worker process; another error than ours may not be picklable."""
    try:
        return work(*arguments)
    except InvalidInput:
        raise
    except Exception as error:
        name = type(error).__name__
        raise InvalidInput("subject", name, f"a run raised this error: {error}") from None


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
        The claim to test instead of the subject's own. A mapping has one guarantee per index of the
        winner, and one for None (nothing was released).
    events : callable or mapping, optional
        A function of the released value. A number is divided at quantiles of the pilot; any other
        result is used as a label. Or a mapping from names to predicates. Default: whether the
        goal was met, and the value itself if it is a number.
    delta : number, optional
        Audit a Rényi or zCDP guarantee of a mechanism as the (ε, δ) guarantee that it implies.
        Default: audit the Rényi guarantee itself.
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
    share = "pass the share of runs that chooses the events, from 0.05 to 0.8"
    _check_between(pilot, "pilot", 0.05, 0.8, share)
    first = math.ceil(total * pilot)
    below_one = math.nextafter(1.0, 0.0)
    _check_between(confidence, "confidence", 0.5, below_one, "pass a number ≥ 0.5 and < 1")
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
    check_callbacks(progress=progress)
    with AuditWorkers(setup, count_of(workers, "workers", at_least=1)) as pool:
        seen: list[list[tuple[OutputKey, Feature]]] = [[], []]
        todo = chunks(first, 0)
        for chunk, result in sorted(
            _told(pool.results(pilot_runs, todo), progress, 0, 2 * total), key=lambda pair: pair[0]
        ):
            seen[chunk.side] += result
        together = seen[0] + seen[1]
        guarantees = _guarantees(checked, together, delta)
        blind = events is None and _blind(together)
        cells = cells_from(together, list(guarantees))
        claims = claimed_numbers(list(guarantees.values()))
        trial = np.array([cells.count(side)[:-1] for side in seen])
        family = family_from(trial, first, cells, claims)
        counts = np.zeros((2, len(cells) + 1), dtype=np.int64)
        counted = pool.results(counted_runs, chunks(total - first, len(todo)), cells)
        for chunk, result in _told(counted, progress, 2 * first, 2 * total):
            counts[chunk.side] += result
    judged, joint = judge(counts[:, :-1], total - first, cells, family, claims, confidence)
    failed = [index for index, cell in enumerate(cells.cells) if cell.label == "failed"]
    return AuditReport(
        confidence=confidence,
        # "nothing" is left out if it never occurred
        outcomes=tuple(one for one in judged if one.index is not None or any(one.runs)),
        joint=max(joint, key=lambda finding: finding.lower_bound - finding.limit),
        delta=claims.delta if isinstance(claims, ApproxClaims) else 0.0,
        runs=total,
        pilot=first,
        comparisons=family.comparisons,
        failed=tuple(counts[:, failed].sum(axis=1).tolist()),
        unseen=tuple(counts[:, -1].tolist()),
        simulated=simulation_seed is not None,
        blind=blind,
    )


def _told(results: Any, progress: AuditProgress | None, done: int, total: int) -> Any:
    """Pass the results of chunks on, and report the runs done so far."""
    for chunk, result in results:
        done += chunk.runs
        if progress is not None:
            progress(done, total)
        yield chunk, result


def _guarantees(
    subject: Subject, seen: Sequence[tuple[OutputKey, Feature]], delta: Number | None
) -> dict[OutputKey, Guarantee]:
    """Return every class of outcomes with its guarantee."""
    if all(feature == Feature("failed") for _, feature in seen):
        raise InvalidInput(
            "subject", "failed", "every run of the pilot raised an error: there is nothing to audit"
        )
    claims = subject.known()
    if claims is None:
        keys = sorted(
            {key for key, _ in seen},
            key=lambda key: (key.index is None, key.index or 0, repr(key.spent)),
        )
        claims = {key: _required(subject.claim_for(key)) for key in keys}
    return (
        claims
        if delta is None
        else {key: _converted(guarantee, delta, claims) for key, guarantee in claims.items()}
    )


def _converted(
    guarantee: Guarantee, delta: Number, claims: Mapping[OutputKey, Guarantee]
) -> Guarantee:
    """Convert a Rényi guarantee to (ε, δ).

    Charges that differ by outcome would each use an order of their own, which is not sound.
    """
    if guarantee.as_approx() is not None:
        raise InvalidInput(
            "delta",
            delta,
            f"it converts a Rényi or zCDP guarantee; this one is {guarantee}: leave delta out",
        )
    if len(set(claims.values())) > 1:
        raise InvalidInput(
            "delta",
            delta,
            "outcomes differ in their Rényi charges, which cannot be converted one by one; "
            "leave it out",
        )
    return guarantee.to_approx(delta)


def _blind(seen: Sequence[tuple[OutputKey, Feature]]) -> bool:
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


def _required(guarantee: Guarantee | None) -> Guarantee:
    """Return the guarantee, or raise an error if there is none."""
    if guarantee is None:
        raise InvalidInput(
            "claim",
            None,
            "the mechanism has no guarantee of its own: pass what it guarantees, e.g. PureDP(0.5)",
        )
    return guarantee


def _check_between(value: object, field: str, low: float, high: float, valid: str) -> None:
    """Raise an error unless a number lies in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidInput(field, value, valid)


def _check_events(events: object) -> None:
    """Raise an error unless ``events`` is a function or a mapping of predicates."""
    if events is None or callable(events):
        return
    if (
        not isinstance(events, Mapping)
        or not events
        or not all(callable(event) for event in events.values())
    ):
        raise InvalidInput(
            "events",
            type(events).__name__,
            "pass a function of the value, or a dict of named predicates",
        )
