"""Requests, releases and reports; budgets, entries and acts; their verification."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server.api import routes
from expost.server.api.access import Before, Id, Searched, Server, priced
from expost.server.jobs.states import APPROVAL, STATUSES
from expost.server.pages import amounts
from expost.server.pages.ask_pages import fields_again, lines
from expost.server.pages.rendering import (
    USER_ERRORS,
    Form,
    Me,
    Sender,
    again,
    check_fields,
    go,
    page,
    real,
    text,
)
from expost.server.people.accounts import ALLOWED, ANALYST, Person
from expost.server.problems import Conflict, NotFound
from expost.server.service import Service

router = APIRouter()

MOST_LINES = 1000
_WAITING = ("queued", "running")


Reload = Annotated[bool, Query()]
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
        "to_approve": 0,
    }
    if me.role in ALLOWED["approve"]:
        filled["to_approve"] = len(server.requests(me, PER_PAGE, None, {"status": APPROVAL}))
    return page("requests.html", me, requests=shown, older=older, **timing, **filled)


@router.get("/requests/{id}")
def request(server: Server, me: Me, id: Id, reload: Reload = True) -> Response:
    """Show one request: its status, its price and its charge."""
    return _request(server, me, id, reload)


def _request(server: Service, me: Person, id: str, reload: bool, **more: Any) -> Response:
    view = server.request(me, id)
    link = f"/ask/{view['dataset']}?{urlencode(fields_again(view), doseq=True)}"
    try:
        retired = not server.dataset(me, view["dataset"])
    except NotFound:
        retired = True
    timing = _timing(server, [view], reload)
    known: dict[str, Any] = {"again": link, "retired": retired, "fill": {}, "problem": None}
    known |= more
    if view["status"] == APPROVAL and me.role in ALLOWED["approve"]:
        known["standing"] = server.budget(me, view["price"]["budget"])
    return page("request.html", me, request=view, **known, **timing)


@router.post("/requests/{id}/approve")
async def send_approval(
    request: Request, server: Server, me: Sender, form: Form, id: Id
) -> Response:
    """Approve a question."""
    return await priced(request, _decided, server, me, form, id, server.approve)


@router.post("/requests/{id}/decline")
def send_refusal(server: Server, me: Sender, form: Form, id: Id) -> Response:
    """Decline a question."""
    return _decided(server, me, form, id, server.decline)


def _decided(server: Service, me: Person, form: Any, id: str, act: Any) -> Response:
    """Carry out a decision, or show the request with what is wrong with it."""
    try:
        act(me, id, check_fields(routes.Decision, {"reason": text(form, "reason")}).reason)
    except (InvalidInput, Conflict) as error:
        return _request(server, me, id, False, **again(form, error))
    return go(f"/requests/{id}")


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
    rows, ranked = "rows" in result, release["request"]["kind"] == "quantile"
    try:
        facts = server.dataset(me, release["request"]["dataset"]) if tuned else {}
    except NotFound:  # retired, or not open to this person
        facts = {}
    counted = not (tuned or rows or ranked)
    chart = amounts.intervals(result["answers"], result["unanswered"]) if counted else None
    return page(
        "release_tune.html" if tuned else "release_query.html" if rows else "release.html",
        me,
        request=release["request"],
        result=result,
        subgroups=facts.get("groups"),
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


After = Annotated[int, Query(ge=0, le=2**62)]
LINES_PER_PAGE = 200
_MOST_DAYS = 31
_HASHES = ("charges", "request", "release", "secret", "source", "outcome")


@router.get("/budgets")
def budgets(server: Server, me: Me) -> Response:
    """List the budgets."""
    return _budgets(server, me)


def _budgets(server: Service, me: Person, form: Any = None, error: Any = None) -> Response:
    values = again(form, error)
    return page("budgets.html", me, budgets=server.budgets(me), **values)


@router.post("/budgets")
def send_budget(server: Server, me: Sender, form: Form) -> Response:
    """Open a budget."""
    values = {name: text(form, name) for name in ("name", "kind", "renews", "neighbours")}
    try:
        caps = {who: _cap(given) for who, given in lines(form, "caps").items()}
        numbers = {"epsilon": real(form, "epsilon"), "delta": real(form, "delta")}
        body = check_fields(routes.NewBudget, values | numbers | {"caps": caps})
        server.open_budget(me, **body.model_dump())
    except USER_ERRORS as error:
        return _budgets(server, me, form, error)
    return go(f"/budgets/{body.name}")


def _cap(given: list[str] | None) -> float | None:
    if given is None or len(given) != 1:
        raise InvalidInput("caps", "a line", "give lines such as ann: 3")
    return real({"caps": given[0]}, "caps")


@router.get("/budgets/{name}")
def budget(server: Server, me: Me, name: str) -> Response:
    """Show one budget: limit, spent, held, left, over time and by whom."""
    return _budget(server, me, name)


def _budget(
    server: Service, me: Person, name: str, form: Any = None, error: Any = None
) -> Response:
    standing, past = server.budget(me, name), server.history(me, name)
    return page(
        "budget.html",
        me,
        budget=standing,
        history=past,
        chart=amounts.history(past),
        by_analyst=amounts.bars(past["by_analyst"]),
        by_dataset=amounts.bars(past["by_dataset"]),
        by_group=amounts.bars(past["by_group"]),
        by_day=amounts.bars(past["by_day"], in_order=True)[-_MOST_DAYS:],
        names=_analysts(server, me),
        **again(form, error),
    )


def _analysts(server: Service, me: Person) -> list[str]:
    """Whose cap an owner may change."""
    if me.role not in ALLOWED["change_budget"]:
        return []
    return [member["name"] for member in server.people(me) if member["role"] == ANALYST]


@router.post("/budgets/{name}")
def send_budget_change(server: Server, me: Sender, form: Form, name: str) -> Response:
    """Change the limit of a budget, or the cap of an analyst."""
    try:
        numbers = {"epsilon": real(form, "epsilon"), "delta": real(form, "delta")}
        values = {"reason": text(form, "reason"), "analyst": text(form, "analyst")}
        body = check_fields(routes.Change, numbers | values)
        server.change_budget(me, name, **body.model_dump())
    except USER_ERRORS as error:
        return _budget(server, me, name, form, error)
    return go(f"/budgets/{name}")


@router.get("/entries")
def entries_page(
    server: Server, me: Me, after: After = 0, budget: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """List entries of the ledger, oldest first."""
    listed = server.entries(me, after, LINES_PER_PAGE, budget or None)
    for entry in listed:
        entry["facts"] = _short(entry["detail"])
    more = listed[-1]["sequence"] if len(listed) == LINES_PER_PAGE else None
    names = [known["name"] for known in server.budgets(me)]
    return page("entries.html", me, entries=listed, more=more, budget=budget, names=names)


def _short(detail: Any) -> str:
    """The facts of an entry as text, without hashes; the API returns them whole."""
    whole = amounts.facts(detail, _HASHES)
    return whole if len(whole) <= 240 else whole[:240] + " …"


@router.get("/acts")
def acts_page(server: Server, me: Me, after: After = 0) -> Response:
    """List administrative acts, oldest first."""
    listed = [
        row | {"facts": _short(row["detail"])} for row in server.acts(me, after, LINES_PER_PAGE)
    ]
    more = listed[-1]["number"] if len(listed) == LINES_PER_PAGE else None
    return page("acts.html", me, acts=listed, more=more)


@router.get("/verify")
def verify_page(server: Server, me: Me) -> Response:
    """Check the whole ledger and the list of acts, and show what was found."""
    return page("verify.html", me, checked=server.verify(me))
