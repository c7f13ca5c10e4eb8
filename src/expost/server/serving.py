"""Listening: processes that share a socket, and are started again when they die.

The first process answers nobody: it has the pool of prices, and starts the others as forks of a
process that is warm (:mod:`expost.server.jobs.warm`), which listen when they can work.

Connections that send nothing end: the head of a call has a deadline, their number a limit. One that
waits too long for its head is closed, and when there are more connections than the process may have
files, the one that has waited longest.

Tests: ``tests/server/test_start.py``, ``tests/server/test_workers.py``,
``tests/server/test_connections.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, ClassVar

from expost.errors import MissingExtra
from expost.execution.workers import forks_of
from expost.server.api.access import AnsweredCalls
from expost.server.app import create_app
from expost.server.jobs import WARM
from expost.server.jobs.prices import PoolOffer, price_pool
from expost.server.server_settings import OutsideSettings, ServerSettings

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError:
    raise MissingExtra("uvicorn", "server") from None

HEAD_SECONDS = 10.0
_OTHER_FILES = 256  # databases, sources, pipes
_MOST = 10_000
_PAUSE = 1.0  # seconds before a process that died is started again
_LONGEST_END = 12.0


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


class JsonLines(logging.Formatter):
    """Writes each message of the log as one JSON document on a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message; a traceback, which may quote data, is left out."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        return json.dumps(line | getattr(record, "fields", {}), ensure_ascii=False)


def set_logging(*, quiet: bool, json_lines: bool) -> None:
    """Write the log of this process to its error stream."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("expost.server").setLevel(logging.WARNING if quiet else logging.INFO)
    if json_lines:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())


def server_tracer() -> Any:
    """Return a tracer of OpenTelemetry if its variables name a collector; else None."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not any(os.environ.get(name) for name in names):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("opentelemetry-sdk", "telemetry") from None
    name = os.environ.get("OTEL_SERVICE_NAME", "expost-server")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("expost.server")


def listen(
    settings: ServerSettings, proxies: list[str], processes: int, log: dict[str, bool]
) -> None:
    """Serve in so many processes until this one is told to end."""
    context = forks_of(WARM)
    shared = uvicorn.Config("", **_options(settings, proxies)).bind_socket()
    alive, mine = context.Pipe(duplex=False)  # children see its end when this process dies
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    pool = price_pool(settings, OutsideSettings.read(settings.home))
    offer = PoolOffer(pool)
    settings = replace(settings, pool=offer.address if settings.pricers else None)

    numbers = context.RawArray("Q", processes * AnsweredCalls.CLASSES)

    def begin(position: int) -> Any:
        given = settings, proxies, shared, alive, log, AnsweredCalls(numbers, position)
        child = context.Process(target=_listen_beside, args=given)
        child.start()
        return child

    pool.warm()
    children = [begin(position) for position in range(processes)]
    while not ending.is_set():
        wait([child.sentinel for child in children], timeout=0.2)
        for position, child in enumerate(children):
            if not child.is_alive() and not ending.wait(_PAUSE):
                with suppress(OSError, EOFError):  # what forks them has died as well: soon again
                    children[position] = begin(position)
    _end(children)
    offer.close()
    pool.close()
    mine.close()


def _end(children: list[Any]) -> None:
    """End processes as SIGTERM does, and those that take too long at once."""
    deadline = time.monotonic() + _LONGEST_END
    for child in children:
        child.terminate()
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()
        child.join()


def _listen_beside(
    settings: ServerSettings,
    proxies: list[str],
    shared: Any,
    alive: Any,
    log: dict[str, bool],
    answered: AnsweredCalls,
) -> None:
    """In a process of several: serve on the shared socket while the first process lives."""
    os.umask(0o077)
    set_logging(**log)
    LimitedConnection.most = most_connections()
    threading.Thread(target=_follow, args=(alive,), daemon=True).start()
    app = create_app(settings, tracer=server_tracer(), answered=answered)
    uvicorn.Server(uvicorn.Config(app, **_options(settings, proxies))).run(sockets=[shared])


def _follow(alive: Any, end: Callable[[int], Any] = os._exit) -> None:
    """End at once when the process that started this one was killed: a new one needs the port."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        end(1)


def _options(settings: ServerSettings, proxies: list[str]) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "access_log": False,  # it would hold addresses with their queries
        "log_level": "warning",
        "server_header": False,
        "timeout_graceful_shutdown": 2,
        "http": LimitedConnection,
        # By default Uvicorn believes every caller on this machine, who could avoid all limits.
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies,
        "log_config": None,  # messages go to the log of the server
    }
