"""Sign in, sign out, and the first owner."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server.access import (
    address_of,
    clear_cookie,
    cookie_person,
    set_cookie,
)
from expost.server.pages.rendering import Desk, Form, Me, Sender, go, page, text
from expost.server.problems import Conflict, Denied, DeskError, NotSignedIn
from expost.server.signin import COOKIE

router = APIRouter()

_PATH = re.compile(r"/(?:[\w.~-]+/)*[\w.~-]*")


@router.get("/")
def home(me: Me) -> Response:
    """Go to the first page of the person."""
    return go("/budgets" if me.role == "auditor" else "/datasets")


@router.get("/sign-in")
def sign_in_page(request: Request, desk: Desk, next: str = "/") -> Response:
    """Show the form for a token."""
    try:
        cookie_person(request)
    except NotSignedIn:
        return _form(desk, _local(next))
    return go(_local(next))


def _form(desk: Any, wanted: str, error: DeskError | None = None) -> Response:
    status = 200 if error is None else error.status
    words = None
    if error is not None:
        words = "This token is not valid." if status == 401 else f"{error.error}: {error.valid}"
    proxy = desk.settings.signing_key() is not None
    return page("sign_in.html", None, status=status, next=wanted, words=words, proxy=proxy)


@router.post("/sign-in")
def sign_in(request: Request, desk: Desk, form: Form) -> Response:
    """Begin a session with a token, or with the headers of the proxy."""
    _same_site(request)
    address, wanted = address_of(request), _local(text(form, "next"))
    try:
        if text(form, "proxy"):
            person = desk.signin.by_proxy(request.headers, address)
        else:
            person = desk.signin.by_token(text(form, "token")[:200], address)
    except DeskError as error:
        return _form(desk, wanted, error)
    response = go(wanted)
    set_cookie(request, response, desk.signin.begin(person))
    return response


@router.post("/sign-out")
def sign_out(request: Request, desk: Desk, me: Sender) -> Response:
    """End the session."""
    desk.signin.end(request.cookies.get(COOKIE, ""))
    response = go("/sign-in")
    clear_cookie(request, response)
    return response


@router.get("/first")
def first_page(link: str = "") -> Response:
    """Show the form for the first owner's name."""
    return page("first.html", None, link=link[:100], words=None)


@router.post("/first")
def first(request: Request, desk: Desk, form: Form) -> Response:
    """Make the first owner with the one-time link, and show their token once."""
    _same_site(request)
    link, name = text(form, "link")[:100], text(form, "name")
    try:
        person = desk.signin.use_link(link, name, address_of(request))
    except InvalidInput as error:
        words = f"This name is not valid: {error.valid}."
        return page("first.html", None, status=422, link=link, words=words)
    except (NotSignedIn, Denied, Conflict):
        words = "This link is not valid, or it was used before."
        return page("first.html", None, status=403, link="", words=words)
    made = desk.new_token(person, person.name, note="first owner")
    value = desk.signin.begin(person)
    response = page("token.html", desk.signin.by_cookie(value), made=made)
    set_cookie(request, response, value)
    return response


def _local(path: str) -> str:
    """A path of this desk; anything else becomes the first page."""
    return path if _PATH.fullmatch(path) else "/"


def _same_site(request: Request) -> None:
    """Refuse a form that another site sends; browsers say where a form comes from."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin", "null")
    other = origin != "null" and origin.partition("://")[2] != request.headers.get("host")
    if site not in ("same-origin", "none") or other:
        raise Denied("this form was sent by another site", "origin", "sign in here")
