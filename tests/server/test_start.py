"""``expost server start`` as a process: the owner link, a day of work, ``kill -9``, a new start."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from expost.cli.main import app as cli
from expost.errors import LedgerError
from expost.server import serving
from expost.server.app import create_app
from expost.server.database import ServerDatabase
from tests.server.running_server import QUESTION, visits, write_rows

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(home: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    options = ["--home", str(home), "--port", str(port), "--tick", "0"]
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "expost", "server", "start", *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stderr=stream,
        )
    deadline = time.monotonic() + 180
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/api/health").status_code == 200:
                return process
        except httpx.TransportError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_first_start_and_kill(tmp_path: Path) -> None:
    home, port, log = tmp_path / "server", free_port(), tmp_path / "log"
    process = start(home, port, log)
    try:
        (link,) = re.findall(r"/first\?link=([\w-]{43})", log.read_text())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            def post(path: str, body: Any, token: str | None = None, **headers: str) -> Any:
                if token is not None:
                    headers["authorization"] = f"Bearer {token}"
                return client.post(path, json=body, headers=headers)

            made = post("/api/first", {"link": link, "name": "olga"})
            assert made.status_code == 201
            owner = made.json()["token"]
            assert post("/api/first", {"link": link, "name": "eve"}).status_code == 401
            post("/api/people", {"name": "ann", "role": "analyst"}, owner)
            ann = post("/api/tokens", {"person": "ann"}, owner).json()["token"]
            post("/api/budgets", {"name": "visits", "epsilon": 5.0}, owner)
            facts = visits(write_rows(tmp_path / "visits.csv"))
            assert post("/api/datasets", facts, owner).status_code == 201
            body = {"question": QUESTION, "memo": "before the crash"}
            asked = post("/api/requests", body, ann, **{"idempotency-key": "k"})
            assert asked.status_code == 201
            process.kill()
            process.wait()
            process = start(home, port, log)
            again = post("/api/requests", body, ann, **{"idempotency-key": "k"}).json()
            assert again["id"] == asked.json()["id"]
            deadline = time.monotonic() + 60
            while again["status"] != "done":
                assert time.monotonic() < deadline, again
                time.sleep(0.05)
                told = {"authorization": f"Bearer {ann}"}
                again = client.get(f"/api/requests/{again['id']}", headers=told).json()
            checked = client.get("/api/verify", headers={"authorization": f"Bearer {owner}"})
            assert (checked.json()["valid"], checked.json()["problems"]) == (True, [])
        assert log.read_text().count("/first?link=") == 1  # there is an owner
        process.terminate()
        assert process.wait(60) in (0, -15)
    finally:
        process.kill()
    logged = log.read_text()
    for secret in (owner, ann, "before the crash", str(tmp_path / "visits.csv")):
        assert secret not in logged
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_warm_process_has_done_everything_once() -> None:
    """What others are forked from: no part is missing, and no database of a source was opened."""
    words = (
        "import duckdb, threading; duckdb.connect = None; import expost.server.jobs.warm as w;"
        " print(w.MISSED, threading.active_count())"
    )
    told = subprocess.run(
        [sys.executable, "-c", words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[] 1\n"


@pytest.mark.parametrize(("options", "believed"), [([], False), (["--proxy", "10.0.0.7"], True)])
def test_addresses_are_not_taken_from_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], believed: bool
) -> None:
    """Limits on attempts count addresses: Uvicorn would take X-Forwarded-For from this machine."""
    given: list[Any] = []
    monkeypatch.setattr(serving, "listen", lambda *words: given.extend(words))
    before = os.umask(0o022)
    try:
        made = CliRunner().invoke(
            cli, ["server", "start", "--home", str(tmp_path / "server"), *options]
        )
        assert made.exit_code == 0, made.output
        assert os.umask(0o022) == 0o077  # what the server writes is for its owner only
    finally:
        os.umask(before)
    settings, proxies, *_ = given
    app = create_app(settings, run=False)
    config = uvicorn.Config(app, **serving._options(settings, proxies))
    config.load()
    app.state.service.close()
    assert isinstance(config.loaded_app, ProxyHeadersMiddleware) is believed
    if believed:
        trusted = config.loaded_app.trusted_hosts
        assert "10.0.0.7" in trusted
        assert "127.0.0.1" not in trusted


def test_a_folder_of_version_0_2_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its people and questions are in desk.db: a server that ignored them would start empty."""
    monkeypatch.setattr(serving, "listen", lambda *_: pytest.fail("it started"))
    home = tmp_path / "server"
    home.mkdir(mode=0o700)
    (home / "desk.db").touch(mode=0o600)
    before = os.umask(0o022)
    try:
        refused = CliRunner().invoke(cli, ["server", "start", "--home", str(home)])
    finally:
        os.umask(before)
    assert isinstance(refused.exception, LedgerError)
    assert "expost 0.2" in str(refused.exception)
    assert not (home / "server.db").exists()


def test_tables_of_version_0_2_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "server.db") as connection:
        connection.execute("CREATE TABLE desk_facts (name TEXT, value TEXT)")
    with pytest.raises(LedgerError, match=r"expost 0\.2"):
        ServerDatabase(f"sqlite:///{tmp_path / 'server.db'}")
