"""Every endpoint × every role × (valid, no, expired, revoked, another person's token).

A new endpoint without an entry in the table fails ``test_every_route_has_an_entry``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sql

from expost.server.database import tokens
from expost.server.people.accounts import ALLOWED, ANALYST, AUDITOR, OWNER
from expost.server.service import Service
from tests.server import test_pages
from tests.server.running_server import JOB, QUESTION, Server, open_server, visits

EVERYBODY = {OWNER, ANALYST, AUDITOR}
NUMBERS = count()


@dataclass(frozen=True)
class Endpoint:
    """Who may call it, how, and whether it shows one analyst's things."""

    roles: frozenset[str]
    body: Any = None
    status: int = 200
    own: bool = False


def endpoint(roles: set[str], body: Any = None, status: int = 200, own: bool = False) -> Endpoint:
    return Endpoint(frozenset(roles), body, status, own)


OPEN = {
    ("GET", "/api/health"),
    ("GET", "/api/ready"),
    ("POST", "/api/first"),
    ("POST", "/api/session"),
}
"""Endpoints that need no token: each proves the caller in another way, or tells nothing."""

PAGES: set[tuple[str, str]] = {
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/static/{name}"),
    ("GET", "/metrics"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("GET", "/sign-in/openid"),
    ("GET", "/sign-in/callback"),
    ("GET", "/first"),
    ("POST", "/first"),
    *(("GET", path) for path in test_pages.PAGES if path not in test_pages.EXAMPLES),
    *(("POST", path) for path in test_pages.FORMS),
}
"""Routes outside the API; ``test_pages.py`` checks who sees what, from the same tables."""

ENDPOINTS = {
    ("GET", "/api/session"): endpoint(EVERYBODY),
    ("DELETE", "/api/session"): endpoint(EVERYBODY),
    ("GET", "/api/datasets"): endpoint(EVERYBODY),
    ("POST", "/api/datasets"): endpoint({OWNER}, lambda: _dataset(), 201),
    ("GET", "/api/datasets/{name}"): endpoint(EVERYBODY),
    ("DELETE", "/api/datasets/{name}"): endpoint({OWNER}, status=404),
    ("POST", "/api/datasets/preview"): endpoint({OWNER}, lambda: _dataset()),
    ("PUT", "/api/datasets/{name}"): endpoint(
        {OWNER}, lambda: visits(_SERVERS["folder"] / "visits.csv")
    ),
    ("POST", "/api/price"): endpoint({OWNER, ANALYST}, lambda: QUESTION),
    ("POST", "/api/plan"): endpoint(
        {OWNER, ANALYST}, lambda: {"epsilons": [0.5, 1.0], "configurations": 4}
    ),
    ("POST", "/api/requests"): endpoint({ANALYST}, lambda: {"question": QUESTION}, 201),
    ("GET", "/api/requests"): endpoint(EVERYBODY),
    ("GET", "/api/export"): endpoint(EVERYBODY),
    ("GET", "/api/requests/{id}"): endpoint(EVERYBODY, own=True),
    ("POST", "/api/requests/{id}/approve"): endpoint({OWNER}, lambda: {"reason": "x"}, 409),
    ("POST", "/api/requests/{id}/decline"): endpoint({OWNER}, lambda: {"reason": "x"}, 409),
    ("GET", "/api/releases"): endpoint(EVERYBODY),
    ("GET", "/api/releases/{id}"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/releases/{id}/certificate"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/releases/{id}/report"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/releases/{id}/registry"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/releases/{id}/answers"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/releases/{id}/model"): endpoint(EVERYBODY, status=404, own=True),
    ("GET", "/api/releases/{id}/verify"): endpoint(EVERYBODY, own=True),
    ("GET", "/api/budgets"): endpoint(EVERYBODY),
    ("POST", "/api/budgets"): endpoint({OWNER}, lambda: _budget(), 201),
    ("GET", "/api/budgets/{name}"): endpoint(EVERYBODY),
    ("POST", "/api/budgets/{name}"): endpoint(
        {OWNER}, lambda: {"reason": "test", "epsilon": 500.0}
    ),
    ("GET", "/api/budgets/{name}/history"): endpoint(EVERYBODY),
    ("GET", "/api/entries"): endpoint({OWNER, AUDITOR}),
    ("GET", "/api/verify"): endpoint({OWNER, AUDITOR}),
    ("GET", "/api/acts"): endpoint({OWNER, AUDITOR}),
    ("GET", "/api/people"): endpoint({OWNER, AUDITOR}),
    ("POST", "/api/people"): endpoint({OWNER}, lambda: _person(), 201),
    ("DELETE", "/api/people/{name}"): endpoint({OWNER}, status=404),
    ("POST", "/api/people/{name}/enable"): endpoint({OWNER}, status=404),
    ("PUT", "/api/people/{name}"): endpoint({OWNER}, lambda: {"groups": ["health"]}, 404),
    ("GET", "/api/tokens"): endpoint(EVERYBODY),
    ("POST", "/api/tokens"): endpoint({OWNER}, lambda: {"person": "ann"}, 201),
    ("DELETE", "/api/tokens/{id}"): endpoint(EVERYBODY, status=404),
}

ROLE_OF = {"olga": OWNER, "ann": ANALYST, "ada": AUDITOR}
_SERVERS: dict[str, Any] = {}


def _dataset() -> dict[str, Any]:
    source = str(_SERVERS["folder"] / "visits.csv")
    return {
        "name": f"new{next(NUMBERS)}",
        "budget": "visits",
        "source": source,
        "user": "person",
        "groups": {"city": None},
    }


def _budget() -> dict[str, Any]:
    return {"name": f"new{next(NUMBERS)}", "kind": "pure", "epsilon": 1.0}


def _person() -> dict[str, Any]:
    return {"name": f"new{next(NUMBERS)}", "role": "analyst"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("roles")
    with open_server(folder) as made:
        _SERVERS["folder"] = folder
        asked = made.ask("ann", QUESTION, "for the table")
        assert made.wait(asked.json()["id"])["status"] == "done"
        _SERVERS["request"] = asked.json()["id"]
        owner = made.person("olga")
        for who in list(ROLE_OF):
            for kind in ("expired", "revoked"):
                token = made.service.new_token(owner, who)
                made.tokens[f"{who} {kind}"] = token["token"]
                values = {"expires": 1.0} if kind == "expired" else {"revoked": True}
                made.service.store.change(
                    tokens.update().where(tokens.c.id == token["id"]).values(**values)
                )
        # Sixty refused calls from one address would be too many to sign in.
        made.service._people.check_limit = lambda address: None
        yield made


def call(server: Server, who: str | None, key: tuple[str, str]) -> Any:
    method, path = key
    name = "visits" if key[0] != "DELETE" else "nobody"
    identity = _SERVERS["request"] if "tokens" not in path else "0" * 16
    body = ENDPOINTS[key].body
    return server.call(
        who,
        method,
        path.format(name=name, id=identity) + ("?period=2026" if path == "/api/export" else ""),
        None if body is None else body(),
        idempotency_key=f"key {next(NUMBERS)}",
    )


def routes(app: Any) -> set[tuple[str, str]]:
    """All routes of an application, also those of included routers."""
    found = set()
    for route in app.routes:
        inner = getattr(route, "original_router", route)  # FastAPI wraps included routers
        if hasattr(inner, "routes") and not hasattr(inner, "methods"):
            found |= routes(inner)
        elif getattr(route, "methods", None):
            found |= {(method, route.path) for method in route.methods}
    return found


def test_every_route_has_an_entry(server: Server) -> None:
    schema = server.client.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, item in schema.items() for method in item}
    assert {key for key in described if key[1].startswith("/api/")} == set(ENDPOINTS) | OPEN
    every = routes(server.app)
    assert set(ENDPOINTS) | OPEN <= every  # else routes() does not see what it should
    others = {key for key in every if not key[1].startswith("/api/")}
    assert others == PAGES, f"add these to PAGES, and test who sees them: {sorted(others ^ PAGES)}"


def test_every_action_is_in_the_table_of_roles() -> None:
    actions = {name for name, value in vars(Service).items() if hasattr(value, "__wrapped__")} | {
        name
        for kind in Service.__mro__
        for name, value in vars(kind).items()
        if hasattr(value, "__wrapped__")
    }
    assert actions == set(ALLOWED)


@pytest.mark.parametrize("key", sorted(ENDPOINTS), ids=" ".join)
@pytest.mark.parametrize("who", sorted(ROLE_OF))
def test_role(server: Server, who: str, key: tuple[str, str]) -> None:
    wanted = ENDPOINTS[key]
    answer = call(server, who, key)
    expected = wanted.status if ROLE_OF[who] in wanted.roles else 403
    assert answer.status_code == expected, answer.text


@pytest.mark.parametrize("key", sorted(ENDPOINTS), ids=" ".join)
def test_tokens_that_are_not_valid(server: Server, key: tuple[str, str]) -> None:
    answers = [call(server, None, key)]
    for who in ROLE_OF:
        answers += [call(server, f"{who} {kind}", key) for kind in ("expired", "revoked")]
    assert {answer.status_code for answer in answers} == {401}
    # No answer says which of them it was.
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize(
    "key", sorted(key for key, each in ENDPOINTS.items() if each.own), ids=" ".join
)
def test_things_of_another_analyst_do_not_exist(server: Server, key: tuple[str, str]) -> None:
    theirs = call(server, "bob", key)
    method, path = key
    absent = server.call("bob", method, path.format(id="f" * 32))
    assert theirs.status_code == absent.status_code == 404
    assert theirs.text == absent.text


def test_lists_hold_nothing_of_another_analyst(server: Server) -> None:
    for path in ("/api/requests", "/api/releases"):
        assert server.call("bob", "GET", path).json() == []
        assert len(server.call("ann", "GET", path).json()) >= 1
    listed = server.call("bob", "GET", "/api/tokens").json()
    assert {each["person"] for each in listed} == {"bob"}
    mine = server.call("ann", "GET", "/api/tokens").json()[0]["id"]
    assert server.call("bob", "DELETE", f"/api/tokens/{mine}").status_code == 404


def test_analysts_see_no_source_and_no_other_cap(server: Server) -> None:
    for who in ("ann", "ada"):
        told = server.call(who, "GET", "/api/datasets/visits").text
        assert "visits.csv" not in told
        assert str(server.folder) not in told
    assert server.call("ann", "GET", "/api/budgets/visits").json()["caps"] == []
    assert "visits.csv" in server.call("olga", "GET", "/api/datasets/visits").text
    acts = server.call("ada", "GET", "/api/acts").text
    assert "visits.csv" not in acts


def test_disabled_people_lose_tokens_and_sessions(server: Server) -> None:
    owner = server.person("olga")
    server.service.add_person(owner, "zoe", "analyst")
    server.tokens["zoe"] = server.service.new_token(owner, "zoe")["token"]
    begun = server.call(None, "POST", "/api/session", {"token": server.tokens["zoe"]})
    assert begun.status_code == 201
    assert server.client.get("/api/session").json()["name"] == "zoe"
    server.service.disable_person(owner, "zoe")
    assert server.client.get("/api/session").status_code == 401
    server.client.cookies.clear()
    assert server.call("zoe", "GET", "/api/session").status_code == 401
    count_ = sql.select(sql.func.count()).where(tokens.c.person == "zoe", tokens.c.revoked)
    assert server.service.store.read(lambda c: c.scalar(count_)) == 1


def test_auditors_and_owners_never_ask(server: Server) -> None:
    before = len(server.call("ada", "GET", "/api/entries").json())
    for who in ("ada", "olga"):
        assert server.ask(who, JOB, f"never {who}").status_code == 403
    assert len(server.call("ada", "GET", "/api/entries").json()) == before
