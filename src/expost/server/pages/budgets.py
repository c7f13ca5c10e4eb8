"""Budgets over time, entries of the ledger, administrative acts, and their verification."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server import models
from expost.server.pages import amounts, charts
from expost.server.pages.forms import lines
from expost.server.pages.rendering import (
    MENDABLE,
    Desk,
    Form,
    Me,
    Sender,
    again,
    checked,
    go,
    page,
    real,
    text,
)
from expost.server.people import ANALYST, Person
from expost.server.roles import ALLOWED
from expost.server.service import Service

router = APIRouter()

After = Annotated[int, Query(ge=0, le=2**62)]
PER_PAGE = 200
_HASHES = ("charges", "request", "release", "secret", "source", "outcome")


@router.get("/budgets")
def budgets(desk: Desk, me: Me) -> Response:
    """List the budgets."""
    return _budgets(desk, me)


def _budgets(desk: Service, me: Person, form: Any = None, error: Any = None) -> Response:
    values = again(form, error)
    return page("budgets.html", me, budgets=desk.budgets(me), **values)


@router.post("/budgets")
def open_budget(desk: Desk, me: Sender, form: Form) -> Response:
    """Open a budget."""
    values = {name: text(form, name) for name in ("name", "kind", "renews", "neighbours")}
    try:
        caps = {who: _cap(given) for who, given in lines(form, "caps").items()}
        numbers = {"epsilon": real(form, "epsilon"), "delta": real(form, "delta")}
        body = checked(models.NewBudget, values | numbers | {"caps": caps})
        desk.open_budget(me, **body.model_dump())
    except MENDABLE as error:
        return _budgets(desk, me, form, error)
    return go(f"/budgets/{body.name}")


def _cap(given: list[str] | None) -> float | None:
    if given is None or len(given) != 1:
        raise InvalidInput("caps", "a line", "give lines such as ann: 3")
    return real({"caps": given[0]}, "caps")


@router.get("/budgets/{name}")
def budget(desk: Desk, me: Me, name: str) -> Response:
    """Show one budget: limit, spent, held, left, over time and by whom."""
    return _budget(desk, me, name)


def _budget(desk: Service, me: Person, name: str, form: Any = None, error: Any = None) -> Response:
    standing, past = desk.budget(me, name), desk.history(me, name)
    return page(
        "budget.html",
        me,
        budget=standing,
        history=past,
        chart=charts.history(past),
        by_analyst=charts.bars(past["by_analyst"]),
        by_dataset=charts.bars(past["by_dataset"]),
        names=_analysts(desk, me),
        **again(form, error),
    )


def _analysts(desk: Service, me: Person) -> list[str]:
    """Whose cap an owner may change."""
    if me.role not in ALLOWED["change_budget"]:
        return []
    return [each["name"] for each in desk.people(me) if each["role"] == ANALYST]


@router.post("/budgets/{name}")
def change_budget(desk: Desk, me: Sender, form: Form, name: str) -> Response:
    """Change the limit of a budget, or the cap of an analyst."""
    try:
        numbers = {"epsilon": real(form, "epsilon"), "delta": real(form, "delta")}
        values = {"reason": text(form, "reason"), "analyst": text(form, "analyst")}
        body = checked(models.Change, numbers | values)
        desk.change_budget(me, name, **body.model_dump())
    except MENDABLE as error:
        return _budget(desk, me, name, form, error)
    return go(f"/budgets/{name}")


@router.get("/entries")
def entries(
    desk: Desk, me: Me, after: After = 0, budget: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """List entries of the ledger, oldest first."""
    found = desk.entries(me, after, PER_PAGE, budget or None)
    for entry in found:
        entry["facts"] = _short(entry["detail"])
    more = found[-1]["sequence"] if len(found) == PER_PAGE else None
    names = [each["name"] for each in desk.budgets(me)]
    return page("entries.html", me, entries=found, more=more, budget=budget, names=names)


def _short(detail: Any) -> str:
    """The facts of an entry as text, without hashes; the API returns them whole."""
    whole = amounts.facts(detail, _HASHES)
    return whole if len(whole) <= 240 else whole[:240] + " …"


@router.get("/acts")
def acts(desk: Desk, me: Me, after: After = 0) -> Response:
    """List administrative acts, oldest first."""
    found = [row | {"facts": _short(row["detail"])} for row in desk.acts(me, after, PER_PAGE)]
    more = found[-1]["number"] if len(found) == PER_PAGE else None
    return page("acts.html", me, acts=found, more=more)


@router.get("/verify")
def verify(desk: Desk, me: Me) -> Response:
    """Check the whole ledger and the list of acts, and show what was found."""
    return page("verify.html", me, checked=desk.verify(me))
