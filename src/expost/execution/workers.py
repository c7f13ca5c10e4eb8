"""Send runs to workers, so that dashboards and logs of a cluster do not show what ran.

A *wave* always has the same public number of tasks, and all tasks have the same name. Runs are
assigned to the tasks in turn; some tasks may have no runs. A task that is lost with its worker is
submitted again with the same seeds, so it gives the same outputs and not a second draw. This
module never looks at outputs. All that a worker does is :func:`work`.

:class:`Processes` is an executor of processes on this machine that survives the death of a worker.
``concurrent.futures.ProcessPoolExecutor`` cannot be used any more after one of its processes is
killed. Here a new pool is made, and the lost tasks are submitted again with the same randomness.
Data is copied once, into memory that the workers share and that no other user can open. Workers end
when the selecting process ends, in whatever way it ends.

Tests: ``tests/execution/test_executors.py``, ``tests/integrations/test_ray.py``,
``tests/integrations/test_dask.py``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import wait as wait_for_handles
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol, Self

from expost.errors import InvalidInput, WorkersLost
from expost.execution.calls import Raised, call_or_failure, failure_as_text, make_outputs
from expost.mechanisms import FAILED, Call
from expost.randomness.source import RunKey, source_of_run
from expost.rationals import count_of

LOOK_AHEAD = 32
"""Number of runs made together under a rule that may stop at the first pass; public."""

MOST_TRIES = 3

Batches = Generator[list[tuple[int, Any]], None, None]
"""Lists of (place, output) of runs that were made together, in the order in which they finish."""


class Executor(Protocol):
    """Any ``concurrent.futures.Executor``.

    It may have ``tasks``, the number of tasks in a wave, and ``share(data)``, a context manager
    that returns a handle; ``submit`` accepts the handle in place of the data.
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
    """Return an executor by its name, as a context manager; "local" needs none."""
    if name == "processes":
        return Processes()
    if name not in _CLUSTERS:
        raise InvalidInput("executor", name, "choose from " + ", ".join(EXECUTORS))
    module, _, kind = _CLUSTERS[name].partition(":")
    options = {"num_gpus": 0 if device == "cpu" else 1} if name == "ray" else {}
    executor: AbstractContextManager[Any] = getattr(import_module(module), kind)(**options)
    return executor


def tasks_of(executor: Any) -> int:
    """Return the number of tasks in a wave: its ``tasks``, else its workers, else the cores."""
    return int(
        getattr(executor, "tasks", None)
        or getattr(executor, "_max_workers", None)
        or os.cpu_count()
        or 1
    )


def check_executor(executor: Any, calls: Sequence[Any]) -> None:
    """Refuse an executor that does not work, before anything is charged.

    All candidates are sent to a worker as a test; their list is public.
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
    """Run in a worker as a test: load the candidates; their ``check_here`` may refuse it."""
    for call in calls:
        check = getattr(call, "check_here", None)
        if check is not None:
            check()


class Dispatcher:
    """Makes the runs of one selection on an executor; leaving the block releases shared data.

    ``tell``: whether the texts of candidates' exceptions are sent back for the curator.
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
        # Tasks without runs are sent, too: the number of tasks is public, that of runs is not.
        assigned = [runs[first :: self.tasks] for first in range(self.tasks)]

        def submit(number: int) -> Future[Any]:
            calls = tuple(call for _, call in assigned[number])
            # A task that is sent again has the same seeds: not a second draw.
            seeds = tuple(self._key.seed(run) for run, _ in assigned[number])
            task = Task(calls, seeds, self._key.simulated, self._tell, here())
            return self._executor.submit(work, task, self._handle)

        with closing(resubmitted(submit, len(assigned), lost_kind, WorkersLost)) as results:
            for number, result in results:
                runs_of = (run for run, _ in assigned[number])
                yield list(zip(runs_of, map(unpacked, result.outputs), strict=True))

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


def resubmitted(
    submit: Callable[[int], Future[Any]],
    count: int,
    lost: Callable[[Future[Any]], str | None],
    error: type[WorkersLost],
) -> Generator[tuple[int, Any], None, None]:
    """Yield (task, result) of ``count`` tasks as they end; submit a lost one again.

    ``lost`` says why a task has no result. Only the type of an error is shown: its text may come
    from a candidate. After three tries of one task ``error`` is raised.
    """
    tries = [0] * count
    running: dict[Future[Any], int] = {}

    def start(number: int) -> None:
        while True:
            try:
                running[submit(number)] = number
                return
            except Exception as problem:
                kind = type(problem).__name__
            count_try(tries, number, kind, error)

    try:
        for number in range(count):
            start(number)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                kind = lost(future)
                if kind is None:
                    yield number, future.result()
                    continue
                count_try(tries, number, kind, error)
                start(number)
    finally:
        for future in running:
            future.cancel()


def count_try(tries: list[int], number: int, kind: str, error: type[WorkersLost]) -> None:
    """Count a lost task; raise after the last try."""
    tries[number] += 1
    if tries[number] >= MOST_TRIES:
        raise error(MOST_TRIES, kind)


def lost_kind(future: Future[Any]) -> str | None:
    """Return the type of error because of which a task has no result, or None if it has one."""
    if future.cancelled():
        return "CancelledError"
    error = future.exception()
    return None if error is None else type(error).__name__


class OwnedExecutor(ABC):
    """A context manager that shuts its workers down."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @abstractmethod
    def shutdown(self) -> None:
        """End or leave the workers."""


_TOKEN = secrets.token_hex(16)


@dataclass(frozen=True, repr=False)
class Task:
    """Runs for one worker. Which runs, and how many, is secret: no name, no number and no repr.

    ``tell``: whether the texts of exceptions are sent back. ``home``: the process that made it.
    """

    calls: tuple[Call, ...]
    seeds: tuple[bytes, ...]
    simulated: bool
    tell: bool
    home: tuple[str, int]


@dataclass(frozen=True, repr=False)
class Made:
    """The outputs of a task; no repr, because a pool that fails to send it logs its repr."""

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


_silence = threading.Lock()
_silenced_tasks = 0
_streams: list[tuple[int, int]] = []  # the standard streams, and what they were before


def _flush() -> None:
    """Flush standard output and error; ignore errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard what candidates print: others can read a worker's logs, and prints show what ran.

    Threads of one process share the streams: the first task redirects them to the null device, and
    the last one restores them.
    """
    global _silenced_tasks
    with _silence:
        _silenced_tasks += 1
        if _silenced_tasks == 1:
            _flush()
            null = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                with suppress(OSError):  # a worker may have closed it
                    _streams.append((descriptor, os.dup(descriptor)))
                    os.dup2(null, descriptor)
            os.close(null)
    try:
        yield
    finally:
        with _silence:
            _silenced_tasks -= 1
            if _silenced_tasks == 0:
                _flush()  # text that a candidate left in a buffer goes to the null device, too
                while _streams:
                    descriptor, original = _streams.pop()
                    os.dup2(original, descriptor)
                    os.close(original)


_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, repr=False)
class _Block:
    """Name and size of the shared memory that holds the pickled data of a selection."""

    name: str
    size: int


class Processes(OwnedExecutor):
    """An executor of new processes on this machine.

    Use it as a context manager. As with any pool of spawned processes, the main module of the
    program must be importable (``if __name__ == "__main__":``). Mechanisms, data and outputs must
    be picklable: functions of a module are, lambdas are not.

    Parameters
    ----------
    workers : int, optional
        Number of processes; by default one per core. Each uses its share of the cores, unless
        OMP_NUM_THREADS is set.

    Examples
    --------
    ::

        with Processes(4) as pool:
            release = selector.select(candidates, data, executor=pool)
    """

    def __init__(self, workers: int | None = None) -> None:
        cores = os.cpu_count() or 1
        self.tasks = cores if workers is None else count_of(workers, "workers", at_least=1)
        self._share_of_cores = max(1, cores // self.tasks)
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call ``function(*arguments)`` in a worker; an argument may be a handle of :meth:`share`.

        What cannot be pickled raises here, not in a worker.
        """
        content = pickle.dumps((function, arguments))
        with self._lock, self._environment():
            try:
                return self._running().submit(_call, content)
            except BrokenProcessPool:
                self._stop()
            return self._running().submit(_call, content)

    @contextmanager
    def share(self, data: Any) -> Iterator[Any]:
        """Copy data to shared memory; yield a handle in whose place a worker receives the data."""
        content = pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)
        memory = SharedMemory(create=True, size=len(content))
        try:
            size = len(content)
            _view(memory)[:size] = content
            del content
            yield _Block(memory.name, size)
        finally:
            memory.close()
            memory.unlink()

    def shutdown(self) -> None:
        """End the workers at once, even while they run a task."""
        with self._lock:
            self._stop()

    def _running(self) -> ProcessPoolExecutor:
        """Return the pool; make one if there is none."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.tasks, context, initializer=prepare_worker)
        return self._pool

    def _stop(self) -> None:
        """End the pool and its processes, if there is one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            workers = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Set the number of threads for workers, which start inside :meth:`submit`.

        Numerical libraries read it when they are loaded.
        """
        given = os.environ.get(_THREADS)
        os.environ[_THREADS] = given or str(self._share_of_cores)
        try:
            yield
        finally:
            if given is None:
                del os.environ[_THREADS]


_latest: tuple[str, Any] | None = None


def forks_of(module: str) -> Any:
    """Return a context whose new processes are forks of one that imports ``module``, from now on.

    Where processes cannot be forked from another one, they are spawned and import it themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    forkserver.ensure_running()
    return context


def prepare_worker() -> None:
    """In a new process: ignore interrupts, and end when the selecting process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """Wait for the selecting process to end, then end this one."""
    wait_for_handles([sentinel])
    os._exit(1)


def _call(content: bytes) -> Any:
    """In a worker: call the function, with the data in place of its handle."""
    # The selecting process wrote this for its own worker, so it is safe to unpickle.
    function, arguments = pickle.loads(content)  # noqa: S301
    return function(
        *(
            _fetched(argument) if isinstance(argument, _Block) else argument
            for argument in arguments
        )
    )


def _fetched(block: _Block) -> Any:
    """Return the data; it is kept because the next task usually needs the same."""
    global _latest
    if _latest is None or _latest[0] != block.name:
        _latest = None
        memory = SharedMemory(block.name)
        try:
            # Written by the selecting process, too.
            _latest = (block.name, pickle.loads(_view(memory)[: block.size]))  # noqa: S301
        finally:
            memory.close()
    return _latest[1]


def _view(memory: SharedMemory) -> memoryview:
    """Return the buffer of an open shared memory."""
    assert memory.buf is not None
    return memory.buf
