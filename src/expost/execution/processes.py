"""An executor of processes on this machine that survives the death of a worker.

``concurrent.futures.ProcessPoolExecutor`` cannot be used any more after one of its processes is
killed. Here a new pool is made, and the lost tasks are submitted again with the same randomness
(:mod:`expost.execution.dispatch`). Data is copied once, into memory that the workers share and
that no other user can open. Workers end when the selecting process ends, in whatever way it ends.

Tests: ``tests/execution/test_executors.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from expost.execution.dispatch import OwnedExecutor
from expost.rationals import count_of

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
    wait([sentinel])
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
