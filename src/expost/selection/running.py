"""Running what was drawn, and choosing among the outputs.

The order of outcomes is fixed before data is seen: a higher score wins, ties go to the earlier run; NaN, a missing score
and a candidate that raised rank lowest (theory: a candidate that raises is an outcome, never a reason to try again).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from expost.errors import CheckpointMismatch
from expost.randomness.source import Randomness
from expost.selection.candidate import Call
from expost.selection.checkpoint import Checkpoint
from expost.selection.release import FAILED, NOTHING

_LOOK_AHEAD = 32  # runs made together under a rule that may stop at the first pass

Score = Callable[[Any], Any]
Progress = Callable[[int, int], None]
OnFailure = Callable[[int, Exception | SystemExit], None]


class Rule(Enum):
    """Which run is released."""

    BEST = "the highest score"
    FIRST_PASS_OR_NOTHING = "the first run that passes, else nothing"
    FIRST_PASS_OR_FIRST = "the first run that passes, else the first that did not fail, else the first"


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


def execute(
    runs: Sequence[Run],
    data: Any,
    randomness: Randomness,
    *,
    rule: Rule,
    score: Score | None,
    target: float | None,
    progress: Progress | None,
    on_failure: OnFailure | None,
    checkpoint: Checkpoint | None = None,
    settled: bool = False,
) -> Outcome:
    """Make the runs in order and choose by ``rule``; a rule that looks for a pass stops at the first.

    Outputs that a checkpoint holds already are not made again; new ones are recorded before they are looked at. A selection that is
    ``settled`` makes no new ones: they would not be paid for.
    """
    chosen: Outcome | None = None
    outputs = _Outputs(runs, data, randomness, rule, on_failure, checkpoint, settled)
    for done, run in enumerate(runs):
        value = outputs.get(done)
        value, scored = rate(run, value, score, on_failure)
        passed = None if target is None else scored is not None and scored >= target
        outcome = Outcome(run.index, value, scored, passed)
        if progress is not None:
            progress(done + 1, len(runs))
        if rule is not Rule.BEST and passed:
            return outcome
        if chosen is None or _beats(rule, outcome, chosen):
            chosen = outcome
    if chosen is None or rule is Rule.FIRST_PASS_OR_NOTHING:
        return Outcome(None, NOTHING, None, None if target is None else False)
    return chosen


class Together(Protocol):
    """A mechanism that can be run in one go with others of the same ``together_key`` (a fleet of trainings, say).

    Each output has the law it would have alone, independent of the others; a run that fails gives FAILED in its place.
    """

    together_key: Hashable

    def run_together(self, calls: Sequence[Any], data: Any, randomness: Randomness) -> Sequence[Any]: ...


class _Outputs:
    """Outputs in the order of the runs: from the checkpoint, alone, or together with runs to come that can share the work.

    Running ahead of a rule that may stop early changes nothing: outputs beyond the first pass are never looked at.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        data: Any,
        randomness: Randomness,
        rule: Rule,
        on_failure: OnFailure | None,
        checkpoint: Checkpoint | None,
        settled: bool,
    ) -> None:
        self._settled = settled
        self._runs, self._data, self._randomness = runs, data, randomness
        self._on_failure, self._checkpoint = on_failure, checkpoint
        self._ahead = len(runs) if rule is Rule.BEST else _LOOK_AHEAD
        self._known: dict[int, Any] = {} if checkpoint is None else dict(checkpoint.outputs)

    def get(self, place: int) -> Any:
        if place not in self._known and self._settled:
            raise CheckpointMismatch(
                "this selection was settled already; what its checkpoint does not hold cannot be run again"
            )
        if place not in self._known:
            for made, value in self._make(place):
                if self._checkpoint is not None:
                    self._checkpoint.record(made, value)
                self._known[made] = value
        return self._known.pop(place)

    def _make(self, place: int) -> Iterator[tuple[int, Any]]:
        call = self._runs[place].call
        key = getattr(call, "together_key", None)
        if key is None:
            yield place, attempt(self._runs[place], self._data, self._randomness, self._on_failure)
            return
        places = [
            other
            for other in range(place, min(len(self._runs), place + self._ahead))
            if other not in self._known and getattr(self._runs[other].call, "together_key", None) == key
        ]
        calls = [self._runs[other].call for other in places]
        together = Run(self._runs[place].index, lambda data, randomness: call.run_together(calls, data, randomness))  # type: ignore[attr-defined]
        values = attempt(together, self._data, self._randomness, self._on_failure)
        yield from zip(places, [FAILED] * len(places) if values is FAILED else values, strict=True)


def attempt(run: Run, data: Any, randomness: Randomness, on_failure: OnFailure | None) -> Any:
    """A run's output; an exception is the outcome FAILED."""
    try:
        return run.call(data, randomness)
    except (Exception, SystemExit) as error:  # a candidate must not end the program: that would tell about the data
        failure = error
    return _failed(run, failure, on_failure)


def rate(run: Run, value: Any, score: Score | None, on_failure: OnFailure | None) -> tuple[Any, float | None]:
    """An output and its score; an output that cannot be scored is the outcome FAILED."""
    if value is FAILED:
        return FAILED, None
    try:
        number = float(value if score is None else score(value))
    except Exception as error:
        failure = error
    else:
        return value, None if math.isnan(number) else number
    return _failed(run, failure, on_failure), None


def _failed(run: Run, failure: Exception | SystemExit, on_failure: OnFailure | None) -> Any:
    """Tell the curator, outside the handler: should that raise, the candidate's error is not chained to it."""
    if on_failure is not None:
        on_failure(run.index, failure)
    return FAILED


def _beats(rule: Rule, later: Outcome, earlier: Outcome) -> bool:
    """Whether a later run that did not pass is preferred; ties stay with the earlier one."""
    if rule is Rule.BEST:
        return _rank(later.score) > _rank(earlier.score)
    return earlier.value is FAILED and later.value is not FAILED


def _rank(score: float | None) -> tuple[bool, float]:
    return (score is not None, score or 0.0)
