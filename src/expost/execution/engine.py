"""Make the runs that were drawn, and choose among their outputs.

The order of outcomes is fixed before data is read: a higher score wins, ties go to the earlier
run; NaN, a missing score and a candidate that raised rank lowest. A candidate that raises is an
outcome and is never retried (:mod:`expost.execution.calls`).

Run number j (its place in the list of runs) has its own randomness, derived from the key of the
selection (:mod:`expost.randomness.source`). So its output does not depend on where it is made, on
which other runs are made with it, or on whether it is made again after a crash.

Tests: ``tests/execution/test_engine.py``, ``tests/execution/test_executors.py``,
``tests/contracts/test_selectors.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from expost.errors import CheckpointMismatch
from expost.execution.calls import (
    OnFailure,
    Score,
    call_or_failure,
    make_outputs,
    rate,
    settle_failure,
    together_key,
)
from expost.execution.checkpoint import Checkpoint, Codec
from expost.execution.workers import LOOK_AHEAD, Batches, Dispatcher, Executor
from expost.mechanisms import FAILED, NOTHING, Call
from expost.randomness.source import RunKey

RunProgress = Callable[[int, int], None]
"""A callback for (outputs made, runs drawn)."""


class ReleaseRule(Enum):
    """Which run is released."""

    BEST = "the highest score"
    FIRST_PASS_OR_NOTHING = "the first run that passes, else nothing"
    FIRST_PASS_OR_LAST = "the first run that passes, else the last; nothing if that failed"
    FIRST_PASS_OR_FIRST = (
        "the first run that passes, else the first that did not fail, else the first"
    )


@dataclass(frozen=True, repr=False)
class Run:
    """One call of the candidate at place ``index``. Which runs exist is secret: no repr."""

    index: int
    call: Call


@dataclass(frozen=True, repr=False)
class Outcome:
    """The outcome of a selection: the winner's index (None: nothing), output, score and pass."""

    index: int | None
    value: Any
    score: int | float | None
    passed: bool | None


@dataclass(frozen=True)
class Listeners:
    """Callbacks for the curator; what they receive is secret."""

    progress: RunProgress | None = None
    on_failure: OnFailure | None = None


@dataclass(frozen=True)
class OutcomeRule:
    """Which run is released, and what it takes to pass; whole numbers are compared exactly.

    A rule that looks for a pass stops at the first one, unless ``stop_early`` is false.
    """

    release: ReleaseRule
    score: Score | None
    at_least: Fraction | None
    stop_early: bool = True


def execute(
    runs: Sequence[Run],
    data: Any,
    key: RunKey,
    choice: OutcomeRule,
    listeners: Listeners,
    checkpoint: Checkpoint | None = None,
    settled: bool = False,
    executor: Executor | None = None,
) -> Outcome:
    """Make the runs that were drawn and choose the outcome.

    ``checkpoint``: its outputs are not made again; new ones are recorded before they are looked at.
    ``settled``: whether the selection was settled in the ledger before. Then no new outputs are
    made, because they would not be paid for: CheckpointMismatch if one is needed.
    """
    chosen: Outcome | None = None
    rule, at_least = choice.release, choice.at_least
    # How far runs are made ahead is public: it does not depend on outputs.
    ahead = None if rule is ReleaseRule.BEST or not choice.stop_early else LOOK_AHEAD
    with _Outputs(runs, data, key, ahead, listeners, checkpoint, settled, executor) as outputs:
        if not choice.stop_early and not settled:
            outputs.make_all()
        for number, run in enumerate(runs):
            output, scored = rate(outputs.get(number), choice.score)
            value = settle_failure(output, run.index, listeners.on_failure)
            passed = None if at_least is None else _reaches(scored, at_least)
            outcome = Outcome(run.index, value, scored, passed)
            if rule is not ReleaseRule.BEST and passed:
                return outcome
            if chosen is None or _beats(rule, outcome, chosen):
                chosen = outcome
    # A failed last look releases nothing; it is charged as the last level all the same.
    if rule is ReleaseRule.FIRST_PASS_OR_LAST and chosen is not None and chosen.value is FAILED:
        chosen = None
    if chosen is None or rule is ReleaseRule.FIRST_PASS_OR_NOTHING:
        return Outcome(None, NOTHING, None, None if at_least is None else False)
    return chosen


class _Outputs:
    """The outputs in the order of the runs.

    An output comes from the checkpoint, from a single run, from several runs that are made
    together, or from workers. Runs may be made ahead of a rule that stops early: outputs beyond
    the first pass are never looked at, so the outcome is the same. ``ahead`` is the number of runs
    made ahead; None means all.
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
        self._dispatcher = (
            None
            if executor is None
            else Dispatcher(executor, data, key, tell=listeners.on_failure is not None)
        )
        if ahead is None:
            self._ahead = len(runs)
        else:
            self._ahead = ahead if self._dispatcher is None else self._dispatcher.wave
        self._known: dict[int, Any] = {}
        if checkpoint is not None:
            self._known = checkpoint.outputs_of([run.index for run in runs])
        self._made = len(self._known)
        self._open = ExitStack()

    def __enter__(self) -> _Outputs:
        if self._dispatcher is not None:
            self._open.enter_context(self._dispatcher)
            if not self._runs:
                # Send an empty wave: observers must not learn that nothing was kept.
                self._make(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def get(self, number: int) -> Any:
        """Return the output of a run; make it if it is not known yet."""
        if number not in self._known and self._settled:
            raise CheckpointMismatch(
                "this selection was settled before; runs that its checkpoint does not hold cannot "
                "be made again"
            )
        if number not in self._known:
            self._make(number)
        return self._known.pop(number)

    def make_all(self) -> None:
        """Make every output before any is looked at."""
        for number in range(len(self._runs)):
            if number not in self._known:
                self._make(number)

    def _make(self, first: int) -> None:
        """Make the output of a missing run, and of the runs that are made with it."""
        if self._dispatcher is None:
            batches = self._made_here(first)
        else:  # one wave on the executor
            runs = [(number, self._runs[number].call) for number in self._missing(first)]
            batches = self._dispatcher.make(runs)
        with closing(batches):
            for batch in batches:
                self._keep(batch)

    def _keep(self, batch: Sequence[tuple[int, Any]]) -> None:
        """Record outputs that were made together, and report progress."""
        for number, output in batch:
            index = self._runs[number].index
            value = settle_failure(output, index, self._listeners.on_failure)
            if self._checkpoint is not None:
                recorded = self._checkpoint.record(number, index, value)
                value = settle_failure(recorded, index, self._listeners.on_failure)
            self._known[number] = value
        self._made += len(batch)
        if batch and self._listeners.progress is not None:
            self._listeners.progress(self._made, len(self._runs))

    def _missing(self, first: int) -> list[int]:
        """Return the runs from ``first`` on that may be made now and have no output yet."""
        return [
            number
            for number in range(first, min(len(self._runs), first + self._ahead))
            if number not in self._known
        ]

    def _made_here(self, first: int) -> Batches:
        """Make a run in this process, together with those of the same ``together_key``."""
        key = together_key(self._runs[first].call)
        if key is None:
            yield [
                (
                    first,
                    call_or_failure(self._runs[first].call, self._data, self._key.source(first)),
                )
            ]
            return
        alike = [
            number
            for number in self._missing(first)
            if together_key(self._runs[number].call) == key
        ]
        calls = [self._runs[number].call for number in alike]
        sources = [partial(self._key.source, number) for number in alike]
        yield list(zip(alike, make_outputs(calls, self._data, sources), strict=True))


class SelectionState:
    """The draws of one selection, in memory or in a checkpoint file.

    A context manager: leaving the block without :meth:`finish` keeps the file for the next call.
    """

    def __init__(self, draws: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        self.draws = dict(draws)
        self.checkpoint = checkpoint
        header = {} if checkpoint is None else checkpoint.header
        # The reservation that belongs to these draws; None if they are in memory only.
        self.reservation_id: str | None = header.get("reservation")
        self.reservation_secret: str | None = header.get("secret")

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        codec: Codec,
        identify: Callable[[bytes], str],
        draw: Callable[[], Mapping[str, Any]],
    ) -> SelectionState:
        """Make new draws, or resume from the file at ``path``; see :meth:`Checkpoint.open`."""
        if path is None:
            return cls(draw())
        checkpoint = Checkpoint.open(path, codec, identify, draw)
        return cls(checkpoint.header["draws"], checkpoint)

    def finish(self) -> None:
        """Erase the file: the selection is over, or was refused before anything ran."""
        if self.checkpoint is not None:
            self.checkpoint.erase()
            self.checkpoint = None

    def __enter__(self) -> SelectionState:
        return self

    def __exit__(self, *_: object) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()


def _beats(rule: ReleaseRule, later: Outcome, earlier: Outcome) -> bool:
    """Return whether a later run that did not pass is preferred; the earlier one wins ties."""
    if rule is ReleaseRule.FIRST_PASS_OR_LAST:
        return True
    if rule is ReleaseRule.BEST:
        return _rank(later.score) > _rank(earlier.score)
    return earlier.value is FAILED and later.value is not FAILED


def _reaches(score: int | float | None, at_least: Fraction) -> bool:
    """Return whether a score reaches the goal: exactly for whole numbers, else as floats."""
    if isinstance(score, int):
        return score >= at_least
    return score is not None and score >= float(at_least)


def _rank(score: int | float | None) -> tuple[bool, int | float]:
    """Return a key that sorts a missing score below every number."""
    return (score is not None, score or 0)
