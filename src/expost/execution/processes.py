"""Processes of this machine that make runs: a pool that survives the death of a worker.

``concurrent.futures.ProcessPoolExecutor`` gives up for good when one of its processes is killed; here a new pool is made and the lost tasks
are submitted again (:mod:`expost.execution.dispatch`), with the same randomness. Data is copied once, into memory that the workers share and
nobody else can open; workers end when the process that selects does, however that ends. Tests: ``tests/execution/test_executors.py``.
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
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from expost.rationals import count_of

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, repr=False)
class _Block:
    """Where the data of a selection lies, pickled by this program for its own workers."""

    name: str
    size: int


class Processes:
    """An executor of ``workers`` fresh processes (default: one a core), each with its share of the cores.

    Use it as a context manager, and from a program whose main module can be imported (``if __name__ == "__main__":``), as any pool of
    spawned processes. Mechanisms, data and outputs must be picklable; functions of a module are, lambdas are not.
    """

    def __init__(self, workers: int | None = None) -> None:
        cores = os.cpu_count() or 1
        self.tasks = cores if workers is None else count_of(workers, "workers", at_least=1)
        self._share_of_cores = max(1, cores // self.tasks)
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function in a worker. What cannot be pickled is refused here, not in a worker."""
        content = pickle.dumps((function, arguments))
        with self._lock, self._environment():
            try:
                return self._running().submit(_call, content)
            except BrokenProcessPool:
                self._stop()
            return self._running().submit(_call, content)

    @contextmanager
    def share(self, data: Any) -> Iterator[Any]:
        """A handle that stands for the data among the arguments of :meth:`submit`."""
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
        """End the workers, whatever they do."""
        with self._lock:
            self._stop()

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.tasks, context, initializer=_prepare)
        return self._pool

    def _stop(self) -> None:
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
        """Workers start inside :meth:`submit`; numerical libraries read how many threads they may use when they are loaded."""
        given = os.environ.get(_THREADS)
        os.environ[_THREADS] = given or str(self._share_of_cores)
        try:
            yield
        finally:
            if given is None:
                del os.environ[_THREADS]


_latest: tuple[str, Any] | None = None


def _prepare() -> None:
    """In a new worker: leave interrupts to the process that selects, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _call(content: bytes) -> Any:
    function, arguments = pickle.loads(content)  # noqa: S301  # written by the process that selects, for this one
    return function(*(_fetched(each) if isinstance(each, _Block) else each for each in arguments))


def _fetched(block: _Block) -> Any:
    """The data; kept for the next task, which usually is about the same."""
    global _latest
    if _latest is None or _latest[0] != block.name:
        _latest = None
        memory = SharedMemory(block.name)
        try:
            _latest = (block.name, pickle.loads(_view(memory)[: block.size]))  # noqa: S301  # as above
        finally:
            memory.close()
    return _latest[1]


def _view(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None
    return memory.buf
