"""Errors as pages; calls of the API keep their JSON."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import BudgetRefused, ExpostError, InvalidInput
from expost.server.access import cookie_person
from expost.server.pages.rendering import go, page
from expost.server.people import Person
from expost.server.problems import DeskError, NotSignedIn

_TITLES = {
    400: "This request cannot be read",
    401: "Sign in first",
    402: "The budget refuses",
    403: "This is not part of your role",
    404: "Not found",
    405: "Not possible here",
    409: "This does not fit",
    413: "Too large",
    422: "Something in the form is not valid",
    429: "Too many attempts",
    503: "Not possible now",
}


def install(app: FastAPI) -> None:
    """Answer errors outside the API with pages."""
    from expost.server.app import HANDLERS

    def either(kind: Any) -> Any:
        plain = HANDLERS[kind]

        async def handler(request: Request, error: Any) -> Response:
            if request.url.path.startswith(("/api/", "/openapi.json")):
                response: Response = await plain(request, error)
                return response
            person = await run_in_threadpool(_person, request)
            return told(request, error, person)

        return handler

    for kind in HANDLERS:
        app.add_exception_handler(kind, either(kind))


def _person(request: Request) -> Person | None:
    """Who is signed in, for the navigation of the page; None if nobody is."""
    try:
        return cookie_person(request)
    except ExpostError:
        return None


def told(request: Request, error: Any, person: Person | None = None) -> Response:
    """Return the page of an error: its own words for expected ones, none for others."""
    if isinstance(error, NotSignedIn):
        wanted = request.url.path if request.method == "GET" else "/"
        return go("/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted, safe='/')}")
    status, field, valid = 503, None, None
    words = "The desk cannot do this now. Try again later."
    if isinstance(error, DeskError):
        status, words, field, valid = error.status, error.error, error.field, error.valid
    elif isinstance(error, InvalidInput):
        status, words, field, valid = 422, f"{error.field} is not valid", error.field, error.valid
    elif isinstance(error, BudgetRefused):
        status, words = 402, "The budget refuses the request; nothing was charged."
    elif isinstance(error, RequestValidationError):
        status, words = 422, "The address or the form is not valid."
    elif isinstance(error, HTTPException):
        status, words = error.status_code, "There is no such page."
        if status != 404:
            words = "The server does not accept this."
    elif not isinstance(error, ExpostError):
        status = 500
    title = _TITLES.get(status, "This did not work")
    return page(
        "error.html", person, status=status, title=title, words=words, field=field, valid=valid
    )
