"""Listening: processes that share a socket, and are started again when they die.

The first process answers nobody: it has the pool of prices, and starts the others as forks of a
process that is warm (:mod:`expost.server.jobs.warm`), which listen when they can work.

Tests: ``tests/server/test_start.py``, ``tests/server/test_workers.py``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from expost.errors import MissingExtra
from expost.execution.processes import forks_of
from expost.server.api.connections import LimitedConnection, most_connections
from expost.server.app import create_app
from expost.server.jobs import WARM
from expost.server.jobs.price_pool import PoolOffer, price_pool
from expost.server.server_settings import OutsideSettings, ServerSettings

try:
    import uvicorn
except ImportError:
    raise MissingExtra("uvicorn", "server") from None

_PAUSE = 1.0  # seconds before a process that died is started again
_LONGEST_END = 12.0


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

    def begin() -> Any:
        child = context.Process(target=_listen_beside, args=(settings, proxies, shared, alive, log))
        child.start()
        return child

    pool.warm()
    children = [begin() for _ in range(processes)]
    while not ending.is_set():
        wait([child.sentinel for child in children], timeout=0.2)
        for position, child in enumerate(children):
            if not child.is_alive() and not ending.wait(_PAUSE):
                children[position] = begin()
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
    settings: ServerSettings, proxies: list[str], shared: Any, alive: Any, log: dict[str, bool]
) -> None:
    """In a process of several: serve on the shared socket while the first process lives."""
    os.umask(0o077)
    set_logging(**log)
    LimitedConnection.most = most_connections()
    threading.Thread(target=_follow, args=(alive,), daemon=True).start()
    app = create_app(settings, tracer=server_tracer())
    uvicorn.Server(uvicorn.Config(app, **_options(settings, proxies))).run(sockets=[shared])


def _follow(alive: Any, end: Callable[[int, int], None] = os.kill) -> None:
    """End this process when the one that started it was killed; a new one needs its port."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        end(os.getpid(), signal.SIGKILL)


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
