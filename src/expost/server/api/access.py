"""What every HTTP call passes through, and who makes it.

Host check, body limit, headers and a log without secrets (:class:`Guard`, plain ASGI, so that
nothing is buffered); a token in ``Authorization``, or a session cookie with its CSRF value.

The pages use :func:`person_of`, :func:`check_csrf` and the cookie functions as the API does.
Tests: ``tests/server/test_security.py``, ``tests/server/test_roles.py``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, MutableSequence
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from expost.server.jobs.prices import client_left
from expost.server.people.accounts import Person
from expost.server.people.signin import COOKIE, SESSION_SECONDS
from expost.server.problems import Denied, NotSignedIn
from expost.server.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Result = TypeVar("Result")

_MOST_PRICING, _LOOK_SECONDS = 128, 0.25
LARGEST_BODY, BODY_SECONDS = 8 * 2**20, 30.0
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
log = logging.getLogger("expost.server.api.access")
errors = logging.getLogger("expost.server")
CSRF_HEADER = "x-csrf-token"
SAFE = ("GET", "HEAD", "OPTIONS")


def address_of(request: Request) -> str:
    """Return the address of the caller, for limits on attempts."""
    return request.client.host if request.client else "unknown"


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


async def _service(request: Request) -> Service:
    """The service; a coroutine, which needs no thread."""
    return service_of(request)


Server = Annotated[Service, Depends(_service)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Before = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")]
Searched = Annotated[str, Query(max_length=100, pattern=r"^[^\x00]*$")]


def person_of(request: Request) -> Person:
    """Return who calls, or raise :class:`NotSignedIn`. Unsafe calls by cookie need the CSRF value.

    An HTML form sends it as the field ``csrf``; a page must then call :func:`check_csrf` itself
    and pass ``request`` to :func:`cookie_person`.
    """
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    if given:
        if scheme.lower() != "bearer":
            raise NotSignedIn
        return service_of(request).by_token(token.strip(), address_of(request))
    person = cookie_person(request)
    if request.method not in SAFE:
        check_csrf(person, request.headers.get(CSRF_HEADER))
    return person


def cookie_person(request: Request) -> Person:
    """Return who the session cookie belongs to; the CSRF value is not checked."""
    value = request.cookies.get(COOKIE)
    if not value:
        raise NotSignedIn
    return service_of(request).signin.by_cookie(value)


def check_csrf(person: Person, given: Any) -> None:
    """Refuse an unsafe call that does not repeat the CSRF value of its session."""
    wanted = person.csrf or ""
    sent = given if isinstance(given, str) else ""
    if not wanted or not hmac.compare_digest(wanted.encode(), sent.encode("utf-8", "replace")):
        raise Denied("the CSRF token is missing or wrong", CSRF_HEADER, "reload the page")


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Put a session into the response."""
    response.set_cookie(
        COOKIE,
        value,
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="strict",
        secure=service_of(request).settings.cookies_secure,
    )


def clear_cookie(request: Request, response: Response) -> None:
    """Remove the session from the browser."""
    response.delete_cookie(
        COOKIE,
        path="/",
        httponly=True,
        samesite="strict",
        secure=service_of(request).settings.cookies_secure,
    )


async def priced(request: Request, call: Callable[..., Result], *arguments: Any) -> Result:
    """Run a call that computes prices; it is told when the client leaves.

    It waits in a thread, of a number of its own, so that other calls always find one.
    """
    state, left = request.app.state, threading.Event()
    if not hasattr(state, "pricing"):
        state.pricing = anyio.CapacityLimiter(_MOST_PRICING)

    async def watch() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(_LOOK_SECONDS)
        left.set()

    watching = asyncio.create_task(watch())
    client_left.set(left)
    try:
        return await anyio.to_thread.run_sync(call, *arguments, limiter=state.pricing)
    finally:
        watching.cancel()


class AnsweredCalls:
    """Numbers of answered calls by class of status, summed over the processes of a server.

    ``numbers`` is memory that the processes share, and ``row`` the part in which this process
    alone counts, as the one did that it replaces.
    """

    CLASSES = 6

    def __init__(self, numbers: MutableSequence[int] | None = None, row: int = 0) -> None:
        self._numbers = [0] * self.CLASSES if numbers is None else numbers
        self._first = row * self.CLASSES

    def add(self, status: int) -> None:
        """Count a call that this process has answered."""
        self._numbers[self._first + status // 100] += 1

    def total(self, group: int) -> int:
        """Return how many calls all processes have answered with a status of this class."""
        return sum(self._numbers[group :: self.CLASSES])


class Guard:
    """Checks and limits around the application; ``answered`` counts calls by class of status.

    Calls about one request or data set are left out.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: frozenset[str],
        secure: bool,
        answered: AnsweredCalls,
        tracer: Any = None,
    ) -> None:
        self._app, self._hosts, self._tracer = app, hosts, tracer
        self._answered = answered
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        if secure:
            self._headers.append((b"strict-transport-security", b"max-age=31536000"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        headers, body = dict(scope["headers"]), _Limited(receive)

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"] = body.status or message["status"]
                # How often a request is looked at, and found, depends on its run.
                if "{" not in getattr(scope.get("route"), "path", "-"):
                    self._answered.add(status)
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
                await self._app(scope, body, answer)
        except _BadBody as error:
            await _refuse(answer, error.status, error.args[0], "body")
        except Exception as error:  # its message and traceback may quote data
            errors.error("an unexpected error: %s", type(error).__name__)
            if not status:
                told = "an unexpected error; amounts that were reserved stay charged"
                await _refuse(answer, 500, told, None)
        finally:
            # No query, no headers, no body: they may hold secrets. No duration of data scans.
            route = getattr(scope.get("route"), "path", "-")
            milliseconds = (time.perf_counter() - began) * 1000
            fields = {"method": scope["method"], "route": route, "status": status}
            words = f"{scope['method']} {route} {status} {milliseconds:.0f} ms"
            log.info(words, extra={"fields": fields | {"milliseconds": round(milliseconds)}})
            if self._tracer is not None and not _may_read_rows(scope["method"], route):
                self._trace(scope["method"], route, status, milliseconds)

    def _trace(self, method: str, route: str, status: int, milliseconds: float) -> None:
        """Tell OpenTelemetry about a call: what the log has, and nothing more."""
        told = {"http.request.method": method, "http.route": route}
        end = time.time_ns()
        begin, attributes = (
            end - int(milliseconds * 1e6),
            told | {"http.response.status_code": status},
        )
        span = self._tracer.start_span(f"{method} {route}", start_time=begin, attributes=attributes)
        span.end(end)

    def _known_host(self, value: bytes) -> bool:
        text = value.decode("latin-1").lower()
        name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
        return name in self._hosts


class _BadBody(Exception):
    """The body exceeds the limit, or does not arrive."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        super().__init__(words)


class _Limited:
    """Counts the bytes of a body, and gives all of it a deadline.

    ``status`` is that of a body that was refused: a framework may catch the error on its way.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive, self._size, self._whole = receive, 0, False
        self._deadline = time.monotonic() + BODY_SECONDS
        self.status = 0

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._whole:  # what follows says that the client left
            return await self._receive()
        try:
            seconds = self._deadline - time.monotonic()
            message = await asyncio.wait_for(self._receive(), max(0.0, seconds))
        except TimeoutError:
            raise self._refused(408, "the body did not arrive in time") from None
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > LARGEST_BODY:
            raise self._refused(413, "the body is too large")
        return message

    def _refused(self, status: int, words: str) -> _BadBody:
        self.status = status
        return _BadBody(status, words)


def _may_read_rows(method: str, route: str) -> bool:
    """Whether the duration of a call may depend on rows: facts are bought with a data set."""
    return method not in SAFE and ("datasets" in route or "register" in route)


def _too_long(value: bytes | None) -> bool:
    if value is None:
        return False
    return not value.isdigit() or len(value) > 15 or int(value) > LARGEST_BODY


async def _refuse(send: Send, status: int, error: str, field: str | None) -> None:
    body = json.dumps({"error": error, "field": field, "valid": None}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
