"""Running what was drawn, and choosing among the outputs.

The order of outcomes is fixed before data is seen: a higher score wins, ties go to the earlier run; NaN, a missing score
and a candidate that raised rank lowest (theory: a candidate that raises is an outcome, never a reason to try again).

Run number j (its place among the runs) has randomness of its own, from the selection's key (:mod:`expost.randomness.keyed`); so it does not
matter where a run is made, in which company, or whether it is made again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import Enum
from typing import Any

from expost.errors import CheckpointMismatch
from expost.execution.checkpoint import Checkpoint
from expost.execution.dispatch import LOOK_AHEAD, Batches, Dealer, Executor
from expost.execution.failure import OnFailure, Score, attempt, rate, settle_failure
from expost.execution.worker import outputs_of, together_key
from expost.mechanisms.outcome import FAILED, NOTHING
from expost.mechanisms.protocol import Call
from expost.randomness.keyed import RunKey

RunProgress = Callable[[int, int], None]


class ReleaseRule(Enum):
    """Which run is released."""

    BEST = "the highest score"
    FIRST_PASS_OR_NOTHING = "the first run that passes, else nothing"
    FIRST_PASS_OR_FIRST = (
        "the first run that passes, else the first that did not fail, else the first"
    )


@dataclass(frozen=True, repr=False)
class Run:
    """One call to make: secret, like everything that says which candidates were kept."""

    index: int
    call: Call


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a selection ends with."""

    index: int | None
    value: Any
    score: float | None
    passed: bool | None


@dataclass(frozen=True)
class Listeners:
    """The curator's own eyes: ``progress`` gets (outputs made, runs drawn), ``on_failure`` (candidate, exception)."""

    progress: RunProgress | None = None
    on_failure: OnFailure | None = None


def execute(
    runs: Sequence[Run],
    data: Any,
    key: RunKey,
    *,
    rule: ReleaseRule,
    score: Score | None,
    target: float | None,
    listeners: Listeners,
    checkpoint: Checkpoint | None = None,
    settled: bool = False,
    executor: Executor | None = None,
    stop_early: bool = True,
) -> Outcome:
    """Make the runs and choose by ``rule``; a rule that looks for a pass stops at the first, unless ``stop_early`` is False.

    Outputs that a checkpoint holds already are not made again; new ones are recorded before they are looked at. A selection that is
    ``settled`` makes no new ones: they would not be paid for.
    """
    chosen: Outcome | None = None
    ahead = None if rule is ReleaseRule.BEST or not stop_early else LOOK_AHEAD
    with _Outputs(runs, data, key, ahead, listeners, checkpoint, settled, executor) as outputs:
        if not stop_early and not settled:
            outputs.make_all()
        for place, run in enumerate(runs):
            output, scored = rate(outputs.get(place), score)
            value = settle_failure(output, run.index, listeners.on_failure)
            passed = None if target is None else scored is not None and scored >= target
            outcome = Outcome(run.index, value, scored, passed)
            if rule is not ReleaseRule.BEST and passed:
                return outcome
            if chosen is None or _beats(rule, outcome, chosen):
                chosen = outcome
    if chosen is None or rule is ReleaseRule.FIRST_PASS_OR_NOTHING:
        return Outcome(None, NOTHING, None, None if target is None else False)
    return chosen


class _Outputs:
    """Outputs in the order of the runs: from the checkpoint, alone, together with runs to come that can share the work, or from workers.

    Running ahead of a rule that may stop early changes nothing: outputs beyond the first pass are never looked at. ``ahead`` says how far
    that may go; None: to the end.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        data: Any,
        key: RunKey,
        ahead: int | None,
        listeners: Listeners,
        checkpoint: Checkpoint | None,
        settled: bool,
        executor: Executor | None,
    ) -> None:
        self._settled = settled
        self._runs, self._data, self._key = runs, data, key
        self._listeners, self._checkpoint = listeners, checkpoint
        self._dealer = (
            None
            if executor is None
            else Dealer(executor, data, key, tell=listeners.on_failure is not None)
        )
        self._ahead = (
            len(runs) if ahead is None else ahead if self._dealer is None else self._dealer.wave
        )
        self._known: dict[int, Any] = {} if checkpoint is None else dict(checkpoint.outputs)
        self._made = len(self._known)
        self._open = ExitStack()

    def __enter__(self) -> _Outputs:
        if self._dealer is not None:
            self._open.enter_context(self._dealer)
            if not self._runs:
                self._make(0)  # a wave of nothing: that nothing was kept is not to be seen either
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def get(self, place: int) -> Any:
        if place not in self._known and self._settled:
            raise CheckpointMismatch(
                "this selection was settled already; what its checkpoint does not hold cannot be run again"
            )
        if place not in self._known:
            self._make(place)
        return self._known.pop(place)

    def make_all(self) -> None:
        """Every output, before any is looked at."""
        for place in range(len(self._runs)):
            if place not in self._known:
                self._make(place)

    def _make(self, first: int) -> None:
        """The output of the first run that is missing, and of those made with it."""
        with closing(
            self._here(first) if self._dealer is None else self._elsewhere(self._dealer, first)
        ) as batches:
            for batch in batches:
                self._keep(batch)

    def _keep(self, batch: Sequence[tuple[int, Any]]) -> None:
        """Outputs that were made together: recorded, and known from now on."""
        for place, output in batch:
            value = settle_failure(output, self._runs[place].index, self._listeners.on_failure)
            if self._checkpoint is not None:
                self._checkpoint.record(place, value)
            self._known[place] = value
        self._made += len(batch)
        if batch and self._listeners.progress is not None:
            self._listeners.progress(self._made, len(self._runs))

    def _missing(self, first: int) -> list[int]:
        return [
            place
            for place in range(first, min(len(self._runs), first + self._ahead))
            if place not in self._known
        ]

    def _here(self, first: int) -> Batches:
        key = together_key(self._runs[first].call)
        if key is None:
            yield [(first, attempt(self._runs[first].call, self._data, self._key.source(first)))]
            return
        alike = [
            place for place in self._missing(first) if together_key(self._runs[place].call) == key
        ]
        calls, sources = (
            [self._runs[place].call for place in alike],
            [self._key.source(place) for place in alike],
        )
        yield list(zip(alike, outputs_of(calls, self._data, sources), strict=True))

    def _elsewhere(self, dealer: Dealer, first: int) -> Batches:
        return dealer.make([(place, self._runs[place].call) for place in self._missing(first)])


def _beats(rule: ReleaseRule, later: Outcome, earlier: Outcome) -> bool:
    """Whether a later run that did not pass is preferred; ties stay with the earlier one."""
    if rule is ReleaseRule.BEST:
        return _rank(later.score) > _rank(earlier.score)
    return earlier.value is FAILED and later.value is not FAILED


def _rank(score: float | None) -> tuple[bool, float]:
    return (score is not None, score or 0.0)
