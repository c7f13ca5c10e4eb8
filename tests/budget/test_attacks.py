"""What an outsider tried: overspend, settle cheaper, and fool ``verify``. None of it may work."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from expost import Charges, PureDP
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import Entry
from expost.budget.signing import SigningKey, head_problems, load_document, signed_head
from expost.errors import BudgetRefused, InvalidInput, LedgerError
from expost.files import canonical

TABLE = Charges.from_list([PureDP(1), PureDP(0.25)], PureDP(0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger.create(path, PureDP(1))


def edit(path: Path, statement: str, *values: Any) -> None:
    """Change the file behind the ledger's back, as its owner can."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


# Overspend.


class CheapLevels(Charges):
    """Shows cheap levels, and stores dear ones."""

    def as_dict(self) -> dict[str, Any]:
        return Charges.from_list([PureDP(100)], PureDP(0)).as_dict()


class CheapRecord(Charges):
    """Shows dear levels, and stores cheap ones."""

    def as_dict(self) -> dict[str, Any]:
        return Charges.from_list([PureDP(0.01)], PureDP(0)).as_dict()


def test_charges_that_lie(ledger):
    """Catches a worst case that is taken from one place and a price from another."""
    with pytest.raises(BudgetRefused):
        ledger.reserve(CheapLevels((PureDP(0.1),), (0,), PureDP(0)))
    job = ledger.reserve(CheapRecord((PureDP(0.5),), (0,), PureDP(0)))
    assert job.worst_case == PureDP(0.01)
    assert ledger.verify() == []


def test_many_small_requests(ledger):
    """Catches rounding that lets the sum of many requests pass the limit."""
    admitted = 0
    for _ in range(40):
        try:
            ledger.reserve(PureDP(1 / 30))
            admitted += 1
        except BudgetRefused:
            break
    assert admitted == 30 or admitted == 29
    assert sum([ledger.standing().filter.held[0]]) <= 1


def test_one_id_for_many_jobs(ledger):
    """Catches an id that pays for a second run, also with its own secret."""
    job = ledger.reserve(TABLE, reservation_id="job", secret="mine")
    ledger.settle(job, 1)
    for options in ({}, {"secret": "mine"}, {"secret": "other"}, {"secret": "mine", "budget": "x"}):
        with pytest.raises((LedgerError, InvalidInput)):
            ledger.reserve(TABLE, reservation_id="job", **options)
    again = ledger.reserve(TABLE, reservation_id="job", secret="mine", resume=True)
    assert ledger.status_of(again) == "settled"  # to be read; nothing may run for it
    assert len(list(ledger.entries())) == 3


def test_a_refund_is_not_given_twice(ledger):
    """Catches held amounts that fall below zero and make room."""
    job = ledger.reserve(TABLE)
    for _ in range(5):
        ledger.settle(job, 1)
    for close in (lambda: ledger.abandon(job), lambda: ledger.settle(job, 0)):
        with pytest.raises(LedgerError):
            close()
    assert ledger.standing().filter.held == (0,)
    assert ledger.remaining() == 0.75


# Settle cheaper.


class TwoFaced:
    """A release that shows another index from the n-th look on."""

    spent = PureDP(0.25)

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def index(self) -> int:
        self.looks -= 1
        return 0 if self.looks >= 0 else 1


@pytest.mark.parametrize("looks", range(6))
def test_an_outcome_that_changes(ledger, looks):
    """Catches an outcome that is read twice: recorded as dear, charged as cheap."""
    job = ledger.reserve(TABLE)
    try:
        ledger.settle(job, TwoFaced(looks))
    except InvalidInput:
        assert ledger.standing().filter.held == (1,)
    else:
        settle = list(ledger.entries())[-1]
        assert settle.facts["outcome"] == "1"
        assert settle.facts["spent"] == ["1/4"]
    assert ledger.verify() == []


@pytest.mark.parametrize("outcome", [-1, 2, True, "1", 1.0, "nothing", [], TABLE, object()])
def test_outcomes_that_are_none(ledger, outcome):
    """Catches an index from the end, a text or a number that passes for a cheap outcome."""
    job = ledger.reserve(TABLE)
    with pytest.raises(InvalidInput):
        ledger.settle(job, outcome)
    assert ledger.standing().filter.held == (1,)


def test_secrets_of_others(path):
    """Catches a reservation that is settled with the secret of another one, or with its digest."""
    ledger = Ledger.create(path, PureDP(10))
    mine, theirs = ledger.reserve(TABLE), ledger.reserve(TABLE)
    with closing(sqlite3.connect(path)) as connection:
        stored = dict(connection.execute("SELECT id, secret FROM expost_reservations"))
    for guess in (mine.secret, stored[theirs.id], "", None, "0" * 32):
        with pytest.raises((LedgerError, InvalidInput)):
            ledger.settle(theirs.id, 1, secret=guess)
    assert ledger.reservation(theirs.id).secret is None
    assert ledger.verify() == []


def test_edit_settle_restore(ledger, path):
    """Catches a price that is lowered in the file for the moment of settling."""
    job = ledger.reserve(TABLE)
    cheap = canonical(Charges.from_list([PureDP(0), PureDP(0)], PureDP(0)).as_dict())
    edit(path, "UPDATE expost_reservations SET charges = ?", cheap)
    ledger.settle(job, 0)
    edit(path, "UPDATE expost_reservations SET charges = ?", canonical(TABLE.as_dict()))
    assert any("not settled at the charge" in problem for problem in ledger.verify())


# Fool verify.


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE expost_totals SET settled = '[\"0\"]', held = '[\"0\"]'",
        "UPDATE expost_totals SET terms = replace(terms, '1.0', '9.0')",
        "DELETE FROM expost_entries WHERE sequence = (SELECT max(sequence) FROM expost_entries)",
        "DELETE FROM expost_reservations",
        "UPDATE expost_reservations SET outcome = '1'",
        "UPDATE expost_reservations SET status = 'open', outcome = NULL",
        "UPDATE expost_entries SET detail = replace(detail, '\"1\"', '\"0\"')",
        "UPDATE expost_entries SET analyst = 'bob' WHERE action = 'settle'",
        "UPDATE expost_entries SET budget = 'other' WHERE action = 'settle'",
        "UPDATE expost_head SET sequence = 1",
        "INSERT INTO expost_totals SELECT budget, 'ann', terms, settled, held, renews, period, "
        "past FROM expost_totals",
    ],
)
def test_edits_are_found(ledger, path, statement):
    """Catches any single edit of the tables."""
    ledger.settle(ledger.reserve(TABLE), 0)
    assert ledger.verify() == []
    edit(path, statement)
    assert ledger.verify() != []


def rewritten(path: Path, place: Path) -> None:
    """A consistent forgery: the same history, with every settled amount at its cheapest outcome."""
    shutil.copyfile(path, place)
    ledger = Ledger.open(path)
    head, forged = (0, "0" * 64), []
    for entry in ledger.entries():
        facts = entry.facts
        if entry.action == "settle":
            facts |= {"spent": ["1/4"], "outcome": "1"}
        content = {
            name: getattr(entry, name)
            for name in ("time", "action", "budget", "analyst", "reservation", "memo")
        }
        new = Entry.after(
            head if forged else (0, entry.previous), detail=canonical(facts), **content
        )
        forged.append(new)
        head = (new.sequence, new.hash)
    with closing(sqlite3.connect(place, isolation_level=None)) as connection:
        for entry in forged:
            connection.execute(
                "UPDATE expost_entries SET detail = ?, previous = ?, hash = ? WHERE sequence = ?",
                (entry.detail, entry.previous, entry.hash, entry.sequence),
            )
        connection.execute("UPDATE expost_head SET hash = ?", (head[1],))
        connection.execute("UPDATE expost_reservations SET outcome = '1'")
        connection.execute("UPDATE expost_totals SET settled = '[\"1/4\"]'")


def test_a_consistent_forgery_is_found_by_a_signed_head(ledger, path, tmp_path):
    """``verify`` alone cannot find it, as the guide says; a head that was kept elsewhere does."""
    ledger.settle(ledger.reserve(TABLE), 0)
    key = SigningKey.create(tmp_path / "key")
    head = signed_head(ledger, key, "2026-01-01T00:00:00+00:00")
    rewritten(path, tmp_path / "forged.db")
    forged = Ledger.open(tmp_path / "forged.db")
    assert forged.verify() == []
    assert forged.remaining() == 0.75
    assert head_problems(forged, head, key.public) != []
    assert head_problems(ledger, head, key.public) == []


def test_a_key_that_is_there_twice(tmp_path):
    """Catches a document in which one program reads the signed ε and another one a smaller ε."""
    place = tmp_path / "certificate.json"
    for text in (
        '{"spent": {"epsilon": 2}, "spent": {"epsilon": 1}}',
        '{"spent": {"epsilon": 2, "epsilon": 1}}',
        '{"spent": {"epsilon": NaN}}',
        '{"spent": {"epsilon": Infinity}}',
    ):
        place.write_text(text)
        with pytest.raises(InvalidInput, match="not JSON"):
            load_document(place, "certificate")
    place.write_text(json.dumps({"a": [{"b": 1}, {"b": 2}]}))
    assert load_document(place, "certificate") == {"a": [{"b": 1}, {"b": 2}]}
