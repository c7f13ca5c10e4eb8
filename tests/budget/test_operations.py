"""What people do who look after a ledger: changes, renewals, alerts, and what is waiting."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from expost import ZCDP, ApproxDP, Charges, PureDP
from expost.budget import totals
from expost.budget.budgets import PureBudget
from expost.budget.ledger import Ledger
from expost.budget.limits import Filter
from expost.budget.operations import Period, Replay
from expost.errors import BudgetRefused, InvalidInput, LedgerError

TABLE = Charges.from_list([PureDP(0.5)], PureDP(0.0))


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.create(url, PureDP(1), "visits", caps={"ann": PureDP(0.5)})


# Changing limits.


def test_a_total_is_changed_with_a_reason(ledger):
    """Catches a change that is not recorded, or not enforced."""
    ledger.reserve(PureDP(1))
    ledger.change_budget(PureDP(1.5), "second year")
    ledger.reserve(PureDP(0.5))
    ledger.change_budget(PureDP(1.2), "too much")  # below what is used: nothing more fits
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(0.01))
    assert ledger.remaining() == 0.0
    changes = [entry for entry in ledger.entries() if entry.action == "change"]
    assert [entry.memo for entry in changes] == ["second year", "too much"]
    assert changes[0].facts == {"terms": pure_terms(1.5)}
    assert ledger.verify() == []


def pure_terms(epsilon: float) -> dict[str, object]:
    return {"kind": "pure", "epsilon": epsilon, "neighbours": "add-remove"}


def test_caps_are_set_changed_and_removed(ledger):
    """Catches a new cap that forgets what its analyst was charged before."""
    ledger.settle(ledger.reserve(TABLE, analyst="bob"), 0)
    ledger.reserve(PureDP(0.125), analyst="bob")
    ledger.change_budget(PureDP(0.75), "bob, too", analyst="bob")
    state = ledger.standing(analyst="bob").filter
    assert (state.settled, state.held) == ((Fraction(1, 2),), (Fraction(1, 8),))
    with pytest.raises(BudgetRefused, match="cap of bob"):
        ledger.reserve(PureDP(0.25), analyst="bob")
    assert [cap.analyst for cap in ledger.caps()] == ["ann", "bob"]
    ledger.change_budget(None, "trusted", analyst="bob")
    ledger.reserve(PureDP(0.25), analyst="bob")
    assert ledger.verify() == []
    ledger.change_budget(PureDP(0.75), "not any more", analyst="bob")
    assert ledger.remaining(analyst="bob") == 0.0
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("limit", "reason", "analyst"),
    [
        (PureDP(2), "", ""),
        (PureDP(2), "  ", ""),
        (PureDP(2), None, ""),
        (ZCDP(2), "kind", ""),
        (PureDP(2, "replace"), "relation", ""),
        (ApproxDP(2, 1e-6), "kind", "ann"),
        (None, "away with it", ""),
        (None, "no such cap", "bob"),
    ],
)
def test_changes_that_are_refused(ledger, limit, reason, analyst):
    """Catches a change without a reason, or to something that cannot be compared."""
    before = list(ledger.entries())
    with pytest.raises(InvalidInput):
        ledger.change_budget(limit, reason, analyst=analyst)
    assert list(ledger.entries()) == before


# Budgets that renew.


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests can set."""

    class Clock:
        moment = datetime(2026, 1, 31, 12, tzinfo=UTC)

    monkeypatch.setattr("expost.budget.totals.now", lambda rows: Clock.moment)
    monkeypatch.setattr(
        "expost.budget.totals.timestamp",
        lambda: Clock.moment.isoformat(timespec="milliseconds"),
    )
    return Clock


def test_a_budget_renews(url, clock):
    """Catches a period that does not begin anew, forgets what is open, or hides the past."""
    ledger = Ledger.create(url, PureDP(1), "visits", caps={"ann": PureDP(0.75)}, renews="month")
    ledger.settle(ledger.reserve(TABLE, analyst="ann"), 0)
    waiting = ledger.reserve(TABLE)
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(0.25))
    clock.moment = datetime(2026, 2, 1, tzinfo=UTC)
    ledger.reserve(PureDP(0.5), analyst="ann")  # beside the open one, and within the cap again
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(0.25))
    ledger.settle(waiting, None)
    standing = ledger.standing()
    assert standing.renewal is not None
    assert (standing.renewal.period, standing.renewal.past) == ("2026-02-01", (Fraction(1, 2),))
    shown = standing.as_dict()
    assert (shown["renews"], shown["settled_in_earlier_periods"]) == ("month", 0.5)
    assert "sum" in shown["meaning"]
    assert [entry.action for entry in ledger.entries()].count("renew") == 1
    assert ledger.verify() == []


def test_time_that_goes_back_renews_nothing(url, clock):
    """Catches a clock that is set back and forth to renew a budget twice."""
    ledger = Ledger.create(url, PureDP(1), renews="day")
    ledger.settle(ledger.reserve(PureDP(1)), 0)
    for day in (30, 29, 31):
        clock.moment = datetime(2026, 1, day, tzinfo=UTC)
        with pytest.raises(BudgetRefused):
            ledger.reserve(PureDP(0.5))
    assert ledger.verify() == []


@pytest.mark.parametrize("close", ["settle", "abandon"])
@pytest.mark.parametrize("analyst", ["", "ann"])
def test_a_job_that_is_open_over_midnight(url, clock, close, analyst):
    """Catches a charge that is booked on another day than the one that admitted it."""
    ledger = Ledger.create(url, PureDP(1), "visits", caps={"ann": PureDP(1)}, renews="day")
    clock.moment = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    late = ledger.reserve(TABLE, analyst=analyst)
    clock.moment = datetime(2026, 2, 1, 0, 1, tzinfo=UTC)
    early = ledger.reserve(PureDP(0.5), analyst=analyst)
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(0.25), analyst=analyst)  # the open one is held until it is settled
    if close == "settle":
        ledger.settle(late, 0)
        spent = TABLE[0].epsilon
    else:
        spent = ledger.abandon(late).epsilon
    for who in {"", analyst}:
        standing = ledger.standing(analyst=who)
        assert standing.renewal is not None
        assert standing.renewal.past == (Fraction(spent),)
        assert (standing.filter.settled, standing.filter.held) == ((0,), (Fraction(1, 2),))
    assert ledger.remaining() == 0.5
    ledger.settle(early, 0)
    ledger.settle(ledger.reserve(PureDP(0.5), analyst=analyst), 0)
    assert ledger.remaining() == 0
    assert ledger.verify() == []
    named = [e.facts["period"] for e in ledger.entries() if e.action == "reserve"]
    assert named == ["2026-01-31", "2026-02-01", "2026-02-01"]


@pytest.mark.parametrize("seed", range(12))
def test_every_charge_is_booked_in_the_period_that_admitted_it(tmp_path, clock, seed):
    """Against a model: the sums of each day are those of the requests it admitted.

    The same without some of the requests, as if nobody had made them.
    """
    draw = random.Random(seed)
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path, PureDP(3), caps={"ann": PureDP(2)}, renews="day")
    clock.moment = datetime(2026, 3, 1, 22, tzinfo=UTC)
    table = Charges.from_list([PureDP(0.25), PureDP(1)], PureDP(0))
    jobs = []  # reservation, day, analyst, charge
    for _ in range(50):
        clock.moment += timedelta(hours=draw.choice([0, 1, 5]))
        waiting = [job for job in jobs if job[3] is None]
        if draw.random() < 0.55 or not waiting:
            who, day = draw.choice(["", "ann"]), str(clock.moment.date())
            with suppress(BudgetRefused):
                jobs.append([ledger.reserve(table, analyst=who), day, who, None])
            assert sum(1 if job[3] is None else job[3] for job in jobs if job[1] == day) <= 3
        else:
            job = draw.choice(waiting)
            outcome, job[3] = draw.choice([(None, 0), (0, 0.25), (1, 1), ("abandon", 1)])
            if outcome == "abandon":
                ledger.abandon(job[0])
            else:
                ledger.settle(job[0], outcome)
        hidden = [job for job in jobs if draw.random() < 0.3]
        for place, left_out in itertools.product(("", "ann"), ([], hidden)):
            state = ledger.standing(analyst=place, without=[job[0].id for job in left_out])
            same = ledger.filters(analyst=place, without=[job[0].id for job in left_out])
            assert same[-1] == state.filter  # of the budget, then of the cap
            assert len(same) == 1 + bool(place)
            counted = [job for job in jobs if place in ("", job[2]) and job not in left_out]
            present = state.renewal.period
            settled = [job for job in counted if job[3] is not None]
            assert state.filter.held == (len(counted) - len(settled),)
            assert state.filter.settled == (sum(j[3] for j in settled if j[1] == present),)
            assert state.renewal.past == (sum(j[3] for j in settled if j[1] < present),)
            entries = [e for e in ledger.entries() if e.reservation in {j[0].id for j in left_out}]
            whole = ledger.standing().entries
            assert place or state.entries == whole - len(entries)
    assert ledger.verify() == []


def test_a_cap_that_is_removed_and_set_again_in_a_later_period(url, clock):
    """Catches a past that the entries and the totals remember differently."""
    ledger = Ledger.create(url, PureDP(1), caps={"ann": PureDP(1)}, renews="day")
    ledger.settle(ledger.reserve(PureDP(0.5), analyst="ann"), 0)
    clock.moment += timedelta(days=1)
    ledger.reserve(PureDP(0.25))
    ledger.change_budget(None, "not needed", analyst="ann")
    ledger.change_budget(PureDP(1), "needed", analyst="ann")
    assert ledger.verify() == []


def test_an_edited_period_is_found(url, clock):
    """Catches a reservation that was moved to another day."""
    ledger = Ledger.create(url, PureDP(1), renews="day")
    ledger.reserve(PureDP(0.5))
    entry = list(ledger.entries())[-1]
    (problem,) = [
        line
        for line in Replay(
            filters={("default", ""): Filter.empty(PureBudget(1))},
            periods={"default": Period("day", "2026-02-01")},
        ).check([entry])
        if "period" in line
    ]
    assert "another period" in problem


def test_the_clock_is_read_once(url, monkeypatch):
    """Catches a reservation whose time is on another day than its period."""
    moments = iter(
        [datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)]
    )
    monkeypatch.setattr("expost.budget.totals.now", lambda rows: next(moments))
    ledger = Ledger.create(url, PureDP(1), renews="day")
    reserved = ledger.reserve(PureDP(0.5))
    assert reserved.time == "2026-01-31T23:59:59.000+00:00"
    assert list(ledger.entries())[-1].facts["period"] == "2026-01-31"


@pytest.mark.parametrize(
    ("every", "first"),
    [
        ("day", "2026-05-13"),
        ("week", "2026-05-11"),
        ("month", "2026-05-01"),
        ("quarter", "2026-04-01"),
        ("year", "2026-01-01"),
        ("", ""),
    ],
)
def test_periods(every, first):
    """Catches a period that begins on another day."""
    assert totals.period_at(every, datetime(2026, 5, 13, 23, 59, tzinfo=UTC)) == first


def test_unknown_periods_are_refused(tmp_path):
    """Catches a period that nobody can compute."""
    with pytest.raises(InvalidInput, match="month"):
        Ledger.create(tmp_path / "ledger.db", PureDP(1), renews="fortnight")
    assert not (tmp_path / "ledger.db").exists()


# Alerts.


def wait_for(path: Path, lines: int) -> list[str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= lines:
            return found
        time.sleep(0.02)
    pytest.fail("the command did not run")


def test_an_alert_runs_once_when_its_share_is_reached(tmp_path):
    """Catches an alert that never comes, comes with every request, or waits for its command."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1), "visits")
    told = tmp_path / "told"
    command = f'echo "$EXPOST_ALERT_BUDGET $EXPOST_ALERT_SHARE" >> {told}'
    ledger.set_alert(0.8, f"{command}; sleep 30")
    ledger.set_alert("0.5", command)
    ledger.reserve(PureDP(0.4))
    assert not told.exists()
    start = time.monotonic()
    ledger.settle(ledger.reserve(PureDP(0.1)), None)
    assert wait_for(told, 1) == ["visits 0.5"]
    ledger.reserve(PureDP(0.3))
    assert time.monotonic() - start < 15
    assert wait_for(told, 2) == ["visits 0.5", "visits 0.8"]
    ledger.reserve(PureDP(0.1))
    time.sleep(0.3)
    assert len(told.read_text().splitlines()) == 2
    ledger.set_alert(0.8, "")
    assert [alert.share for alert in ledger.alerts()] == ["0.5"]
    assert ledger.verify() == []


def test_a_command_that_fails_changes_nothing(tmp_path):
    """Catches a reservation that depends on its alert."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    ledger.set_alert(0.1, "exit 3")
    ledger.set_alert(0.2, "/no/such/command")
    ledger.reserve(PureDP(0.5))
    assert ledger.remaining() == 0.5


def test_commands_of_others_do_not_run(tmp_path, monkeypatch):
    """Catches a command that somebody else stored: in a copy, or in a file that many can write."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path, started = tmp_path / "ledger.db", []
    ledger = Ledger.create(path, PureDP(1))
    for share in (0.1, 0.3, 0.5, 0.7):
        ledger.set_alert(share, "true")
    copy = Ledger.open(shutil.copy(path, tmp_path / "copy.db"))
    monkeypatch.setattr(totals.subprocess, "Popen", lambda *a, **k: started.append(a))
    copy.reserve(PureDP(0.2))
    assert started == []
    ledger.reserve(PureDP(0.2))
    assert len(started) == 1
    with ledger._store.writing() as rows:
        rows.run("UPDATE expost_alerts SET command = 'rm' WHERE share = '0.3'")
    ledger.reserve(PureDP(0.2))
    assert len(started) == 1  # another command than the one that was set
    known = tmp_path / "state" / "expost" / "alerts"
    known.chmod(0o666)
    ledger.reserve(PureDP(0.2))
    assert len(started) == 1  # anybody may have written the list
    alert = totals.Alert("b", "0.1", "true")
    totals.start_alerts([alert], None)  # a server
    assert len(started) == 1
    monkeypatch.setenv(totals.ALLOW_VARIABLE, "1")
    totals.start_alerts([alert], None)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("share", "command"), [(0, "x"), (1.5, "x"), (-0.5, "x"), ("a lot", "x"), (0.5, "\x00")]
)
def test_alerts_that_are_refused(ledger, share, command):
    """Catches a share that is never reached."""
    with pytest.raises(InvalidInput):
        ledger.set_alert(share, command)
    assert ledger.alerts() == []


def test_a_changed_alert_is_found(tmp_path):
    """Catches a command that is exchanged behind the ledger's back."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    ledger.set_alert(0.5, "true")
    with ledger._store.writing() as rows:
        rows.change("UPDATE expost_alerts SET command = 'rm'")
    assert ledger.verify() == ["alerts: do not match the entries"]


# What is waiting.


def test_waiting_requests_have_an_age_and_a_memo(ledger):
    """Catches a hold that nobody can explain."""
    ledger.settle(ledger.reserve(TABLE, "done"), 0)
    job = ledger.reserve(TABLE, "still running", analyst="ann")
    (waiting,) = ledger.waiting()
    assert waiting.reservation == job
    assert waiting.reservation.secret is None
    assert waiting.memo == "still running"
    assert waiting.time == job.time
    assert ledger.statuses()[job.id] == "open"


# Time limits.


def test_a_stuck_transaction_is_named(postgres_url, monkeypatch):
    """Catches a job that waits for ever for somebody else's forgotten transaction."""
    import psycopg

    ledger = Ledger.create(postgres_url, PureDP(1))
    monkeypatch.setattr("expost.budget.store.SERVER_SECONDS", 0.3)
    with psycopg.connect(postgres_url) as stuck:
        stuck.execute("SELECT * FROM expost_head FOR UPDATE")
        start = time.monotonic()
        with pytest.raises(LedgerError, match="pg_stat_activity"):
            ledger.reserve(PureDP(0.5))
        assert time.monotonic() - start < 10
        assert ledger.remaining() == 1.0  # readers do not wait
    ledger.reserve(PureDP(0.5))


def test_a_stuck_process_is_named(tmp_path, monkeypatch):
    """The same for a file."""
    import fcntl
    import os

    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    monkeypatch.setattr("expost.budget.store.BUSY_SECONDS", 0.3)
    descriptor = os.open(tmp_path / "ledger.db", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(LedgerError, match="another process"):
        ledger.reserve(PureDP(0.5))
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    time.sleep(0.1)  # the one who waited gives the lock back
    ledger.reserve(PureDP(0.5))
    assert ledger.remaining() == 0.5
    os.close(descriptor)
