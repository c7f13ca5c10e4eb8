"""Dealing runs out to workers, so that what is seen of it (on a dashboard, in a log) does not tell what ran.

A *wave* always makes the same public number of tasks, all called alike; runs are dealt to them in turn, and some may get none. A task that
is lost with its worker is submitted again with the same seeds: the same outputs, not a second draw. The dealer never looks at outputs.

Tests: ``tests/execution/test_executors.py``, ``tests/integrations/test_ray.py``, ``tests/integrations/test_dask.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from expost.errors import InvalidInput, WorkersLost
from expost.execution.worker import Task, here, work
from expost.mechanisms.protocol import Call
from expost.randomness.keyed import RunKey

LOOK_AHEAD = 32
"""Runs made together under a rule that may stop at the first pass: a public number."""

_MOST_TRIES = 3

Batches = Generator[list[tuple[int, Any]], None, None]
"""(place, output) of runs that were made together, as they come."""


class Executor(Protocol):
    """Any ``concurrent.futures.Executor``. Two attributes are used where there are any: ``tasks``, how many tasks a wave has, and
    ``share(data)``, a context manager that gives what stands for the data among the arguments of ``submit``."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...


def tasks_of(executor: Any) -> int:
    """How many tasks a wave has: what the executor says, its number of workers, or the number of cores."""
    return int(
        getattr(executor, "tasks", None)
        or getattr(executor, "_max_workers", None)
        or os.cpu_count()
        or 1
    )


def check_executor(executor: Any, calls: Sequence[Any]) -> None:
    """Refuse, before anything is charged, an executor that does not work or cannot take the candidates (all of them: a public list)."""
    if not callable(getattr(executor, "submit", None)):
        raise InvalidInput(
            "executor",
            type(executor).__name__,
            "give a concurrent.futures.Executor, or leave it out",
        )
    problem = None
    try:
        arrival = executor.submit(_arrive, tuple(calls))
        if not isinstance(arrival, Future):
            raise InvalidInput(
                "executor",
                type(executor).__name__,
                "its submit must return a concurrent.futures.Future; for Ray and Dask see expost.integrations",
            )
        arrival.result()
    except InvalidInput:
        raise
    except Exception as error:  # nothing ran and no data was sent: it may be told in full
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        raise InvalidInput(
            "executor",
            type(executor).__name__,
            f"its workers cannot take the candidates ({problem}); give mechanisms that they can import and run, and a pool that works "
            '(one of fresh processes needs a main module that can be imported: if __name__ == "__main__")',
        )


def _arrive(calls: Sequence[Any]) -> None:
    """In a worker: that this can be called at all is half the answer. A mechanism with a ``check_here`` may refuse the place."""
    for call in calls:
        check = getattr(call, "check_here", None)
        if check is not None:
            check()


class Dealer:
    """Runs of one selection on an executor."""

    def __init__(self, executor: Executor, data: Any, key: RunKey, *, tell: bool) -> None:
        self._executor, self._data, self._key, self._tell = executor, data, key, tell
        self.tasks = tasks_of(executor)
        self.wave = self.tasks * -(-LOOK_AHEAD // self.tasks)
        self._handle: Any = None
        self._shared = ExitStack()
        self._opened = False

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()

    def make(self, runs: Sequence[tuple[int, Call]]) -> Batches:
        """One wave: (place, output) of a task's runs, for each task as it ends."""
        self._share()
        hands = [runs[first :: self.tasks] for first in range(self.tasks)]
        tries = [0] * len(hands)
        running: dict[Future[Any], int] = {}
        try:
            for number in range(len(hands)):
                self._submit(hands, number, tries, running)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    if _lost(future) is None:
                        yield [
                            (place, output)
                            for (place, _), output in zip(
                                hands[number], future.result().outputs, strict=True
                            )
                        ]
                    else:
                        self._again(number, tries, _lost(future))
                        self._submit(hands, number, tries, running)
        finally:
            for future in running:
                future.cancel()

    def _submit(
        self,
        hands: Sequence[Sequence[tuple[int, Call]]],
        number: int,
        tries: list[int],
        running: dict[Future[Any], int],
    ) -> None:
        places, calls = (
            [place for place, _ in hands[number]],
            tuple(call for _, call in hands[number]),
        )
        task = Task(
            calls, tuple(map(self._key.seed, places)), self._key.simulated, self._tell, here()
        )
        while True:
            try:
                running[self._executor.submit(work, task, self._handle)] = number
                return
            except Exception as error:
                lost = type(error).__name__
            self._again(number, tries, lost)

    def _again(self, number: int, tries: list[int], lost: str | None) -> None:
        """Count a loss; after the last, give up. Only the kind of the error is told: its text may come from a candidate."""
        tries[number] += 1
        if tries[number] >= _MOST_TRIES:
            raise WorkersLost(_MOST_TRIES, str(lost))

    def _share(self) -> None:
        if self._opened:
            return
        share: Callable[[Any], AbstractContextManager[Any]] | None = getattr(
            self._executor, "share", None
        )
        self._handle = (
            self._data if share is None else self._shared.enter_context(share(self._data))
        )
        self._opened = True


def _lost(future: Future[Any]) -> str | None:
    """Why a task has no result, as the kind of its error; None if it has one."""
    if future.cancelled():
        return "CancelledError"
    error = future.exception()
    return None if error is None else type(error).__name__
