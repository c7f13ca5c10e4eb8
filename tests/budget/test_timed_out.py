"""A request that gives up waiting for a ledger leaves the next one's lock alone."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from expost.budget import store
from expost.budget.ledger import Ledger
from expost.errors import LedgerError
from expost.privacy.guarantees import PureDP

# A lock belongs to an open file: a second descriptor acts as another process does.
Other = Callable[[int], bool]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(1000))


@pytest.fixture
def other(ledger: Ledger, tmp_path: Path) -> Iterator[Other]:
    """Take or give back the lock of the file as another process; False if it is held."""
    descriptor = os.open(tmp_path / "ledger.db", os.O_RDONLY)

    def lock(kind: int) -> bool:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    yield lock
    os.close(descriptor)


def timed_out(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let an act of the ledger give up after a moment."""
    with monkeypatch.context() as short:
        short.setattr(store, "BUSY_SECONDS", 0.02)
        with pytest.raises(LedgerError, match="not recorded"):
            act()


@pytest.mark.parametrize("first", ["reserve", "standing"])
def test_a_request_that_timed_out_leaves_the_next_lock_alone(
    ledger: Ledger, other: Other, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Catches a helper thread that unlocks the file while the next request writes to it."""
    acts = {"reserve": lambda: ledger.reserve(PureDP(1)), "standing": ledger.standing}
    real, unlocked = store.LedgerRows.append, []

    def append(self: Any, entry: Any) -> None:
        time.sleep(0.01)  # time for a helper to act
        if other(fcntl.LOCK_EX):
            unlocked.append(entry.sequence)
            other(fcntl.LOCK_UN)
        real(self, entry)

    monkeypatch.setattr(store.LedgerRows, "append", append)
    for _ in range(12):
        assert other(fcntl.LOCK_EX)
        timed_out(ledger, monkeypatch, acts[first])
        threading.Timer(0.02, other, [fcntl.LOCK_UN]).start()
        ledger.reserve(PureDP(1))
        assert unlocked == []
    assert ledger.verify() == []


def test_a_lock_that_comes_too_late_is_given_back(
    ledger: Ledger, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a file that stays locked for other processes because nobody waits any more."""
    assert other(fcntl.LOCK_EX)
    timed_out(ledger, monkeypatch, lambda: ledger.reserve(PureDP(1)))
    timed_out(ledger, monkeypatch, lambda: ledger.reserve(PureDP(1)))
    assert other(fcntl.LOCK_UN)
    time.sleep(0.05)
    assert other(fcntl.LOCK_EX)
    assert other(fcntl.LOCK_UN)
    ledger.reserve(PureDP(1))
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve"]


def test_random_time_limits(ledger: Ledger, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up and whoever goes on: every writer holds the file alone."""
    real, unlocked, refused = store.LedgerRows.append, [], []

    def append(self: Any, entry: Any) -> None:
        time.sleep(0.001)
        if other(fcntl.LOCK_EX):
            unlocked.append(entry.sequence)
            other(fcntl.LOCK_UN)
        real(self, entry)

    def ask(number: int) -> None:
        for turn in range(25):
            try:
                if (number + turn) % 3:
                    ledger.reserve(PureDP(1))
                else:
                    ledger.standing()
            except LedgerError:
                refused.append(turn)

    monkeypatch.setattr(store.LedgerRows, "append", append)
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.01)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if other(fcntl.LOCK_EX):  # another process, longer than the limit
            time.sleep(0.015)
            other(fcntl.LOCK_UN)
        time.sleep(0.0005)
    monkeypatch.setattr(store, "BUSY_SECONDS", 10.0)
    assert unlocked == []
    assert refused
    assert ledger.verify() == []
