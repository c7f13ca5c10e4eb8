"""Budgets over time, entries of the ledger, administrative acts, and their verification."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server.api import routes
from expost.server.api.access import Server
from expost.server.pages import amounts
from expost.server.pages.ask_pages import lines
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
from expost.server.service import Service

router = APIRouter()

After = Annotated[int, Query(ge=0, le=2**62)]
PER_PAGE = 200
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
    listed = server.entries(me, after, PER_PAGE, budget or None)
    for entry in listed:
        entry["facts"] = _short(entry["detail"])
    more = listed[-1]["sequence"] if len(listed) == PER_PAGE else None
    names = [known["name"] for known in server.budgets(me)]
    return page("entries.html", me, entries=listed, more=more, budget=budget, names=names)


def _short(detail: Any) -> str:
    """The facts of an entry as text, without hashes; the API returns them whole."""
    whole = amounts.facts(detail, _HASHES)
    return whole if len(whole) <= 240 else whole[:240] + " …"


@router.get("/acts")
def acts_page(server: Server, me: Me, after: After = 0) -> Response:
    """List administrative acts, oldest first."""
    listed = [row | {"facts": _short(row["detail"])} for row in server.acts(me, after, PER_PAGE)]
    more = listed[-1]["number"] if len(listed) == PER_PAGE else None
    return page("acts.html", me, acts=listed, more=more)


@router.get("/verify")
def verify_page(server: Server, me: Me) -> Response:
    """Check the whole ledger and the list of acts, and show what was found."""
    return page("verify.html", me, checked=server.verify(me))
