"""Calls of candidates and scores, and the one rule for what happens when they raise.

A candidate that raises has produced an outcome, ``FAILED``. It ranks below every score and is
never retried: retrying would condition the output law on an event that depends on the data. Every
exception counts, also one that is not an ``Exception`` (``SystemExit``, a cancellation, a panic of
a compiled library); only ``KeyboardInterrupt`` interrupts, because it comes from the curator, and
:class:`PartsLost`, because it comes from the curator's executor. An output that cannot be sent to
this process or stored in a checkpoint is a failure, too. An exception is caught here, so that no
message, traceback or exception type of a candidate reaches a pool, a cluster's log, a chained
exception or a released object. Only the curator's own ``on_failure`` callback receives it.

Tests: ``tests/execution/test_engine.py``, ``tests/contracts/test_secrets.py``,
``tests/execution/test_executors.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from expost.errors import WorkersLost
from expost.mechanisms import FAILED, Call
from expost.randomness.source import Randomness

Score = Callable[[Any], Any]
"""A function of an output that returns a number; higher is better."""

OnFailure = Callable[[int, BaseException], None]
"""A callback for (candidate index, exception)."""


@dataclass(frozen=True, repr=False)
class Raised:
    """Stands for the output of a call that raised; ``error`` is for the curator, or None."""

    error: BaseException | None


class PartsLost(WorkersLost):
    """Workers lost a part of the data again and again: no outcome, the selection can be resumed."""


class CandidateRaised(RuntimeError):
    """The text of an exception raised in a worker; passed to ``on_failure``, never raised."""


def call_or_failure(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``call(*arguments)``, or a :class:`Raised` if it raises.

    This is the one rule for what a failure is: every exception but ``KeyboardInterrupt`` and
    :class:`PartsLost`, which comes from an executor.
    """
    try:
        return call(*arguments)
    except (KeyboardInterrupt, PartsLost):
        raise
    except BaseException as error:
        return Raised(error)


def rate(value: Any, score: Score | None) -> tuple[Any, int | float | None]:
    """Return an output and its score; a score that raises gives a :class:`Raised` and no score.

    A score that is NaN counts as no score, which ranks below every number. A whole number stays a
    whole number, so that it is compared exactly, however large it is.
    """
    if value is FAILED:
        return FAILED, None
    number = call_or_failure(_score, value, score)
    if isinstance(number, Raised):
        return number, None
    return value, None if isinstance(number, float) and math.isnan(number) else number


def _score(value: Any, score: Score | None) -> int | float:
    """Return the score of an output as an int or a float."""
    number = value if score is None else score(value)
    return int(number) if isinstance(number, (int, np.integer)) else float(number)


def settle_failure(output: Any, index: int, on_failure: OnFailure | None) -> Any:
    """Replace a :class:`Raised` by ``FAILED`` and tell the curator; return other outputs as is.

    The callback runs outside any exception handler: if it raises itself, the candidate's
    exception is not chained to its own.
    """
    if not isinstance(output, Raised):
        return output
    if on_failure is not None and output.error is not None:
        on_failure(index, output.error)
    return FAILED


def failure_as_text(output: Any, tell: bool) -> Any:
    """Return a failure in a form that can be sent between processes.

    The exception itself may hold data, stack frames or objects that cannot be pickled. Its text
    is kept only if the curator passed an ``on_failure`` callback (``tell``).
    """
    if not isinstance(output, Raised):
        return output
    if not tell or output.error is None:
        return Raised(None)
    kind = type(output.error).__name__
    text = call_or_failure(str, output.error)
    return Raised(CandidateRaised(kind if isinstance(text, Raised) else f"{kind}: {text}"))


class Together(Protocol):
    """A mechanism that can be run together with others of the same ``together_key``.

    An example is a fleet of trainings. Each output must have the law that it has when it is run
    alone. It must depend on its own randomness only: the runs made with it differ between clusters.
    """

    together_key: Hashable

    def run_together(
        self, calls: Sequence[Any], data: Any, randomness: Sequence[Randomness]
    ) -> Sequence[Any]:
        """Return one output per call, ``FAILED`` for a call that fails.

        If it raises, its outputs are discarded, and each mechanism is called alone with a fresh
        copy of its own randomness, so that only those fail that fail by themselves.
        """
        ...


def make_outputs(
    calls: Sequence[Call], data: Any, sources: Sequence[Callable[[], Randomness]]
) -> list[Any]:
    """Return one output, or a :class:`Raised`, per call; ``sources`` start the runs' randomness."""
    outputs: list[Any] = [None] * len(calls)
    for group in _groups(calls):
        first = group[0]
        if together_key(calls[first]) is None:
            outputs_ = [call_or_failure(calls[first], data, sources[first]())]
        else:
            outputs_ = _together(
                [calls[index] for index in group], data, [sources[index] for index in group]
            )
        for index, output in zip(group, outputs_, strict=True):
            outputs[index] = output
    return outputs


def together_key(call: Call) -> Hashable:
    """Return the key that calls share if they can be run together; None for a single call."""
    key: Hashable = getattr(call, "together_key", None)
    return key


def _groups(calls: Sequence[Call]) -> list[list[int]]:
    """Return the places of calls that are run together."""
    groups: dict[Hashable, list[int]] = {}
    for index, call in enumerate(calls):
        key = together_key(call)
        groups.setdefault((False, index) if key is None else (True, key), []).append(index)
    return list(groups.values())


def _together(
    calls: Sequence[Any], data: Any, sources: Sequence[Callable[[], Randomness]]
) -> list[Any]:
    """Run calls together; if that raises, run each alone, from the beginning of its own source.

    Without this, the failure of one candidate would be an outcome of the others: it would be
    released at their charge, and would depend on which runs an executor puts together.
    """

    def make() -> list[Any]:
        outputs = list(calls[0].run_together(calls, data, [source() for source in sources]))
        if len(outputs) != len(calls):
            raise ValueError("run_together must return one output per call")
        return outputs

    outputs: Any = call_or_failure(make)
    if not isinstance(outputs, Raised):
        return list(outputs)
    return [
        call_or_failure(call, data, source()) for call, source in zip(calls, sources, strict=True)
    ]
