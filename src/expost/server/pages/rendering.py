"""Templates, fields of forms, the person of a page, and the style sheet, script and icon."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from expost.errors import InvalidInput, MissingExtra

try:
    import jinja2
except ImportError:
    raise MissingExtra("jinja2", "server") from None

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from expost._version import __version__
from expost.certificates.document import certainty_text
from expost.server.api.access import Server, check_csrf, cookie_person
from expost.server.pages import amounts
from expost.server.people.accounts import ALLOWED, Person
from expost.server.problems import Conflict, NotFound, ServerProblem

router = APIRouter()


ASSETS = {
    "server.css": "text/css; charset=utf-8",
    "server.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def asset(name: str) -> bytes:
    """Return a file of the package."""
    return files("expost.server.pages").joinpath("static", name).read_bytes()


@cache
def assets_version() -> str:
    """Return a short name of the present files, so that browsers notice new ones."""
    return hashlib.sha256(b"".join(asset(name) for name in ASSETS)).hexdigest()[:12]


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a style sheet, script or icon."""
    if name not in ASSETS:
        raise NotFound("there is no such file", "name")
    headers = {"cache-control": "public, max-age=3600"}
    return Response(asset(name), media_type=ASSETS[name], headers=headers)


@router.get("/metrics")
def metrics(request: Request, server: Server) -> Response:
    """Return numbers for Prometheus; none depends on rows: no durations, outcomes or amounts.

    Calls are counted over all processes of this server.
    """
    answered = request.app.state.answered
    lines = [
        "# TYPE expost_build_info gauge",
        f'expost_build_info{{version="{__version__}"}} 1',
        "# TYPE expost_ready gauge",
        f"expost_ready {int(not server.not_ready())}",
        "# TYPE expost_http_responses_total counter",
        *(
            f'expost_http_responses_total{{class="{group}xx"}} {answered.total(group)}'
            for group in range(1, 6)
        ),
    ]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("expost.server.pages"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    auto_reload=False,  # the files of a package do not change
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(
    amount=amounts.amount,
    charge=amounts.loss_text,
    group=amounts.shown_group,
    limit=amounts.limit,
    moment=amounts.shown_time,
    number=amounts.grouped_number,
    percent=amounts.percent,
    plain=amounts.plain_text,
)
_TEMPLATES.globals.update(
    certainty=amounts.certainty,
    certainty_text=certainty_text,
    shares=amounts.budget_shares,
    unit_of=amounts.unit_of,
    used=amounts.used,
    assets=assets_version,
    release_version=__version__,
)

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_THOUSANDS = re.compile(r"(?<![0-9.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])")
Model = TypeVar("Model", bound=BaseModel)


async def read_form(request: Request) -> FormData:
    """Return the fields of a form; files are not accepted."""
    return await request.form(max_files=0, max_fields=200)


Me = Annotated[Person, Depends(cookie_person)]
Form = Annotated[FormData, Depends(read_form)]


def checked_person(me: Me, form: Form) -> Person:
    """Return who sends a form, after its CSRF value was checked."""
    check_csrf(me, form.get("csrf"))
    return me


Sender = Annotated[Person, Depends(checked_person)]


def compile_templates() -> None:
    """Compile all templates, before the first call."""
    for name in _TEMPLATES.list_templates():
        _TEMPLATES.get_template(name)


def page(template: str, person: Person | None, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page; ``may`` says in templates whether the person may do something."""

    def may(action: str) -> bool:
        return person is not None and person.role in ALLOWED[action]

    text = _TEMPLATES.get_template(template).render(person=person, may=may, **values)
    return HTMLResponse(text, status_code=status)


def go(path: str) -> RedirectResponse:
    """Return a redirect after a form."""
    return RedirectResponse(path, status_code=303)


USER_ERRORS = (InvalidInput, Conflict, NotFound)
"""Errors after which a form is shown again, with what was entered."""


def again(form: Mapping[str, Any] | None, error: Any) -> dict[str, Any]:
    """Return what a page needs to show a form again: its fields, the problem and the status."""
    fill = {name: value for name, value in (form or {}).items() if isinstance(value, str)}
    return {"fill": fill, "problem": error, "status": 200 if error is None else _status(error)}


def _status(error: Any) -> int:
    return error.status if isinstance(error, ServerProblem) else 422


def new_key() -> str:
    """Return a key for one form, so that sending it twice is one request."""
    return secrets.token_urlsafe(16)


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field without outer spaces; "" if it is absent."""
    value = fields.get(name)
    return value.strip() if isinstance(value, str) else ""


def real(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a number, or None if the field is empty."""
    given = text(fields, name)
    if not given:
        return None
    value = float(given) if _NUMBER.fullmatch(given) else math.nan
    if not math.isfinite(value):  # "1,000" could be one or a thousand
        raise InvalidInput(name, given[:40], "give a number such as 1000 or 0.5, without commas")
    return value


def whole_field(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number, or None if the field is empty."""
    value = real(fields, name)
    if value is not None and value != int(value):
        raise InvalidInput(name, value, "give a whole number")
    return None if value is None else int(value)


def split_field(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return the parts of a field that are separated by commas or line ends."""
    parts = text(fields, name).replace("\n", ",").split(",")
    return [part.strip() for part in parts if part.strip()]


def no_thousands(name: str, given: str) -> str:
    """Return a list of numbers as it was given; refuse one that may be a thousand, as 1,000."""
    if _THOUSANDS.search(given):
        raise InvalidInput(name, given[:40], "write 1000 for a thousand, and 1, 0 for two numbers")
    return given


def reals(fields: Mapping[str, Any], name: str) -> list[float]:
    """Return a list of numbers."""
    no_thousands(name, text(fields, name))
    return [
        number
        for part in split_field(fields, name)
        if (number := real({name: part}, name)) is not None
    ]


def check_fields(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Check fields as the API checks its bodies."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])[:200]
        raise InvalidInput(field, "this value", str(first["msg"])[:200]) from None
