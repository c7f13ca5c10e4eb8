"""Signing in through a real OpenID provider, which runs in a process of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

if find_spec("oidc_provider_mock") is None or find_spec("authlib") is None:
    pytest.skip("there is no OpenID provider", allow_module_level=True)

from expost.errors import InvalidInput
from expost.server.app import create_app
from expost.server.people.signin import OpenID, derived
from expost.server.server_settings import OutsideSettings, ServerSettings
from tests.server.running_server import PEOPLE, Server, furnish
from tests.server.test_pages import problems

ROLES = {"data-owners": "owner", "revision": "auditor", "research": "analyst"}
SECRET = "a secret of the client"


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{address}/.well-known/openid-configuration").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def write_settings(home: Path, issuer: str, **more: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    oidc = {"issuer": issuer, "client": "expost", "roles": ROLES, **more}
    lines = ['address = "http://localhost:8400"', "[oidc]"]
    for key, value in oidc.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            text = "{" + ", ".join(f'"{a}" = "{b}"' for a, b in value.items()) + "}"
        lines.append(f"{key} = {text}")
    (home / "settings.toml").write_text("\n".join(lines))
    (home / "secrets.toml").write_text(f'oidc_secret = "{SECRET}"\n')
    (home / "secrets.toml").chmod(0o600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, provider: str) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("openid")
    write_settings(folder / "server", provider)
    app = create_app(ServerSettings(folder / "server", tick=0.0, threads=0, pricers=0))
    with TestClient(app, base_url="http://localhost") as client:
        yield Server(folder, app, client, furnish(app.state.service, folder))


def claims(provider: str, sub: str, *groups: str, **more: Any) -> None:
    """What the provider says about a person."""
    known = {"preferred_username": sub, "groups": list(groups), **more}
    httpx.put(f"{provider}/users/{sub}", json=known).raise_for_status()


def browser(server: Server) -> TestClient:
    return TestClient(server.app, base_url="http://localhost", follow_redirects=False)


def to_provider(client: TestClient, sub: str, path: str = "/requests") -> tuple[Any, Any]:
    """Leave for the provider and sign in there; its request, and the address it sends us to."""
    left = client.get(f"/sign-in/openid?next={path}")
    assert left.status_code == 303, left.text
    place = left.headers["location"]
    sent = httpx.post(place, data={"sub": sub})
    return parse_qs(urlsplit(place).query), urlsplit(sent.headers["location"])


def sign_in(server: Server, sub: str) -> tuple[TestClient, Any]:
    client = browser(server)
    _, back = to_provider(client, sub)
    return client, client.get(f"{back.path}?{back.query}")


def test_from_the_provider_to_a_session(server: Server, provider: str) -> None:
    claims(provider, "eva", "research", "ward 3", "odd, group", email="e@x.org")
    client = browser(server)
    assert 'href="/sign-in/openid?next=/' in client.get("/sign-in").text
    asked, back = to_provider(client, "eva")
    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert back.path == "/sign-in/callback"
    cookie = client.cookies["expost_sign_in"].partition(".")[0]
    digest = hashlib.sha256(derived(cookie, "verifier").encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert asked["code_challenge"] == [challenge]
    assert asked["nonce"] == [derived(cookie, "nonce")]
    arrived = client.get(f"{back.path}?{back.query}")
    assert arrived.status_code == 200
    assert 'content="0;url=/requests"' in arrived.text
    assert problems(arrived.text) == []
    assert client.get("/api/session").json()["role"] == "analyst"
    listed = {row["name"]: row for row in server.call("olga", "GET", "/api/people").json()}
    assert listed["eva"]["groups"] == ["research", "ward 3"]
    assert listed["eva"]["mail"] == ""  # the provider has not verified it
    again = browser(server).get(f"{back.path}?{back.query}")
    assert again.status_code == 401  # without the cookie, and a code works once
    assert client.get(f"{back.path}?{back.query}").status_code == 401


def test_the_verifier_is_sent(
    server: Server, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from authlib.integrations.httpx_client import OAuth2Client

    sent: list[str] = []
    library = import_module(OAuth2Client.__mro__[2].__module__.partition(".")[0])  # one of httpx's
    real = library.HTTPTransport.handle_request

    def send(self: Any, request: Any) -> Any:
        sent.append(request.read().decode())
        return real(self, request)

    claims(provider, "ida", "research")
    client = browser(server)
    _, back = to_provider(client, "ida")
    cookie = client.cookies["expost_sign_in"].partition(".")[0]
    service = server.service
    monkeypatch.setattr(library.HTTPTransport, "handle_request", send)
    service.openid.arrive(cookie, {name: v[0] for name, v in parse_qs(back.query).items()})
    assert any(f"code_verifier={derived(cookie, 'verifier')}" in body for body in sent)


def test_roles_follow_groups(server: Server, provider: str) -> None:
    claims(provider, "max", "revision", "research")
    client, _ = sign_in(server, "max")
    assert client.get("/api/session").json()["role"] == "auditor"
    claims(provider, "max", "research", email="max@example.org", email_verified=True)
    client, _ = sign_in(server, "max")
    assert client.get("/api/session").json()["role"] == "analyst"
    acts = server.call("ada", "GET", "/api/acts").json()
    assert (acts[-1]["act"], acts[-1]["person"]) == ("change person", "the OpenID provider")
    people = {row["name"]: row for row in server.call("olga", "GET", "/api/people").json()}
    assert people["max"]["mail"] == "max@example.org"
    claims(provider, "max", "research", email="max@x.org, eve@x.org", email_verified=True)
    sign_in(server, "max")
    people = {row["name"]: row for row in server.call("olga", "GET", "/api/people").json()}
    assert people["max"]["mail"] == ""  # notices would go to both
    token = server.service.new_token(server.person("olga"), "max")["token"]
    bearer = {"authorization": f"Bearer {token}"}
    assert browser(server).get("/api/session", headers=bearer).status_code == 200
    claims(provider, "max", "cooks")
    before = client
    client, answer = sign_in(server, "max")
    assert answer.status_code == 403
    for other, headers in ((before, {}), (browser(server), bearer)):  # of better days
        assert other.get("/api/session", headers=headers).status_code == 401
    assert "no role here" in answer.text
    assert problems(answer.text) == []


def test_groups_open_data_sets(server: Server, provider: str) -> None:
    claims(provider, "kim", "research", "health")
    facts = server.call("olga", "GET", "/api/datasets/visits").json()
    stated = {key: facts[key] for key in ("name", "budget", "source", "user", "groups", "values")}
    for askers, status in ((["@health"], 200), (["@ward"], 404)):
        server.call("olga", "PUT", "/api/datasets/visits", stated | {"askers": askers})
        client, _ = sign_in(server, "kim")
        assert client.get("/api/datasets/visits").status_code == status


def test_a_disabled_person_stays_disabled(server: Server, provider: str) -> None:
    claims(provider, "tom", "research")
    client, _ = sign_in(server, "tom")
    server.service.disable_person(server.person("olga"), "tom")
    assert client.get("/api/session").status_code == 401
    client, answer = sign_in(server, "tom")
    assert answer.status_code == 401
    assert client.get("/api/session").status_code == 401


def test_a_name_is_not_an_identity(server: Server, provider: str, tmp_path: Path) -> None:
    """Whoever may choose a name at the provider does not become somebody here."""
    claims(provider, "x-1", "data-owners", preferred_username="olga")
    _, answer = sign_in(server, "x-1")
    assert (answer.status_code, "another person" in answer.text) == (409, True)
    claims(provider, "eva", "research")
    sign_in(server, "eva")
    claims(provider, "x-2", "data-owners", preferred_username="eva")
    assert sign_in(server, "x-2")[1].status_code == 409
    claims(provider, "x-3", "research", preferred_username="<script>")
    _, answer = sign_in(server, "x-3")
    assert answer.status_code == 403
    assert problems(answer.text) == []


def test_people_may_be_linked_by_name(tmp_path: Path, provider: str) -> None:
    write_settings(tmp_path / "server", provider, link_people=True)
    app = create_app(ServerSettings(tmp_path / "server", tick=0.0, threads=0, pricers=0))
    with TestClient(app, base_url="http://localhost") as client:
        linked = Server(tmp_path, app, client, furnish(app.state.service, tmp_path))
        claims(provider, "x-4", "research", preferred_username="ann")
        session, _ = sign_in(linked, "x-4")
        assert session.get("/api/session").json()["name"] == "ann"
        claims(provider, "x-5", "research", preferred_username="ann")  # hers by now
        assert sign_in(linked, "x-5")[1].status_code == 409


def test_an_address_that_is_not_verified_is_no_name(tmp_path: Path, provider: str) -> None:
    """With the name from email, who typed a colleague's address at the provider became them."""
    write_settings(tmp_path / "server", provider, name="email", link_people=True)
    app = create_app(ServerSettings(tmp_path / "server", tick=0.0, threads=0, pricers=0))
    with TestClient(app, base_url="http://localhost") as client:
        named = Server(tmp_path, app, client, furnish(app.state.service, tmp_path))
        named.service.add_person(named.person("olga"), "kay@example.org", "analyst")
        for verified in ({}, {"email_verified": False}, {"email_verified": "true"}):
            claims(provider, "x-6", "research", email="kay@example.org", **verified)
            session, answer = sign_in(named, "x-6")
            assert (answer.status_code, "not verified" in answer.text) == (403, True)
            assert session.get("/api/session").status_code == 401
        claims(provider, "x-7", "research", email="kay@example.org", email_verified=True)
        session, _ = sign_in(named, "x-7")
        assert session.get("/api/session").json()["name"] == "kay@example.org"


@pytest.mark.parametrize("change", ["state", "code", "iss", "cookie", "error"])
def test_answers_that_do_not_fit(server: Server, provider: str, change: str) -> None:
    claims(provider, "eva", "research")
    client = browser(server)
    _, back = to_provider(client, "eva")
    query = {name: values[0] for name, values in parse_qs(back.query).items()}
    if change == "cookie":
        client.cookies.clear()
        to_provider(client, "eva")  # another sign-in of the same browser
    elif change == "error":
        query = {"error": "access_denied", "state": query["state"]}
    else:
        query[change] = "https://evil.example"
    answer = client.get("/sign-in/callback", params=query)
    assert answer.status_code == 401
    assert "did not sign you in" in answer.text
    assert client.get("/api/session").status_code == 401


def test_id_tokens_that_are_wrong(server: Server, provider: str) -> None:
    from joserfc import jwt
    from joserfc.jwk import KeySet, OctKey, RSAKey

    openid: OpenID = server.service.openid
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = KeySet([key])
    now = int(time.time())
    right = {
        "iss": provider,
        "aud": "expost",
        "sub": "a",
        "exp": now + 60,
        "iat": now,
        "nonce": "n",
    }
    text = jwt.encode({"alg": "RS256", "kid": "k"}, right, key)
    assert openid._verified(text, keys, "n")["sub"] == "a"
    wrong: list[dict[str, Any]] = [
        *({"iss": "https://evil.example"}, {"aud": "other"}, {"nonce": "m"}, {"exp": now - 600}),
        *({"aud": ["expost", "other"]}, {"azp": "other"}, {"iat": now + 600}, {"sub": None}),
    ]
    for change in wrong:
        text = jwt.encode({"alg": "RS256", "kid": "k"}, right | change, key)
        with pytest.raises(Exception, match=r".*"):
            openid._verified(text, keys, "n")
    for header, other in (
        ({"alg": "RS256", "kid": "k"}, RSAKey.generate_key(2048, {"kid": "k"})),
        ({"alg": "HS256", "kid": "k"}, OctKey.import_key("x" * 32, {"kid": "k"})),
    ):
        with pytest.raises(Exception, match=r".*"):
            openid._verified(jwt.encode(header, right, other), keys, "n")
    body = base64.urlsafe_b64encode(json.dumps(right).encode()).decode().rstrip("=")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    with pytest.raises(Exception, match=r".*"):
        openid._verified(f"{none}.{body}.", keys, "n")


def test_a_provider_that_is_away(tmp_path: Path) -> None:
    write_settings(tmp_path, "http://127.0.0.1:9")
    app = create_app(ServerSettings(tmp_path, threads=0, pricers=0), run=False)
    answer = TestClient(app, base_url="http://localhost").get("/sign-in/openid")
    assert answer.status_code == 503
    app.state.service.close()


def test_settings_are_checked_and_secrets_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path, "https://login.example")
    read = OutsideSettings.read(tmp_path)
    assert read.oidc_secret == SECRET
    assert SECRET not in repr(read)
    monkeypatch.setenv("EXPOST_OIDC_SECRET", "from the environment")
    assert OutsideSettings.read(tmp_path).oidc_secret == "from the environment"
    (tmp_path / "secrets.toml").chmod(0o644)
    with pytest.raises(InvalidInput, match=r"secrets\.toml"):
        OutsideSettings.read(tmp_path)
    (tmp_path / "secrets.toml").chmod(0o600)
    for more in (
        *({"issuer": "http://login.example"}, {"roles": {"a": "king"}}, {"clients": "x"}),
        *({"client": 3}, {"link_people": "yes"}),
    ):
        write_settings(tmp_path, **({"issuer": "https://login.example"} | more))
        with pytest.raises(InvalidInput):
            OutsideSettings.read(tmp_path)
    (tmp_path / "secrets.toml").write_text(f"oidc_secret = {SECRET}")
    with pytest.raises(InvalidInput) as refused:
        OutsideSettings.read(tmp_path)
    assert SECRET not in str(refused.value)
    assert set(PEOPLE.values()) == {"owner", "analyst", "auditor"}
    assert re.fullmatch(r"[0-9a-f]{64}", derived("x", "verifier"))
