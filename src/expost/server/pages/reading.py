"""Requests, releases, reports and their verification."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from expost.server.documents import job_words
from expost.server.pages import charts
from expost.server.pages.forms import again
from expost.server.pages.rendering import Desk, Me, page
from expost.server.problems import Missing

router = APIRouter()

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Before = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")]
MOST_LINES = 1000
_WAITING = ("queued", "running")


Reload = Annotated[bool, Query()]
PER_PAGE = 100


def _timing(desk: Any, views: list[dict[str, Any]], reload: bool) -> dict[str, Any]:
    """When results appear, and after how many seconds the page loads itself again, if it does."""
    tick = float(desk.settings.tick)
    waiting = any(view["status"] in _WAITING for view in views)
    seconds = max(1, math.ceil(tick))
    return {"tick": tick, "waiting": waiting, "refresh": seconds if waiting and reload else None}


@router.get("/requests")
def requests(desk: Desk, me: Me, before: Before = None, reload: Reload = True) -> Response:
    """List requests, newest first."""
    views = desk.requests(me, PER_PAGE + 1, before)
    shown = views[:PER_PAGE]
    older = shown[-1]["id"] if len(views) > PER_PAGE else None
    timing = _timing(desk, shown, reload)
    return page("requests.html", me, requests=shown, older=older, **timing)


@router.get("/requests/{id}")
def request(desk: Desk, me: Me, id: Id, reload: Reload = True) -> Response:
    """Show one request: its status, its price and its charge."""
    view = desk.request(me, id)
    link = f"/ask/{view['dataset']}?{urlencode(again(view), doseq=True)}"
    try:
        retired = not desk.dataset(me, view["dataset"])
    except Missing:
        retired = True
    timing = _timing(desk, [view], reload)
    return page("request.html", me, request=view, again=link, retired=retired, **timing)


@router.get("/releases/{id}")
def release(desk: Desk, me: Me, id: Id) -> Response:
    """Show a release: what it says, what it cost, what that means."""
    return _release(desk, me, id, None)


@router.get("/releases/{id}/verify")
def verify(desk: Desk, me: Me, id: Id) -> Response:
    """Show a release with the result of comparing its certificate with the ledger."""
    return _release(desk, me, id, desk.verify_release(me, id))


def _release(desk: Any, me: Any, identity: str, checked: dict[str, Any] | None) -> Response:
    found = desk.release(me, identity)
    report = desk.report(me, identity)
    tuned = found["request"]["kind"] == "tune"
    result = found["result"]
    chart = None if tuned else charts.intervals(result["answers"], result["unanswered"])
    return page(
        "release_tune.html" if tuned else "release.html",
        me,
        request=found["request"],
        result=result,
        report=report,
        sections={each["heading"]: each for each in report["sections"]},
        chart=chart,
        words=job_words(found["certificate"]["tuning"]) if tuned else None,
        most=MOST_LINES,
        checked=checked,
    )


@router.get("/releases/{id}/report")
def report(desk: Desk, me: Me, id: Id) -> Response:
    """Show the one-page report for officers, made to be printed."""
    return page("report.html", me, report=desk.report(me, id))
