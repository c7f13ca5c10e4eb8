"""The HTTP API under ``/api/``: each endpoint is one action of the service.

Tests: ``tests/server/test_roles.py`` (every endpoint), ``tests/server/test_api.py``.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from expost._version import __version__
from expost.server import models
from expost.server.access import (
    address_of,
    clear_cookie,
    person_of,
    service_of,
    set_cookie,
)
from expost.server.people import Person
from expost.server.service import Service
from expost.server.signin import COOKIE, csrf_of

router = APIRouter(prefix="/api")


async def _desk(request: Request) -> Service:
    """The service; a coroutine, which needs no thread."""
    return service_of(request)


Desk = Annotated[Service, Depends(_desk)]
Me = Annotated[Person, Depends(person_of)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Named = Annotated[str, Path(max_length=64, pattern=r"^[^\x00]*$")]
Limit = Annotated[int, Query(ge=1, le=500)]


@router.get("/health")
def health() -> dict[str, Any]:
    """Say that the server answers."""
    return {"status": "ok", "version": __version__}


@router.post("/first", status_code=201)
def first(request: Request, desk: Desk, body: models.First) -> dict[str, Any]:
    """Make the first owner with the one-time link; returns their token."""
    person = desk.signin.use_link(body.link, body.name, address_of(request))
    return desk.new_token(person, person.name, note="first owner")


@router.post("/session", status_code=201)
def begin_session(request: Request, desk: Desk, body: models.Begin) -> JSONResponse:
    """Sign in with a token, or through a trusted proxy."""
    address = address_of(request)
    if body.token is not None:
        person = desk.signin.by_token(body.token, address)
    else:
        person = desk.signin.by_proxy(request.headers, address)
    value = desk.signin.begin(person)
    told = {"name": person.name, "role": person.role, "csrf": csrf_of(value)}
    response = JSONResponse(told, status_code=201)
    set_cookie(request, response, value)
    return response


@router.get("/session")
def session(me: Me) -> dict[str, Any]:
    """Say who is signed in."""
    return {"name": me.name, "role": me.role, "csrf": me.csrf}


@router.delete("/session")
def end_session(request: Request, desk: Desk, me: Me) -> JSONResponse:
    """Sign out."""
    desk.signin.end(request.cookies.get(COOKIE, ""))
    response = JSONResponse({"signed_out": me.name})
    clear_cookie(request, response)
    return response


@router.get("/datasets")
def datasets(desk: Desk, me: Me) -> list[dict[str, Any]]:
    """List the data sets, and what is left for each."""
    return desk.datasets(me)


@router.post("/datasets", status_code=201)
def register(desk: Desk, me: Me, body: models.Dataset) -> dict[str, Any]:
    """Register a data set."""
    return desk.register(me, body.model_dump(exclude_none=True, exclude_unset=True))


@router.get("/datasets/{name}")
def dataset(desk: Desk, me: Me, name: Named) -> dict[str, Any]:
    """Show one data set."""
    return desk.dataset(me, name)


@router.delete("/datasets/{name}")
def retire(desk: Desk, me: Me, name: Named) -> dict[str, Any]:
    """Let nobody ask about a data set any more."""
    return desk.retire(me, name)


@router.post("/price")
def price(desk: Desk, me: Me, body: models.Question) -> dict[str, Any]:
    """Say what a question would cost; touches no data and charges nothing."""
    return desk.price(me, body.asked())


@router.post("/plan")
def plan(desk: Desk, me: Me, body: models.Plan) -> dict[str, Any]:
    """Plan a tuning job from its levels."""
    return desk.plan(me, body.model_dump())


@router.post("/requests", status_code=201)
def ask(
    desk: Desk,
    me: Me,
    body: models.Ask,
    idempotency_key: Annotated[str, Header(min_length=1, max_length=128)],
) -> JSONResponse:
    """Ask: the question is recorded, priced and reserved, and runs afterwards."""
    view = desk.ask(me, body.question.asked(), idempotency_key, body.memo)
    return JSONResponse(view, status_code=402 if view["status"] == "refused" else 201)


@router.get("/requests")
def requests(
    desk: Desk,
    me: Me,
    limit: Limit = 100,
    before: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")] = None,
) -> list[dict[str, Any]]:
    """List requests, newest first; analysts see their own. Older ones: ``before`` an id."""
    return desk.requests(me, limit, before)


@router.get("/requests/{id}")
def request(desk: Desk, me: Me, id: Id) -> dict[str, Any]:
    """Show one request."""
    return desk.request(me, id)


@router.get("/releases")
def releases(desk: Desk, me: Me, limit: Limit = 100) -> list[dict[str, Any]]:
    """List answered requests."""
    return desk.releases(me, limit)


@router.get("/releases/{id}")
def release(desk: Desk, me: Me, id: Id) -> dict[str, Any]:
    """Return an answer with its certificate."""
    return desk.release(me, id)


@router.get("/releases/{id}/certificate")
def certificate(desk: Desk, me: Me, id: Id) -> dict[str, Any]:
    """Return the certificate alone."""
    return desk.certificate(me, id)


@router.get("/releases/{id}/report")
def report(desk: Desk, me: Me, id: Id) -> dict[str, Any]:
    """Return the release in words, for officers."""
    return desk.report(me, id)


@router.get("/releases/{id}/registry")
def registry(desk: Desk, me: Me, id: Id) -> Response:
    """Return the release in the fields of OpenDP's deployments registry (YAML)."""
    return _download(desk.registry(me, id).encode(), "application/yaml", f"release-{id}.yaml")


@router.get("/releases/{id}/answers")
def answers(desk: Desk, me: Me, id: Id) -> Response:
    """Return the answers as a table (CSV)."""
    return _download(desk.answers(me, id).encode(), "text/csv; charset=utf-8", f"answers-{id}.csv")


@router.get("/releases/{id}/model")
def model(desk: Desk, me: Me, id: Id) -> Response:
    """Return the released model (.npz)."""
    return _download(desk.model(me, id), "application/octet-stream", f"model-{id}.npz")


@router.get("/releases/{id}/verify")
def verify_release(desk: Desk, me: Me, id: Id) -> dict[str, Any]:
    """Compare the certificate with the ledger."""
    return desk.verify_release(me, id)


@router.get("/budgets")
def budgets(desk: Desk, me: Me) -> list[dict[str, Any]]:
    """List the budgets."""
    return desk.budgets(me)


@router.post("/budgets", status_code=201)
def open_budget(desk: Desk, me: Me, body: models.NewBudget) -> dict[str, Any]:
    """Open a budget."""
    return desk.open_budget(me, **body.model_dump())


@router.get("/budgets/{name}")
def budget(desk: Desk, me: Me, name: Named) -> dict[str, Any]:
    """Show one budget."""
    return desk.budget(me, name)


@router.post("/budgets/{name}")
def change_budget(desk: Desk, me: Me, name: Named, body: models.Change) -> dict[str, Any]:
    """Change a limit or a cap."""
    return desk.change_budget(me, name, **body.model_dump())


@router.get("/budgets/{name}/history")
def history(desk: Desk, me: Me, name: Named) -> dict[str, Any]:
    """Show spent and held over time."""
    return desk.history(me, name)


@router.get("/entries")
def entries(
    desk: Desk,
    me: Me,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 500,
    budget: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
) -> list[dict[str, Any]]:
    """List entries of the ledger."""
    return desk.entries(me, after, limit, budget)


@router.get("/verify")
def verify(desk: Desk, me: Me) -> dict[str, Any]:
    """Check the whole ledger and the list of acts."""
    return desk.verify(me)


@router.get("/acts")
def acts(
    desk: Desk, me: Me, after: Annotated[int, Query(ge=0)] = 0, limit: Limit = 500
) -> list[dict[str, Any]]:
    """List administrative acts."""
    return desk.acts(me, after, limit)


@router.get("/people")
def people(desk: Desk, me: Me) -> list[dict[str, Any]]:
    """List people."""
    return desk.people(me)


@router.post("/people", status_code=201)
def add_person(desk: Desk, me: Me, body: models.NewPerson) -> dict[str, Any]:
    """Add a person."""
    return desk.add_person(me, body.name, body.role)


@router.delete("/people/{name}")
def disable_person(desk: Desk, me: Me, name: Named) -> dict[str, Any]:
    """Take away a person's access."""
    return desk.disable_person(me, name)


@router.get("/tokens")
def tokens(desk: Desk, me: Me) -> list[dict[str, Any]]:
    """List tokens without their secrets."""
    return desk.tokens(me)


@router.post("/tokens", status_code=201)
def new_token(desk: Desk, me: Me, body: models.NewToken) -> dict[str, Any]:
    """Make a token; it is shown once."""
    return desk.new_token(me, body.person, body.days, body.note)


@router.delete("/tokens/{id}")
def revoke_token(
    desk: Desk, me: Me, id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
) -> dict[str, Any]:
    """Revoke a token."""
    return desk.revoke_token(me, id)


def _download(content: bytes, kind: str, name: str) -> Response:
    return Response(
        content, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'}
    )
