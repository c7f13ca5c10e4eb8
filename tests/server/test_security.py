"""Hostile HTTP: paths, SQL, bodies, headers, cross-site calls; and logs without secrets."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expost.server.api import access as security
from expost.server.database import tokens
from expost.server.jobs.datasets import Datasets
from expost.server.people import accounts
from expost.server.people.signin import COOKIE, proxy_signature
from tests.server.running_server import QUESTION, Server, open_server

KEY = b"k" * 32
NASTY = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "visits'; DROP TABLE server_people; --",
    'visits" OR "1"="1',
    "visits\x00",
    "vis\r\nset-cookie: a=b",
    "%s%s%n",
    "𝕧" * 70,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with open_server(tmp_path_factory.mktemp("security"), proxy_key=KEY) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_cookies(server: Server) -> None:
    server.client.cookies.clear()


def sound(server: Server, answer: Any) -> None:
    """An error in the agreed form, which tells nothing about the machine."""
    assert answer.status_code in (400, 404, 405, 413, 422), answer.text
    if answer.url.path.startswith("/api/"):
        assert set(answer.json()) == {"error", "field", "valid"}
    for word in (str(server.folder), "visits.csv", "SELECT", "sqlite", "Traceback", "server_"):
        assert word not in answer.text


@pytest.mark.parametrize("text", NASTY)
def test_names_that_are_no_names(server: Server, text: str) -> None:
    from urllib.parse import quote

    for path in ("/api/datasets/", "/api/budgets/", "/api/requests/", "/api/releases/"):
        sound(server, server.call("ann", "GET", path + quote(text, safe="")))
        sound(server, server.call("ann", "GET", path + quote(text, safe="/%")))
    for body in (
        QUESTION | {"dataset": text},
        QUESTION | {"by": [text]},
        QUESTION | {"where": [text]},
        QUESTION | {"where": [f"{text}=1"]},
        {"dataset": "visits", "kind": "sum", "column": text},
    ):
        sound(server, server.call("ann", "POST", "/api/price", body))
        sound(server, server.ask("ann", body, "nasty"))
    assert server.call(
        "olga", "POST", "/api/people", {"name": text, "role": "owner"}
    ).status_code in (422,)
    assert len(server.call("olga", "GET", "/api/people").json()) == 4
    assert server.call("ada", "GET", "/api/verify").json()["valid"]


def test_values_of_conditions_are_values(server: Server) -> None:
    """SQL in a value is compared as text: it matches nobody, and nothing else happens."""
    question = QUESTION | {"where": ["city=Bern'; DROP TABLE x; --"], "plus_minus": 30.0}
    question.pop("within")
    view = server.wait(server.ask("ann", question, "sql value").json()["id"])
    assert view["status"] == "done"
    found = server.call("ann", "GET", f"/api/releases/{view['id']}").json()["result"]
    assert all(each["estimate"] < 400 for each in found["answers"])  # there are 1,000 in Bern


def test_bodies(server: Server) -> None:
    token = {"authorization": f"Bearer {server.tokens['ann']}", "content-type": "application/json"}

    def post(content: bytes, path: str = "/api/price", **headers: str) -> Any:
        return server.client.post(path, content=content, headers=token | headers)

    for content in (b"", b"{", b"[]", b"null", b'{"dataset": NaN}', b"\xff\xfe", b'"text"'):
        sound(server, post(content))
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    assert post(deep).status_code in (400, 422)
    wrong = [
        QUESTION | {"unknown": 1},
        QUESTION | {"epsilon": "1"},
        QUESTION | {"epsilon": -1.0},
        QUESTION | {"epsilon": 1e300},
        QUESTION | {"kind": "drop"},
        QUESTION | {"by": "city"},
        QUESTION | {"where": ["x"] * 21},
        QUESTION | {"keys": ["a" * 201]},
        QUESTION | {"keys": ["a", "a"]},
        QUESTION | {"within": 0.1, "plus_minus": 3.0},
        QUESTION | {"confidence": 1.0},
        QUESTION | {"delta": 1e-6},
        QUESTION | {"max_groups_per_user": 0},
    ]
    for body in wrong:
        sound(server, post(json.dumps(body).encode()))
    large = post(b" " * (security.LARGEST_BODY + 1))
    assert large.status_code == 413
    sound(server, large)
    assert post(b"{}", **{"content-length": "1" * 40}).status_code in (400, 413)


def test_a_body_of_unknown_length_is_limited(server: Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(security.LARGEST_BODY // 2**20 + 2):
            yield b" " * 2**20

    token = {"authorization": f"Bearer {server.tokens['ann']}", "content-type": "application/json"}
    answer = server.client.post("/api/price", content=chunks(), headers=token)
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.2:80"])
def test_other_hosts_are_refused(server: Server, host: str) -> None:
    assert server.client.get("/api/health", headers={"host": host}).status_code == 400


def test_headers_of_every_answer(server: Server) -> None:
    for answer in (
        server.client.get("/api/health"),
        server.client.get("/api/nowhere"),
        server.call("ann", "GET", "/api/datasets"),
        server.call(None, "GET", "/api/datasets"),
        server.client.get("/api/health", headers={"host": "evil"}),
    ):
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


def sign_in(server: Server, who: str) -> Any:
    answer = server.client.post("/api/session", json={"token": server.tokens[who]})
    assert answer.status_code == 201
    return answer


def test_cookies_and_csrf(server: Server) -> None:
    answer = sign_in(server, "ann")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie  # this server listens on the loopback address
    csrf = answer.json()["csrf"]
    assert server.client.get("/api/datasets").status_code == 200
    for headers in ({}, {"x-csrf-token": ""}, {"x-csrf-token": "0" * 64}, {"x-csrf-token": "é"}):
        sent = {name: value.encode() for name, value in headers.items()}
        assert server.client.post("/api/price", json=QUESTION, headers=sent).status_code == 403
    right = {"x-csrf-token": csrf}
    assert server.client.post("/api/price", json=QUESTION, headers=right).status_code == 200
    # Another session's value does not work here.
    other = sign_in(server, "ann").json()["csrf"]
    assert other != csrf
    assert server.client.post("/api/price", json=QUESTION, headers=right).status_code == 403
    gone = server.client.delete("/api/session", headers={"x-csrf-token": other})
    assert gone.status_code == 200
    assert server.client.get("/api/session").status_code == 401


def test_a_cookie_does_not_outlive_its_token(server: Server) -> None:
    owner = server.person("olga")
    made = server.service.new_token(owner, "ann")
    server.client.post("/api/session", json={"token": made["token"]})
    assert server.client.get("/api/session").status_code == 200
    server.service.revoke_token(owner, made["id"])
    assert server.client.get("/api/session").status_code == 401
    for value in ("", "x", "A" * 43, "../" * 15):
        server.client.cookies.clear()
        answer = server.client.get("/api/session", headers={"cookie": f"{COOKIE}={value}"})
        assert answer.status_code == 401


def test_secure_cookies_beyond_this_machine(tmp_path: Path) -> None:
    with open_server(tmp_path, host="server.example", threads=0) as made:
        made.client.base_url = "https://server.example"  # type: ignore[assignment]
        answer = made.client.post("/api/session", json={"token": made.tokens["ann"]})
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "strict-transport-security" in answer.headers


def proxy_headers(name: str, role: str, moment: int, key: bytes = KEY) -> dict[str, str]:
    signature = proxy_signature(key, name, role, str(moment))
    return {
        "x-expost-user": name,
        "x-expost-role": role,
        "x-expost-time": str(moment),
        "x-expost-signature": signature,
    }


def test_a_proxy_signs_who_signs_in(server: Server) -> None:
    now = int(time.time())
    good = proxy_headers("pia", "analyst", now)
    answer = server.client.post("/api/session", json={}, headers=good)
    assert answer.status_code == 201
    assert server.client.get("/api/session").json() | {"csrf": ""} == {
        "name": "pia",
        "role": "analyst",
        "csrf": "",
    }
    server.client.cookies.clear()
    bad = [
        {},
        proxy_headers("pia", "analyst", now - 120),
        proxy_headers("pia", "analyst", now + 120),
        proxy_headers("pia", "analyst", now, b"x" * 32),
        good | {"x-expost-user": "olga"},
        good | {"x-expost-role": "owner"},
        proxy_headers("pia", "owner", now),  # signed, but not the role that the server knows
        proxy_headers("bad name", "analyst", now),
        proxy_headers("pia", "king", now),
    ]
    for headers in bad:
        assert server.client.post("/api/session", json={}, headers=headers).status_code == 401
    # The headers alone open nothing else.
    assert server.client.get("/api/datasets", headers=good).status_code == 401
    server.service.disable_person(server.person("olga"), "pia")


def test_attempts_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MOST_PER_ADDRESS", 5)
    with open_server(tmp_path, threads=0) as made:
        wrong = {"authorization": f"Bearer expost_{'0' * 16}_{'A' * 43}"}
        got = [made.client.get("/api/datasets", headers=wrong).status_code for _ in range(7)]
        assert got == [401] * 5 + [429] * 2
        # Limits are stored: another process has them too. They end with their time.
        assert made.client.post("/api/session", json={"token": "x"}).status_code == 429
        monkeypatch.setattr(accounts, "WINDOW", 0.0)
        assert made.client.get("/api/datasets", headers=wrong).status_code == 401


def test_the_first_link_works_once(tmp_path: Path) -> None:
    with open_server(tmp_path, threads=0) as made:
        assert made.service.signin.first_link() is None  # there is an owner
        for link in ("x", "A" * 43):
            body = {"link": link, "name": "eve"}
            assert made.client.post("/api/first", json=body).status_code == 401
        assert len(made.service.people(made.person("olga"))) == 4
        again = made.service.signin.first_link(again=True)
        taken = made.client.post("/api/first", json={"link": again, "name": "ann"})
        assert taken.status_code == 409
        made_now = made.client.post("/api/first", json={"link": again, "name": "oda"})
        assert made_now.status_code == 201
        assert (
            made.client.post("/api/first", json={"link": again, "name": "odo"}).status_code == 401
        )


def test_a_session_ends_with_its_token(server: Server) -> None:
    made = server.service.new_token(server.person("olga"), "ann")
    server.client.post("/api/session", json={"token": made["token"]})
    assert server.client.get("/api/session").status_code == 200
    past = tokens.update().where(tokens.c.id == made["id"]).values(expires=1.0)
    server.service.store.change(past)
    assert server.client.get("/api/session").status_code == 401


def test_logs_hold_no_secret(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    memo = "a memo that nobody logs"
    asked = server.ask("ann", QUESTION | {"where": ["age>=77"]}, "the secret key", memo)
    server.wait(asked.json()["id"])
    sign_in(server, "ann")
    cookie = server.client.cookies[COOKIE]
    server.client.get("/api/datasets?token=queries-are-not-logged")
    server.call(None, "POST", "/api/first", {"link": "L" * 43, "name": "eve"})
    server.call("ann", "POST", "/api/price", QUESTION | {"dataset": "no-such-name"})
    logged = "\n".join(
        f"{record.getMessage()} {record.args}"
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore", "asyncio"))
    )
    assert "/api/requests" in logged
    secrets = [*server.tokens.values(), cookie, memo, "the secret key", "age>=77", "L" * 43]
    secrets += ["queries-are-not-logged", "visits.csv", str(server.folder)]
    for secret in secrets:
        assert secret not in logged


def test_an_unexpected_error_tells_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Datasets) -> list[Any]:
        raise RuntimeError("row 17: Ann Smith, 1 Main Street")

    monkeypatch.setattr(Datasets, "listed", broken)
    answer = server.call("ann", "GET", "/api/datasets")
    assert answer.status_code == 500
    assert "Ann" not in answer.text
    assert "Ann" not in caplog.text
    assert set(answer.json()) == {"error", "field", "valid"}
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_files_are_for_their_owner_only(server: Server) -> None:
    home = server.folder / "server"
    assert home.stat().st_mode & 0o777 == 0o700
    for path in home.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path


def test_stored_secrets_are_hashed(server: Server) -> None:
    content = b"".join(path.read_bytes() for path in (server.folder / "server").glob("server.db*"))
    for token in server.tokens.values():
        assert token.encode() not in content
        assert token.split("_", 2)[2].encode() not in content


def test_secrets_of_tokens_cannot_be_guessed(server: Server) -> None:
    """A quick hash is enough for 256 random bits; equal secrets have different hashes."""
    drawn = [accounts._draw_token() for _ in range(50)]
    texts = {accounts.parts_of(text)[1] for text, *_ in drawn}  # type: ignore[index]
    assert len(texts) == 50
    assert all(len(base64.urlsafe_b64decode(text + "=")) == 32 for text in texts)
    assert len({accounts.token_hash("same", salt) for *_, salt, _ in drawn}) == 50
