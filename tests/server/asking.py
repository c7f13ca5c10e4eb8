"""One server process that asks and runs; used by ``test_processes.py``.

``python -m tests.server.asking HOME DATABASE NAME COUNT`` (DATABASE may be ``-`` for SQLite).
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import QUESTION

ANN = Person("ann", "analyst")


def main(home: str, database: str, name: str, count: int) -> None:
    url = None if database == "-" else database
    service = Service(ServerSettings(Path(home), database=url, tick=0.0, pricers=0, lease=5.0))
    service.runner.start()

    def ask(number: int) -> dict[str, Any]:
        # Every second key is shared by the processes: both ask it, one charge.
        key = f"shared {number}" if number % 2 else f"{name} {number}"
        view = service.ask(ANN, QUESTION | {"epsilon": 0.4}, key)
        while view["status"] in ("queued", "running"):
            time.sleep(0.1)
            view = service.request(ANN, view["id"])
        return view

    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(ask, range(count)))
    time.sleep(0.2)
    sys.stdout.write(json.dumps([[each["id"], each["status"]] for each in views]))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
