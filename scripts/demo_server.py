"""A server to look around in: made-up visits, a budget, an analyst and an auditor.

``make server`` runs it. It writes into ``server-demo/`` (or the folder given as argument), prints a
token for each person, and starts the server on http://127.0.0.1:8400.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import uvicorn

from expost.privacy import guarantees
from expost.server.app import create_app
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings

# The number of rows of the digits is public: a person's place is filled or empty.
PLACES = getattr(guarantees, "ZERO_OUT", guarantees.ADD_REMOVE)
CITIES = {"Berlin": 9, "Bern": 4, "Graz": 3, "Linz": 2, "Ulm": 1}
ROLES = {"olga": "owner", "ann": "analyst", "ada": "auditor"}


def write_visits(path: Path) -> Path:
    """Write a made-up table: person, city, age, spend."""
    draw = random.Random(7)
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "city", "age", "spend"])
        for number in range(20_000):
            (city,) = draw.choices(list(CITIES), list(CITIES.values()))
            age = draw.randint(16, 95)
            for _ in range(draw.randint(1, 3)):
                rows.writerow([f"p{number}", city, age, round(draw.gammavariate(2, 20), 2)])
    return path


def main() -> None:
    """Furnish the server at its first start, and serve it."""
    home = Path(sys.argv[1] if len(sys.argv) > 1 else "server-demo")
    app = create_app(ServerSettings(home, tick=2.0))
    service = app.state.service
    link = service.signin.first_link()
    if link is not None:
        owner = Person("olga", "owner")
        service.signin.use_link(link, "olga", "this machine")
        for name, role in ROLES.items():
            if role != "owner":
                service.add_person(owner, name, role)
        service.open_budget(owner, "visits", "pure", 4, caps={"ann": 3})
        service.open_budget(owner, "digits", "approx", 20, 1e-4, neighbours=PLACES)
        service.register(
            owner,
            {
                "name": "visits",
                "description": "Made-up visits to five cities.",
                "budget": "visits",
                "source": str(write_visits(home / "visits.csv").absolute()),
                "user": "person",
                "groups": {"city": list(CITIES)},
                "values": {"spend": [0.0, 200.0]},
                "filters": ["age"],
                "max_groups_per_user": 1,
                "max_rows_per_user": 3,
                "typical_group": 1000,
            },
        )
        service.register(
            owner,
            {
                "name": "digits",
                "kind": "rows",
                "description": "Handwritten digits, for tuning.",
                "budget": "digits",
                "delta": 1e-5,
                "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10},
            },
        )
        print("tokens (shown once):")
        for name, role in ROLES.items():
            print(f"  {name} ({role}): {service.new_token(owner, name)['token']}")
    print("http://127.0.0.1:8400")
    uvicorn.run(app, port=8400, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
