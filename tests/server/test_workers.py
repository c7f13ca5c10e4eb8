"""Several processes on one port and one PostgreSQL: each question once, the budget exact, kills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest

from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from expost.server.serving import _follow
from tests.server.running_server import QUESTION, furnish

ROOT = Path(__file__).parents[2]
ADA = Person("ada", "auditor")
EPSILON, COUNT = 0.2, 45  # the cap of bob pays for few of his 30 questions


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(home: Path, port: int, database: str) -> Iterator[Any]:
    words = ["server", "start", "--home", str(home), "--port", str(port), "--tick", "0"]
    words += ["--processes", "2", "--threads", "1", "--pricers", "1", "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "EXPOST_DATABASE": database}
    process = subprocess.Popen([sys.executable, "-m", "expost", *words], env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM)


def answering(process: subprocess.Popen[bytes], port: int) -> list[int]:
    """The processes that answer: those that hold the socket, besides the first one.

    The process that forks them, a child of the first one, holds it only while it forks.
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(f":{port:04X}")}
    holders = [pid for pid in processes() if pid != process.pid and sockets & held_by(pid)]
    return [pid for pid in holders if parent(pid) not in (None, process.pid)]


def processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def held_by(pid: int) -> set[str]:
    """What the files of a process are."""
    try:
        return {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it ends
        return set()


def call(port: int, token: str, method: str, path: str, body: Any = None, key: str = "") -> Any:
    """One call on a connection of its own, repeated while processes die."""
    headers = {"authorization": f"Bearer {token}", "idempotency-key": key or "-"}
    deadline = time.monotonic() + 90
    while True:
        try:
            answer = httpx.request(
                method, f"http://127.0.0.1:{port}{path}", json=body, headers=headers, timeout=60
            )
            if answer.status_code < 500:
                return answer.json()
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_kills_of_workers_lose_and_repeat_nothing(tmp_path: Path, postgres_url: str) -> None:
    settings = ServerSettings(
        tmp_path / "home", database=postgres_url, tick=0.0, threads=0, pricers=0
    )
    service, port = Service(settings), free_port()
    tokens = furnish(service, tmp_path)
    question = QUESTION | {"epsilon": EPSILON}

    def ask(number: int) -> tuple[str, str]:
        body, who = {"question": question}, "bob" if number % 3 else "ann"
        view = call(port, tokens[who], "POST", "/api/requests", body, f"key {number}")
        again = call(port, tokens[who], "POST", "/api/requests", body, f"key {number}")
        assert view["id"] == again["id"]
        deadline = time.monotonic() + 90
        while view["status"] in ("queued", "running"):
            assert time.monotonic() < deadline, view
            time.sleep(0.1)
            view = call(port, tokens[who], "GET", f"/api/requests/{view['id']}")
        return view["id"], view["status"]

    with started(settings.home, port, postgres_url) as process:
        call(port, tokens["ada"], "GET", "/api/health")
        deadline = time.monotonic() + 90
        while len(answering(process, port)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len({parent(pid) for pid in answering(process, port)} | {process.pid}) == 2  # forks
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(COUNT)]
            for place in (0, 1, 0):
                time.sleep(1.0)
                before = answering(process, port)
                os.kill(before[place % len(before)], signal.SIGKILL)
            told = dict(asking.result() for asking in asked)
    assert len(told) == COUNT
    assert set(told.values()) <= {"done", "refused"}
    entries = service.entries(ADA, limit=1000)
    for identity, status in told.items():
        mine = [entry["action"] for entry in entries if entry["reservation"] == identity]
        assert mine == (["reserve", "settle"] if status == "done" else [])
    standing = service._ledgers.ledger.standing("visits").filter
    settled = [e["detail"]["spent"][0] for e in entries if e["action"] == "settle"]
    assert standing.settled == (sum(map(Fraction, settled)),)
    assert standing.held == (0,)
    assert service._ledgers.ledger.standing("visits", "bob").filter.settled[0] <= 1
    assert "refused" in told.values()
    assert service.verify(ADA)["valid"]
    service.close()


def answered_calls(port: int) -> int:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    names = (line.rpartition(" ") for line in text.splitlines())
    return next(int(number) for name, _, number in names if name.endswith('{class="2xx"}'))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_metrics_are_the_sum_over_the_workers(tmp_path: Path, postgres_url: str) -> None:
    """Any worker tells what all have answered, also the one that ended. Catches a count of one."""
    settings = ServerSettings(
        tmp_path / "home", database=postgres_url, tick=0.0, threads=0, pricers=0
    )
    service, port = Service(settings), free_port()
    token = furnish(service, tmp_path)["ada"]
    service.close()
    with started(settings.home, port, postgres_url) as process:
        call(port, token, "GET", "/api/health")
        deadline = time.monotonic() + 90
        while len(workers := answering(process, port)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        counted = answered_calls(port)  # itself not yet
        for number in range(2):
            os.kill(workers[1 - number], signal.SIGSTOP)  # so that the other one answers
            try:
                for _ in range(5):
                    call(port, token, "GET", "/api/health")
                assert answered_calls(port) == counted + 6 * (number + 1)
            finally:
                os.kill(workers[1 - number], signal.SIGCONT)
        os.kill(workers[0], signal.SIGSTOP)
        counted = answered_calls(port)
        os.kill(workers[0], signal.SIGKILL)
        assert answered_calls(port) == counted + 1


def test_workers_end_with_the_first_process() -> None:
    """The pipe of the first process ends with it, however it ends."""
    alive, mine = multiprocessing.Pipe(duplex=False)
    ended: list[int] = []
    follower = threading.Thread(target=_follow, args=(alive, ended.append))
    follower.start()
    assert not ended
    mine.close()
    follower.join(20)
    assert ended == [1]
