"""Connections that send nothing end: the head of a call has a deadline, their number a limit.

A connection waits until the head of a call has arrived. One that waits too long is closed, and when
there are more connections than the process may have files, the one that has waited longest.
Tests: ``tests/server/test_connections.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from expost.errors import MissingExtra

try:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError:
    raise MissingExtra("uvicorn", "server") from None

HEAD_SECONDS = 10.0
_OTHER_FILES = 256  # databases, sources, pipes
_MOST = 10_000


def most_connections() -> int:
    """Return how many connections this process may have; raises its limit of files if it can."""
    try:
        import resource
    except ImportError:  # there is no such limit
        return _MOST
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(64, allowed - _OTHER_FILES)


class LimitedConnection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """A connection of the server that must say what it wants soon."""

    most = _MOST
    head_seconds = HEAD_SECONDS
    _waiting: ClassVar[dict[LimitedConnection, None]] = {}  # oldest first

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; end the connection that has waited longest if there are too many."""
        self._deadline: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            next(iter(self._waiting)).transport.close()

    def data_received(self, data: bytes) -> None:
        """Handle what has arrived; it may be the rest of a head."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Give the head of the next call its deadline, which more bytes do not move."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)
            self._waiting[self] = None

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._waiting.pop(self, None)
