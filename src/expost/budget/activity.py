"""Make a fork wait until no other thread is inside a transaction.

A child inherits the memory of its parent, but neither its threads nor its locks. A transaction that
another thread had begun would stay half finished in the child, and closing its connection there
could disturb the parent's. Tests: ``tests/budget/test_crashes.py``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_WAIT = 150.0  # seconds; longer than any transaction waits for its lock


class Activity:
    """Counts the transactions of each thread of this process."""

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
