"""The application: API, pages, and errors as JSON or as pages.

Tests: ``tests/server/test_security.py``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from expost.errors import BudgetRefused, ExpostError, InvalidInput, MissingExtra

try:
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
except ImportError:
    raise MissingExtra("fastapi", "server") from None

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from expost._version import __version__
from expost.server import pages
from expost.server.api.access import AnsweredCalls, Guard, cookie_person
from expost.server.api.routes import router
from expost.server.pages.rendering import go, page
from expost.server.people.accounts import Person
from expost.server.problems import NotSignedIn, ServerProblem
from expost.server.server_settings import ServerSettings
from expost.server.service import Service

log = logging.getLogger("expost.server")
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


def create_app(
    settings: ServerSettings,
    *,
    run: bool = True,
    tracer: Any = None,
    answered: AnsweredCalls | None = None,
) -> FastAPI:
    """Return the application of a server; ``app.state.service`` is its :class:`.Service`.

    ``run`` says whether this process runs queued requests; its threads start with the application.
    ``tracer`` is one of OpenTelemetry, which is told of calls. ``answered`` counts them together
    with other processes.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if run:
            service.runner.start()
            service.notices.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="expost server",
        version=__version__,
        summary="Ask a question; receive a differentially private release.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service, app.state.answered = service, answered or AnsweredCalls()
    app.include_router(router)
    for module in pages.MODULES:
        app.include_router(module.router, include_in_schema=False)
    for error in (ExpostError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _tell)
    hosts, secure = settings.allowed_hosts, settings.cookies_secure
    counted = app.state.answered
    app.add_middleware(Guard, hosts=hosts, secure=secure, answered=counted, tracer=tracer)
    return app


async def _tell(request: Request, error: Any) -> Response:
    """Answer an error: as JSON in the API, elsewhere as a page."""
    status, words, field, valid = _problem(error)
    if request.url.path.startswith(("/api/", "/openapi.json")):
        return JSONResponse({"error": words, "field": field, "valid": valid}, status_code=status)
    if isinstance(error, NotSignedIn):
        wanted = request.url.path if request.method == "GET" else "/"
        if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
            return page("continue.html", None, next=wanted)  # the next call brings the cookie
        return go("/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted, safe='/')}")
    person = await run_in_threadpool(_person, request)
    if isinstance(error, RequestValidationError):
        words, field, valid = "The address or the form is not valid.", None, None
    elif isinstance(error, HTTPException):
        words = "There is no such page." if status == 404 else "The server does not accept this."
    title = _TITLES.get(status, "This did not work")
    field = field if status == 422 else None  # of a form
    return page(
        "error.html", person, status=status, title=title, words=words, field=field, valid=valid
    )


def _problem(error: Any) -> tuple[int, str, str | None, str | None]:
    """The status of an error, its words, the field that is wrong and what would be valid."""
    if isinstance(error, ServerProblem):
        return error.status, error.error, error.field, error.valid
    if isinstance(error, InvalidInput):
        return 422, f"{error.field} is not valid", error.field, error.valid
    if isinstance(error, BudgetRefused):
        return 402, "the budget refuses the request; nothing was charged", "budget", None
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        return 422, "the request is not valid", field[:200], str(first["msg"])[:200]
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail), None, None
    log.error("a request failed: %s", type(error).__name__)  # its message may quote data
    return 503, "the server cannot do this now; try again later", None, None


def _person(request: Request) -> Person | None:
    """Who is signed in; None if nobody is."""
    try:
        return cookie_person(request)
    except ExpostError:
        return None
