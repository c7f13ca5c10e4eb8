"""Transactions of the server's database: who waits for whom, errors, and the write-ahead log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from expost.server import database as stores
from expost.server.database import ServerDatabase, facts

ROOT = Path(__file__).parent.parent.parent
OTHER = """
import json, sys
from pathlib import Path
from expost.server.database import ServerDatabase
from expost.server.database import facts

store, stop, count = ServerDatabase(sys.argv[1]), Path(sys.argv[2]), 0
while not stop.exists():
    store.change(facts.insert().values(name=f"other {count}", value="x" * 500))
    count += 1
print(json.dumps(count))
"""


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'server.db'}"


def add(store: ServerDatabase, name: str) -> int:
    return store.change(facts.insert().values(name=name, value="x" * 500))


def test_an_error_changes_nothing_and_belongs_to_its_caller(tmp_path: Path) -> None:
    store = ServerDatabase(url_of(tmp_path))

    def broken(connection: sql.Connection) -> None:
        connection.execute(facts.insert().values(name="half", value=""))
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        store.write(broken)
    assert add(store, "whole") == 1
    names = [row["name"] for row in store.rows(sql.select(facts.c.name))]
    assert names == ["whole"]
    with pytest.raises(sql.exc.IntegrityError):
        add(store, "whole")
    store.close()


def test_work_that_waits_together_is_committed_together(tmp_path: Path) -> None:
    """Twenty writers who wait for a slow one share its successor's transaction."""
    store, begun, go = ServerDatabase(url_of(tmp_path)), threading.Event(), threading.Event()
    commits: list[int] = []
    sql.event.listen(store._writers, "commit", lambda connection: commits.append(1))
    errors: list[BaseException] = []

    def slow(connection: sql.Connection) -> None:
        begun.set()
        assert go.wait(20)

    def work(number: int) -> None:
        try:
            add(store, f"name {number % 15}")  # five of the names come twice
        except sql.exc.IntegrityError as error:
            errors.append(error)

    first = threading.Thread(target=store.write, args=(slow,))
    first.start()
    assert begun.wait(20)
    others = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for each in others:
        each.start()
    while len(store._commits.queue) < 20:
        time.sleep(0.005)
    go.set()
    for each in (first, *others):
        each.join(20)
    assert len(errors) == 5
    assert len(store.rows(sql.select(facts))) == 15
    assert len(commits) == 2
    store.close()


def test_processes_follow_one_another(tmp_path: Path) -> None:
    """A writer gets its turn although another process writes without a pause."""
    url = url_of(tmp_path)
    store = ServerDatabase(url)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, url, str(tmp_path / "stop")],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    while len(store.rows(sql.select(facts).limit(1))) < 1:
        assert other.poll() is None
        time.sleep(0.01)
    mine = [add(store, f"mine {number}") for number in range(20)]
    assert other.poll() is None  # it was writing all the time
    (tmp_path / "stop").touch()
    theirs = json.loads(other.communicate(timeout=60)[0])
    assert len(store.rows(sql.select(facts))) == sum(mine) + theirs
    assert oct((tmp_path / "server.db.lock").stat().st_mode)[-3:] == "600"
    store.close()


def test_commits_are_durable_and_the_log_is_copied_outside_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ServerDatabase(url_of(tmp_path))
    with store._writers.connect() as connection:
        settings: dict[str, Any] = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint")
        }
    assert settings["journal_mode"] == "wal"
    assert settings["synchronous"] == 2  # FULL
    assert settings["wal_autocheckpoint"] > 10_000
    add(store, "first")
    size = (tmp_path / "server.db").stat().st_size
    store.tidy()  # a short log stays
    assert (tmp_path / "server.db").stat().st_size == size
    monkeypatch.setattr(stores, "_LOG_PAGES", 1)
    for number in range(50):
        add(store, f"name {number}")
    store.tidy()
    assert (tmp_path / "server.db").stat().st_size > size
    assert len(store.rows(sql.select(facts))) == 51
    store.close()
    store.tidy()  # the log is gone: nothing to do
