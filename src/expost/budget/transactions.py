"""Writers that share a commit, and forks that wait for transactions.

Writers of one process that wait together are committed together (:class:`GroupCommit`): the first
of them takes the lock, and then runs the work of all who came until then, in their order, in one
transaction. Processes follow one another: to let one process commit for another, work and results
would have to be handed over durably, which costs the commits that it saves.

A child that is forked inherits the memory of its parent, but neither its threads nor its locks. A
transaction that another thread had begun would stay half finished in the child, and closing its
connection there could disturb the parent's. So a fork waits (:class:`ForkGuard`).
Tests: ``tests/budget/test_concurrency.py``, ``tests/budget/test_crashes.py``,
``tests/server/test_store.py``.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

from expost.errors import ExpostError, LedgerError

_LARGEST_BATCH = 128
_LONGEST_WAIT = 150.0  # seconds; longer than any transaction waits for its lock

Connection = TypeVar("Connection")
Result = TypeVar("Result")
Begin = Callable[[], AbstractContextManager[Connection]]


class PendingWrite(Generic[Connection]):
    """A piece of a transaction, and what became of it."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.done = False
        self.error: BaseException | None = None
        self.result: Any = None


class GroupCommit(Generic[Connection]):
    """A queue of writers whose work is committed together.

    ``savepoint`` opens a part of a transaction that can be undone. An error of the type
    ``own_errors`` undoes its own piece of work only.
    """

    def __init__(
        self,
        savepoint: Callable[[Connection], AbstractContextManager[object]],
        own_errors: type[Exception],
    ) -> None:
        self._savepoint, self._own_errors = savepoint, own_errors
        self.queue: deque[PendingWrite[Connection]] = deque()
        self.leading = threading.RLock()

    def write(self, work: Callable[[Connection], Result], begin: Begin[Connection]) -> Result:
        """Run ``work`` in a transaction and return its result when it is durable.

        ``begin`` opens a transaction that excludes other writers. Each piece of work sees the
        changes of those before it. A piece that raises an error changes nothing, and its error is
        raised in its own thread, after the others are durable.
        """
        pending = PendingWrite(work)
        self.queue.append(pending)
        with self.leading:
            while not pending.done:
                self._run_together(begin)
        if pending.error is not None:
            raise pending.error
        result: Result = pending.result
        return result

    def _run_together(self, begin: Begin[Connection]) -> None:
        """Run the waiting work in one transaction; an error of it is an error of them all."""
        batch: list[PendingWrite[Connection]] = []
        try:
            with begin() as connection:
                batch = self._waiting()  # after the lock: those who came meanwhile take part
                for pending in batch:
                    self.run_one(connection, pending, alone=len(batch) == 1)
        except Exception as error:
            # Nothing was recorded, so that even a refusal may have rested on a state that is gone.
            batch = batch or self._waiting()
            for pending in batch:
                shared = len(batch) > 1 and isinstance(error, ExpostError)
                pending.error = LedgerError(str(error)) if shared else error
        except BaseException:
            # The others cannot know whether an interrupted commit was recorded.
            batch = batch or self._waiting()
            for pending in batch:
                pending.error = LedgerError(
                    "the write was interrupted: repeat the request with the same reservation id "
                    "and secret, or look whether it was recorded"
                )
            raise
        finally:
            for pending in batch:
                pending.done = True

    def run_one(
        self, connection: Connection, pending: PendingWrite[Connection], *, alone: bool
    ) -> None:
        """Run one piece of a transaction; if it fails, undo this piece only."""
        if alone:
            pending.result = pending.work(connection)
            return
        try:
            with self._savepoint(connection):
                pending.result = pending.work(connection)
        except self._own_errors as error:
            pending.error = error

    def _waiting(self) -> list[PendingWrite[Connection]]:
        """Take the work that waits, in the order in which it came."""
        count = min(len(self.queue), _LARGEST_BATCH)
        return [self.queue.popleft() for _ in range(count)]


class ForkGuard:
    """Counts the transactions of each thread of this process; a fork waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[int] = Counter()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Count a transaction while the block runs."""
        me = threading.get_ident()
        with self._changed:
            self._running[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[me] -= 1
                if not self._running[me]:
                    del self._running[me]
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait for the transactions of other threads, and let no new one begin."""
        self._changed.acquire()
        me = threading.get_ident()
        self._changed.wait_for(lambda: set(self._running) <= {me}, _LONGEST_WAIT)

    def after_in_parent(self) -> None:
        """Let transactions begin again."""
        self._changed.release()

    def after_in_child(self) -> None:
        """Start anew: the other threads do not exist here."""
        self._changed = threading.Condition()
        self._running = Counter()
