"""Who makes an HTTP call: a token in ``Authorization``, or a session cookie with its CSRF value.

The pages use :func:`person_of`, :func:`check_csrf` and the cookie functions as the API does.
Tests: ``tests/server/test_signin.py``, ``tests/server/test_roles.py``.
"""

from __future__ import annotations

import hmac
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from expost.server.people import Person
from expost.server.problems import Denied, NotSignedIn
from expost.server.service import Service
from expost.server.signin import COOKIE, SESSION_SECONDS

CSRF_HEADER = "x-csrf-token"
SAFE = ("GET", "HEAD", "OPTIONS")


def address_of(request: Request) -> str:
    """Return the address of the caller, for limits on attempts."""
    return request.client.host if request.client else "unknown"


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


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
        return service_of(request).signin.by_token(token.strip(), address_of(request))
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
