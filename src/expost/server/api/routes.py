"""The HTTP API under ``/api/``: each endpoint is one action of the service.

Tests: ``tests/server/test_roles.py`` (every endpoint), ``tests/server/test_security.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from expost._version import __version__
from expost.server.api import bodies
from expost.server.api.access import (
    address_of,
    clear_cookie,
    person_of,
    priced,
    service_of,
    set_cookie,
)
from expost.server.people.accounts import Person
from expost.server.people.signin import COOKIE, csrf_of
from expost.server.service import Service

router = APIRouter(prefix="/api")


async def _service(request: Request) -> Service:
    """The service; a coroutine, which needs no thread."""
    return service_of(request)


Server = Annotated[Service, Depends(_service)]
Me = Annotated[Person, Depends(person_of)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Named = Annotated[str, Path(max_length=64, pattern=r"^[^\x00]*$")]
Searched = Annotated[str, Query(max_length=100, pattern=r"^[^\x00]*$")]
Period = Annotated[str, Query(pattern=r"^[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?$")]
Limit = Annotated[int, Query(ge=1, le=500)]
_TABLES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_STATUS = {"refused": 402, "waiting for approval": 202}

# Endpoints that only call an action with the person and what the path names.
ACTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("GET", "/datasets"): Service.datasets,
    ("GET", "/datasets/{name}"): Service.dataset,
    ("DELETE", "/datasets/{name}"): Service.retire,
    ("GET", "/requests/{id}"): Service.request,
    ("GET", "/releases/{id}"): Service.release,
    ("GET", "/releases/{id}/certificate"): Service.certificate,
    ("GET", "/releases/{id}/report"): Service.report,
    ("GET", "/releases/{id}/verify"): Service.verify_release,
    ("GET", "/budgets"): Service.budgets,
    ("GET", "/budgets/{name}"): Service.budget,
    ("GET", "/budgets/{name}/history"): Service.history,
    ("GET", "/verify"): Service.verify,
    ("GET", "/people"): Service.people,
    ("DELETE", "/people/{name}"): Service.disable_person,
    ("POST", "/people/{name}/enable"): Service.enable_person,
    ("GET", "/tokens"): Service.tokens,
}


def _endpoint(path: str, action: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint of an action; its description is that of the action."""

    def call(service: Server, me: Me) -> Any:
        return action(service, me)

    def call_named(service: Server, me: Me, name: Named) -> Any:
        return action(service, me, name)

    def call_with_id(service: Server, me: Me, id: Id) -> Any:
        return action(service, me, id)

    endpoint = call_named if "{name}" in path else call_with_id if "{id}" in path else call
    endpoint.__name__, endpoint.__doc__ = action.__name__, action.__doc__
    return endpoint


for (method, path), served in ACTIONS.items():
    router.add_api_route(path, _endpoint(path, served), methods=[method])


@router.get("/health")
def health() -> dict[str, Any]:
    """Say that the server answers."""
    return {"status": "ok", "version": __version__}


@router.get("/ready")
def ready(server: Server) -> JSONResponse:
    """Say whether the server can work, or why it cannot: the disk, the database, the ledger."""
    problems = server.not_ready()
    told = {"status": "not ready" if problems else "ready", "problems": problems}
    return JSONResponse(told, status_code=503 if problems else 200)


@router.post("/first", status_code=201)
def post_first(request: Request, server: Server, body: bodies.First) -> dict[str, Any]:
    """Make the first owner with the one-time link; returns their token."""
    person = server.signin.use_link(body.link, body.name, address_of(request))
    return server.new_token(person, person.name, note="first owner")


@router.post("/session", status_code=201)
def begin_session(request: Request, server: Server, body: bodies.Begin) -> JSONResponse:
    """Sign in with a token, or through a trusted proxy."""
    address = address_of(request)
    if body.token is not None:
        person = server.by_token(body.token, address)
    else:
        person = server.signin.by_proxy(request.headers, address)
    value = server.signin.begin(person)
    told = {"name": person.name, "role": person.role, "csrf": csrf_of(value)}
    response = JSONResponse(told, status_code=201)
    set_cookie(request, response, value)
    return response


@router.get("/session")
def session(me: Me) -> dict[str, Any]:
    """Say who is signed in."""
    return {"name": me.name, "role": me.role, "csrf": me.csrf}


@router.delete("/session")
def end_session(request: Request, server: Server, me: Me) -> JSONResponse:
    """Sign out."""
    server.signin.end(request.cookies.get(COOKIE, ""))
    response = JSONResponse({"signed_out": me.name})
    clear_cookie(request, response)
    return response


@router.post("/datasets", status_code=201)
def post_dataset(server: Server, me: Me, body: bodies.Dataset) -> dict[str, Any]:
    """Register a data set."""
    return server.register(me, body.stated())


@router.post("/datasets/preview")
def post_preview(server: Server, me: Me, body: bodies.Dataset) -> dict[str, Any]:
    """Check the facts of a data set against its header; nothing is registered."""
    return server.preview(me, body.stated())


@router.put("/datasets/{name}")
def put_dataset(server: Server, me: Me, name: Named, body: bodies.Dataset) -> dict[str, Any]:
    """Change the facts of a data set; answers that were asked before keep the old ones."""
    facts = body.stated()
    return server.change_dataset(me, name, facts)


@router.post("/price")
async def post_price(
    request: Request, server: Server, me: Me, body: bodies.Question
) -> dict[str, Any]:
    """Say what a question would cost; touches no data and charges nothing."""
    return await priced(request, server.price, me, body.asked())


@router.post("/plan")
async def post_plan(
    request: Request, server: Server, me: Me, body: bodies.PlanLevels
) -> dict[str, Any]:
    """Plan a tuning job from its levels."""
    return await priced(request, server.plan, me, body.model_dump())


@router.post("/requests", status_code=201)
async def post_question(
    request: Request,
    server: Server,
    me: Me,
    body: bodies.Ask,
    idempotency_key: Annotated[str, Header(min_length=1, max_length=128)],
) -> JSONResponse:
    """Ask: the question is recorded, priced and reserved, and runs afterwards."""
    asked = body.question.asked()
    view = await priced(request, server.ask, me, asked, idempotency_key, body.memo)
    return JSONResponse(view, status_code=_STATUS.get(view["status"], 201))


@router.post("/requests/{id}/approve")
async def post_approval(
    request: Request, server: Server, me: Me, id: Id, body: bodies.Decision
) -> JSONResponse:
    """Let a question run that waits for approval; the budget admits or refuses it now."""
    view = await priced(request, server.approve, me, id, body.reason)
    return JSONResponse(view, status_code=402 if view["status"] == "refused" else 200)


@router.post("/requests/{id}/decline")
def post_refusal(server: Server, me: Me, id: Id, body: bodies.Decision) -> dict[str, Any]:
    """Decline a question that waits for approval."""
    return server.decline(me, id, body.reason)


@router.get("/requests")
def get_requests(
    server: Server,
    me: Me,
    limit: Limit = 100,
    before: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")] = None,
    text: Searched = "",
    dataset: Searched = "",
    status: Searched = "",
) -> list[dict[str, Any]]:
    """List requests, newest first; analysts see their own. Older ones: ``before`` an id."""
    given = {"text": text, "dataset": dataset, "status": status}
    return server.requests(me, limit, before, {name: word for name, word in given.items() if word})


@router.get("/export")
def get_export(
    server: Server,
    me: Me,
    period: Period,
    format: Annotated[Literal["csv", "xlsx"], Query()] = "csv",
) -> Response:
    """Return the releases of a year, a month or a day (2026, 2026-03, 2026-03-31) as a table."""
    content = server.export(me, period, format)
    return _download(content, _TABLES[format], f"releases-{period}.{format}")


@router.get("/releases")
def releases(server: Server, me: Me, limit: Limit = 100) -> list[dict[str, Any]]:
    """List answered requests."""
    return server.releases(me, limit)


@router.get("/releases/{id}/registry")
def get_registry(server: Server, me: Me, id: Id) -> Response:
    """Return the release in the fields of OpenDP's deployments registry (YAML)."""
    return _download(server.registry(me, id).encode(), "application/yaml", f"release-{id}.yaml")


@router.get("/releases/{id}/answers")
def answers(server: Server, me: Me, id: Id) -> Response:
    """Return the answers as a table (CSV)."""
    return _download(
        server.answers(me, id).encode(), "text/csv; charset=utf-8", f"answers-{id}.csv"
    )


@router.get("/releases/{id}/model")
def model(server: Server, me: Me, id: Id) -> Response:
    """Return the released model (.npz)."""
    return _download(server.model(me, id), "application/octet-stream", f"model-{id}.npz")


@router.post("/budgets", status_code=201)
def post_budget(server: Server, me: Me, body: bodies.NewBudget) -> dict[str, Any]:
    """Open a budget."""
    return server.open_budget(me, **body.model_dump())


@router.post("/budgets/{name}")
def post_budget_change(server: Server, me: Me, name: Named, body: bodies.Change) -> dict[str, Any]:
    """Change a limit or a cap."""
    return server.change_budget(me, name, **body.model_dump())


@router.get("/entries")
def get_entries(
    server: Server,
    me: Me,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 500,
    budget: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
) -> list[dict[str, Any]]:
    """List entries of the ledger."""
    return server.entries(me, after, limit, budget)


@router.get("/acts")
def get_acts(
    server: Server, me: Me, after: Annotated[int, Query(ge=0)] = 0, limit: Limit = 500
) -> list[dict[str, Any]]:
    """List administrative acts."""
    return server.acts(me, after, limit)


@router.post("/people", status_code=201)
def post_person(server: Server, me: Me, body: bodies.NewPerson) -> dict[str, Any]:
    """Add a person."""
    return server.add_person(me, body.name, body.role)


@router.put("/people/{name}")
def put_person(server: Server, me: Me, name: Named, body: bodies.PersonProfile) -> dict[str, Any]:
    """Set the groups and the address of a person."""
    return server.change_person(me, name, body.groups, body.mail)


@router.post("/tokens", status_code=201)
def post_token(server: Server, me: Me, body: bodies.NewToken) -> dict[str, Any]:
    """Make a token; it is shown once."""
    return server.new_token(me, body.person, body.days, body.note)


@router.delete("/tokens/{id}")
def delete_token(
    server: Server, me: Me, id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
) -> dict[str, Any]:
    """Revoke a token."""
    return server.revoke_token(me, id)


def _download(content: bytes, kind: str, name: str) -> Response:
    return Response(
        content, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'}
    )
