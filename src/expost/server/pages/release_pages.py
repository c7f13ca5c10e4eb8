"""Requests, releases, reports and their verification."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from expost.server.jobs.states import STATUSES
from expost.server.pages import amounts
from expost.server.pages.ask_pages import fields_again
from expost.server.pages.rendering import Me, Server, page
from expost.server.problems import NotFound

router = APIRouter()

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Before = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")]
MOST_LINES = 1000
_WAITING = ("queued", "running")


Reload = Annotated[bool, Query()]
Searched = Annotated[str, Query(max_length=100, pattern=r"^[^\x00]*$")]
PER_PAGE = 100


def _timing(server: Any, views: list[dict[str, Any]], reload: bool) -> dict[str, Any]:
    """When results appear, and after how many seconds the page loads itself again, if it does."""
    tick = float(server.settings.tick)
    waiting = any(view["status"] in _WAITING for view in views)
    seconds = max(1, math.ceil(tick))
    return {"tick": tick, "waiting": waiting, "refresh": seconds if waiting and reload else None}


@router.get("/requests")
def requests_page(
    server: Server,
    me: Me,
    before: Before = None,
    reload: Reload = True,
    text: Searched = "",
    status: Searched = "",
) -> Response:
    """List requests, newest first."""
    given = {name: word for name, word in (("text", text), ("status", status)) if word}
    views = server.requests(me, PER_PAGE + 1, before, given)
    shown = views[:PER_PAGE]
    older = shown[-1]["id"] if len(views) > PER_PAGE else None
    timing = _timing(server, shown, reload)
    year, search = datetime.now(UTC).year, urlencode(given)
    filled: dict[str, Any] = {
        "given": given,
        "search": search,
        "year": year,
        "statuses": STATUSES[2:],
    }
    return page("requests.html", me, requests=shown, older=older, **timing, **filled)


@router.get("/requests/{id}")
def request(server: Server, me: Me, id: Id, reload: Reload = True) -> Response:
    """Show one request: its status, its price and its charge."""
    view = server.request(me, id)
    link = f"/ask/{view['dataset']}?{urlencode(fields_again(view), doseq=True)}"
    try:
        retired = not server.dataset(me, view["dataset"])
    except NotFound:
        retired = True
    timing = _timing(server, [view], reload)
    return page("request.html", me, request=view, again=link, retired=retired, **timing)


@router.get("/releases/{id}")
def release_page(server: Server, me: Me, id: Id) -> Response:
    """Show a release: what it says, what it cost, what that means."""
    return _release(server, me, id, None)


@router.get("/releases/{id}/verify")
def verify_release_page(server: Server, me: Me, id: Id) -> Response:
    """Show a release with the result of comparing its certificate with the ledger."""
    return _release(server, me, id, server.verify_release(me, id))


def _release(server: Any, me: Any, identity: str, checked: dict[str, Any] | None) -> Response:
    release = server.release(me, identity)
    report = server.report(me, identity)
    tuned = release["request"]["kind"] == "tune"
    result = release["result"]
    chart = None if tuned else amounts.intervals(result["answers"], result["unanswered"])
    return page(
        "release_tune.html" if tuned else "release.html",
        me,
        request=release["request"],
        result=result,
        report=report,
        sections={section["heading"]: section for section in report["sections"]},
        chart=chart,
        most=MOST_LINES,
        checked=checked,
    )


@router.get("/releases/{id}/report")
def report_page(server: Server, me: Me, id: Id) -> Response:
    """Show the one-page report for officers, made to be printed."""
    return page("report.html", me, report=server.report(me, id))
