"""A server under load, under kills and under connections that say nothing.

``load``: 64 clients for a minute. Each asks a question or a price, reads the answer for a second,
and goes on. Half of the calls ask, with new noise each time; the other half ask for prices: of
counts within 1 to 20 per cent and, one in eight, of 4 tuning jobs. All processes have started, and
no price is known. Timed is every call, and once more those after the first ten seconds (``later``);
a call that fails, or answers anything but what it should, is an error. Afterwards the server is
checked: every request has an outcome, the sum of all charges is what the ledger says, exactly, and
no budget is overspent. Once with one process on SQLite, once with four on PostgreSQL.

``kills``: 200 questions of 8 clients while the server is killed (SIGKILL) and started again, 100
times. Lost: a question that is unknown afterwards, or still waits; charged twice: more than one
reservation for a question; no answer: one that ends at its worst case because processes died.

``silence``: 1,100 connections that send half a head, and the time of ``GET /api/health``.

Run ``python -m benchmarks.server [load|team|kills|silence …] [--seconds 60] [--clients 64]``.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

CITIES = [f"city {number}" for number in range(8)]
EPSILON = 0.005  # too little for the wanted error, so that a request spends nearly all of it
QUESTION = {
    "dataset": "visits",
    "kind": "count",
    "by": ["city"],
    "within": 0.1,
    "epsilon": EPSILON,
}
CLIENTS, SECONDS, KILLS, QUESTIONS, SILENT = 64, 60.0, 100, 200, 1100
START_SECONDS = 300.0  # a busy machine starts slowly
ENDED = ("done", "missed", "failed", "refused")


def furnish(settings: Any, folder: Path, analysts: int, limit: float) -> list[str]:
    """A server with a table, rows to tune on and some analysts; returns their tokens."""
    from expost.privacy.guarantees import ZERO_OUT
    from expost.server.people.accounts import Person
    from expost.server.service import Service

    draw = random.Random(1)
    source = folder / "visits.csv"
    with source.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "city"])
        rows.writerows([f"p{number}", draw.choice(CITIES)] for number in range(20_000))
    service = Service(settings)
    service.signin.use_link(str(service.signin.first_link()), "owner", "benchmark")
    owner = Person("owner", "owner")
    service.open_budget(owner, "visits", "pure", limit)
    service.open_budget(owner, "models", "approx", 10.0, 1e-4, neighbours=ZERO_OUT)
    table = {"name": "visits", "budget": "visits", "source": str(source), "user": "person"}
    service.register(owner, table | {"groups": {"city": CITIES}, "max_groups_per_user": 1})
    data = {"name": "digits", "feature_bounds": [0, 16], "classes": 10}
    rows_set = {"name": "digits", "kind": "rows", "budget": "models", "delta": 1e-5}
    service.register(owner, rows_set | {"data": data})
    tokens = []
    for number in range(analysts):
        service.add_person(owner, f"analyst{number}", "analyst")
        tokens.append(service.new_token(owner, f"analyst{number}")["token"])
    service.close()
    return tokens


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(settings: Any, processes: int = 1) -> subprocess.Popen[bytes]:
    """Start a server as people do."""
    words = ["server", "start", "--home", str(settings.home), "--port", str(settings.port)]
    words += ["--tick", "0", "--quiet", "--processes", str(processes), "--threads", "1"]
    environment = os.environ | ({"EXPOST_DATABASE": settings.database} if settings.database else {})
    return subprocess.Popen(
        [sys.executable, "-m", "expost", *words],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # killed with all its workers
    )


class Client(threading.Thread):
    """One analyst on one connection, until the time is over."""

    def __init__(self, port: int, token: str, until: float) -> None:
        super().__init__(daemon=True)
        self._port, self._token, self._until = port, token, until
        self._connection: http.client.HTTPConnection | None = None
        self.asks: list[tuple[float, float]] = []  # when, and how long
        self.prices: list[tuple[float, float]] = []
        self.errors: list[str] = []
        self.asked: list[str] = []

    def run(self) -> None:
        """Ask and price in turns."""
        time.sleep(random.uniform(0.0, 1.5))  # clients do not begin in the same instant
        while time.monotonic() < self._until:
            try:
                self._ask() if random.random() < 0.5 else self._price()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.errors.append(repr(error))
                self._connection = None
            time.sleep(random.uniform(0.5, 1.5))  # a client reads what it got

    def _ask(self) -> None:
        started = time.perf_counter()
        status, view = self.call("POST", "/api/requests", {"question": QUESTION}, new_key())
        self.asks.append((started, time.perf_counter() - started))
        self._expect(status == 201, status, view)
        if status == 201:
            self.asked.append(view["id"])

    def _price(self) -> None:
        started = time.perf_counter()
        status, view = self.call("POST", "/api/price", priced_question())
        self.prices.append((started, time.perf_counter() - started))
        self._expect(status == 200 and "worst_case" in view, status, view)

    def _expect(self, right: bool, status: int, view: Any) -> None:
        if not right:
            self.errors.append(f"{status} {str(view)[:200]}")

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """One call; the answer is JSON."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def patient(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """One call, repeated while the server is away."""
        while True:
            try:
                status, view = self.call(method, path, body, key)
                if status < 500:
                    return view
            except (OSError, http.client.HTTPException, ValueError):
                self._connection = None
            time.sleep(0.05)


def new_key() -> str:
    return secrets.token_hex(8)


def priced_question() -> dict[str, Any]:
    """A position of the slider, or a tuning job."""
    if random.random() < 1 / 8:
        goal = {"metric": "accuracy", "at_least": random.choice([0.7, 0.8])}
        most = {"max_epsilon": random.choice([2.0, 8.0])}
        return {"dataset": "digits", "kind": "tune", "goal": goal, "privacy": most}
    asked = {key: value for key, value in QUESTION.items() if key != "epsilon"}
    return asked | {"within": random.randrange(1, 21) / 100}


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processors that a server has used, with its workers that live."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid:  # the session of the server
            total += sum(map(int, fields[11:13])) / tick
    return total


def load(clients: int, seconds: float, *, team: bool) -> dict[str, Any]:
    """64 clients for a minute, on SQLite or on PostgreSQL."""
    with server_of(clients, limit=10_000 * EPSILON, team=team) as (settings, tokens):
        process = serve(settings, 4 if team else 1)
        try:
            wait(settings.port)
            before, own = rested(process), time.process_time()
            until, later = time.monotonic() + seconds, time.perf_counter() + 10
            asking = [Client(settings.port, token, until) for token in tokens]
            for client in asking:
                client.start()
            for client in asking:
                client.join()
            used, own = cpu_of(process) - before, time.process_time() - own
            asked = [identity for client in asking for identity in client.asked]
            finish(settings)
        finally:
            process.terminate()
            process.wait(60)
        checked = check(settings, asked)
    asks = [call for client in asking for call in client.asks]
    prices = [call for client in asking for call in client.prices]
    errors = [error for client in asking for error in client.errors]
    return checked | {
        "clients": clients,
        "seconds": seconds,
        "asks": len(asks),
        "prices": len(prices),
        "errors": len(errors),
        "first_errors": errors[:3],
        **{f"asks_p{share}": at(asks, share) for share in (50, 99)},
        **{f"prices_p{share}": at(prices, share) for share in (50, 99)},
        "asks_p99_later": at(asks, 99, later),
        "prices_p99_later": at(prices, 99, later),
        "cpu_per_call": used / max(1, len(asks) + len(prices)),
        "clients_cpu_per_call": own / max(1, len(asks) + len(prices)),  # on the same processors
        "load_average": os.getloadavg()[0],
    }


def at(calls: list[tuple[float, float]], share: int, after: float = 0.0) -> float | None:
    """The time that a share of the calls (in percent) stays below; None without calls."""
    times = sorted(seconds for started, seconds in calls if started >= after)
    return times[min(len(times) - 1, len(times) * share // 100)] if times else None


@contextmanager
def server_of(analysts: int, limit: float, *, team: bool = False) -> Iterator[tuple[Any, Any]]:
    """A furnished server that does not run yet."""
    from expost.server.server_settings import ServerSettings

    with tempfile.TemporaryDirectory() as name, database(team) as url:
        folder = Path(name)
        settings = ServerSettings(
            folder / "home", database=url, port=free_port(), tick=0.0, threads=0, pricers=0
        )
        yield settings, furnish(settings, folder, analysts, limit)


@contextmanager
def database(team: bool) -> Iterator[str | None]:
    """The URL of a new PostgreSQL database, for a team."""
    if not team:
        yield None
        return
    from tests.budget import postgres

    server = postgres.start()
    try:
        with server.database() as url:
            yield url
    finally:
        server.stop()


def rested(process: subprocess.Popen[bytes]) -> float:
    """Wait until all processes of a server have started; return the time that they took."""
    before = -1.0
    while (now := cpu_of(process)) - before > 0.1:
        before = now
        time.sleep(1.0)
    return now


def finish(settings: Any) -> None:
    """Wait until every request has an outcome, or none has got one for two minutes."""
    from expost.server.service import Service

    service, left, deadline = Service(settings), sys.maxsize, time.monotonic() + 120
    while left and time.monotonic() < deadline:
        waiting = sum(row["state"] not in ENDED for row in outcomes(service))
        if waiting < left:
            left, deadline = waiting, time.monotonic() + 120
        time.sleep(0.2)
    service.close()


def outcomes(service: Any) -> list[dict[str, Any]]:
    import sqlalchemy as sql

    from expost.server.database import requests

    rows: list[dict[str, Any]] = service.store.rows(sql.select(requests.c.id, requests.c.state))
    return rows


def check(settings: Any, asked: list[str]) -> dict[str, Any]:
    """What the server says afterwards; the sum of the charges is exact."""
    from expost.server.people.accounts import Person
    from expost.server.service import Service

    service, auditor = Service(settings), Person("auditor", "auditor")
    rows = {row["id"]: row["state"] for row in outcomes(service)}
    ledger = service._ledgers.ledger
    entries = [entry for entry in ledger.entries() if entry.budget == "visits"]
    reserved = [entry.reservation for entry in entries if entry.action == "reserve"]
    spent = [Fraction(e.facts["spent"][0]) for e in entries if e.action in ("settle", "abandon")]
    state = ledger.standing("visits").filter
    problems = service.verify(auditor)["problems"]
    service.close()
    return {
        "lost": len(set(asked) - set(rows)),
        "still_waiting": len([state for state in rows.values() if state not in ENDED]),
        "charged_twice": len(reserved) - len(set(reserved)) + len(set(reserved) - set(rows)),
        "no_answer": list(rows.values()).count("failed"),
        "budget_exact": state.settled == (sum(spent),) and state.admits((Fraction(0),)),
        "problems": problems,
    }


def kills(count: int = KILLS, questions: int = QUESTIONS) -> dict[str, Any]:
    """Questions while the server is killed again and again."""
    with server_of(8, limit=questions * EPSILON) as (settings, tokens):
        process, over = serve(settings), threading.Event()
        wait(settings.port)
        asked: list[str] = []
        keys = [new_key() for _ in range(questions)]

        def ask(place: int) -> None:
            client = Client(settings.port, tokens[place], 0.0)
            for number in range(place, questions, 8):
                view = client.patient("POST", "/api/requests", {"question": QUESTION}, keys[number])
                asked.append(view["id"])
                if not over.is_set():  # spread the questions over the kills
                    time.sleep(count * 0.5 * 8 / questions)

        started = time.perf_counter()
        asking = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(8)]
        try:
            for thread in asking:
                thread.start()
            for _ in range(count):
                time.sleep(random.uniform(0.0, 1.0))
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process = serve(settings)
                wait(settings.port)
            over.set()
            for thread in asking:
                thread.join()
            finish(settings)
            seconds = time.perf_counter() - started
        finally:
            process.terminate()
            process.wait(60)
        told = check(settings, asked)
        told["lost"] += questions - len(set(asked)) + told["still_waiting"]
    return told | {"kills": count, "questions": questions, "seconds": seconds}


def silence(count: int = SILENT) -> dict[str, Any]:
    """Connections that send half a head, and how long the server's health takes then."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with server_of(1, limit=1.0) as (settings, _):
        process = serve(settings)
        wait(settings.port)
        open_: list[socket.socket] = []
        try:
            for _ in range(count):
                half = socket.create_connection(("127.0.0.1", settings.port), timeout=30)
                half.sendall(b"GET /api/health HTTP/1.1\r\nHost: local")
                open_.append(half)
            started = time.perf_counter()
            wait(settings.port)
            seconds = time.perf_counter() - started
        finally:
            for half in open_:
                half.close()
            process.terminate()
            process.wait(60)
    return {"connections": count, "health_seconds": seconds, "load_average": os.getloadavg()[0]}


def wait(port: int) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/api/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    raise RuntimeError("the server did not start")


def rows() -> Iterator[Row]:
    """The rows of ``make bench``."""
    for team, where in ((False, "SQLite"), (True, "four processes, PostgreSQL")):
        told = load(CLIENTS, SECONDS, team=team)
        exact = "budget exact" if told["budget_exact"] else "BUDGET WRONG"
        what = f"a server, {CLIENTS} clients, {SECONDS:.0f} s, {where}"
        what += f", {told['errors']} errors, {exact}"
        cpu = told["cpu_per_call"]
        yield Row(f"{what}: asks, 99 %", told["asks_p99"], target="≤ 0.5 s", cpu_seconds=cpu)
        yield Row(f"{what}: prices, 99 %", told["prices_p99"], target="≤ 1 s", cpu_seconds=cpu)
        yield Row(f"{what}: prices after 10 s, 99 %", told["prices_p99_later"], cpu_seconds=cpu)
    ended = kills()
    counted = ", ".join(f"{ended[name]} {name}" for name in ("lost", "charged_twice", "no_answer"))
    what = f"a server, {KILLS} kills during {QUESTIONS} questions: {counted.replace('_', ' ')}"
    yield Row(what, ended["seconds"], target="0, 0, 0")
    what = f"a server, {SILENT:,} half-open connections: health"
    yield Row(what, silence()["health_seconds"], target="≤ 1 s")


def main() -> None:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["load", "team", "kills", "silence"])
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--kills", type=int, default=KILLS)
    given = parser.parse_args()
    measurements = {
        "load": lambda: load(given.clients, given.seconds, team=False),
        "team": lambda: load(given.clients, given.seconds, team=True),
        "kills": lambda: kills(given.kills),
        "silence": silence,
    }
    print(json.dumps({name: measurements[name]() for name in given.what}, indent=2))


if __name__ == "__main__":
    main()
