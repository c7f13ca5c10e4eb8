"""Signing in, the first owner, and people, tokens and data sets for owners."""

from __future__ import annotations

import base64
import re
import tomllib
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server.api import routes
from expost.server.api.access import Server, address_of, clear_cookie, cookie_person, set_cookie
from expost.server.jobs.datasets import RULES
from expost.server.pages.amounts import plain_text
from expost.server.pages.ask_pages import block_text, blocks, lines
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
    reals,
    split_field,
    text,
    whole_field,
)
from expost.server.people import signin
from expost.server.people.accounts import ALLOWED, Person
from expost.server.people.signin import COOKIE
from expost.server.problems import Conflict, Denied, NotFound, NotSignedIn, ServerProblem
from expost.server.service import Service
from expost.tuning.request.defaults import as_toml

router = APIRouter()
_PLAIN_FIELDS = (
    *("name", "kind", "description", "budget", "source", "table", "delimiter", "user"),
    *("max_groups_per_user", "max_rows_per_user", "typical_group", "delta", "largest_epsilon"),
    *("approval_above", "approval_days"),
)
_PATH = re.compile(r"/(?:[\w.~-]+/)*[\w.~-]*")


@router.get("/people")
def people(server: Server, me: Me) -> Response:
    """List people."""
    return _people(server, me)


def _people(server: Service, me: Person, form: Any = None, error: Any = None) -> Response:
    return page("people.html", me, people=server.people(me), **again(form, error))


@router.post("/people")
def send_person(server: Server, me: Sender, form: Form) -> Response:
    """Add a person."""
    given = {"name": text(form, "name"), "role": text(form, "role")}
    try:
        body = check_fields(routes.NewPerson, given)
        server.add_person(me, body.name, body.role)
    except USER_ERRORS as error:
        return _people(server, me, form, error)
    return go("/people")


@router.post("/people/{name}/disable")
def disable_person(server: Server, me: Sender, name: str) -> Response:
    """Take away a person's access."""
    server.disable_person(me, name)
    return go("/people")


@router.post("/people/{name}/enable")
def send_return(server: Server, me: Sender, name: str) -> Response:
    """Give a person access again."""
    server.enable_person(me, name)
    return go("/people")


@router.post("/people/{name}")
def send_profile(server: Server, me: Sender, form: Form, name: str) -> Response:
    """Set the groups and the address of a person."""
    try:
        given = {"groups": split_field(form, "groups"), "mail": text(form, "mail")}
        body = check_fields(routes.PersonProfile, given)
        server.change_person(me, name, body.groups, body.mail)
    except USER_ERRORS as error:
        return _people(server, me, form, error)
    return go("/people")


@router.get("/tokens")
def tokens(server: Server, me: Me, person: str = "") -> Response:
    """List tokens without their secrets; ``person`` is chosen in the form of a new one."""
    return _tokens(server, me, {"person": person})


def _tokens(server: Service, me: Person, form: Any, error: Any = None) -> Response:
    names = []
    if me.role in ALLOWED["new_token"]:
        names = [member["name"] for member in server.people(me) if not member["disabled"]]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tokens = [token | {"expired": token["expires"] <= now} for token in server.tokens(me)]
    return page("tokens.html", me, tokens=tokens, names=names, **again(form, error))


@router.post("/tokens")
def send_token(server: Server, me: Sender, form: Form) -> Response:
    """Make a token and show it once."""
    given = {"person": text(form, "person"), "note": text(form, "note")}
    try:
        body = check_fields(routes.NewToken, given | {"days": real(form, "days")})
        token = server.new_token(me, body.person, body.days, body.note)
    except USER_ERRORS as error:
        return _tokens(server, me, form, error)
    return page("token.html", me, created=token)


@router.post("/tokens/{id}/revoke")
def send_revocation(server: Server, me: Sender, id: str) -> Response:
    """Revoke a token."""
    server.revoke_token(me, id)
    return go("/tokens")


@router.get("/register")
def register_page(server: Server, me: Me) -> Response:
    """Show the form of a new data set."""
    if me.role not in ALLOWED["register"]:
        raise Denied("this is not part of your role", "role", "sign in as owner")
    return _register(server, me)


def _register(
    server: Service,
    me: Person,
    form: Any = None,
    error: Any = None,
    *,
    preview: Any = None,
    name: str | None = None,
) -> Response:
    """The form of a data set: a new one, or the one with this name; with facts as they are read."""
    names = [budget["name"] for budget in server.budgets(me)]
    values = again(form, error)
    return page("register.html", me, budgets=names, preview=preview, editing=name, **values)


@router.post("/register")
def send_dataset(server: Server, me: Sender, form: Form) -> Response:
    """Show the facts of a data set as they are read, or register it."""
    return _sent(server, me, form, None)


@router.get("/datasets/{name}/edit")
def edit_page(server: Server, me: Me, name: str) -> Response:
    """Show the form with the facts of a data set."""
    if me.role not in ALLOWED["change_dataset"]:
        raise Denied("this is not part of your role", "role", "sign in as owner")
    return _register(server, me, _fields_of(server.dataset(me, name)), name=name)


@router.post("/datasets/{name}/edit")
def send_change(server: Server, me: Sender, form: Form, name: str) -> Response:
    """Show changed facts as they are read, or change them."""
    return _sent(server, me, form, name)


def _sent(server: Service, me: Person, form: Any, name: str | None) -> Response:
    """What follows when the form of a data set was sent."""
    if me.role not in ALLOWED["register"]:
        raise Denied("this is not part of your role", "role", "sign in as owner")
    try:
        present = {} if name is None else server.dataset(me, name)
        fixed = {key: present[key] for key in ("name", "kind", "budget") if key in present}
        body = check_fields(routes.Dataset, _facts(form) | fixed)
        given = body.stated() | {name: None for name in RULES if getattr(body, name) is None}
        if text(form, "preview"):
            return _register(server, me, form, preview=server.preview(me, given), name=name)
        facts = (
            server.register(me, given) if name is None else server.change_dataset(me, name, given)
        )
    except USER_ERRORS as error:
        return _register(server, me, form, error, name=name)
    return go(f"/datasets/{facts['name']}")


def _fields_of(facts: Any) -> dict[str, str]:
    """The fields of the form for the facts of a data set."""
    values = {
        column: f"{column}: {plain_text(float(low))}, {plain_text(float(high))}"
        for column, (low, high) in facts.get("values", {}).items()
    }
    fill = {key: plain_text(facts[key]) for key in _PLAIN_FIELDS if facts.get(key) is not None}
    fill |= {"groups": block_text(facts.get("groups", {})), "values": "\n".join(values.values())}
    fill |= {"filters": ", ".join(facts.get("filters", ()))}
    fill |= {"askers": "\n".join(facts.get("askers") or ())}
    public = facts.get("public_tables", {})
    fill |= {"public_tables": "\n".join(f"{name}: {location}" for name, location in public.items())}
    shown = {key: value for key, value in facts.get("data", {}).items() if key != "path"}
    return fill | {"data": as_toml({"data": shown}).partition("\n")[2].strip()}


def _facts(form: Any) -> dict[str, Any]:
    """The facts that the form states."""
    names = ("name", "kind", "description", "budget", "source", "table", "delimiter", "user")
    values = {
        column: None if bounds is None else reals({"values": ", ".join(bounds)}, "values")
        for column, bounds in lines(form, "values").items()
    }
    try:
        data = tomllib.loads(text(form, "data"))
        stated = tomllib.loads(text(form, "facts"))
    except tomllib.TOMLDecodeError:
        raise InvalidInput("data, facts", "this text", "give TOML, as the examples show") from None
    facts: dict[str, Any] = {name: text(form, name) for name in names}
    facts |= {"groups": blocks(form, "groups"), "values": values}
    facts |= {"filters": split_field(form, "filters"), "data": data}
    facts |= {
        name: whole_field(form, name)
        for name in ("max_groups_per_user", "max_rows_per_user", "typical_group")
    }
    numbers = ("delta", "largest_epsilon", "learn_facts", "approval_above", "approval_days")
    facts |= {name: real(form, name) for name in numbers}
    facts |= {"askers": split_field(form, "askers") or None}
    named = [
        line.partition(":") for line in text(form, "public_tables").splitlines() if line.strip()
    ]
    facts["public_tables"] = {name.strip(): location.strip() for name, _, location in named}
    return facts | ({"facts": stated} if stated else {})


@router.post("/datasets/{name}/retire")
def retire(server: Server, me: Sender, name: str) -> Response:
    """Let nobody ask about a data set any more."""
    server.retire(me, name)
    return go("/datasets")


@router.get("/")
def home(me: Me) -> Response:
    """Go to the first page of the person."""
    return go("/budgets" if me.role == "auditor" else "/datasets")


@router.get("/sign-in")
def sign_in_page(request: Request, server: Server, next: str = "/") -> Response:
    """Show the form for a token."""
    try:
        cookie_person(request)
    except NotSignedIn:
        return _form(server, _local(next))
    return go(_local(next))


def _form(
    server: Any,
    wanted: str,
    error: ServerProblem | None = None,
    unknown: str = "This token is not valid.",
) -> Response:
    status = 200 if error is None else error.status
    words = None
    if error is not None:
        words = unknown if status == 401 else f"{error.error}: {error.valid}"
    ways = {"proxy": server.settings.signing_key() is not None, "openid": server.openid is not None}
    return page("sign_in.html", None, status=status, next=wanted, words=words, **ways)


@router.get("/sign-in/openid")
def leave_page(request: Request, server: Server, next: str = "/") -> Response:
    """Go to the OpenID provider, with a cookie that its answer must fit."""
    value = signin.new_value()
    if server.openid is None:
        raise NotFound("people sign in with tokens here", None)
    response = go(server.openid.leave(value))
    kept = f"{value}.{base64.urlsafe_b64encode(_local(next).encode()).decode().rstrip('=')}"
    # Lax, because the provider sends the browser back; only the callback reads it.
    response.set_cookie(
        signin.OPENID_COOKIE,
        kept,
        max_age=signin.OPENID_SECONDS,
        path=signin.CALLBACK,
        httponly=True,
        samesite="lax",
        secure=server.settings.cookies_secure,
    )
    return response


@router.get("/sign-in/callback")
def arrive_page(request: Request, server: Server) -> Response:
    """Begin a session for the person whom the OpenID provider sends back."""
    if server.openid is None:
        raise NotFound("people sign in with tokens here", None)
    value, _, kept = request.cookies.get(signin.OPENID_COOKIE, "").partition(".")
    try:
        person = server.openid.arrive(value, request.query_params)
    except ServerProblem as error:
        response: Response = _form(server, "/", error, "Your organisation did not sign you in.")
    else:
        response = page("continue.html", None, next=_next(kept))
        set_cookie(request, response, server.signin.begin(person))
    response.delete_cookie(signin.OPENID_COOKIE, path=signin.CALLBACK)
    return response


def _next(kept: str) -> str:
    """The path that a cookie remembers."""
    try:
        return _local(base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4)).decode())
    except ValueError:
        return "/"


@router.post("/sign-in")
def sign_in(request: Request, server: Server, form: Form) -> Response:
    """Begin a session with a token, or with the headers of the proxy."""
    _same_site(request)
    address, wanted = address_of(request), _local(text(form, "next"))
    try:
        if text(form, "proxy"):
            person = server.signin.by_proxy(request.headers, address)
        else:
            person = server.by_token(text(form, "token")[:200], address)
    except ServerProblem as error:
        return _form(server, wanted, error)
    response = go(wanted)
    set_cookie(request, response, server.signin.begin(person))
    return response


@router.post("/sign-out")
def sign_out(request: Request, server: Server, me: Sender) -> Response:
    """End the session."""
    server.signin.end(request.cookies.get(COOKIE, ""))
    response = go("/sign-in")
    clear_cookie(request, response)
    return response


@router.get("/first")
def first_page(link: str = "") -> Response:
    """Show the form for the first owner's name."""
    return page("first.html", None, link=link[:100], words=None)


@router.post("/first")
def send_first(request: Request, server: Server, form: Form) -> Response:
    """Make the first owner with the one-time link, and show their token once."""
    _same_site(request)
    link, name = text(form, "link")[:100], text(form, "name")
    try:
        person = server.signin.use_link(link, name, address_of(request))
    except InvalidInput as error:
        words = f"This name is not valid: {error.valid}."
        return page("first.html", None, status=422, link=link, words=words)
    except (NotSignedIn, Denied, Conflict):
        words = "This link is not valid, or it was used before."
        return page("first.html", None, status=403, link="", words=words)
    token = server.new_token(person, person.name, note="first owner")
    value = server.signin.begin(person)
    response = page("token.html", server.signin.by_cookie(value), created=token)
    set_cookie(request, response, value)
    return response


def _local(path: str) -> str:
    """A path of this server; anything else becomes the first page."""
    return path if _PATH.fullmatch(path) else "/"


def _same_site(request: Request) -> None:
    """Refuse a form that another site sends; browsers say where a form comes from."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin", "null")
    other = origin != "null" and origin.partition("://")[2] != request.headers.get("host")
    if site not in ("same-origin", "none") or other:
        raise Denied("this form was sent by another site", "origin", "sign in here")
