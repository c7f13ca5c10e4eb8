"""The HTTP API under ``/api/``: each endpoint is one action of the service.

Tests: ``tests/server/test_roles.py`` (every endpoint), ``tests/server/test_security.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from expost._version import __version__
from expost.analytics.request import CountRequest, request_settings
from expost.server.api.access import (
    Before,
    Id,
    Searched,
    Server,
    address_of,
    clear_cookie,
    person_of,
    priced,
    set_cookie,
)
from expost.server.jobs.datasets import RULES
from expost.server.people.accounts import Person
from expost.server.people.signin import COOKIE, csrf_of
from expost.server.service import Service
from expost.tuning.request.tune_request import table_schema


def _storable(text: str) -> str:
    """Refuse a text that PostgreSQL and the ledger cannot store."""
    if "\x00" in text:
        raise ValueError("a text without the character NUL")
    return text


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """Refuse a table that cannot be stored as JSON: NaN, infinities, halves of characters."""
    try:
        json.dumps(table, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("finite numbers and valid texts") from None
    return table


_Stored = AfterValidator(_storable)
Name = Annotated[str, StringConstraints(min_length=1, max_length=64), _Stored]
Text = Annotated[str, StringConstraints(max_length=1000), _Stored]
Word = Annotated[str, StringConstraints(min_length=1, max_length=200), _Stored]
Positive = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Table = Annotated[dict[Word, Any], Field(max_length=20), AfterValidator(_plain)]


class Body(BaseModel):
    """A body without unknown fields, whose texts and numbers are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def fields(self) -> tuple[Any, ...]:
        """The values of the fields, in their order: what an action is called with."""
        return tuple(self.model_dump().values())


_TYPES: dict[str, Any] = {
    "kind": Literal["count", "sum", "mean", "quantile", "query", "tune", "errors"],
    "column": Word,
    "by": list[Word],
    "where": list[Text],
    "keys": list[Word | list[Word]],
    "max_groups_per_user": int,
    "max_rows_per_user": int,
}


def _fields() -> dict[str, Any]:
    """The settings of a request that analysts may set, with their limits; ``kind`` is required."""
    fields: dict[str, Any] = {}
    for name, (hint, setting) in request_settings(CountRequest).items():
        if setting.analysts:
            limited: Any = Annotated[_TYPES.get(name, hint), Field(**setting.limits)]
            default = ... if name == "kind" else None
            optional = limited if name == "kind" else limited | None
            fields[name] = (optional, Field(default, description=setting.help))
    return fields


class Question(create_model("Question", __base__=Body, **_fields())):  # type: ignore[misc]
    """What is asked, without what the owner of the data set states."""

    dataset: Name
    size: Count | None = None
    # quantiles and queries
    at: Annotated[list[Share], Field(min_length=1, max_length=99)] | None = None
    within_rank: Annotated[float, Field(ge=1e-6, lt=0.5)] | None = None
    sql: Annotated[str, StringConstraints(min_length=1, max_length=20_000), _Stored] | None = None
    # errors of a model by subgroup: the request that released it
    release: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")] | None = None
    # tuning: the tables of a job, checked by expost.tuning
    model: Annotated[Table, WithJsonSchema(table_schema("model"))] | None = None
    search: Annotated[Table, WithJsonSchema(table_schema("search"))] | None = None
    goal: Annotated[Table, WithJsonSchema(table_schema("goal"))] | None = None
    privacy: Annotated[Table, WithJsonSchema(table_schema("privacy"))] | None = None

    def asked(self) -> dict[str, Any]:
        """The fields that were given."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude_unset=True)
        return given


class Ask(Body):
    """A question that is to be answered."""

    question: Question
    memo: Text = ""


class PlanLevels(Body):
    """The levels of a tuning job."""

    epsilons: Annotated[list[Positive], Field(min_length=1, max_length=50)]
    configurations: Annotated[int, Field(ge=1, le=100_000)]
    delta: Share | None = None
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    attempts: Annotated[int, Field(ge=1, le=100)] | None = None


class Dataset(Body):
    """A data set and what is publicly known about it."""

    name: Name
    kind: Literal["table", "rows"] = "table"
    description: Text = ""
    budget: Name
    source: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    table: Word | None = None
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] | None = None
    user: Word | None = None
    groups: dict[Word, Annotated[list[Word], Field(max_length=100_000)] | None] = {}
    values: dict[Word, Annotated[list[Finite], Field(min_length=2, max_length=2)] | None] = {}
    filters: Annotated[list[Word], Field(max_length=200)] = []
    public_tables: Annotated[
        dict[Word, Annotated[str, StringConstraints(min_length=1, max_length=2000)]],
        Field(max_length=50),
    ] = {}
    max_groups_per_user: Count | None = None
    max_rows_per_user: Count | None = None
    typical_group: Count | None = None
    delta: Share | None = None
    largest_epsilon: Positive | None = None
    data: Annotated[dict[Word, Any], Field(max_length=30), AfterValidator(_plain)] = {}
    facts: Annotated[dict[Word, Any], AfterValidator(_plain)] | None = None
    learn_facts: Positive | None = None
    askers: Annotated[list[Word], Field(max_length=1000)] | None = None
    approval_above: Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)] | None = None
    approval_days: Annotated[float, Field(gt=0, le=366)] | None = None

    def fields(self) -> tuple[Any, ...]:
        """What was stated, as one argument."""
        return (self.stated(),)

    def stated(self) -> dict[str, Any]:
        """The fields that were given; of the rules also those that are to end (None)."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude_unset=True)
        ended = {name: None for name in RULES if name in self.model_fields_set}
        return ended | given


class NewBudget(Body):
    """A budget, with caps per analyst."""

    name: Name
    kind: Literal["pure", "approx", "zcdp", "renyi"] = "pure"
    epsilon: Positive
    delta: Share | None = None
    caps: Annotated[dict[Name, Positive], Field(max_length=1000)] = {}
    renews: Literal["day", "week", "month", "quarter", "year"] | None = None
    neighbours: Word = "add-remove"


class Change(Body):
    """Another limit, or a cap of one analyst."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=1000), _Stored]
    epsilon: Positive | None = None
    delta: Share | None = None
    analyst: Annotated[str, StringConstraints(max_length=64), _Stored] = ""


class NewPerson(Body):
    """A person and their role."""

    name: Name
    role: Literal["owner", "analyst", "auditor"]


class PersonProfile(Body):
    """The groups of a person, and the address of their mail."""

    groups: Annotated[list[Word], Field(max_length=200)] = []
    mail: Annotated[str, StringConstraints(max_length=254), _Stored] = ""


class Decision(Body):
    """Why a question is approved or declined."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=1000), _Stored]


class NewToken(Body):
    """A token for a person."""

    person: Name
    days: Annotated[float, Field(gt=0, le=366)] = 90
    note: Annotated[str, StringConstraints(max_length=200), _Stored] = ""


class Begin(Body):
    """A token with which a session begins; without one the proxy's headers are used."""

    token: Annotated[str, StringConstraints(max_length=200)] | None = None


class First(Body):
    """The first owner."""

    link: Annotated[str, StringConstraints(max_length=100)]
    name: Name


router = APIRouter(prefix="/api")


Me = Annotated[Person, Depends(person_of)]
Named = Annotated[str, Path(max_length=64, pattern=r"^[^\x00]*$")]
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


# Endpoints whose action also takes the fields of a body, in their order; with the status.
SENT: dict[tuple[str, str], tuple[Callable[..., Any], type[Body], int]] = {
    ("POST", "/datasets"): (Service.register, Dataset, 201),
    ("POST", "/datasets/preview"): (Service.preview, Dataset, 200),
    ("PUT", "/datasets/{name}"): (Service.change_dataset, Dataset, 200),
    ("POST", "/requests/{id}/decline"): (Service.decline, Decision, 200),
    ("POST", "/budgets"): (Service.open_budget, NewBudget, 201),
    ("POST", "/budgets/{name}"): (Service.change_budget, Change, 200),
    ("POST", "/people"): (Service.add_person, NewPerson, 201),
    ("PUT", "/people/{name}"): (Service.change_person, PersonProfile, 200),
    ("POST", "/tokens"): (Service.new_token, NewToken, 201),
}


def _endpoint(
    path: str, action: Callable[..., Any], body: type[Body] | None = None
) -> Callable[..., Any]:
    """The endpoint of an action; its description is that of the action."""
    hints: dict[str, Any] = {"service": Server, "me": Me}
    hints |= {"name": Named} if "{name}" in path else {"id": Id} if "{id}" in path else {}
    hints |= {} if body is None else {"body": body}

    def endpoint(service: Service, me: Person, **given: Any) -> Any:
        sent = given.pop("body", None)
        return action(service, me, *given.values(), *(() if sent is None else sent.fields()))

    # FastAPI reads from the signature what the path, the query and the body hold.
    kind = Parameter.KEYWORD_ONLY
    parameters = [Parameter(name, kind, annotation=hint) for name, hint in hints.items()]
    endpoint.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    endpoint.__name__, endpoint.__doc__ = action.__name__, action.__doc__
    return endpoint


for (method, path), served in ACTIONS.items():
    router.add_api_route(path, _endpoint(path, served), methods=[method])
for (method, path), (served, body, status) in SENT.items():
    endpoint = _endpoint(path, served, body)
    router.add_api_route(path, endpoint, methods=[method], status_code=status)


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
def post_first(request: Request, server: Server, body: First) -> dict[str, Any]:
    """Make the first owner with the one-time link; returns their token."""
    person = server.signin.use_link(body.link, body.name, address_of(request))
    return server.new_token(person, person.name, note="first owner")


@router.post("/session", status_code=201)
def begin_session(request: Request, server: Server, body: Begin) -> JSONResponse:
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


@router.post("/price")
async def post_price(request: Request, server: Server, me: Me, body: Question) -> dict[str, Any]:
    """Say what a question would cost; touches no data and charges nothing."""
    return await priced(request, server.price, me, body.asked())


@router.post("/plan")
async def post_plan(request: Request, server: Server, me: Me, body: PlanLevels) -> dict[str, Any]:
    """Plan a tuning job from its levels."""
    return await priced(request, server.plan, me, body.model_dump())


@router.post("/requests", status_code=201)
async def post_question(
    request: Request,
    server: Server,
    me: Me,
    body: Ask,
    idempotency_key: Annotated[str, Header(min_length=1, max_length=128)],
) -> JSONResponse:
    """Ask: the question is recorded, priced and reserved, and runs afterwards."""
    asked = body.question.asked()
    view = await priced(request, server.ask, me, asked, idempotency_key, body.memo)
    return JSONResponse(view, status_code=_STATUS.get(view["status"], 201))


@router.post("/requests/{id}/approve")
async def post_approval(
    request: Request, server: Server, me: Me, id: Id, body: Decision
) -> JSONResponse:
    """Let a question run that waits for approval; the budget admits or refuses it now."""
    view = await priced(request, server.approve, me, id, body.reason)
    return JSONResponse(view, status_code=402 if view["status"] == "refused" else 200)


@router.get("/requests")
def get_requests(
    server: Server,
    me: Me,
    limit: Limit = 100,
    before: Before = None,
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
