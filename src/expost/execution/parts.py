"""Parts of a large data set, and functions of one part that are called for all of them.

A part is kept in memory up to a limit, then in a temporary file that has no name, can be opened by
its owner only and disappears with the process. Every function that is called for parts returns
something that can be added up exactly, so neither the division into parts nor the order in which
results arrive changes anything. Without an executor, threads of this process call the functions.
With one, its workers do: a cluster keeps the parts (``keep`` of the executor), processes of this
machine read them from the file, and any other executor is sent a part with each call. A part whose
worker was lost is sent again, up to three times; then :class:`~expost.errors.WorkersLost` ends the
selection. A function that raises in a worker counts as lost, too: nothing that it raises is shown.

Tests: ``tests/execution/test_parts.py``.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from expost.execution.calls import PartsLost, Raised
from expost.execution.workers import Processes, Task, here, lost_kind, resubmitted, unpacked, work
from expost.randomness.source import SEED_BYTES, Randomness

_IN_MEMORY = 2**27  # bytes of parts that stay in memory
_BUNDLE = 2**25  # bytes of parts that are sent to a cluster as one
_LOCAL = (Processes, ProcessPoolExecutor, ThreadPoolExecutor)

_buffers = threading.local()


class Parts:
    """Parts of a data set: :meth:`add` them, then :meth:`map` functions over them.

    Leaving the block deletes the file and ends the threads. By default threads of this process, one
    per core, call the functions; else the workers of ``executor``.
    """

    def __init__(self, executor: Any = None, threads: int | None = None) -> None:
        self._executor = executor
        self.threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self.threads)
        self._lock = threading.Lock()
        self._kept: list[Any] = []  # parts in memory
        self._places: list[_Place] = []  # parts in the file
        self._bytes = 0
        self._file: int | None = None
        self._end = 0
        self._spread: Any = None

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._spread is not None:
            self._spread.close()
        self._kept, self._places, self._spread = [], [], None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("parts hold data and stay in their process")

    def add(self, part: Any) -> None:
        """Keep a part."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
        size = sum(len(buffer) for buffer in raw)
        with self._lock:
            if self._executor is None and self._bytes + size <= _IN_MEMORY:
                self._bytes += size
                self._kept.append(part)
                return
            if self._file is None:
                self._file = _unnamed_file()
            block = _Place(os.getpid(), self._file, self._end, head, tuple(map(len, raw)))
            _write(self._file, self._end, raw)
            self._end += size
            self._places.append(block)

    def map(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Return ``function(part, *arguments)`` of every part, in any order."""
        if self._executor is not None:
            if self._spread is None:
                self._spread = _spread(self._executor, _bundles(self._places))
            for results in self._spread.map(_Calls(function, arguments)):
                yield from results
            return
        waiting = [*self._kept, *self._places]
        running = {
            self._pool.submit(_call_all, waiting[first :: self.threads], function, arguments)
            for first in range(self.threads)
        }
        for future in running:
            yield from future.result()


def for_each(
    function: Callable[[Any], None], pieces: Iterator[Any], threads: int | None = None
) -> None:
    """Call a function for each piece, in threads; few pieces are held at a time."""
    count = threads or os.cpu_count() or 1
    running: set[Future[None]] = set()
    with ThreadPoolExecutor(count) as pool:
        try:
            for piece in pieces:
                running.add(pool.submit(function, piece))
                if len(running) > count:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in running:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _call_all(parts: Sequence[Any], function: Callable[..., Any], arguments: Any) -> list[Any]:
    """Call a function for several parts, one after the other."""
    return [
        function(part.read() if isinstance(part, _Place) else part, *arguments) for part in parts
    ]


@dataclass(frozen=True, repr=False)
class _Place:
    """Where a part lies in the file of a process of this machine."""

    process: int
    file: int
    start: int
    head: bytes
    sizes: tuple[int, ...]

    def read(self) -> Any:
        """Return the part. Its arrays are valid until the same thread reads the next part."""
        size = sum(self.sizes)
        buffer = getattr(_buffers, "content", None)
        if buffer is None or len(buffer) < size:
            _buffers.content = buffer = bytearray(size + size // 4)
        view = memoryview(buffer)[:size]
        if self.process == os.getpid():
            _read(self.file, self.start, view)
        else:
            file = os.open(f"/proc/{self.process}/fd/{self.file}", os.O_RDONLY)
            try:
                _read(file, self.start, view)
            finally:
                os.close(file)
        pieces, start = [], 0
        for length in self.sizes:
            pieces.append(view[start : start + length].toreadonly())
            start += length
        # Written by this process or by the one that selects.
        return pickle.loads(self.head, buffers=pieces)  # noqa: S301

    def copy(self) -> Any:
        """Return the part with arrays of its own."""
        return pickle.loads(pickle.dumps(self.read(), protocol=5))  # noqa: S301


def _unnamed_file() -> int:
    """Return a temporary file without a name, which only its owner can open."""
    file, path = tempfile.mkstemp(prefix="expost-")  # mode 600
    os.unlink(path)
    return file


def _write(file: int, start: int, pieces: Sequence[Any]) -> None:
    """Write pieces one after the other."""
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            written = os.pwrite(file, view, start)
            view, start = view[written:], start + written


def _read(file: int, start: int, view: memoryview) -> None:
    """Fill a buffer from a file."""
    while len(view):
        count = os.preadv(file, [view], start)
        if not count:
            raise OSError("the file of parts ended too early")
        view, start = view[count:], start + count


def _bundles(blocks: Sequence[_Place]) -> list[list[_Place]]:
    """Return parts in groups of some megabytes."""
    bundles: list[list[_Place]] = [[]]
    size = 0
    for block in blocks:
        if size > _BUNDLE:
            bundles.append([])
            size = 0
        bundles[-1].append(block)
        size += sum(block.sizes)
    return bundles if blocks else []


@dataclass(frozen=True, repr=False)
class _Calls:
    """In a worker: call a function for each part of a bundle."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self, bundle: Any, randomness: Randomness) -> list[Any]:
        return _call_all(bundle, self.function, self.arguments)


def task_of(calls: Callable[[Any, Randomness], Any]) -> Task:
    """Return a task for :func:`expost.execution.workers.work`; it draws nothing."""
    return Task((calls,), (bytes(SEED_BYTES),), True, False, here())


def part_result(output: Any) -> Any:
    """Return the result of a task, or a :class:`~expost.execution.calls.Raised`."""
    return unpacked(output.outputs[0])


def _spread(executor: Any, bundles: Sequence[Sequence[_Place]]) -> Any:
    """Return the bundles where workers of an executor can read them."""
    loads = [partial(_load, bundle) for bundle in bundles]
    every = getattr(executor, "keep_all", None)
    if every is not None:  # one job for all bundles
        return every(loads)
    keep = getattr(executor, "keep", None)
    if keep is not None:
        return Spread(executor, [keep(load) for load in loads])
    if isinstance(executor, _LOCAL):
        return Spread(executor, list(bundles))
    return Spread(executor, loads, sent=True)


def _load(bundle: Sequence[_Place]) -> list[Any]:
    """Return the parts of a bundle."""
    return [block.copy() for block in bundle]


class Spread:
    """Bundles of parts behind handles that ``submit`` takes; ``sent``: a handle loads its own."""

    def __init__(self, executor: Any, handles: Sequence[Any], *, sent: bool = False) -> None:
        self._executor, self._handles, self._sent = executor, handles, sent

    def map(self, calls: Callable[[Any, Randomness], Any]) -> Iterator[Any]:
        """Return the result of every bundle, in any order."""

        def submit(number: int) -> Future[Any]:
            handle = self._handles[number]
            bundle = handle() if self._sent else handle
            return cast(Future[Any], self._executor.submit(work, task_of(calls), bundle))

        count = len(self._handles)
        with closing(resubmitted(submit, count, _lost, PartsLost)) as results:
            for _, output in results:
                yield part_result(output)

    def close(self) -> None:
        """Let the executor forget the bundles."""
        self._handles = []


def _lost(future: Future[Any]) -> str | None:
    """Return why a task has no result; a function that raised has none."""
    kind = lost_kind(future)
    if kind is None and isinstance(part_result(future.result()), Raised):
        return "Exception"
    return kind
