"""A server under load: 64 clients, 5,000 requests against one budget.

Every client asks, waits until its request is answered or refused, reads what it got for a second,
and asks again. The budget pays for two hundred answers; the other requests are refused, which the
same transaction decides. One process answers HTTP calls and one runs the scans, as a team would
set it up. Measured: the time of ``POST /api/requests``, which records, prices and reserves; the
scan comes after it. Afterwards the server is checked: every request has an outcome, no more than
the budget was charged, and the ledger verifies.

Run ``python -m benchmarks.server [--requests 5000] [--clients 64]``.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

CITIES = [f"city {number}" for number in range(8)]
ANSWERS = 200  # requests that the budget can pay at their worst case
EPSILON = 0.005  # too little for the wanted error, so that a request spends nearly all of it
QUESTION = {
    "dataset": "visits",
    "kind": "count",
    "by": ["city"],
    "within": 0.1,
    "epsilon": EPSILON,
}
CLIENTS, REQUESTS = 64, 5000


def furnish(home: Path, folder: Path, analysts: int) -> list[str]:
    """A server with one table, one budget and some analysts; returns their tokens."""
    from expost.server.people.accounts import Person
    from expost.server.server_settings import ServerSettings
    from expost.server.service import Service

    draw = random.Random(1)
    source = folder / "visits.csv"
    with source.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "city"])
        rows.writerows([f"p{number}", draw.choice(CITIES)] for number in range(20_000))
    service = Service(ServerSettings(home, tick=0.0))
    service.signin.use_link(str(service.signin.first_link()), "owner", "benchmark")
    owner = Person("owner", "owner")
    service.open_budget(owner, "visits", "pure", ANSWERS * EPSILON)
    service.register(
        owner,
        {
            "name": "visits",
            "budget": "visits",
            "source": str(source),
            "user": "person",
            "groups": {"city": CITIES},
            "max_groups_per_user": 1,
        },
    )
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


def serve(home: Path, port: int, threads: int) -> subprocess.Popen[bytes]:
    """One server process; with threads it runs scans, at a lower priority."""
    command = [sys.executable, "-m", "expost", "serve", "--home", str(home), "--port", str(port)]
    command += ["--tick", "0", "--threads", str(threads), "--quiet"]
    return subprocess.Popen(
        (["nice", "-n", "10"] if threads else []) + command, stderr=subprocess.DEVNULL
    )


class Client(threading.Thread):
    """Asks one question after the other on a connection of its own."""

    def __init__(self, port: int, token: str, count: int) -> None:
        super().__init__()
        self._port, self._token, self._count = port, token, count
        self.times: list[float] = []
        self.outcomes: list[str] = []

    def run(self) -> None:
        """Ask, wait for the outcome, ask again."""
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        time.sleep(random.uniform(0.0, 1.5))  # clients do not begin in the same instant
        for _ in range(self._count):
            key = secrets.token_hex(8)
            started = time.perf_counter()
            view = self._call("POST", "/api/requests", {"question": QUESTION}, key)
            self.times.append(time.perf_counter() - started)
            pause = 0.05
            while view["status"] in ("queued", "running"):
                time.sleep(pause)
                pause = min(2.0, 1.5 * pause)  # as expost.connect does
                view = self._call("GET", f"/api/requests/{view['id']}")
            self.outcomes.append(view["status"])
            time.sleep(random.uniform(0.5, 1.5))  # a client reads what it got

    def _call(self, method: str, path: str, body: Any = None, key: str = "") -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        found: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return found


def check(home: Path, total: int) -> dict[str, Any]:
    """What the server says after the load."""
    from expost.server.people.accounts import Person
    from expost.server.server_settings import ServerSettings
    from expost.server.service import Service

    service = Service(ServerSettings(home, tick=0.0))
    auditor = Person("auditor", "auditor")
    rows = service.store.rows(_statuses())
    standing = service.budget(auditor, "visits")
    found = {
        "recorded": sum(row["count"] for row in rows),
        "states": {row["state"]: row["count"] for row in rows},
        "spent": standing["settled"],
        "held": standing["held"],
        "limit": standing["budget"]["epsilon"],
        "problems": service.verify(auditor)["problems"],
    }
    service.close()
    assert found["recorded"] == total, found
    assert found["spent"] + found["held"] <= found["limit"], found
    assert not found["problems"], found
    return found


def _statuses() -> Any:
    import sqlalchemy as sql

    from expost.server.database import requests

    count = sql.func.count().label("count")
    return sql.select(requests.c.state, count).group_by(requests.c.state)


def measure(clients: int, total: int) -> dict[str, Any]:
    """Run the load and return what was measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "server"
        tokens = furnish(home, folder, clients)
        port = free_port()
        servers = [serve(home, port, 0), serve(home, free_port(), 1)]
        try:
            _wait(port)
            counts = [total // clients + (place < total % clients) for place in range(clients)]
            asking = [Client(port, token, n) for token, n in zip(tokens, counts, strict=True)]
            for client in asking:  # scrypt once per token, before the clock runs
                client._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                client._call("POST", "/api/price", QUESTION)
            started = time.perf_counter()
            for client in asking:
                client.start()
            for client in asking:
                client.join()
            seconds = time.perf_counter() - started
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.wait(60)
        found = check(home, total)
    times = sorted(each for client in asking for each in client.times)
    outcomes = [each for client in asking for each in client.outcomes]
    assert len(times) == len(outcomes) == total
    return found | {
        "clients": clients,
        "requests": total,
        "seconds": seconds,
        "median_ms": 1000 * statistics.median(times),
        "p99_ms": 1000 * times[min(total - 1, int(0.99 * total))],
        "worst_ms": 1000 * times[-1],
        "answered": outcomes.count("done"),
        "refused": outcomes.count("refused"),
        "load": os.getloadavg()[0],
    }


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/api/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


def rows() -> Iterator[Row]:
    """The rows of ``make bench``."""
    found = measure(CLIENTS, REQUESTS)
    what = f"a priced request at a server, {CLIENTS} clients, {REQUESTS:,} requests"
    yield Row(f"{what}: median", found["median_ms"] / 1000)
    yield Row(f"{what}: 99 %", found["p99_ms"] / 1000, target="< 100 ms")


def main() -> None:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    given = parser.parse_args()
    print(json.dumps(measure(given.clients, given.requests), indent=2))


if __name__ == "__main__":
    main()
