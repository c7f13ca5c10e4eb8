"""A process that is killed at a chosen point of a request; used by ``test_crashes.py``.

``python -m tests.server.crashing FOLDER`` imports everything once, then forks for every point: one
child asks, runs and kills itself (SIGKILL) at the point, another one starts the server again and
finishes what is left. It prints one JSON document per point.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ibis
import ibis.backends.duckdb
import ibis.formats.pandas
import pyarrow.compute

import expost
from expost.budget.ledger import Ledger
from expost.server.jobs import questions
from expost.server.jobs import runner as runner_module
from expost.server.jobs.states import Queue
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import QUESTION, furnish, visits

ANN, ADA = Person("ann", "analyst"), Person("ada", "auditor")

POINTS: dict[str, tuple[Any, str, int]] = {
    "record": (Queue, "insert", 1),
    "reserve": (Ledger, "reserve", 1),
    "queue": (Queue, "mark", 1),
    "claim": (Queue, "claim", 1),
    "scan": (questions, "run_checked", 1),
    "result": (Queue, "record", 1),
    "settle": (Ledger, "settle", 1),
    "publish": (Queue, "mark", 2),
}
"""What is interrupted: an object, one of its functions, and which call of it."""


def die(owner: Any, name: str, number: int, when: str) -> None:
    """Replace a function by one that kills the process before or after its work."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == number
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def settings_of(folder: Path) -> ServerSettings:
    return ServerSettings(folder / "server", tick=0.0, threads=1, pricers=0, lease=5.0)


def ask_and_run(folder: Path) -> None:
    """Ask one question and run it in this thread."""
    service = Service(settings_of(folder))
    service.runner.start()
    service.ask(ANN, QUESTION, "the key")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (view,) = service.requests(ANN)
        if view["status"] == "done":
            break
        time.sleep(0.01)
    time.sleep(0.2)


def recover(folder: Path) -> dict[str, Any]:
    """Start the server again, repeat the call with its key, and wait for the answer."""
    runner_module._RECORDED_SECONDS = 0.0
    service = Service(settings_of(folder))
    service.runner.start()
    view = service.ask(ANN, QUESTION, "the key")
    deadline = time.monotonic() + 30
    while view["status"] in ("queued", "running") and time.monotonic() < deadline:
        time.sleep(0.01)
        view = service.request(ANN, view["id"])
    entries = service.entries(ADA)
    mine = [each for each in entries if each["reservation"] == view["id"]]
    return {
        "status": view["status"],
        "requests": len(service.requests(ADA)),
        "actions": [each["action"] for each in mine],
        "others": sum(each["action"] == "reserve" for each in entries) - 1,
        "answers": answers(service.release(ANN, view["id"])["result"]),
        "verify": service.verify(ADA)["problems"]
        + service.verify_release(ADA, view["id"])["problems"],
        "held": service.budget(ADA, "visits")["held"],
    }


def answers(result: dict[str, Any]) -> int:
    """How many groups have a value, whether or not it is as accurate as wanted."""
    return len(result["answers"]) + len(result["unanswered"])


def in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Run something in a forked child; return its signal and what it reported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, json.dumps(work()).encode())
            os._exit(0)
        except BaseException as error:
            os.write(writer, json.dumps({"error": repr(error)}).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), told


def furnish_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    service = Service(settings_of(folder))
    furnish(service, folder)


def main(base: Path) -> None:
    # What is slow at first use is done once, before forking: imports, prices, tables of noise.
    assert all((ibis.duckdb, pyarrow.compute, ibis.formats.pandas))
    facts = visits(base) | {"kind": "table", "delta": None}  # DuckDB must not start threads here
    price = questions.read_question(facts, QUESTION, "pure")
    options = {"keys": ["a", "b", "c", "d"], "within": 0.2, "max_groups_per_user": 1}
    expost.count(dict.fromkeys("abcd", 900), epsilon=price["epsilon"], **options)
    furnished = base / "furnished"
    in_child(lambda: furnish_folder(furnished))
    for name, (owner, function, number) in POINTS.items():
        for when in ("before", "after"):
            folder = base / f"{name}-{when}"
            shutil.copytree(furnished, folder)

            def interrupted(
                folder: Path = folder,
                point: tuple[Any, str, int] = (owner, function, number),
                when: str = when,
            ) -> None:
                die(*point, when)
                ask_and_run(folder)

            killed, _ = in_child(interrupted)
            _, told = in_child(lambda folder=folder: recover(folder))
            report = {"point": f"{name} {when}", "killed": killed} | json.loads(told)
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
