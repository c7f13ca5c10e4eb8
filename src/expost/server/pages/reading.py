"""Requests, releases, reports and their verification."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from expost.server.pages import charts
from expost.server.pages.forms import again
from expost.server.pages.rendering import Desk, Me, page

router = APIRouter()

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
MOST_LINES = 1000
_WAITING = ("queued", "running")


def _refresh(desk: Any, views: list[dict[str, Any]]) -> int | None:
    """Seconds until the page loads itself again, if something is waiting."""
    if not any(view["status"] in _WAITING for view in views):
        return None
    return max(1, math.ceil(float(desk.settings.tick)))


@router.get("/requests")
def requests(desk: Desk, me: Me, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Response:
    """List requests, newest first."""
    views = desk.requests(me, limit)
    return page("requests.html", me, requests=views, refresh=_refresh(desk, views), limit=limit)


@router.get("/requests/{id}")
def request(desk: Desk, me: Me, id: Id) -> Response:
    """Show one request: its status, its price and its charge."""
    view = desk.request(me, id)
    link = f"/ask/{view['dataset']}?{urlencode(again(view), doseq=True)}"
    return page("request.html", me, request=view, refresh=_refresh(desk, [view]), again=link)


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
    answers = [] if tuned else [*found["result"]["answers"], *found["result"]["unanswered"]]
    return page(
        "release_tune.html" if tuned else "release.html",
        me,
        request=found["request"],
        result=found["result"],
        report=report,
        sections={each["heading"]: each for each in report["sections"]},
        chart=charts.intervals(answers),
        most=MOST_LINES,
        checked=checked,
    )


@router.get("/releases/{id}/report")
def report(desk: Desk, me: Me, id: Id) -> Response:
    """Show the one-page report for officers, made to be printed."""
    return page("report.html", me, report=desk.report(me, id))
