"""A small server for tests: made-up rows, one budget, an owner, two analysts and an auditor."""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from expost.privacy import guarantees
from expost.server.app import create_app
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings

# The number of rows of the digits is public: a person's place is filled or empty.
PLACES = getattr(guarantees, "ZERO_OUT", guarantees.ADD_REMOVE)
CITIES = ("Bern", "Graz", "Ulm")
PEOPLE = {"olga": "owner", "ann": "analyst", "bob": "analyst", "ada": "auditor"}
QUESTION = {"dataset": "visits", "kind": "count", "by": ["city"], "within": 0.2}
JOB = {
    "dataset": "digits",
    "kind": "tune",
    "model": {"kind": "softmax"},
    "search": {
        "epsilons": [1.0, 2.0],
        "learning_rates": [2.0],
        "epochs": [2.0],
        "batch_sizes": [256.0],
        "clips": [1.0],
    },
    "goal": {"metric": "accuracy", "at_least": 0.3, "confidence": 0.9},
}


def write_rows(path: Path, persons: int = 3000, seed: int = 1) -> Path:
    """A table of visits: person, city, age, spend; two rows per person, both in one city."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "city", "age", "spend"])
        for number in range(persons):
            city, age = draw.choice(CITIES), draw.randint(18, 90)
            for _ in range(2):
                rows.writerow([f"p{number}", city, age, round(draw.uniform(0, 100), 2)])
    return path


@dataclass
class Server:
    """A running server and a client for it."""

    folder: Path
    app: Any
    client: TestClient
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def service(self) -> Any:
        return self.app.state.service

    def person(self, name: str) -> Person:
        return Person(name, PEOPLE[name])

    def call(
        self, who: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> Any:
        """One call of the API with a person's token."""
        if who is not None:
            headers = {"authorization": f"Bearer {self.tokens[who]}", **headers}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, path, json=body, headers=named)

    def ask(self, who: str, question: dict[str, Any], key: str, memo: str = "") -> Any:
        body = {"question": question, "memo": memo}
        return self.call(who, "POST", "/api/requests", body, idempotency_key=key)

    def wait(self, identity: str, who: str = "olga", seconds: float = 30) -> dict[str, Any]:
        """The request when it is finished."""
        deadline = time.monotonic() + seconds
        while True:
            view: dict[str, Any] = self.call(who, "GET", f"/api/requests/{identity}").json()
            if view["status"] not in ("queued", "running"):
                return view
            assert time.monotonic() < deadline, view
            time.sleep(0.02)


def visits(source: Path) -> dict[str, Any]:
    """The public facts of the table."""
    return {
        "name": "visits",
        "budget": "visits",
        "description": "Made-up visits.",
        "source": str(source),
        "user": "person",
        "groups": {"city": [*CITIES, "Linz"]},
        "values": {"spend": [0.0, 100.0]},
        "filters": ["age"],
        "max_groups_per_user": 1,
        "max_rows_per_user": 2,
        "typical_group": 800,
    }


def furnish(service: Any, folder: Path, epsilon: float = 5.0) -> dict[str, str]:
    """People, two budgets and two data sets; returns a token per person."""
    owner = Person("olga", "owner")
    link = service.signin.first_link()
    service.signin.use_link(link, "olga", "test")
    for name, role in PEOPLE.items():
        if name != "olga":
            service.add_person(owner, name, role)
    tokens = {name: service.new_token(owner, name)["token"] for name in PEOPLE}
    service.open_budget(owner, "visits", "pure", epsilon, caps={"bob": 1.0})
    service.open_budget(owner, "models", "approx", 50.0, 1e-4, neighbours=PLACES)
    service.register(owner, visits(write_rows(folder / "visits.csv")))
    service.register(
        owner,
        {
            "name": "digits",
            "kind": "rows",
            "budget": "models",
            "delta": 1e-5,
            "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10},
        },
    )
    return tokens


@contextmanager
def open_server(folder: Path, **options: Any) -> Iterator[Server]:
    """A furnished server whose results appear at once."""
    settings = ServerSettings(folder / "server", **({"tick": 0.0} | options))
    app = create_app(settings)
    local = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    with local as client:
        yield Server(folder, app, client, furnish(app.state.service, folder))
