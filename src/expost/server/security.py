"""What every HTTP exchange passes through: host check, body limit, headers, a log without secrets.

Written as plain ASGI, so that nothing is buffered. Tests: ``tests/server/test_security.py``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 8 * 2**20
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
log = logging.getLogger("expost.server.access")
errors = logging.getLogger("expost.server")


class Guard:
    """Checks and limits around the application.

    Parameters
    ----------
    app : ASGI application
        What is guarded.
    hosts : set of str
        The host names of accepted requests.
    secure : bool
        Whether the desk is reached over HTTPS only.
    """

    def __init__(self, app: App, *, hosts: frozenset[str], secure: bool) -> None:
        self._app, self._hosts = app, hosts
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        if secure:
            self._headers.append((b"strict-transport-security", b"max-age=31536000"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        headers = dict(scope["headers"])

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                extra = [pair for pair in self._headers if pair[0] not in present]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            if not self._known_host(headers.get(b"host", b"")):
                await _refuse(answer, 400, "this host name is not known here", "host")
            elif _too_long(headers.get(b"content-length")):
                await _refuse(answer, 413, "the body is too large", "body")
            else:
                await self._app(scope, _Limited(receive), answer)
        except _TooLarge:
            await _refuse(answer, 413, "the body is too large", "body")
        except Exception as error:  # its message and traceback may quote data
            errors.error("an unexpected error: %s", type(error).__name__)
            if not status:
                told = "an unexpected error; amounts that were reserved stay charged"
                await _refuse(answer, 500, told, None)
        finally:
            # No query, no headers, no body: they may hold secrets. No duration of data scans.
            route = getattr(scope.get("route"), "path", "-")
            milliseconds = (time.perf_counter() - began) * 1000
            log.info("%s %s %d %.0f ms", scope["method"], route, status, milliseconds)

    def _known_host(self, value: bytes) -> bool:
        text = value.decode("latin-1").lower()
        name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
        return name in self._hosts


class _TooLarge(Exception):
    """The body exceeds the limit."""


class _Limited:
    """Counts the bytes of a body whose length was not announced."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._size = receive, 0

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > LARGEST_BODY:
            raise _TooLarge
        return message


def _too_long(value: bytes | None) -> bool:
    if value is None:
        return False
    return not value.isdigit() or len(value) > 15 or int(value) > LARGEST_BODY


async def _refuse(send: Send, status: int, error: str, field: str | None) -> None:
    body = json.dumps({"error": error, "field": field, "valid": None}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
