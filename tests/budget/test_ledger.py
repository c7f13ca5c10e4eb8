"""What every ledger does, on SQLite and on PostgreSQL alike; what ``verify`` finds; and a state
machine against a model.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from expost import NOTHING, ZCDP, ApproxDP, Candidate, Charges, PureDP, RandomDropping, RenyiDP
from expost.budget import store
from expost.budget.budgets import PureBudget, RenyiBudget
from expost.budget.ledger import Ledger, Reservation
from expost.budget.ledger_rows import NAMES, LedgerRows, digest
from expost.budget.limits import amount_of
from expost.errors import BudgetRefused, InvalidGuarantee, InvalidInput, LedgerError
from tests.budget.test_concurrency import wait_together

TABLE = Charges.from_list([PureDP(0.5), PureDP(0.25), PureDP(1.0)], PureDP(0.0))


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.create(url, PureDP(10), "visits")


@cache
def engine_of(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    """A connection beside the ledger's own, for what only a vandal does."""
    return sqlalchemy.create_engine(url, pool_size=1)


def sql(ledger: Ledger, statement: str, **values: object) -> list[tuple]:
    with engine_of(ledger._store.location.url).begin() as connection:
        result = connection.execute(sqlalchemy.text(statement), values)
        return [tuple(row) for row in result] if result.returns_rows else []


def everything(ledger: Ledger) -> dict[str, list[tuple]]:
    """All rows of all tables."""
    tables = {
        "expost_meta": 1,
        "expost_head": 1,
        "expost_totals": 2,
        "expost_reservations": 1,
        "expost_entries": 1,
        "expost_alerts": 2,
    }
    return {
        table: sql(ledger, f"SELECT * FROM {table} ORDER BY {', '.join('12'[:n])}")
        for table, n in tables.items()
    }


# Making and opening.


def test_what_was_created_can_be_opened(url):
    """Catches terms that are lost between processes."""
    made = Ledger.create(url, RenyiBudget.for_approx(8, 1e-6, [4, 8, 16], "any"), "visits", caps={})
    opened = Ledger.open(url)
    assert opened.budgets() == ["visits"]
    assert opened.identity == made.identity
    assert opened.standing().filter.budget == RenyiBudget.for_approx(8, 1e-6, [4, 8, 16], "any")
    assert opened.verify() == []


def test_a_second_create_refuses_and_changes_nothing(url):
    """Catches a budget that can be reset by creating it again."""
    ledger = Ledger.create(url, PureDP(1), "visits")
    ledger.reserve(PureDP(0.75))
    before = everything(ledger)
    with pytest.raises(LedgerError, match="already"):
        Ledger.create(url, PureDP(100), "visits")
    with pytest.raises(LedgerError, match="already"):
        Ledger.create(url, PureDP(100), "another")
    assert everything(ledger) == before


def test_a_budget_cannot_be_added_twice(ledger):
    """Catches terms that can be changed by adding the budget again."""
    before = everything(ledger)
    with pytest.raises(LedgerError, match="already"):
        ledger.add_budget("visits", PureDP(100))
    with pytest.raises(LedgerError, match="already"):
        ledger.add_budget("visits", PureDP(10), caps={"ann": PureDP(1)})
    assert everything(ledger) == before


def test_a_missing_ledger_is_not_made_by_looking(tmp_path):
    """Catches SQLite's habit of creating what it is asked to open."""
    path = tmp_path / "none.db"
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_no_ledger(url):
    """Catches tables that appear by opening."""
    if "://" not in url:
        Path(url).touch()
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(url)
    Ledger.create(url, PureDP(1))
    assert Ledger.open(url).verify() == []


def test_creation_is_all_or_nothing(url, monkeypatch):
    """Catches a crash between the tables and the first budget: a ledger that is there, refuses to
    be made, and holds no budget.
    """

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("expost.budget.totals.insert_total", crash)
    with pytest.raises(KeyboardInterrupt):
        Ledger.create(url, PureDP(1))
    monkeypatch.undo()
    Ledger.create(url, PureDP(2))
    assert Ledger.open(url).remaining() == 2.0


def test_files_are_for_their_owner_only(tmp_path):
    """Catches a ledger (or its journal) that others can read or write."""
    old = os.umask(0)
    try:
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
        ledger.reserve(PureDP(0.1))
        files = list(tmp_path.iterdir())
        assert {file.name for file in files} == {"ledger.db", "ledger.db-journal"}
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_sqlite_is_durable():
    """Catches a ledger whose commits may be lost with the power: the settings are part of the
    promise.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "x.db", PureDP(1))
        with ledger._store.reading() as table:
            assert table.one("PRAGMA journal_mode")[0] == "truncate"
            assert table.one("PRAGMA synchronous")[0] == 3  # EXTRA


def test_postgresql_is_durable_whatever_the_server_prefers(postgres_url):
    """Catches a server or role default of synchronous_commit=off, or of another isolation level."""
    ledger = Ledger.create(postgres_url, PureDP(1))
    name = ledger._store.location.url.database
    sql(ledger, f"ALTER DATABASE {name} SET synchronous_commit = off")
    sql(ledger, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    ledger = Ledger.open(postgres_url)
    with ledger._store.writing() as table:
        assert table.one("SHOW synchronous_commit")[0] == "on"
        assert table.one("SHOW lock_timeout")[0] == "30s"
        assert (
            table.one("SHOW transaction_isolation")[0] == "read committed"
        )  # after the lock on the head, all is seen


def test_a_connection_lost_while_committing(postgres_url):
    """Catches the claim that nothing was recorded when nobody can know, and a ledger that cannot be
    used afterwards.
    """
    ledger = Ledger.create(postgres_url, PureDP(1))

    def cut_off_before_the_commit() -> None:
        with ledger._store.writing() as rows:
            (number,) = rows.one("SELECT pg_backend_pid()")
            sql(ledger, "SELECT pg_terminate_backend(:n, 5000)", n=number)

    def cut_off_before_a_statement() -> None:
        with ledger._store.writing() as rows:
            rows.run("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(LedgerError, match="look whether it was recorded"):
        cut_off_before_the_commit()
    with pytest.raises(LedgerError, match="not recorded"):
        cut_off_before_a_statement()
    ledger.reserve(PureDP(0.5))
    assert ledger.remaining() == 0.5


@pytest.mark.parametrize("name", ["what?.db", "a b%20c.db", "x#y.db", "日本.db"])
def test_any_file_name_will_do(tmp_path, name):
    """Catches a path that is taken for a URL with a query: the ledger would be in another file."""
    Ledger.create(tmp_path / name, PureDP(1))
    assert (tmp_path / name).exists()
    assert Ledger.open(tmp_path / name).remaining() == 1.0


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://x/y",
        "postgresql://u:hush@host:port/db",
        "://",
        "nonsense://",
    ],
)
def test_urls_that_cannot_hold_a_ledger(url):
    """Catches a ledger in memory, which would forget; a raw SQLAlchemy error; and a password in a
    message.
    """
    for use in (Ledger.open, lambda where: Ledger.create(where, PureDP(1))):
        with pytest.raises(LedgerError) as refused:
            use(url)
        assert "hush" not in str(refused.value)


def test_a_server_that_is_not_there(tmp_path):
    """Catches a raw driver error, or a password in the message or the repr."""
    url = f"postgresql://ann:hush@/nowhere?host={tmp_path}"
    with pytest.raises(LedgerError, match="could not be used") as refused:
        Ledger.open(url)
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(Ledger(store.Store(url)))


def test_a_file_that_is_something_else(tmp_path):
    """Catches a raw SQLite error for a file that is no database."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear Ann, " * 1000)
    for use in (Ledger.open, lambda where: Ledger.create(where, PureDP(1))):
        with pytest.raises(LedgerError):
            use(path)
    assert path.read_text() == "Dear Ann, " * 1000


@pytest.mark.parametrize(
    ("version", "advice"),
    [("3", "newer"), ("17", "newer"), ("1", "upgrade"), ("0", "migrate"), ("x", "damaged")],
)
def test_other_schemas_are_refused(url, version, advice):
    """Catches a ledger written by a newer expost that an older one reads in its own way."""
    ledger = Ledger.create(url, PureDP(1))
    sql(ledger, "UPDATE expost_meta SET value = :v WHERE name = 'schema'", v=version)
    with pytest.raises(LedgerError, match=advice):
        Ledger.open(url)


# Reserve and settle.


def test_a_job_from_start_to_end(ledger):
    """Catches a hold that is not the worst case, a settlement that is not the outcome's charge, or
    a hold that stays.
    """
    job = ledger.reserve(TABLE, "weekly count")
    assert job.worst_case == PureDP(1.0)
    assert ledger.status_of(job) == "open"
    assert (ledger.standing().filter.settled, ledger.standing().filter.held) == ((0,), (1,))
    assert ledger.remaining() == 9.0
    assert ledger.settle(job, 1) == PureDP(0.25)
    assert ledger.status_of(job) == "settled"
    assert (ledger.standing().filter.settled, ledger.standing().filter.held) == (
        (Fraction(1, 4),),
        (0,),
    )
    assert ledger.remaining() == 9.75
    assert ledger.verify() == []


@pytest.mark.parametrize(("outcome", "charge"), [(0, 0.5), (2, 1.0), (None, 0.0), (NOTHING, 0.0)])
def test_outcomes(ledger, outcome, charge):
    """Catches an outcome that is charged as another."""
    assert ledger.settle(ledger.reserve(TABLE), outcome) == PureDP(charge)
    assert ledger.remaining() == 10 - charge


def test_a_release_settles_what_it_says_it_spent(ledger):
    """Catches a certificate and a ledger that tell different stories."""
    candidates = [Candidate(lambda data, randomness: 1.0, guarantee=PureDP(0.5))]
    selector = RandomDropping(overhead=0.5)
    release = selector.select(candidates, None)
    assert ledger.settle(ledger.reserve(selector.charges(candidates)), release) == release.spent


def test_a_release_of_another_selection_settles_nothing(ledger):
    """Catches a certificate that settles somebody else's job, for less."""
    candidates = [Candidate(lambda data, randomness: 1.0, guarantee=PureDP(0.125))]
    release = RandomDropping(overhead=0.5).select(candidates, None)
    job = ledger.reserve(TABLE)
    with pytest.raises(InvalidInput, match="another selection"):
        ledger.settle(job, release)
    assert ledger.status_of(job) == "open"


@pytest.mark.parametrize("outcome", [3, -1, True, 0.0, "0", [0]])
def test_outcomes_that_cannot_be(ledger, outcome):
    """Catches an index from the end of the table (−1), or True taken for 1; the hold stays."""
    job = ledger.reserve(TABLE)
    before = everything(ledger)
    with pytest.raises(InvalidInput):
        ledger.settle(job, outcome)
    assert everything(ledger) == before


def test_settling_again(ledger):
    """Catches a second settlement that is charged, refunded, or changes the outcome."""
    job = ledger.reserve(TABLE)
    ledger.settle(job, 1)
    before = everything(ledger)
    assert ledger.settle(job, 1) == PureDP(0.25)
    for other in (0, 2, None):
        with pytest.raises(LedgerError, match="settled already"):
            ledger.settle(job, other)
    with pytest.raises(LedgerError, match="settled already"):
        ledger.abandon(job)
    assert everything(ledger) == before


def test_abandoning_keeps_the_worst_case(ledger):
    """Catches a job that is given up and refunded: nobody can prove that nothing was seen."""
    job = ledger.reserve(TABLE)
    assert ledger.abandon(job) == PureDP(1.0)
    assert ledger.abandon(job.id) == PureDP(1.0)  # again: nothing changes
    assert (ledger.standing().filter.settled, ledger.standing().filter.held) == ((1,), (0,))
    with pytest.raises(LedgerError, match="abandoned already"):
        ledger.settle(job, 1)
    assert ledger.status_of(job) == "abandoned"
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "abandon"]
    assert ledger.verify() == []


def test_a_refusal_changes_nothing(ledger):
    """Catches a refused request that leaves a row, a hold or a number behind."""
    ledger.reserve(PureDP(9.5))
    before = everything(ledger)
    with pytest.raises(BudgetRefused) as refused:
        ledger.reserve(TABLE, "too much", reservation_id="mine")
    assert (refused.value.requested, refused.value.remaining, refused.value.held) == (1.0, 0.5, 9.5)
    assert everything(ledger) == before
    ledger.reserve(
        PureDP(0.5), reservation_id="mine"
    )  # a smaller one passes, even under the same id
    assert ledger.remaining() == 0.0


def test_requests_may_be_repeated_under_their_id(ledger):
    """Catches a retry after a lost answer that holds twice, or an id that lends its hold to another
    request.
    """
    mine = {"reservation_id": "job-7", "secret": "hush"}
    first = ledger.reserve(TABLE, "once", **mine)
    before = everything(ledger)
    assert ledger.reserve(TABLE, "once", **mine) == first
    assert ledger.reserve(TABLE, "twice", budget="visits", **mine) == first
    ledger.add_budget("others", PureDP(1))
    assert (
        ledger.reserve(TABLE, **mine) == first
    )  # although "the only budget" has no meaning any more
    for other in (
        PureDP(0.1),
        Charges.from_list([PureDP(0.5), PureDP(0.25), PureDP(1.0)], PureDP(0.5)),
    ):
        with pytest.raises(LedgerError, match="another request"):
            ledger.reserve(other, **mine)
    with pytest.raises(LedgerError, match="another request"):
        ledger.reserve(TABLE, analyst="ann", **mine)
    with pytest.raises(LedgerError, match="another request"):
        ledger.reserve(TABLE, budget="others", **mine)
    with pytest.raises(LedgerError, match="another request"):
        ledger.reserve(TABLE, request={"query": "another"}, **mine)
    for secret in (None, "guess"):
        with pytest.raises(LedgerError, match="secret"):
            ledger.reserve(TABLE, reservation_id="job-7", secret=secret)
    assert everything(ledger)["expost_reservations"] == before["expost_reservations"]
    ledger.abandon(first)
    with pytest.raises(LedgerError, match="abandoned"):
        ledger.reserve(TABLE, **mine)


def test_a_settled_id_is_not_free_for_ever(url):
    """Catches 52 jobs of ε = 1 on a budget of 1, all under one id."""
    ledger = Ledger.create(url, PureDP(1))
    table = Charges.from_list([PureDP(1)], PureDP(1))
    ledger.settle(ledger.reserve(table, reservation_id="nightly", secret="hush"), 0)
    before = everything(ledger)
    for secret in ("hush", None, "guess"):
        with pytest.raises(LedgerError, match="settled"):
            ledger.reserve(table, reservation_id="nightly", secret=secret)
    with pytest.raises(LedgerError, match="secret"):
        ledger.reserve(table, reservation_id="nightly", resume=True)
    again = ledger.reserve(table, reservation_id="nightly", secret="hush", resume=True)
    assert ledger.status_of(again) == "settled"  # for reading
    with pytest.raises(LedgerError, match="settled already"):
        ledger.settle(again, None)
    assert everything(ledger) == before


def test_settling_needs_the_secret(ledger):
    """Catches a client who settles the reservation of another one at its cheapest outcome."""
    job = ledger.reserve(TABLE, reservation_id="job")
    before = everything(ledger)
    for act in (
        lambda: ledger.settle("job", 1),
        lambda: ledger.settle("job", 1, secret="guess"),
        lambda: ledger.settle("job", 1, secret=""),
        lambda: ledger.settle(ledger.reservation("job"), 1),
        lambda: ledger.settle(ledger.open_reservations()[0], 1),
    ):
        with pytest.raises(LedgerError, match="secret"):
            act()
    assert everything(ledger) == before
    assert job.secret not in repr(job)
    assert not any(job.secret in str(row) for table in before.values() for row in table)
    assert ledger.settle("job", 2, secret=job.secret) == PureDP(1.0)


def test_a_settlement_below_the_price_is_found(url):
    """Catches edit, settle, restore: ε = 0 for an outcome that was priced 2."""
    ledger = Ledger.create(url, PureDP(10))
    job = ledger.reserve(Charges.from_list([PureDP(2)], PureDP(0)))
    ((charges,),) = sql(ledger, "SELECT charges FROM expost_reservations")
    cheap = charges.replace('"epsilon":2.0', '"epsilon":0.0')
    sql(ledger, "UPDATE expost_reservations SET charges = :c", c=cheap)
    assert ledger.settle(job, 0) == PureDP(0)
    sql(ledger, "UPDATE expost_reservations SET charges = :c", c=charges)
    (problem,) = ledger.verify()
    assert "charge of its outcome" in problem


def test_a_worst_case_below_the_price_is_found(url):
    """Catches a hold that is smaller than the charges of its request."""
    ledger = Ledger.create(url, PureDP(10))
    ledger.reserve(TABLE)
    rewrite(
        ledger,
        2,
        detail=list(ledger.entries())[1].detail.replace('"worst":["1"]', '"worst":["1/2"]'),
    )
    sql(ledger, "UPDATE expost_reservations SET worst = '[\"1/2\"]'")
    sql(ledger, "UPDATE expost_totals SET held = '[\"1/2\"]'")
    (problem,) = Ledger.open(url).verify()
    assert "worst case" in problem
    problem, seen = ledger.verify()  # this handle knows the entry that was rewritten
    assert "no longer has entry 2" in seen
    assert "worst case" in problem


def test_entries_hold_digests(ledger):
    """Catches an entry from which nobody can tell which request, source and release it was."""
    job = ledger.reserve(TABLE, request={"query": "count"}, source={"file": "visits.csv"})
    ledger.settle(job, 0, release={"value": 3, "signature": "later"})
    _, reserve, settle = ledger.entries()
    assert set(reserve.facts) == {"worst", "charges", "request", "secret", "source"}
    assert reserve.facts["source"] == digest({"file": "visits.csv"})
    assert settle.facts["release"] == digest({"value": 3})
    assert ledger.verify() == []
    with pytest.raises(InvalidInput, match="JSON"):
        ledger.reserve(TABLE, request=object())


@pytest.mark.parametrize("identity", ["", "x" * 65, "a\x00b", "\udfff", 7])
def test_ids_that_a_database_could_not_hold(ledger, identity):
    """Catches an id that one database takes and another does not."""
    with pytest.raises(InvalidInput):
        ledger.reserve(PureDP(0.1), reservation_id=identity)
    assert ledger.open_reservations() == []


def test_unknown_reservations(ledger):
    """Catches a settlement out of nothing."""
    for act in (
        lambda: ledger.settle("none", 0),
        lambda: ledger.abandon("none"),
        lambda: ledger.status_of("none"),
    ):
        with pytest.raises(InvalidInput, match="no such reservation"):
            act()
    assert ledger.reservation("none") is None
    elsewhere = Reservation("none", "visits", "", TABLE)
    with pytest.raises(InvalidInput, match="no such reservation"):
        ledger.settle(elsewhere, 0)


def test_a_doctored_reservation_object_changes_nothing(ledger):
    """Catches a settlement that believes the caller's table instead of the recorded one."""
    job = ledger.reserve(TABLE)
    charges = Charges.from_list([PureDP(0.0)] * 3, PureDP(0.0))
    cheap = Reservation(job.id, job.budget, job.analyst, charges, job.secret)
    assert ledger.settle(cheap, 2) == PureDP(1.0)


def test_open_jobs_can_be_found(ledger):
    """Catches a job that never reported back and that nobody can find to abandon."""
    first, second = ledger.reserve(TABLE, "one"), ledger.reserve(PureDP(1), "two")
    ledger.settle(first, 0)
    assert ledger.open_reservations() == [second]
    assert ledger.reservation(second.id) == second


# Charges that the budget cannot add.


@pytest.mark.parametrize(
    ("charge", "word"),
    [
        (PureDP(0.1, "replace"), "neighbours"),
        (ApproxDP(0.1, 1e-9), "cannot add"),
        (ZCDP(0.1), "cannot add"),
        (RenyiDP((2.0,), (0.1,)), "cannot add"),
    ],
)
def test_other_kinds_and_relations_are_refused(ledger, charge, word):
    """Catches charges of different meanings summed together."""
    before = everything(ledger)
    with pytest.raises(InvalidGuarantee, match=word):
        ledger.reserve(charge)
    assert everything(ledger) == before


def test_delta_is_never_refunded(url):
    """Catches a request that gets δ back after a harmless outcome, and so may be tried until the
    harmful one comes.
    """
    ledger = Ledger.create(url, ApproxDP(1, 1e-6))
    before = everything(ledger)
    with pytest.raises(InvalidGuarantee, match="δ"):
        ledger.reserve(Charges.from_list([ApproxDP(0.5, 1e-7)], ApproxDP(0, 0)))
    assert everything(ledger) == before
    job = ledger.reserve(
        Charges.from_list([ApproxDP(0.5, 1e-7), ApproxDP(0.1, 1e-7)], ApproxDP(0, 1e-7))
    )
    ledger.settle(job, None)
    assert ledger.standing().filter.settled == (0, Fraction(1, 10**7))


# Several budgets, and caps.


def test_budgets_are_separate(ledger):
    """Catches a charge that lands in another data set's budget, or a request that does not say
    which.
    """
    ledger.add_budget("income", ApproxDP(1, 1e-6))
    assert ledger.budgets() == ["income", "visits"]
    ledger.settle(ledger.reserve(PureDP(0.5), budget="income"), 0)
    assert ledger.remaining("income") == {"epsilon": 0.5, "delta": 1e-6}
    assert ledger.remaining("visits") == 10.0
    for act in (
        lambda: ledger.reserve(PureDP(0.1)),
        lambda: ledger.standing(),
        lambda: ledger.remaining(),
    ):
        with pytest.raises(InvalidInput, match="income, visits"):
            act()
    with pytest.raises(InvalidInput, match="income, visits"):
        ledger.reserve(PureDP(0.1), budget="nowhere")
    assert [ledger.standing(name).entries for name in ("visits", "income")] == [1, 3]
    assert ledger.verify() == []


def test_caps_hold_inside_the_budget(url):
    """Catches a cap that is not checked, is checked alone, or is shared between analysts."""
    ledger = Ledger.create(url, PureDP(2), "visits", caps={"ann": PureDP(1), "bob": PureDP(1.5)})
    ledger.reserve(PureDP(1), analyst="ann")
    with pytest.raises(BudgetRefused, match="cap of ann"):
        ledger.reserve(PureDP(0.25), analyst="ann")
    with pytest.raises(
        BudgetRefused, match="'visits'"
    ):  # within his cap, but not within the budget
        ledger.reserve(PureDP(1.25), analyst="bob")
    ledger.settle(ledger.reserve(PureDP(0.5), analyst="bob"), 0)
    ledger.reserve(PureDP(0.25), analyst="cleo")  # no cap
    assert ledger.remaining() == 0.25
    assert ledger.remaining(analyst="ann") == 0.0
    assert ledger.remaining(analyst="bob") == 1.0
    with pytest.raises(InvalidInput, match="no cap"):
        ledger.remaining(analyst="cleo")
    assert ledger.standing(analyst="bob").as_dict()["analyst"] == "bob"
    assert ledger.verify() == []


def test_a_refusal_by_one_of_two_charges_neither(url):
    """Catches a cap and a budget that are written one after the other: the first would stay
    charged.
    """
    ledger = Ledger.create(url, PureDP(10), "visits", caps={"ann": PureDP(1)})
    before = everything(ledger)
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(1.5), analyst="ann")
    assert everything(ledger) == before


@pytest.mark.parametrize(
    "caps",
    [
        {"ann": ZCDP(1)},
        {"ann": PureDP(1, "replace")},
        {"": PureDP(1)},
        {"a" * 201: PureDP(1)},
        {"a\x00": PureDP(1)},
    ],
)
def test_caps_that_do_not_fit_their_budget(url, caps):
    """Catches a cap that could not be compared with the budget's charges; nothing is made."""
    with pytest.raises(InvalidInput):
        Ledger.create(url, PureDP(1), caps=caps)
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(url)


# What is written.


def test_standing_as_json(url):
    """Catches a change of the contract of ``expost ledger show``."""
    ledger = Ledger.create(url, ApproxDP(1, 1e-6), "visits")
    shown = ledger.standing().as_dict()
    assert list(shown) == ["name", "kind", "budget", "settled", "held", "remaining", "entries"]
    assert shown["kind"] == "approx"
    assert shown["settled"] == {"epsilon": 0.0, "delta": 0.0}
    assert shown["remaining"] == {"epsilon": 1.0, "delta": 1e-6}
    assert shown["entries"] == 1
    json.dumps(shown, allow_nan=False)


def test_entries_tell_the_story_in_order(ledger):
    """Catches entries that are missing, out of order, or do not hold who asked for what."""
    memo = "größe — 日本 🎲 'quote' \"two\" ; DROP TABLE x; :b %s %(b)s\n"
    job = ledger.reserve(TABLE, memo, analyst="ann")
    ledger.settle(job, 2)
    other = ledger.reserve(PureDP(0.5))
    ledger.abandon(other)
    entries = list(ledger.entries())
    assert [entry.sequence for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.action for entry in entries] == [
        "create",
        "reserve",
        "settle",
        "reserve",
        "abandon",
    ]
    assert entries[1].memo == memo
    assert (entries[1].analyst, entries[2].analyst, entries[3].analyst) == ("ann", "ann", "")
    assert entries[1].reservation == entries[2].reservation == job.id
    assert entries[1].facts["worst"] == ["1"]
    assert entries[2].facts == {"spent": ["1"], "outcome": "2"}
    assert all(entry.previous == before.hash for before, entry in pairwise(entries))
    assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)
    assert ledger.verify() == []


def test_entries_come_in_pages(url, monkeypatch):
    """Catches a row that is lost, or shown twice, at a page's edge."""
    ledger = Ledger.create(url, PureDP(1))
    for _ in range(6):
        ledger.reserve(PureDP(0.01))
    whole = list(ledger.entries())
    original = LedgerRows.entries
    monkeypatch.setattr(
        LedgerRows,
        "entries",
        lambda self, after=None, limit=3: original(self, after, 3),
    )
    assert list(ledger.entries()) == whole
    assert ledger.verify() == []


@pytest.mark.parametrize("memo", ["x" * 10_001, "a\x00b", "\ud800", 7, None])
def test_memos_that_cannot_be_kept(ledger, memo):
    """Catches a memo that one database refuses after the other has taken it."""
    with pytest.raises(InvalidInput, match="memo"):
        ledger.reserve(PureDP(0.1), memo)
    assert len(list(ledger.entries())) == 1


@pytest.mark.parametrize("analyst", ["x" * 201, "a\x00b", 7])
def test_analysts_that_cannot_be_kept(ledger, analyst):
    """Catches a name that one database cuts off or refuses."""
    with pytest.raises(InvalidInput, match="analyst"):
        ledger.reserve(PureDP(0.1), analyst=analyst)


def test_exact_sums_survive_the_database(ledger):
    """Catches sums that are stored as floats, and decimals that are taken as binary fractions:
    fifty times 0.2 is 10.
    """
    count = 0
    while True:
        try:
            ledger.settle(ledger.reserve(PureDP(0.2)), 0)
        except BudgetRefused:
            break
        count += 1
    assert count == 50
    assert ledger.standing().filter.settled == (10,)


def test_ten_requests_of_a_tenth_fit_a_budget_of_one(url):
    """Catches "requested 0.1, remaining 0.09999999999999995"."""
    ledger = Ledger.create(url, PureDP(1))
    for _ in range(10):
        assert ledger.remaining() >= 0.1
        ledger.reserve(PureDP(0.1))
    with pytest.raises(BudgetRefused) as refused:
        ledger.reserve(PureDP(0.1))
    assert "requested 0.1; remaining 0;" in str(refused.value)


def test_computed_charges_are_not_lowered(url):
    """Catches a computed float that is taken as a shorter, smaller decimal."""
    ledger = Ledger.create(url, PureDP(1))
    computed = 1.1 / 3  # 17 digits
    ledger.settle(ledger.reserve(PureDP(computed)), 0)
    assert ledger.standing().filter.settled == (Fraction(computed),)


# Vandalism: what verify finds.


@pytest.fixture
def rich(url: str) -> Ledger:
    """A ledger with something of everything."""
    ledger = Ledger.create(url, PureDP(10), "visits", caps={"ann": PureDP(5)})
    ledger.add_budget("income", ApproxDP(1, 1e-6))
    ledger.settle(ledger.reserve(TABLE, "first", budget="visits", analyst="ann"), 1)
    ledger.abandon(ledger.reserve(PureDP(2), "second", budget="visits", analyst="bob"))
    ledger.settle(ledger.reserve(ApproxDP(0.5, 1e-7), "third", budget="income"), None)
    ledger.reserve(TABLE, "fourth", budget="visits")
    assert ledger.verify() == []
    return ledger


TABLES = {
    "expost_totals": (
        *("budget", "analyst", "terms", "settled", "held", "renews", "period", "past"),
    ),
    "expost_reservations": (
        *("id", "budget", "analyst", "status", "worst", "charges", "outcome"),
        *("entry", "request", "secret"),
    ),
    "expost_entries": tuple(NAMES),
    "expost_head": ("sequence", "hash"),
}
KEYS = {"expost_totals": 2, "expost_reservations": 1, "expost_entries": 1, "expost_head": 0}


def edited(value: object) -> object:
    """Something else of the same type and, where it matters, length."""
    if value is None:
        return "0"
    if isinstance(value, int):
        return value + 1000
    assert isinstance(value, str)
    digit = next((place for place, letter in enumerate(value) if letter.isdigit()), None)
    if digit is not None:
        return value[:digit] + str((int(value[digit]) + 1) % 10) + value[digit + 1 :]
    return ("y" if value[:1] == "x" else "x") + value[1:]


def edits(ledger: Ledger, table: str) -> Iterator[tuple[tuple, str, list[str]]]:
    """Edit every column of every row of a table in turn, one at a time; yield the row, the column,
    and what verify says.
    """
    columns, size = TABLES[table], KEYS[table]
    for row in sql(ledger, f"SELECT {', '.join(columns)} FROM {table}"):
        for place, column in enumerate(columns):
            change(ledger, table, column, edited(row[place]), row[:size])
            new_key = tuple(
                edited(value) if p == place else value for p, value in enumerate(row[:size])
            )
            yield row, column, ledger.verify()
            change(ledger, table, column, row[place], new_key)
    assert ledger.verify() == []


def change(ledger: Ledger, table: str, column: str, value: object, key: tuple) -> None:
    """Write one column of the row with this key."""
    where = (
        " AND ".join(f"{name} = :k{p}" for p, name in enumerate(TABLES[table][: len(key)]))
        or "place = 1"
    )
    keys = {f"k{p}": each for p, each in enumerate(key)}
    sql(ledger, f"UPDATE {table} SET {column} = :value WHERE {where}", value=value, **keys)


def test_an_edited_entry_is_found(rich):
    """Catches a column that the hash does not cover."""
    for row, column, problems in edits(rich, "expost_entries"):
        assert any(
            problem.startswith((f"row {row[0]}:", f"rows {row[0]}–")) for problem in problems
        ), (
            row[0],
            column,
            problems,
        )


def test_edited_totals_are_found(rich):
    """Catches a raised budget, a lowered sum or a renamed analyst."""
    for row, column, problems in edits(rich, "expost_totals"):
        assert any("totals" in problem and repr(row[0]) in problem for problem in problems), (
            row,
            column,
            problems,
        )


def test_an_edited_reservation_is_found(rich):
    """Catches a smaller hold, cheaper charges, or another outcome or owner; they decide what a
    settlement gives back.
    """
    for row, column, problems in edits(rich, "expost_reservations"):
        assert any(row[0] in problem for problem in problems), (row, column, problems)


def test_an_edited_head_is_found(rich):
    """Catches a ledger that would go on from another place."""
    for _, column, problems in edits(rich, "expost_head"):
        assert problems, column


@pytest.mark.parametrize(
    "table", ["expost_totals", "expost_reservations", "expost_entries", "expost_head"]
)
def test_removed_rows_are_found(rich, table):
    """Catches a spending that was made to disappear: at the start, in the middle, or at the end."""
    names = TABLES[table] if table != "expost_head" else ("place", *TABLES[table])
    columns, marks = ", ".join(names), ", ".join(f":{name}" for name in names)
    for row in sql(rich, f"SELECT {columns} FROM {table}"):
        values = dict(zip(names, row, strict=True))
        where = " AND ".join(
            f"{name} = :{name}" for name, value in values.items() if value is not None
        )
        sql(
            rich,
            f"DELETE FROM {table} WHERE {where}",
            **{k: v for k, v in values.items() if v is not None},
        )
        problems = rich.verify()
        assert problems, row
        if table == "expost_entries":
            number = row[0]
            assert any(
                p.startswith((f"row {number}: removed", f"rows after {number - 1}: removed"))
                for p in problems
            )
        sql(rich, f"INSERT INTO {table} ({columns}) VALUES ({marks})", **values)
    assert rich.verify() == []


def test_swapped_rows_are_found(rich):
    """Catches two entries that changed places, numbers and all."""
    names = [name for name in NAMES if name != "sequence"]
    swapped = sql(
        rich,
        f"SELECT {', '.join(names)} FROM expost_entries WHERE sequence IN (4, 6) ORDER BY sequence",
    )
    assignments = ", ".join(f"{name} = :{name}" for name in names)
    for number, row in zip((6, 4), swapped, strict=True):
        sql(
            rich,
            f"UPDATE expost_entries SET {assignments} WHERE sequence = {number}",
            **dict(zip(names, row, strict=True)),
        )
    problems = rich.verify()
    assert any(problem.startswith("row 4: edited") for problem in problems)
    assert any(problem.startswith("row 6: edited") for problem in problems)


def test_a_replaced_row_is_found(rich):
    """Catches an entry that was edited together with its own hash: the next one does not follow."""
    replaced = replace(list(rich.entries())[3], memo="another reason")
    sql(
        rich,
        "UPDATE expost_entries SET memo = :memo, hash = :hash WHERE sequence = :sequence",
        memo=replaced.memo,
        hash=replaced.computed_hash(),
        sequence=replaced.sequence,
    )
    problems = rich.verify()
    assert any(
        problem.startswith(f"row {replaced.sequence + 1}: does not follow") for problem in problems
    )


def test_an_added_row_is_found(rich):
    """Catches a row out of nowhere: a reservation that no entry tells of, a cap that nobody set, an
    entry behind the head.
    """
    sql(rich, "INSERT INTO expost_totals VALUES ('visits', 'eve', '{}', '[]', '[]', '', '', '')")
    sql(
        rich,
        "INSERT INTO expost_reservations VALUES "
        "('ghost', 'visits', '', 'open', '[]', '{}', NULL, 9, '', '')",
    )
    last = list(rich.entries())[-1]
    values = [(name, getattr(last, name)) for name in NAMES if name != "sequence"]
    marks = ", ".join(f":{name}" for name, _ in values)
    sql(rich, f"INSERT INTO expost_entries VALUES ({last.sequence + 1}, {marks})", **dict(values))
    problems = rich.verify()
    assert any("'eve'" in problem for problem in problems)
    assert any("ghost" in problem for problem in problems)
    assert any(f"row {last.sequence + 1}: edited" in problem for problem in problems)


def rewrite(ledger: Ledger, number: int, **changes: object) -> None:
    """Edit an entry and mend every hash after it, as one would who knows how: only the sums can
    tell.
    """
    entries = list(ledger.entries())
    previous = entries[number - 2].hash if number > 1 else "0" * 64
    for entry in entries[number - 1 :]:
        content = {name: getattr(entry, name) for name in NAMES} | {"previous": previous}
        mended = type(entry)(
            **(content | (changes if entry.sequence == number else {}) | {"hash": ""})
        )
        previous = mended.computed_hash()
        values = {name: getattr(mended, name) for name in NAMES} | {"hash": previous}
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        sql(ledger, f"UPDATE expost_entries SET {assignments} WHERE sequence = :sequence", **values)
    sql(ledger, "UPDATE expost_head SET hash = :hash", hash=previous)


@pytest.mark.parametrize(
    ("number", "changes", "complaint"),
    [
        (4, {"detail": '{"charges":"x","worst":["99"]}'}, "overspends"),
        (5, {"detail": '{"outcome":"1","spent":["5"]}'}, "row 5"),
        (5, {"detail": '{"outcome":"1","spent":["1/8"]}'}, "totals"),
        (7, {"detail": '{"spent":["1"]}'}, "less than its worst case"),
        (5, {"action": "abandon"}, "row 5"),
        (5, {"budget": "income"}, "another budget"),
        (6, {"action": "shrug"}, "unknown action"),
        (3, {"budget": "visits", "analyst": ""}, "again"),
        (6, {"detail": "not json"}, "row 6"),
        (6, {"detail": '{"worst":["1/0"],"charges":"x"}'}, "row 6"),
        (6, {"detail": "[]"}, "row 6"),
        (6, {"budget": "nowhere"}, "never created"),
    ],
)
def test_a_forgery_with_mended_hashes_must_still_add_up(rich, number, changes, complaint):
    """Catches a replay that believes the hashes alone; also: no nonsense in a row makes verify
    itself fall over.
    """
    rewrite(rich, number, **changes)
    problems = rich.verify()
    assert any(complaint in problem for problem in problems), problems


def test_two_reservations_under_one_id_are_found(rich):
    """Catches a replay in which the second reservation replaces the first."""
    fourth = list(rich.entries())[-1]
    rewrite(rich, fourth.sequence, reservation=list(rich.entries())[5].reservation)
    assert any("used before" in problem for problem in rich.verify())


def test_wrong_types_in_a_sqlite_file_are_found(tmp_path):
    """Catches verify falling over a blob where a text should be: SQLite takes anything."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    ledger.reserve(PureDP(0.5))
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    for change_ in ("memo = x'00ff'", "time = 5", "hash = 1.5"):
        with_blob = sql(ledger, "SELECT * FROM expost_entries WHERE sequence = 2")[0]
        sql(ledger, f"UPDATE expost_entries SET {change_} WHERE sequence = 2")
        problems = ledger.verify()
        assert any("edited" in problem for problem in problems), (change_, problems)
        sql(ledger, "DELETE FROM expost_entries WHERE sequence != 1 OR typeof(sequence) = 'text'")
        marks = ", ".join(f":c{place}" for place in range(10))
        sql(
            ledger,
            f"INSERT INTO expost_entries VALUES ({marks})",
            **{f"c{p}": v for p, v in enumerate(with_blob)},
        )
        assert ledger.verify() == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE expost_totals SET settled = 'x'",
        "UPDATE expost_totals SET terms = '{}'",
        "DELETE FROM expost_head",
        "DELETE FROM expost_totals",
    ],
)
def test_a_damaged_ledger_refuses_to_charge(url, damage):
    """Catches a charge that is computed from damaged rows, and raw errors of the layers below."""
    ledger = Ledger.create(url, PureDP(1))
    sql(ledger, damage)
    with pytest.raises(LedgerError, match="verify"):
        ledger.reserve(PureDP(0.1))
    assert len(list(ledger.entries())) == 1
    assert ledger.verify() != []


def test_a_charge_that_was_not_written_is_an_error(rich):
    """Catches an update that finds no row and passes for a charge."""
    with pytest.raises(LedgerError, match="verify"), rich._store.writing() as table:
        table.change("UPDATE expost_totals SET held = :h WHERE budget = :b", h="[]", b="nowhere")


# A state machine against a model.


class LedgerMachine(RuleBasedStateMachine):
    """Random histories over two connections, compared with a dictionary after every step. Catches
    whatever the examples above forgot, and a connection that does not see what the other wrote.
    """

    sizes = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0, 2.0])
    analysts = st.sampled_from(["", "ann", "bob"])
    budgets = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self.jobs: dict[str, dict] = {}
        self.limits = {("a", ""): 3.0, ("a", "ann"): 1.5, ("b", ""): 2.0, ("b", "bob"): 0.5}
        self.entries = 4

    @initialize()
    def create(self) -> None:
        self.ledger = Ledger.create(
            self.folder / "ledger.db", PureBudget(3.0), "a", caps={"ann": PureBudget(1.5)}
        )
        self.ledger.add_budget("b", PureBudget(2.0), caps={"bob": PureBudget(0.5)})
        self.other = Ledger(store.Store(self.folder / "ledger.db"))

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.verify() == []
            assert len(list(self.ledger.entries())) == self.entries
        shutil.rmtree(self.folder)

    def used(self, budget: str, analyst: str) -> Fraction:
        mine = [
            job
            for job in self.jobs.values()
            if job["budget"] == budget and analyst in ("", job["analyst"])
        ]
        return sum((job["cost"] for job in mine), Fraction(0))

    @rule(
        outcomes=st.lists(sizes, min_size=1, max_size=3),
        nothing=sizes,
        budget=budgets,
        analyst=analysts,
    )
    def reserve(self, outcomes: list[float], nothing: float, budget: str, analyst: str) -> None:
        table = Charges.from_list([PureDP(each) for each in outcomes], PureDP(nothing))
        worst = amount_of(max(*outcomes, nothing))
        places = [place for place in {(budget, ""), (budget, analyst)} if place in self.limits]
        fits = all(self.used(*place) + worst <= amount_of(self.limits[place]) for place in places)
        if not fits:
            with pytest.raises(BudgetRefused):
                self.ledger.reserve(table, budget=budget, analyst=analyst)
            return
        self.remember(self.ledger.reserve(table, budget=budget, analyst=analyst), worst)

    def remember(self, job: Reservation, worst: Fraction) -> None:
        """Add a reservation to the model."""
        self.entries += 1
        facts = {
            "budget": job.budget,
            "analyst": job.analyst,
            "table": job.charges,
            "charges": [amount_of(job.charges[i].epsilon) for i in range(len(job.charges))],
            "nothing": amount_of(job.charges.nothing.epsilon),
            "secret": job.secret,
        }
        self.jobs[job.id] = facts | {"status": "open", "outcome": None, "cost": worst}

    @rule(requests=st.lists(st.tuples(sizes, budgets, analysts), min_size=2, max_size=4))
    def reserve_together(self, requests: list[tuple[float, str, str]]) -> None:
        """Several threads wait together and share a commit; each gets its own answer."""
        tasks = [
            lambda size=size, budget=budget, analyst=analyst: self.ledger.reserve(
                PureDP(size), budget=budget, analyst=analyst
            )
            for size, budget, analyst in requests
        ]
        answers = wait_together(self.ledger, tasks)
        for (size, budget, analyst), answer in zip(requests, answers, strict=True):
            worst = amount_of(size)
            places = [place for place in {(budget, ""), (budget, analyst)} if place in self.limits]
            fits = all(
                self.used(*place) + worst <= amount_of(self.limits[place]) for place in places
            )
            assert isinstance(answer, Reservation if fits else BudgetRefused)
            if isinstance(answer, Reservation):
                self.remember(answer, worst)

    @rule(number=st.integers(0, 20), outcome=st.sampled_from([None, 0]))
    def settle_together(self, number: int, outcome: int | None) -> None:
        """The same reservation is settled twice in one commit: one entry, one refund."""
        picked = self.pick(number)
        if picked is None or picked[1]["status"] != "open":
            return
        identity, job = picked
        tasks = [lambda: self.ledger.settle(identity, outcome, secret=job["secret"])] * 2
        first, second = wait_together(self.ledger, tasks)
        assert first == second
        cost = job["nothing"] if outcome is None else job["charges"][outcome]
        job.update(status="settled", outcome=outcome, cost=cost)
        self.entries += 1

    def pick(self, number: int) -> tuple[str, dict] | None:
        return list(self.jobs.items())[number % len(self.jobs)] if self.jobs else None

    @rule(number=st.integers(0, 20), outcome=st.sampled_from([None, 0, 1, 2]))
    def settle(self, number: int, outcome: int | None) -> None:
        picked = self.pick(number)
        if picked is None:
            return
        identity, job = picked
        if outcome is not None and outcome >= len(job["charges"]):
            with pytest.raises(InvalidInput):
                self.ledger.settle(identity, outcome, secret=job["secret"])
        elif job["status"] == "open":
            self.ledger.settle(identity, outcome, secret=job["secret"])
            cost = job["nothing"] if outcome is None else job["charges"][outcome]
            job.update(status="settled", outcome=outcome, cost=cost)
            self.entries += 1
        elif job["status"] == "settled" and job["outcome"] == outcome:
            self.ledger.settle(identity, outcome, secret=job["secret"])
        else:
            with pytest.raises(LedgerError):
                self.ledger.settle(identity, outcome, secret=job["secret"])

    @rule(number=st.integers(0, 20))
    def abandon(self, number: int) -> None:
        picked = self.pick(number)
        if picked is None:
            return
        identity, job = picked
        if job["status"] == "settled":
            with pytest.raises(LedgerError):
                self.ledger.abandon(identity)
        else:
            self.ledger.abandon(identity)
            self.entries += job["status"] == "open"
            job.update(status="abandoned")

    @rule(number=st.integers(0, 20))
    def reserve_again(self, number: int) -> None:
        picked = self.pick(number)
        if picked is None:
            return
        identity, job = picked
        again = {"budget": job["budget"], "analyst": job["analyst"], "reservation_id": identity}
        with pytest.raises(LedgerError):
            self.ledger.reserve(job["table"], secret="guess", **again)
        if job["status"] != "open":
            with pytest.raises(LedgerError):
                self.ledger.reserve(job["table"], secret=job["secret"], **again)
        else:
            same = self.ledger.reserve(job["table"], secret=job["secret"], **again)
            assert same.id == identity

    @rule()
    def reopen(self) -> None:
        self.ledger = Ledger.open(self.folder / "ledger.db")

    @rule()
    def use_the_other_connection(self) -> None:
        self.ledger, self.other = self.other, self.ledger

    @rule(budget=budgets, analyst=analysts, limit=st.sampled_from([0.3, 1.0, 2.5]))
    def change(self, budget: str, analyst: str, limit: float) -> None:
        self.ledger.change_budget(PureBudget(limit), "why not", name=budget, analyst=analyst)
        self.limits[budget, analyst] = limit
        self.entries += 1

    @invariant()
    def sums_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for budget, analyst in self.limits:
            state = self.ledger.standing(budget, analyst).filter
            assert state.settled[0] + state.held[0] == self.used(budget, analyst)
            assert state.budget == PureBudget(self.limits[budget, analyst])
            assert self.other.standing(budget, analyst).filter == state
        waiting = {identity for identity, job in self.jobs.items() if job["status"] == "open"}
        found = {job.id for name in ("a", "b") for job in self.ledger.open_reservations(name)}
        assert found == waiting


LedgerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
