"""Webhooks and mail: what they say, to whom, signed, and tried again; against real receivers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiosmtpd")
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from expost.errors import InvalidInput
from expost.server.database import notices, requests
from expost.server.jobs import datasets
from expost.server.jobs.datasets import source_with_secrets
from expost.server.notices import MOST_TRIES, notice_signature
from expost.server.server_settings import OutsideSettings
from tests.server.running_server import QUESTION, Server, open_server, visits
from tests.server.test_approvals import decide, run

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
KEY = "k" * 40
PASSWORD = "hunter2 & more"


class Hook(HTTPServer):
    """A receiver of webhooks that answers with a status, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                hook.sent.append((dict(self.headers), self.rfile.read(size)))
                self.send_response(hook.status)
                self.send_header("location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.sent]


class Post:
    """A mail server that wants a password, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[str], str]] = []
        self.passwords: list[bytes] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.controller = Controller(
            self,
            hostname="127.0.0.1",
            port=self.port,
            authenticator=self.authenticate,
            auth_require_tls=False,
            auth_required=True,
        )

    def authenticate(self, server: Any, session: Any, envelope: Any, how: str, data: Any) -> Any:
        self.passwords.append(data.password)
        return AuthResult(success=data.password == PASSWORD.encode())

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.sent.append((envelope.rcpt_tos, envelope.content.decode()))
        return "250 kept"


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.shutdown()
    hook.server_close()


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    post.controller.start()
    yield post
    post.controller.stop()


@pytest.fixture
def server(
    tmp_path: Path, hook: Hook, post: Post, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "settings.toml").write_text(
        f"""address = "https://data.example"
[webhook]
url = "http://127.0.0.1:{hook.server_port}/hook"
[mail]
host = "127.0.0.1"
port = {post.port}
security = "none"
sender = "expost@data.example"
user = "expost"
"""
    )
    monkeypatch.setenv("EXPOST_WEBHOOK_KEY", KEY)
    monkeypatch.setenv("EXPOST_SMTP_PASSWORD", PASSWORD)
    monkeypatch.setattr("expost.server.notices._LOOK", 1000.0)  # the tests send
    with open_server(tmp_path, threads=0, pricers=0) as server:
        facts = visits(tmp_path / "visits.csv") | {"approval_above": 0.5}
        server.call("olga", "PUT", "/api/datasets/visits", facts)
        for who in ("olga", "ann", "bob"):
            server.service.change_person(server.person("olga"), who, [], f"{who}@example.org")
        yield server


def test_what_is_told_and_to_whom(server: Server, hook: Hook, post: Post) -> None:
    tell = server.service.notices.send
    dear = server.ask("ann", QUESTION | {"epsilon": 1.0}, "dear", "yearly\nBcc: eve@x.org").json()
    tell()
    tell()  # once
    (headers, body), told = hook.sent[0], json.loads(hook.sent[0][1])
    assert hook.events() == ["approval wanted"]
    assert told["link"] == f"https://data.example/requests/{dear['id']}"
    assert (told["person"], told["price"]["epsilon"]) == ("ann", 1.0)
    moment = headers["X-Expost-Time"]
    assert headers["X-Expost-Signature"] == notice_signature(KEY, moment, body)
    assert abs(time.time() - int(moment)) < 60
    ((recipients, mail),) = post.sent
    assert recipients == ["olga@example.org"]  # owners decide
    assert "waits for approval" in mail
    assert "Bcc:" not in mail.split("\r\n\r\n")[0]
    assert "\nBcc:" not in mail  # a purpose is one line, and no other line of the mail
    assert post.passwords == [PASSWORD.encode()]
    decide(server, dear["id"])
    run(server)
    refused = server.ask("ann", QUESTION | {"epsilon": 40.0}, "much").json()
    assert refused["status"] == "refused"  # told at once, by the answer
    declined = server.ask("bob", QUESTION | {"epsilon": 0.9}, "no").json()["id"]
    decide(server, declined, "decline")
    cheap = server.ask("bob", QUESTION | {"epsilon": 0.1}, "cheap").json()["id"]
    run(server)
    tell()
    ended = [json.loads(body) for _, body in hook.sent[1:]]
    assert {view["request"]: view["event"] for view in ended} == {
        dear["id"]: "answered",
        declined: "declined",
        cheap: "answered",
    }
    keys = {"event", "request", "person", "dataset", "kind", "status", "link"}
    assert all(set(view) == keys for view in ended)  # no answer, no charge
    addresses = sorted(address for to, _ in post.sent[1:] for address in to)
    assert addresses == ["ann@example.org", "bob@example.org", "bob@example.org"]
    release = server.call("ann", "GET", f"/api/releases/{dear['id']}").json()["result"]
    estimates = [str(answer["estimate"]) for answer in release["answers"]]
    said = str(hook.sent) + str([mail for _, mail in post.sent])
    assert not any(number in said for number in estimates if len(number) > 3)


def test_a_receiver_that_fails_is_tried_again(server: Server, hook: Hook) -> None:
    service = server.service
    hook.status = 500
    server.ask("ann", QUESTION | {"epsilon": 0.9}, "again")
    service.notices.send()
    service.notices.send()  # not before its time
    assert len(hook.sent) == 1
    later = notices.update().where(notices.c.sent.is_(False)).values(due=0.0)
    hook.status = 302  # a redirect would carry the notice elsewhere
    service.store.change(later)
    service.notices.send()
    assert len(hook.sent) == 2
    hook.status = 204
    service.store.change(later)
    # A late notice says what it is about, not that a worker has begun since the last tick.
    service.store.change(requests.update().values(state="running", started=1.0))
    for _ in range(2):
        service.notices.send()
    assert len(hook.sent) == 3
    assert {json.loads(body)["status"] for _, body in hook.sent} == {"waiting for approval"}
    assert service.store.rows(notices.select().where(notices.c.sent.is_(False))) == []


def test_it_is_given_up_at_last(server: Server, hook: Hook) -> None:
    hook.status = 500
    server.ask("ann", QUESTION | {"epsilon": 0.9}, "never")
    for _ in range(MOST_TRIES + 3):
        server.service.notices.send()
        server.service.store.change(notices.update().values(due=0.0))
    assert len(hook.sent) == MOST_TRIES


def test_passwords_of_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    facts = visits(server.folder / "visits.csv") | {"name": "db", "table": "visits"}
    given = ("?password=h", "?sslmode=require&sslpassword=hunter2", "?motherduck_token=hunter2")
    for url in ("postgresql://ann:hunter2@localhost/x", *(f"postgresql://h/x{q}" for q in given)):
        told = server.call("olga", "POST", "/api/datasets", facts | {"source": url})
        assert (told.status_code, told.json()["field"]) == (422, "source")
        assert "hunter2" not in told.text
        own = visits(server.folder / "visits.csv") | {
            "name": "db",
            "public_tables": {"cities": url},
        }
        told = server.call("olga", "POST", "/api/datasets", own)
        assert (told.status_code, told.json()["valid"][:14]) == (422, "write ${NAME} ")
    named = "postgresql://ann:${VISITS}@localhost:1/x"
    told = server.call("olga", "POST", "/api/datasets", facts | {"source": named})
    assert "lists the hosts of VISITS under [sources]" in told.json()["valid"]
    monkeypatch.setitem(datasets._HOSTS, "VISITS", ("localhost:1",))
    told = server.call("olga", "POST", "/api/datasets", facts | {"source": named})
    assert "EXPOST_SOURCE_VISITS" in told.json()["valid"]
    monkeypatch.setenv("EXPOST_SOURCE_VISITS", "p@ss/word")
    assert source_with_secrets(named) == "postgresql://ann:p%40ss%2Fword@localhost:1/x"
    told = server.call("olga", "POST", "/api/datasets", facts | {"source": named})
    assert "p@ss" not in told.text
    assert "p%40ss" not in told.text
    with pytest.raises(InvalidInput):  # no other secret can be named
        source_with_secrets("postgresql://ann:${EXPOST_SMTP_PASSWORD}@evil.example/x")
    assert source_with_secrets("/data/${VISITS}.csv") == "/data/${VISITS}.csv"


ELSEWHERE = (
    "postgresql://ann:${VISITS}@evil.example/x",
    "postgresql://ann:${VISITS}@db.example.evil.example/x",
    "postgresql://ann:${VISITS}@db.example:1/x",  # another port than the one that is listed
    "postgresql://ann:${VISITS}@db.example,evil.example/x",
    "postgresql://ann:${VISITS}@db.example:5432,evil.example:5432/x",
    "postgresql://ann:${VISITS}@db.example:5432/x?host=evil.example",
    "postgresql://ann:${VISITS}@db.example:5432/x?hostaddr=192.0.2.1",
    "postgresql://ann:${VISITS}@db.example:5432/x?service=evil",
    "postgresql://ann:${VISITS}@db.example:5432@evil.example/x",
    "postgresql://ann:${VISITS}@evil.example#@db.example:5432/x",
    "postgresql://ann:${VISITS}@evil.example/@db.example:5432/x",
    "postgresql://evil.example?${VISITS}@db.example:5432/x",
    "postgresql://ann:${VISITS}@evil.example\\@db.example:5432/x",
    "postgresql://ann:${VISITS}@db.example:5432%2eevil.example/x",
    "postgresql://ann@${VISITS}.evil.example/x",
    "postgresql://${VISITS}.evil.example/x",
    "duckdb://md:x?motherduck_token=${VISITS}",
    "postgresql:///x?password=${VISITS}",
)


@pytest.mark.parametrize("source", ELSEWHERE)
def test_a_secret_goes_to_listed_hosts_only(
    server: Server, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """An owner writes the URL; the administrator decided where the secret may go."""
    opened: list[str] = []
    monkeypatch.setattr(datasets, "open_source", lambda source, *_, **__: opened.append(source))
    monkeypatch.setenv("EXPOST_SOURCE_VISITS", "hunter2")
    monkeypatch.setitem(datasets._HOSTS, "VISITS", ("db.example:5432", "other.example"))
    facts = visits(server.folder / "visits.csv") | {"name": "db", "table": "visits"}
    own = facts | {"source": str(server.folder / "visits.csv"), "public_tables": {"p": source}}
    for asked in (facts | {"source": source}, own):
        told = server.call("olga", "POST", "/api/datasets/preview", asked)
        assert (told.status_code, told.json()["field"]) == (422, "source"), told.text
        assert "hunter2" not in told.text
    assert not any("hunter2" in text for text in opened)


def test_where_a_secret_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPOST_SOURCE_VISITS", "hunter2")
    listed = ("db.example:5432", "other.example", "[2001:db8::1]")
    monkeypatch.setitem(datasets._HOSTS, "VISITS", listed)
    for place in ("db.example:5432", "DB.example:5432", "other.example:99", "[2001:db8::1]:7"):
        url = f"postgresql://ann:${{VISITS}}@{place}/x?sslmode=require"
        assert source_with_secrets(url) == url.replace("${VISITS}", "hunter2")
    assert (
        source_with_secrets("postgresql://h/x?host=elsewhere") == "postgresql://h/x?host=elsewhere"
    )


def test_hosts_of_secrets_are_settings(tmp_path: Path) -> None:
    text = '[sources]\nVISITS = ["DB.example", "db.example:5433", "[::1]:7"]\n'
    (tmp_path / "settings.toml").write_text(text)
    hosts = {"VISITS": ("db.example", "db.example:5433", "[::1]:7")}
    assert OutsideSettings.read(tmp_path).source_hosts == hosts
    for wrong in ('"db.example"', '["https://db.example"]', "[1]", '["*"]', '["a,b"]'):
        (tmp_path / "settings.toml").write_text(f"[sources]\nVISITS = {wrong}\n")
        with pytest.raises(InvalidInput):
            OutsideSettings.read(tmp_path)
    (tmp_path / "settings.toml").write_text('sources = "VISITS"\n')
    with pytest.raises(InvalidInput):
        OutsideSettings.read(tmp_path)


def test_settings_of_receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPOST_WEBHOOK_KEY", raising=False)
    start = 'address = "https://data.example"\n'
    for text in (
        '[webhook]\nurl = "https://x.example"',  # no key
        '[webhook]\nurl = "http://x.example"',
        '[mail]\nhost = "x"\nsender = "a@b"\nsecurity = "no"',
        '[mail]\nhost = "x"',
        '[pigeon]\nhome = "roof"',
    ):
        (tmp_path / "settings.toml").write_text(start + text)
        with pytest.raises(InvalidInput):
            OutsideSettings.read(tmp_path)
