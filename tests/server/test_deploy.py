"""The files of ``deploy/``: the entry point of the container runs, and the options exist."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from expost.server.serving import JsonLines
from tests.server.running_server import QUESTION, open_server

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")


def entry_point() -> list[str]:
    text = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    (found,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def test_the_entry_point_runs_and_ends(tmp_path: Path) -> None:
    """The same words as in the container, with another folder, address and port; then SIGTERM."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    words = [*entry_point(), *compose["services"]["server"]["command"], "--port", str(port)]
    assert words[0] == "expost"
    home = {"/srv/expost": str(tmp_path / "home"), "0.0.0.0": "127.0.0.1"}
    command = [home.get(word, "data.example" if "EXPOST_HOST" in word else word) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            assert process.poll() is None
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/api/ready", timeout=120)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        assert answer.json() == {"status": "ready", "problems": []}
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def test_the_database_comes_from_the_environment() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    server = compose["services"]["server"]
    assert "EXPOST_DATABASE" in server["environment"]
    assert "PASSWORD" not in json.dumps(server["command"])
    assert set(compose["services"]) == {"database", "server", "proxy"}
    text = (ROOT / "src/expost/cli/server.py").read_text(encoding="utf-8")
    assert 'envvar="EXPOST_DATABASE"' in text


def test_the_unit_starts_the_same_command() -> None:
    unit = (ROOT / "deploy" / "expost.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = shlex.split(line)
    assert words[1:3] == entry_point()[1:3] == ["server", "start"]
    shown = subprocess.run(
        [sys.executable, "-m", "expost", "server", "start", "--help"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for word in words[3:]:
        assert not word.startswith("--") or word in shown


def test_metrics_hold_nothing_that_depends_on_rows(tmp_path: Path) -> None:
    """Neither how long a request took (how often it was looked at) nor whether it has an answer."""
    with open_server(tmp_path, threads=0, pricers=0) as server:
        server.call("ann", "GET", "/api/datasets")
        server.call(None, "GET", "/api/datasets")
        identity = server.ask("ann", QUESTION, "one").json()["id"]
        before = server.client.get("/metrics").text
        for path in ("requests", "releases", "releases"):
            assert server.call("ann", "GET", f"/api/{path}/{identity}").status_code in (200, 404)
        text = server.client.get("/metrics").text
    names = {line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"}
    assert names == {"expost_build_info", "expost_ready", "expost_http_responses_total"}
    assert "expost_ready 1" in text
    assert 'class="2xx"} 2' in before
    assert 'class="2xx"} 3' in text  # the first look at the metrics
    assert 'class="4xx"} 1' in text


def test_the_log_can_be_read_by_machines(tmp_path: Path) -> None:
    stream, log = io.StringIO(), logging.getLogger("expost.server")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with open_server(tmp_path, threads=0, pricers=0) as server:
            server.call("ann", "GET", "/api/datasets?secret=1")
            try:
                raise ValueError("a cell of the data")
            except ValueError:
                log.exception("an error")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    called = next(line for line in lines if line.get("route") == "/api/datasets")
    assert (called["method"], called["status"], called["level"]) == ("GET", 200, "info")
    assert "secret" not in stream.getvalue()
    assert "a cell" not in stream.getvalue()


def engine() -> str | None:
    """A container engine that answers, or None."""
    for name in ("podman", "docker"):
        if shutil.which(name) is not None:
            asked = subprocess.run([name, "info"], capture_output=True, check=False, timeout=60)
            if asked.returncode == 0:
                return name
    return None


def test_the_containers_start_together(tmp_path: Path) -> None:
    """Server, PostgreSQL and proxy, built and started where there is an engine."""
    name = engine()
    if name is None:
        pytest.skip("there is no container engine; the entry point is tested above")
    (tmp_path / "data").mkdir()
    secrets = {"EXPOST_HOST": "localhost", "POSTGRES_PASSWORD": "only-for-this-test"}
    environment = os.environ | secrets | {"EXPOST_DATA": str(tmp_path / "data")}
    words = [name, "compose", "-p", f"expost{os.getpid()}", "-f", str(ROOT / "deploy/compose.yaml")]
    try:
        subprocess.run([*words, "up", "--build", "--detach"], env=environment, check=True)
        deadline = time.monotonic() + 300
        while True:
            try:
                answer = httpx.get("https://localhost/api/ready", verify=False, timeout=60)
                if answer.status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline
            time.sleep(1)
    finally:
        subprocess.run([*words, "down", "--volumes"], env=environment, check=False)
