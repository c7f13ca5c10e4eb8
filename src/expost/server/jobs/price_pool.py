"""Prices are computed in processes of their own, which end when nobody waits for them any more.

A price depends on public facts alone, but may take seconds. The pool computes equal questions
once, keeps results, gives no person more than a part of its workers, and kills a worker whose
question takes longer than the deadline or whose askers have all left. The processes of a team
share results that are JSON in the server's database: a price that is shown, none that is reserved.
Tests: ``tests/server/test_prices.py``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import pickle
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from expost._version import __version__
from expost.errors import ExpostError
from expost.execution.workers import prepare_worker
from expost.server.database import ServerDatabase, shared_prices
from expost.server.problems import Unavailable

client_left: ContextVar[threading.Event | None] = ContextVar("client_left", default=None)
"""Set when the client of this call has gone away."""

SECONDS = 20.0
_PATIENCE = 4  # times as long on the clock as in the processor: the machine may be busy
_MOST_WAITING = 8  # questions of one person
_MOST_KEPT, _LARGEST_KEPT = 4096, 2**16
_SHARED_SECONDS = 86_400.0  # how long a price is shared
_LOOK = 0.1
_PRELOADED = ["expost.server.jobs.prices", "sklearn.datasets"]  # the second only if it is there
_FLEETING = b"!"  # before an outcome that may be another one soon; no pickle begins so
log = logging.getLogger("expost.server")


@dataclass(eq=False)
class _Task:
    """One question that is priced, and how many callers wait for it."""

    key: str
    person: str
    content: bytes
    waiters: int = 0
    running: bool = False
    shared: bool = False
    outcome: bytes | None = None
    done: threading.Event = field(default_factory=threading.Event)


class PricePool:
    """The processes that compute prices.

    Parameters
    ----------
    workers : int
        Number of processes; 0 computes in the calling thread, without deadlines.
    seconds : float
        How much time of a processor one price may take.
    begin : callable
        What each process calls first; it is pickled.
    store : ServerDatabase, optional
        Where results are shared with the pools of other processes.
    """

    def __init__(
        self,
        workers: int,
        seconds: float = SECONDS,
        begin: Callable[[], Any] = tuple,
        store: ServerDatabase | None = None,
    ) -> None:
        self._workers, self._seconds, self._begin, self._store = workers, seconds, begin, store
        self._tasks: dict[str, _Task] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def compute(
        self, person: str, function: Callable[..., Any], *arguments: Any, shared: bool = False
    ) -> Any:
        """Return ``function(*arguments)``, which must depend on public facts alone.

        The function is one of a module; arguments are JSON or have ``as_dict``. A result that is
        JSON may be ``shared`` with the other processes of a server.
        """
        named = [__version__, function.__module__, function.__qualname__, *arguments]
        text = json.dumps(named, sort_keys=True, default=lambda value: value.as_dict())
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        with self._changed:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return _value(kept)
        content = pickle.dumps((function, arguments, self._seconds))
        if not self._workers:
            outcome = _outcome(content)
            self._keep(key, outcome)
            return _value(outcome)
        return _value(self._wait(self._join(_Task(key, person, content, shared=shared))))

    def warm(self) -> None:
        """Start the workers before the first question."""
        for number in range(self._workers):
            threading.Thread(
                target=self.compute, args=(f"worker {number}", abs, number), daemon=True
            ).start()

    def close(self) -> None:
        """End the workers at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _join(self, asked: _Task) -> _Task:
        """The task of a question: the one that runs already, or this new one."""
        with self._changed:
            task = self._tasks.get(asked.key)
            if task is None:
                mine = sum(other.person == asked.person for other in self._tasks.values())
                if mine >= _MOST_WAITING or self._closed:
                    raise Unavailable("other prices are computed for you", None, "try again soon")
                task = self._tasks[asked.key] = asked
            task.waiters += 1
            while len(self._threads) < self._workers:
                thread = threading.Thread(target=self._serve, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
            return task

    def _wait(self, task: _Task) -> bytes:
        """The outcome of a task, unless the client leaves or the deadline passes first."""
        left, deadline = client_left.get(), time.monotonic() + 2 * _PATIENCE * self._seconds
        try:
            while not task.done.wait(_LOOK):
                if left is not None and left.is_set():
                    raise Unavailable("the client has left")
                if time.monotonic() > deadline or self._closed:
                    raise Unavailable("the server computes other prices", None, "try again soon")
        finally:
            with self._changed:
                task.waiters -= 1
                if not task.waiters and not task.running:
                    self._tasks.pop(task.key, None)
        if task.outcome is None:
            raise Unavailable(
                "this price takes too long to compute",
                None,
                "ask with fewer levels, settings or groups",
            )
        return task.outcome

    def _next(self) -> _Task | None:
        """The oldest task that waits, of the person with the fewest that run; None to end."""
        with self._changed:
            while not self._closed:
                running = [task.person for task in self._tasks.values() if task.running]
                waiting = [task for task in self._tasks.values() if not task.running]
                allowed = max(1, self._workers - 1)
                free = [task for task in waiting if running.count(task.person) < allowed]
                if free:
                    task = min(free, key=lambda task: running.count(task.person))
                    task.running = True
                    return task
                self._changed.wait()
        return None

    def _serve(self) -> None:
        """Give tasks to one worker process; start another one when it was ended."""
        worker = None
        while (task := self._next()) is not None:
            try:
                task.outcome = self._found(task)
                if task.outcome is None:
                    worker = (
                        worker if worker is not None and worker.is_alive() else _Worker(self._begin)
                    )
                    gone = partial(self._unwanted, task)
                    task.outcome = worker.ask(task.content, self._seconds, gone)
                    self._share(task)
                if task.outcome is not None:
                    self._keep(task.key, task.outcome)
            except Exception as error:  # no worker could be started, or it died
                log.error("a price was not computed: %s", type(error).__name__)
                worker = None
            finally:
                with self._changed:
                    self._tasks.pop(task.key, None)
                    self._changed.notify_all()
                task.done.set()
        if worker is not None:
            worker.end()

    def _unwanted(self, task: _Task) -> bool:
        return self._closed or task.waiters == 0

    def _found(self, task: _Task) -> bytes | None:
        """What another process has computed in the meantime."""
        if not task.shared or self._store is None:
            return None
        try:
            row = self._store.row(shared_prices.select().where(shared_prices.c.key == task.key))
        except SQLAlchemyError:
            return None  # then it is computed here
        return None if row is None else pickle.dumps((json.loads(row["outcome"]), None))

    def _share(self, task: _Task) -> None:
        """Leave a result for other processes, without those of days ago; errors are not shared."""
        if not task.shared or self._store is None or task.outcome is None:
            return
        result, error = pickle.loads(task.outcome.removeprefix(_FLEETING))  # noqa: S301 - as above
        text, now, of = json.dumps(result), time.time(), shared_prices
        if error is not None or len(text) > _LARGEST_KEPT:
            return
        try:
            self._store.change(of.delete().where(of.c.created < now - _SHARED_SECONDS))
            self._store.change(of.insert().values(key=task.key, outcome=text, created=now))
        except SQLAlchemyError:
            pass  # another process was faster, or the database is away

    def _keep(self, key: str, outcome: bytes) -> None:
        """Remember an outcome that time does not change; long lists of keys are not worth it."""
        if len(outcome) <= _LARGEST_KEPT and not outcome.startswith(_FLEETING):
            with self._changed:
                self._kept[key] = outcome
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)


class _Worker:
    """One process that prices, and the pipe to it."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:  # a new worker is a fork of a process that has imported all
            context.set_forkserver_preload(_PRELOADED)
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, begin), daemon=True)
        self._process.start()
        other.close()

    def is_alive(self) -> bool:
        """Whether the process can be asked."""
        return bool(self._process.is_alive())

    def ask(self, content: bytes, seconds: float, unwanted: Callable[[], bool]) -> bytes | None:
        """Return the outcome; None after the deadline or when nobody wants it, with the end."""
        self._connection.send_bytes(content)
        deadline = time.monotonic() + _PATIENCE * seconds
        while not self._connection.poll(_LOOK):
            if time.monotonic() > deadline or unwanted():
                self.end()
                return None
        try:
            outcome: bytes = self._connection.recv_bytes()
        except EOFError:  # its timer ended it, or it died
            self.end()
            return None
        return outcome

    def end(self) -> None:
        """Kill the process; it holds nothing that must be saved."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _work(connection: Any, begin: Callable[[], Any]) -> None:
    """In a worker: compute one price after the other, until the server ends."""
    prepare_worker()
    begin()
    while True:
        try:
            content = connection.recv_bytes()
            with _timed(content):
                outcome = _outcome(content)
            connection.send_bytes(outcome)
        except (EOFError, OSError):
            return


@contextmanager
def _timed(content: bytes) -> Iterator[None]:
    """End this process when it has computed for too long: SIGPROF is not caught."""
    timer = getattr(signal, "setitimer", lambda *_: None)
    kind, seconds = getattr(signal, "ITIMER_PROF", 0), pickle.loads(content)[2]  # noqa: S301
    timer(kind, seconds)
    try:
        yield
    finally:
        timer(kind, 0)


def _outcome(content: bytes) -> bytes:
    """The pickled result of a call, or its error."""
    # Written by the server for its own worker, so it is safe to unpickle.
    function, arguments, _ = pickle.loads(content)  # noqa: S301
    try:
        return pickle.dumps((function(*arguments), None))
    except ExpostError as error:
        told: ExpostError = error
    except Exception as error:
        told = Unavailable(f"no price ({type(error).__name__})")
    return (_FLEETING if isinstance(told, Unavailable) else b"") + pickle.dumps((None, told))


def _value(outcome: bytes) -> Any:
    """The result of an outcome; its error is raised."""
    result, error = pickle.loads(outcome.removeprefix(_FLEETING))  # noqa: S301 - as above
    if error is not None:
        raise error
    return result
