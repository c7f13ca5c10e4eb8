"""Make outputs in this process or in a worker; each call has the randomness of its own run.

A call that raises gives a :class:`~expost.execution.failure.Raised`, so that no exception,
traceback or message of a candidate reaches a pool, a cluster's log or a chained exception. The
engine reports it to the curator and ranks it lowest.

Tests: ``tests/execution/test_executors.py``, ``tests/contracts/test_secrets.py``.
"""

from __future__ import annotations

import importlib
import os
import pickle
import secrets
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from expost.execution.failure import Raised, call_or_failure, failure_as_text
from expost.mechanisms.protocol import FAILED, Call
from expost.randomness.source import Randomness, source_of_run

_TOKEN = secrets.token_hex(16)


class Together(Protocol):
    """A mechanism that can be run together with others of the same ``together_key``.

    An example is a fleet of trainings. Each output must have the law that it has when it is run
    alone. It must depend on its own randomness only, not on the runs made with it: those differ
    from one cluster to another.
    """

    together_key: Hashable

    def run_together(
        self, calls: Sequence[Any], data: Any, randomness: Sequence[Randomness]
    ) -> Sequence[Any]:
        """Run several mechanisms at once.

        ``calls``: the mechanisms to run, all with the same ``together_key``. ``data``: the data of
        the selection. ``randomness``: one source per call, in the same order. Returns: one output
        per call. A call that fails gives ``FAILED``. If ``run_together`` raises, its outputs are
        discarded, and each mechanism is called alone with a fresh copy of its own randomness, so
        that only those fail that fail by themselves.
        """
        ...


@dataclass(frozen=True, repr=False)
class Task:
    """Runs for one worker.

    Which runs, and how many, is secret: a task has no name, no number and no repr.

    ``calls``: the mechanisms to run. ``seeds``: the seed of each run's randomness. ``simulated``:
    whether the randomness is seeded for a simulation. ``tell``: whether the texts of exceptions are
    sent back for the curator. ``home``: the process that made the task, from :func:`here`.
    """

    calls: tuple[Call, ...]
    seeds: tuple[bytes, ...]
    simulated: bool
    tell: bool
    home: tuple[str, int]


@dataclass(frozen=True, repr=False)
class Made:
    """The outputs of a task.

    It has no repr: a pool that fails to send it writes its repr to a log.
    """

    outputs: list[Any]


@dataclass(frozen=True, repr=False)
class Packed:
    """An output as bytes, for another process."""

    content: bytes


def here() -> tuple[str, int]:
    """Return a value that identifies this process."""
    return _TOKEN, os.getpid()


def work(task: Task, data: Any) -> Made:
    """Return the outputs of a task. This is all that a worker does.

    Candidates' exceptions and prints do not leave it: failures are converted to text, and in
    another process the standard streams go to the null device while the task runs. There, outputs
    are packed one by one: one that cannot be sent is a failure of its own run only.
    """
    away = task.home != here()
    sources = [partial(source_of_run, seed, simulated=task.simulated) for seed in task.seeds]
    with _silenced() if away else nullcontext():
        outputs = make_outputs(task.calls, data, sources)
        return Made(
            [failure_as_text(_packed(output) if away else output, task.tell) for output in outputs]
        )


def unpacked(output: Any) -> Any:
    """Return an output that came from a worker; one that cannot be unpacked is a failure."""
    # A worker of this selection wrote it.
    return call_or_failure(pickle.loads, output.content) if isinstance(output, Packed) else output


def _packed(output: Any) -> Any:
    """Return an output as bytes, or a failure if that is not possible."""
    if output is FAILED or isinstance(output, Raised):
        return output
    content = call_or_failure(pickle.dumps, output)
    if isinstance(content, Raised):
        # Pools that came with cloudpickle can send more.
        content = call_or_failure(_by_value, output)
    return content if isinstance(content, Raised) else Packed(content)


def _by_value(output: Any) -> bytes:
    """Return an output as bytes, with functions and classes of a main module by value."""
    return bytes(importlib.import_module("cloudpickle").dumps(output))


def make_outputs(
    calls: Sequence[Call], data: Any, sources: Sequence[Callable[[], Randomness]]
) -> list[Any]:
    """Return one output per call, or a :class:`~expost.execution.failure.Raised` in its place.

    ``calls``: the mechanisms; those with the same ``together_key`` are run together. ``data``: the
    data of the selection. ``sources``: one per call: returns the source of that run, from its
    beginning.
    """
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
    released at their price, and would depend on which runs an executor puts together.
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


class _Silence:
    """Sends standard output and error of this process to the null device while tasks run.

    Several tasks may run as threads of one worker, so they are counted.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.saved: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Redirect the streams if this is the first task."""
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                _flush()
                null = os.open(os.devnull, os.O_WRONLY)
                for descriptor in (1, 2):
                    with suppress(OSError):  # a worker may have closed it
                        self.saved.append((descriptor, os.dup(descriptor)))
                        os.dup2(null, descriptor)
                os.close(null)

    def end(self) -> None:
        """Restore the streams if this was the last task."""
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                _flush()  # text that a candidate left in a buffer goes to the null device, too
                while self.saved:
                    descriptor, original = self.saved.pop()
                    os.dup2(original, descriptor)
                    os.close(original)


_silence = _Silence()


def _flush() -> None:
    """Flush standard output and error; ignore errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard what candidates print: others can read a worker's logs, and prints show what ran."""
    _silence.begin()
    try:
        yield
    finally:
        _silence.end()
