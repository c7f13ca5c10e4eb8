"""People, tokens and data sets, for owners."""

from __future__ import annotations

import tomllib
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server import models
from expost.server.pages.forms import lines
from expost.server.pages.rendering import (
    Desk,
    Form,
    Me,
    Sender,
    checked,
    go,
    listed,
    page,
    real,
    reals,
    text,
    whole,
)
from expost.server.problems import Denied
from expost.server.roles import ALLOWED

router = APIRouter()


@router.get("/people")
def people(desk: Desk, me: Me) -> Response:
    """List people."""
    return page("people.html", me, people=desk.people(me))


@router.post("/people")
def add_person(desk: Desk, me: Sender, form: Form) -> Response:
    """Add a person."""
    given = {"name": text(form, "name"), "role": text(form, "role")}
    body = checked(models.NewPerson, given)
    desk.add_person(me, body.name, body.role)
    return go("/people")


@router.post("/people/{name}/disable")
def disable_person(desk: Desk, me: Sender, name: str) -> Response:
    """Take away a person's access."""
    desk.disable_person(me, name)
    return go("/people")


@router.get("/tokens")
def tokens(desk: Desk, me: Me) -> Response:
    """List tokens without their secrets."""
    names = []
    if me.role in ALLOWED["new_token"]:
        names = [each["name"] for each in desk.people(me) if not each["disabled"]]
    return page("tokens.html", me, tokens=desk.tokens(me), names=names)


@router.post("/tokens")
def new_token(desk: Desk, me: Sender, form: Form) -> Response:
    """Make a token and show it once."""
    given = {"person": text(form, "person"), "note": text(form, "note")}
    body = checked(models.NewToken, given | {"days": real(form, "days")})
    return page("token.html", me, made=desk.new_token(me, body.person, body.days, body.note))


@router.post("/tokens/{id}/revoke")
def revoke_token(desk: Desk, me: Sender, id: str) -> Response:
    """Revoke a token."""
    desk.revoke_token(me, id)
    return go("/tokens")


@router.get("/register")
def register_page(desk: Desk, me: Me) -> Response:
    """Show the form of a new data set."""
    if me.role not in ALLOWED["register"]:
        raise Denied("this is not part of your role", "role", "sign in as owner")
    return page("register.html", me, budgets=[each["name"] for each in desk.budgets(me)])


@router.post("/register")
def register(desk: Desk, me: Sender, form: Form) -> Response:
    """Register a data set."""
    body = checked(models.Dataset, _facts(form))
    made = desk.register(me, body.model_dump(exclude_none=True, exclude_unset=True))
    return go(f"/datasets/{made['name']}")


def _facts(form: Any) -> dict[str, Any]:
    """The facts that the form states."""
    names = ("name", "kind", "description", "budget", "source", "table", "delimiter", "user")
    values = {
        column: reals({"values": ",".join(bounds or [])}, "values")
        for column, bounds in lines(form, "values").items()
    }
    try:
        data = tomllib.loads(text(form, "data"))
    except tomllib.TOMLDecodeError:
        raise InvalidInput("data", "this text", "give lines as in the [data] table") from None
    facts: dict[str, Any] = {name: text(form, name) for name in names}
    facts |= {"groups": lines(form, "groups"), "values": values}
    facts |= {"filters": listed(form, "filters"), "data": data}
    facts |= {
        name: whole(form, name)
        for name in ("max_groups_per_user", "max_rows_per_user", "typical_group")
    }
    facts |= {name: real(form, name) for name in ("delta", "largest_epsilon")}
    return facts


@router.post("/datasets/{name}/retire")
def retire(desk: Desk, me: Sender, name: str) -> Response:
    """Let nobody ask about a data set any more."""
    desk.retire(me, name)
    return go("/datasets")
