"""The pages of a desk: HTML made on the server, readable without JavaScript.

Every page calls actions of the service with the person of the session, as the API does; none reads
tables. Templates escape everything that people or data can write. Style and script are files of the
package, because the content security policy forbids inline ones.
Tests: ``tests/server/test_pages.py``, ``tests/server/test_browser.py``.
"""

from __future__ import annotations

from fastapi import FastAPI

from expost.server.pages import administration, asking, budgets, failures, reading, signing, static
from expost.server.service import Service

__all__ = ["install"]

ROOMS = (signing, asking, reading, budgets, administration, static)


def install(app: FastAPI, service: Service) -> None:
    """Add the pages to the application of a desk."""
    for room in ROOMS:
        app.include_router(room.router, include_in_schema=False)
    failures.install(app)
