"""An older copy of a ledger that takes its place under an open handle is noticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from expost import PureDP
from expost.budget.ledger import Ledger
from expost.errors import LedgerError

Put = Callable[[Path, Path], None]


def over(copy: Path, path: Path) -> None:
    """As ``cp`` does: the same file, other bytes."""
    path.write_bytes(copy.read_bytes())


def backed_up(copy: Path, path: Path) -> None:
    """As ``.restore`` of the SQLite shell does."""
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)


def renamed(copy: Path, path: Path) -> None:
    """As ``mv`` or ``rsync`` do: another file under the same name."""
    shutil.copyfile(copy, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


ACTS: dict[str, Callable[[Ledger], Any]] = {
    "reserve": lambda ledger: ledger.reserve(PureDP(0.25)),
    "settle": lambda ledger: ledger.settle("job", 0, secret="ours"),
    "abandon": lambda ledger: ledger.abandon("job"),
    "change": lambda ledger: ledger.change_budget(PureDP(2), "more"),
    "add": lambda ledger: ledger.add_budget("other", PureDP(2)),
    "remaining": lambda ledger: ledger.remaining(),
    "standing": lambda ledger: ledger.standing(),
    "entries": lambda ledger: list(ledger.entries()),
    "head": lambda ledger: ledger.head(),
    "waiting": lambda ledger: ledger.waiting(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.mark.parametrize("put", [over, backed_up, renamed], ids=lambda put: str(put.__name__))
@pytest.mark.parametrize("act", list(ACTS))
def test_an_older_copy_under_an_open_handle_is_refused(path: Path, put: Put, act: str) -> None:
    """Catches a charge that is forgotten, whoever saw it and whatever is asked next."""
    ledger = Ledger.create(path, PureDP(1))
    ledger.reserve(PureDP(0.25), reservation_id="job", secret="ours")
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    ledger.settle(ledger.reserve(PureDP(0.5)), 0)
    put(copy, path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"older copy|replaced") as refused:
        ACTS[act](ledger)
    assert "could not be used" in str(refused.value)
    assert path.read_bytes() == before
    if put is not renamed:
        assert any("no longer has entry 4" in line for line in ledger.verify())


@pytest.mark.parametrize("seen_by", ["opening", "reading", "another process"])
def test_what_was_seen_counts_and_not_only_what_was_written(path: Path, seen_by: str) -> None:
    """Catches a handle that trusts a copy which is older than what it showed."""
    writer = Ledger.create(path, PureDP(1))
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    reader = Ledger.open(path)
    if seen_by == "opening":
        writer.reserve(PureDP(1))
        reader = Ledger.open(path)
    elif seen_by == "reading":
        writer.reserve(PureDP(1))
        assert reader.remaining() == 0
    else:
        child = os.fork()
        if child == 0:
            Ledger.open(path).reserve(PureDP(1))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert reader.remaining() == 0
    over(copy, path)
    with pytest.raises(LedgerError, match="older copy"):
        reader.reserve(PureDP(1))


@pytest.mark.parametrize("writes", range(1, 6))
def test_a_copy_that_went_on_is_refused_too(path: Path, writes: int) -> None:
    """Catches another history of the same length, and pages kept in memory of the first one."""
    ledger = Ledger.create(path, PureDP(100))
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    for _ in range(3):
        ledger.reserve(PureDP(1))
    over(copy, path)
    other = Ledger.open(path)
    for _ in range(writes):
        other.reserve(PureDP(2))
    with pytest.raises(LedgerError, match="older copy"):
        ledger.reserve(PureDP(1))
    assert other.verify() == []
    assert other.remaining() == 100 - 2 * writes


def test_the_newest_copy_may_come_back(path: Path) -> None:
    """Catches a handle that refuses the ledger for ever, or one that is newer than it knows."""
    ledger = Ledger.create(path, PureDP(1))
    old = path.read_bytes()
    ledger.reserve(PureDP(0.25))
    new = path.read_bytes()
    path.write_bytes(old)
    with pytest.raises(LedgerError, match="older copy"):
        ledger.remaining()
    path.write_bytes(new)
    assert ledger.remaining() == 0.75
    Ledger.open(path).reserve(PureDP(0.25))
    assert ledger.remaining() == 0.5
    assert ledger.verify() == []


def test_a_server_that_lost_entries(postgres_url: str) -> None:
    """Catches a database that was restored, or a standby that had not received everything."""
    ledger = Ledger.create(postgres_url, PureDP(1))
    other = Ledger.open(postgres_url)
    ledger.reserve(PureDP(0.25), reservation_id="job")
    with ledger._store.writing() as rows:
        first = rows.entry(1)
        assert first is not None
        rows.run("DELETE FROM expost_entries WHERE sequence = 2")
        rows.run("DELETE FROM expost_reservations")
        rows.run("UPDATE expost_totals SET held = '[\"0\"]'")
        rows.run("UPDATE expost_head SET sequence = 1, hash = :h", h=first.hash)
    assert other.verify() == []
    with pytest.raises(LedgerError, match="older copy"):
        ledger.reserve(PureDP(1))
