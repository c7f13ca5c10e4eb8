"""Send runs to workers, so that dashboards and logs of a cluster do not show what ran.

A *wave* always has the same public number of tasks, and all tasks have the same name. Runs are
assigned to the tasks in turn; some tasks may have no runs. A task that is lost with its worker is
submitted again with the same seeds, so it gives the same outputs and not a second draw. This
module never looks at outputs.

Tests: ``tests/execution/test_executors.py``, ``tests/integrations/test_ray.py``,
``tests/integrations/test_dask.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import import_module
from typing import Any, Protocol

from expost.errors import InvalidInput, WorkersLost
from expost.execution.worker import Task, here, unpacked, work
from expost.mechanisms.protocol import Call
from expost.randomness.source import RunKey

LOOK_AHEAD = 32
"""Number of runs made together under a rule that may stop at the first pass; public."""

_MOST_TRIES = 3

Batches = Generator[list[tuple[int, Any]], None, None]
"""Lists of (place, output) of runs that were made together, in the order in which they finish."""


class Executor(Protocol):
    """Any ``concurrent.futures.Executor``.

    Two more attributes are used if the executor has them:

    ``tasks``
        the number of tasks in a wave;
    ``share(data)``
        a context manager that returns a handle; ``submit`` accepts the handle in place of the data.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call ``function(*arguments)`` in a worker."""
        ...


# Found by name when they are asked for, as plugins are: this room imports no other library.
_CLUSTERS = {
    "ray": "expost.integrations.ray:RayExecutor",
    "dask": "expost.integrations.dask:DaskExecutor",
    "spark": "expost.integrations.spark:SparkExecutor",
}
EXECUTORS = ("local", "processes", *_CLUSTERS)
"""Names of executors; "local" is this process."""


def start_executor(name: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """Return an executor by its name, as a context manager; it yields None for this process."""
    if name == "local":
        return nullcontext()
    if name == "processes":
        from expost.execution.processes import Processes

        return Processes()
    if name not in _CLUSTERS:
        raise InvalidInput("executor", name, "choose from " + ", ".join(EXECUTORS))
    module, _, kind = _CLUSTERS[name].partition(":")
    options = {"num_gpus": 0 if device == "cpu" else 1} if name == "ray" else {}
    executor: AbstractContextManager[Any] = getattr(import_module(module), kind)(**options)
    return executor


def tasks_of(executor: Any) -> int:
    """Return the number of tasks in a wave.

    This is the executor's ``tasks``, else its number of workers, else the number of cores.
    """
    return int(
        getattr(executor, "tasks", None)
        or getattr(executor, "_max_workers", None)
        or os.cpu_count()
        or 1
    )


def check_executor(executor: Any, calls: Sequence[Any]) -> None:
    """Refuse an executor that does not work, before anything is charged.

    All candidates are sent to a worker as a test; their list is public.

    ``executor``: what the caller passed. ``calls``: the mechanisms of all candidates. Raises
    InvalidInput: the executor has no usable ``submit``, or its workers cannot load the candidates.
    """
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
                "its submit must return a concurrent.futures.Future; for Ray and Dask see "
                "expost.integrations",
            )
        arrival.result()
    except InvalidInput:
        raise
    except Exception as error:  # nothing ran and no data was sent, so the text is safe to show
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        raise InvalidInput(
            "executor",
            type(executor).__name__,
            f"its workers cannot take the candidates ({problem}); give mechanisms that they can "
            "import and run, and a pool that works (a pool of new processes needs a main module "
            'that can be imported: if __name__ == "__main__")',
        )


def _arrive(calls: Sequence[Any]) -> None:
    """Run in a worker as a test: the candidates could be loaded there.

    A mechanism with a method ``check_here`` may refuse the worker.
    """
    for call in calls:
        check = getattr(call, "check_here", None)
        if check is not None:
            check()


class Dispatcher:
    """Makes the runs of one selection on an executor.

    A context manager; leaving the block releases shared data.

    ``executor``: where the runs are made. ``data``: the data of the selection. ``key``: key of the
    runs' randomness. ``tell``: whether the texts of candidates' exceptions are sent back for the
    curator.
    """

    def __init__(self, executor: Executor, data: Any, key: RunKey, *, tell: bool) -> None:
        self._executor, self._data, self._key, self._tell = executor, data, key, tell
        self.tasks = tasks_of(executor)
        self.wave = self.tasks * -(-LOOK_AHEAD // self.tasks)
        self._handle: Any = None
        self._shared = ExitStack()
        self._opened = False

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()

    def make(self, runs: Sequence[tuple[int, Call]]) -> Batches:
        """Make one wave; yield (place, output) of the runs of each task when it ends."""
        self._share()
        assigned = [runs[first :: self.tasks] for first in range(self.tasks)]
        tries = [0] * len(assigned)
        running: dict[Future[Any], int] = {}
        try:
            for number in range(len(assigned)):
                self._submit(assigned, number, tries, running)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    if _lost(future) is None:
                        yield [
                            (run, unpacked(output))
                            for (run, _), output in zip(
                                assigned[number], future.result().outputs, strict=True
                            )
                        ]
                    else:
                        self._count_loss(number, tries, _lost(future))
                        self._submit(assigned, number, tries, running)
        finally:
            for future in running:
                future.cancel()

    def _submit(
        self,
        assigned: Sequence[Sequence[tuple[int, Call]]],
        number: int,
        tries: list[int],
        running: dict[Future[Any], int],
    ) -> None:
        """Submit a task; try again if the executor refuses it."""
        calls = tuple(call for _, call in assigned[number])
        seeds = tuple(self._key.seed(run) for run, _ in assigned[number])
        task = Task(calls, seeds, self._key.simulated, self._tell, here())
        while True:
            try:
                running[self._executor.submit(work, task, self._handle)] = number
                return
            except Exception as error:
                lost = type(error).__name__
            self._count_loss(number, tries, lost)

    def _count_loss(self, number: int, tries: list[int], lost: str | None) -> None:
        """Count the loss of a task; raise after the last try.

        Only the type of the error is shown: its text may come from a candidate.
        """
        tries[number] += 1
        if tries[number] >= _MOST_TRIES:
            raise WorkersLost(_MOST_TRIES, str(lost))

    def _share(self) -> None:
        """Share the data with the workers, once."""
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
    """Return the type of error because of which a task has no result, or None if it has one."""
    if future.cancelled():
        return "CancelledError"
    error = future.exception()
    return None if error is None else type(error).__name__
