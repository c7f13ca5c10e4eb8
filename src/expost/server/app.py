"""The application: API, pages, error handling. Tests: ``tests/server/test_api.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from expost.errors import BudgetRefused, ExpostError, InvalidInput, MissingExtra

try:
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
except ImportError:
    raise MissingExtra("fastapi", "server") from None

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from expost._version import __version__
from expost.server.api import router
from expost.server.problems import DeskError
from expost.server.security import Guard
from expost.server.service import Service
from expost.server.settings import Settings

log = logging.getLogger("expost.server")


def create_app(settings: Settings, *, run: bool = True) -> FastAPI:
    """Return the application of a desk.

    Parameters
    ----------
    settings : Settings
        Where the desk keeps its files, and how it listens.
    run : bool, default True
        Whether this process runs queued requests. The threads start with the application.

    Returns
    -------
    FastAPI
        The application; ``app.state.service`` is the :class:`Service`.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if run:
            service.runner.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="expost desk",
        version=__version__,
        summary="Ask a question; receive a differentially private release.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    app.include_router(router)
    for error, handler in HANDLERS.items():
        app.add_exception_handler(error, handler)
    if find_spec("expost.server.pages") is not None:
        from importlib import import_module

        import_module("expost.server.pages").install(app, service)
    app.add_middleware(Guard, hosts=settings.allowed_hosts, secure=settings.cookies_secure)
    return app


def _json(status: int, error: str, field: str | None = None, valid: str | None = None) -> Response:
    return JSONResponse({"error": error, "field": field, "valid": valid}, status_code=status)


async def _desk_error(_: Request, error: Any) -> Response:
    return JSONResponse(error.as_dict(), status_code=error.status)


async def _invalid(_: Request, error: Any) -> Response:
    return _json(422, f"{error.field} is not valid", error.field, error.valid)


async def _refused(_: Request, error: Any) -> Response:
    return _json(402, "the budget refuses the request; nothing was charged", "budget")


async def _expected(_: Request, error: Any) -> Response:
    log.error("a request failed: %s", type(error).__name__)
    return _json(503, "the desk cannot do this now")


async def _malformed(_: Request, error: Any) -> Response:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return _json(422, "the request is not valid", field[:200], str(first["msg"])[:200])


async def _http(_: Request, error: Any) -> Response:
    return _json(error.status_code, str(error.detail))


HANDLERS: dict[Any, Any] = {
    DeskError: _desk_error,
    InvalidInput: _invalid,
    BudgetRefused: _refused,
    ExpostError: _expected,
    RequestValidationError: _malformed,
    HTTPException: _http,
}
"""Errors as JSON. Pages may register others that answer calls outside ``/api/`` with HTML."""
