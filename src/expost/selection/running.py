"""Running what was drawn, and choosing among the outputs.

The order of outcomes is fixed before data is seen: a higher score wins, ties go to the earlier run; NaN, a missing score
and a candidate that raised rank lowest (theory: a candidate that raises is an outcome, never a reason to try again).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from expost.randomness.source import Randomness
from expost.selection.candidate import Call
from expost.selection.release import FAILED, NOTHING

Score = Callable[[Any], Any]
Progress = Callable[[int, int], None]
OnFailure = Callable[[int, Exception], None]


class Rule(Enum):
    """Which run is released."""

    BEST = "the highest score"
    FIRST_PASS_OR_NOTHING = "the first run that passes, else nothing"
    FIRST_PASS_OR_FIRST = "the first run that passes, else the first run"


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
) -> Outcome:
    """Make the runs in order and choose by ``rule``; a rule that looks for a pass stops at the first."""
    chosen: Outcome | None = None
    for done, run in enumerate(runs):
        value, scored = attempt(run, data, randomness, score, on_failure)
        passed = None if target is None else scored is not None and scored >= target
        outcome = Outcome(run.index, value, scored, passed)
        if progress is not None:
            progress(done + 1, len(runs))
        if rule is not Rule.BEST and passed:
            return outcome
        if chosen is None or (rule is Rule.BEST and _rank(scored) > _rank(chosen.score)):
            chosen = outcome
    if chosen is None or rule is Rule.FIRST_PASS_OR_NOTHING:
        return Outcome(None, NOTHING, None, None if target is None else False)
    return chosen


def attempt(
    run: Run, data: Any, randomness: Randomness, score: Score | None, on_failure: OnFailure | None
) -> tuple[Any, float | None]:
    """A run's output and score; an exception in either is the outcome FAILED."""
    try:
        value = run.call(data, randomness)
        number = float(value if score is None else score(value))
    except Exception as error:
        failure = error
    else:
        return value, None if math.isnan(number) else number
    if on_failure is not None:  # outside the handler: should it raise, the candidate's error is not chained to its own
        on_failure(run.index, failure)
    return FAILED, None


def _rank(score: float | None) -> tuple[bool, float]:
    return (score is not None, score or 0.0)
