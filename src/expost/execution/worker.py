"""Making outputs: calls, each with the randomness of its own run, in this process or in a worker.

A call that raises is an outcome. Here it becomes a :class:`Raised`, so that no exception, traceback or message of a candidate travels
through a pool, a cluster's log or a chain of exceptions; who asked for the outputs tells the curator and ranks it lowest.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from expost.execution.failure import Raised, as_text, attempt
from expost.mechanisms.outcome import FAILED
from expost.mechanisms.protocol import Call
from expost.randomness.keyed import source_of_run
from expost.randomness.source import Randomness

_TOKEN = secrets.token_hex(16)


class Together(Protocol):
    """A mechanism that can be run in one go with others of the same ``together_key`` (a fleet of trainings, say).

    ``randomness`` holds one source a call, in their order. Each output has the law it would have alone and depends on its own source alone
    (not on the company it is run in: that differs from one cluster to the next); a run that fails gives FAILED in its place. An exception
    fails all of them.
    """

    together_key: Hashable

    def run_together(
        self, calls: Sequence[Any], data: Any, randomness: Sequence[Randomness]
    ) -> Sequence[Any]: ...


@dataclass(frozen=True, repr=False)
class Task:
    """Some runs for one worker. Which runs, and how many, is secret: a task has no name, no number and no repr."""

    calls: tuple[Call, ...]
    seeds: tuple[bytes, ...]
    simulated: bool
    tell: bool
    home: tuple[str, int]


@dataclass(frozen=True, repr=False)
class Made:
    """The outputs of a task. A pool that cannot send them logs what it could not send: this has no repr, the outputs have."""

    outputs: list[Any]


def here() -> tuple[str, int]:
    """Tells this process from every other."""
    return _TOKEN, os.getpid()


def work(task: Task, data: Any) -> Made:
    """The outputs of a task; all that a worker does. It raises nothing and prints nothing."""
    with _nothing_said() if task.home != here() else nullcontext():
        try:
            sources = [source_of_run(seed, simulated=task.simulated) for seed in task.seeds]
            return Made(
                [as_text(output, task.tell) for output in outputs_of(task.calls, data, sources)]
            )
        except Exception as error:
            return Made([as_text(Raised(error), task.tell) for _ in task.calls])


def outputs_of(calls: Sequence[Call], data: Any, sources: Sequence[Randomness]) -> list[Any]:
    """An output for each call, or a :class:`Raised`; calls with the same ``together_key`` are made in one go."""
    outputs: list[Any] = [None] * len(calls)
    for places in _groups(calls):
        first = places[0]
        if together_key(calls[first]) is None:
            made = [attempt(calls[first], data, sources[first])]
        else:
            made = _together(
                [calls[place] for place in places], data, [sources[place] for place in places]
            )
        for place, output in zip(places, made, strict=True):
            outputs[place] = output
    return outputs


def together_key(call: Call) -> Hashable:
    """What a call shares with those it can be made together with; None for a call on its own."""
    key: Hashable = getattr(call, "together_key", None)
    return key


def _groups(calls: Sequence[Call]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for place, call in enumerate(calls):
        key = together_key(call)
        groups.setdefault((False, place) if key is None else (True, key), []).append(place)
    return list(groups.values())


def _together(calls: Sequence[Any], data: Any, sources: Sequence[Randomness]) -> list[Any]:
    def make(data: Any, sources: Any) -> list[Any]:
        outputs = list(calls[0].run_together(calls, data, sources))
        if len(outputs) != len(calls):
            raise ValueError("run_together gave another number of outputs than it was given calls")
        return outputs

    made: Any = attempt(make, data, sources)
    return [made, *[FAILED] * (len(calls) - 1)] if isinstance(made, Raised) else made


class _Silence:
    """Standard output and error of this process lead nowhere while a task runs. Tasks may be threads of one worker: they are counted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.saved: list[tuple[int, int]] = []

    def begin(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                _flush()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for descriptor in (1, 2):
                    with suppress(OSError):  # a worker may have closed it
                        self.saved.append((descriptor, os.dup(descriptor)))
                        os.dup2(nowhere, descriptor)
                os.close(nowhere)

    def end(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                _flush()  # what a candidate printed into a buffer goes nowhere, too
                while self.saved:
                    descriptor, original = self.saved.pop()
                    os.dup2(original, descriptor)
                    os.close(original)


_silence = _Silence()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


@contextmanager
def _nothing_said() -> Iterator[None]:
    """A worker's streams end in log files and dashboards that others read; what a candidate prints tells which one ran."""
    _silence.begin()
    try:
        yield
    finally:
        _silence.end()
