"""People, tokens and data sets, for owners."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server import models
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
    listed,
    page,
    real,
    reals,
    text,
    whole,
)
from expost.server.people import Person
from expost.server.problems import Denied
from expost.server.roles import ALLOWED
from expost.server.service import Service

router = APIRouter()


@router.get("/people")
def people(desk: Desk, me: Me) -> Response:
    """List people."""
    return _people(desk, me)


def _people(desk: Service, me: Person, form: Any = None, error: Any = None) -> Response:
    return page("people.html", me, people=desk.people(me), **again(form, error))


@router.post("/people")
def add_person(desk: Desk, me: Sender, form: Form) -> Response:
    """Add a person."""
    given = {"name": text(form, "name"), "role": text(form, "role")}
    try:
        body = checked(models.NewPerson, given)
        desk.add_person(me, body.name, body.role)
    except MENDABLE as error:
        return _people(desk, me, form, error)
    return go("/people")


@router.post("/people/{name}/disable")
def disable_person(desk: Desk, me: Sender, name: str) -> Response:
    """Take away a person's access."""
    desk.disable_person(me, name)
    return go("/people")


@router.get("/tokens")
def tokens(desk: Desk, me: Me, person: str = "") -> Response:
    """List tokens without their secrets; ``person`` is chosen in the form of a new one."""
    return _tokens(desk, me, {"person": person})


def _tokens(desk: Service, me: Person, form: Any, error: Any = None) -> Response:
    names = []
    if me.role in ALLOWED["new_token"]:
        names = [each["name"] for each in desk.people(me) if not each["disabled"]]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = [each | {"expired": each["expires"] <= now} for each in desk.tokens(me)]
    return page("tokens.html", me, tokens=found, names=names, **again(form, error))


@router.post("/tokens")
def new_token(desk: Desk, me: Sender, form: Form) -> Response:
    """Make a token and show it once."""
    given = {"person": text(form, "person"), "note": text(form, "note")}
    try:
        body = checked(models.NewToken, given | {"days": real(form, "days")})
        made = desk.new_token(me, body.person, body.days, body.note)
    except MENDABLE as error:
        return _tokens(desk, me, form, error)
    return page("token.html", me, made=made)


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
    return _register(desk, me)


def _register(desk: Service, me: Person, form: Any = None, error: Any = None) -> Response:
    names = [each["name"] for each in desk.budgets(me)]
    return page("register.html", me, budgets=names, **again(form, error))


@router.post("/register")
def register(desk: Desk, me: Sender, form: Form) -> Response:
    """Register a data set."""
    try:
        body = checked(models.Dataset, _facts(form))
        made = desk.register(me, body.model_dump(exclude_none=True, exclude_unset=True))
    except MENDABLE as error:
        return _register(desk, me, form, error)
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
