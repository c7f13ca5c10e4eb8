"""Who may stop a server: not half-open connections, slow bodies, wrong tokens or long questions."""

from __future__ import annotations

import math
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from expost.server import service
from expost.server.api import access
from expost.server.app import create_app
from expost.server.database import ServerDatabase, requests
from expost.server.people import accounts
from expost.server.server_settings import ServerSettings
from expost.server.serving import LimitedConnection, most_connections
from tests.server.running_server import QUESTION, Server, open_server

PATIENCE = 120  # seconds; only a server that never answers reaches it


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(LimitedConnection, "head_seconds", 0.5)
    monkeypatch.setattr(LimitedConnection, "most", 20)
    monkeypatch.setattr(access, "BODY_SECONDS", 0.5)
    app = create_app(ServerSettings(tmp_path / "server", pricers=0), run=False)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", http=LimitedConnection)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield int(listening.getsockname()[1])
        server.should_exit = True
        thread.join(PATIENCE)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def health(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=PATIENCE).status_code


@pytest.mark.parametrize("head", [b"", b"GET /api/health HTTP/1.1\r\nhost: local"])
def test_half_open_connections_end(port: int, head: bytes) -> None:
    with connect(port) as half_open:
        half_open.sendall(head)
        received = half_open.recv(1000)  # returns when the server closes
    assert received == b""


def test_a_second_call_has_a_deadline_too(port: int) -> None:
    with connect(port) as kept:
        kept.sendall(b"GET /api/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in kept.recv(10_000)
        kept.sendall(b"GET /api/health HT")
        while received := kept.recv(10_000):
            assert b"HTTP/1.1" not in received


def test_more_connections_than_files(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that wait are closed, so that others are answered."""
    monkeypatch.setattr(LimitedConnection, "head_seconds", 10 * PATIENCE)
    waiting = [connect(port) for _ in range(60)]
    assert health(port) == 200
    assert waiting[0].recv(1) == b""
    for half_open in waiting:
        half_open.close()


def test_a_body_that_does_not_arrive(port: int) -> None:
    with connect(port) as slow:
        head = (
            b"POST /api/session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        )
        slow.sendall(head + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in slow.recv(10_000)
    assert health(port) == 200


def test_the_limit_of_files_is_raised() -> None:
    assert most_connections() >= 64


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path, threads=0, pricers=0) as server:
        yield server


def test_wrong_tokens_lock_nobody_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MOST_PER_ADDRESS", 3)
    ann = "_".join(server.tokens["ann"].split("_", 2)[:2])  # the secret may have underscores, too
    server.tokens |= {"unknown": f"expost_{'0' * 16}_{'A' * 43}", "guess": f"{ann}_{'A' * 43}"}
    statuses = [
        server.call(who, "GET", "/api/session").status_code
        for who in ("unknown", "guess", "unknown", "guess", "unknown", "guess")
    ]
    assert statuses == [401, 401, 401, 401, 429, 401]
    for who in ("ann", "bob"):  # neither was seen by this process before
        assert server.call(who, "GET", "/api/session").status_code == 200
        body = {"token": server.tokens[who]}
        assert server.call(None, "POST", "/api/session", body).status_code == 201
    link = server.service.signin.first_link(again=True)
    first = {"link": link, "name": "oda"}
    assert server.call(None, "POST", "/api/first", first).status_code == 201
    assert server.call(None, "POST", "/api/first", first).status_code == 429


def test_a_revoked_token_counts_against_nobody(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MOST_PER_ADDRESS", 3)
    old = server.service.new_token(server.person("olga"), "ann")
    server.service.revoke_token(server.person("olga"), old["id"])
    server.tokens |= {"old": old["token"], "unknown": f"expost_{'0' * 16}_{'A' * 43}"}
    assert {server.call("old", "GET", "/api/session").status_code for _ in range(9)} == {401}
    assert server.call("unknown", "GET", "/api/session").status_code == 401  # not 429


def test_refused_questions_are_stored_small(server: Server) -> None:
    keys = [f"{number}".rjust(100, "k") for number in range(5000)]
    question = QUESTION | {"keys": keys, "epsilon": 900.0}
    answer = server.ask("ann", question, "long")
    assert answer.status_code == 402
    assert answer.json()["question"]["groups"] == 5000
    assert answer.json()["refusal"]["requested"] == pytest.approx(900)
    (row,) = server.service.store.rows(requests.select())
    assert len(row["question"]) < 2000
    assert server.ask("ann", question, "long").json()["id"] == answer.json()["id"]  # the same
    short = server.ask("ann", QUESTION | {"keys": keys[:9], "epsilon": 900.0}, "short")
    assert short.status_code == 402
    assert short.json()["question"]["groups"] == 9
    stored = server.service._queue.get(short.json()["id"])["question"]
    assert keys[0] not in stored


def told(server: Server) -> tuple[int, Any]:
    answer = server.client.get("/api/ready")
    return answer.status_code, answer.json()["problems"]


def test_readiness_is_computed_once_a_second(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may ask, and each look writes a row."""
    looks: list[int] = []
    monkeypatch.setattr(service, "ready_problems", lambda *_: looks.append(1) or [])
    monkeypatch.setattr(service, "_READY_SECONDS", 300.0)
    server.service._ready = (-math.inf, [])
    for _ in range(20):
        assert told(server) == (200, [])
        assert server.client.get("/metrics").status_code == 200
    assert len(looks) == 1


def test_processes_that_look_at_once(postgres_url: str) -> None:
    store = ServerDatabase(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    wrong: list[Exception] = []

    def look() -> None:
        for _ in range(20):
            try:
                store.write(service._touch)
            except Exception as error:
                wrong.append(error)

    look()  # the first row
    looking = [threading.Thread(target=look) for _ in range(6)]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    store.close()
    assert wrong == []


def test_readiness(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_READY_SECONDS", -1.0)
    assert told(server) == (200, [])
    monkeypatch.setattr(service, "CHECK_SECONDS", 1e-6)  # verify at every call
    ledger = server.folder / "server" / "ledger.db"
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("UPDATE expost_entries SET memo = 'another' WHERE sequence = 1")
        connection.commit()
    assert told(server) == (503, [service.LEDGER])
    monkeypatch.setattr(service, "LEAST_FREE", 2**62)
    assert told(server)[1] == [service.DISK, service.LEDGER]

    def full(*_: Any) -> Any:
        raise OSError("database or disk is full")

    monkeypatch.setattr(server.service.store, "write", full)
    assert told(server)[1] == [service.DISK, service.DATABASE, service.LEDGER]
    assert shutil.disk_usage(server.folder).free > 0
