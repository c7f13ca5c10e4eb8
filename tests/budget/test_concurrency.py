"""Sixteen processes on one ledger at once.

The budget is never exceeded, nothing is lost, and every refusal was right when it was made. What
happened is read from the chain afterwards. Each process records what it was told; both records must
agree.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

import expost.budget.store
from expost import Candidate, Charges, PureDP, RandomDropping
from expost.budget.budgets import PureBudget, budget_from_dict
from expost.budget.ledger import Ledger, Reservation
from expost.budget.ledger_rows import LedgerRows
from expost.budget.limits import Filter, amount_of
from expost.budget.store import GroupCommit
from expost.errors import BudgetRefused, CheckpointMismatch, LedgerError

PROCESSES = 16
REQUESTS = pytest.mark.parametrize("requests", [100, pytest.param(500, marks=pytest.mark.long)])
BUDGET, CAPS = 25.0, {"ann": 4.0, "bob": 7.0}
ANALYSTS = ("", "ann", "bob", "cleo")

pytestmark = pytest.mark.slow


def head(ledger: Ledger) -> int:
    with ledger._store.reading() as rows:
        return int(rows.one("SELECT sequence FROM expost_head")[0])


def work(ledger: Ledger, seed: int, folder: Path, requests: int) -> None:
    """Reserve, settle and abandon at random; write down every answer."""
    coin = random.Random(seed)
    log: list[dict[str, object]] = []
    mine: list[tuple[Reservation, list[float]]] = []
    for _ in range(requests):
        if mine and coin.random() < 0.45:
            job, outcomes = mine.pop(coin.randrange(len(mine)))
            identity = job.id
            if coin.random() < 0.1:
                ledger.abandon(identity)
                log.append({"act": "abandon", "id": identity, "cost": max(outcomes)})
            else:
                outcome = coin.randrange(len(outcomes))
                ledger.settle(job, outcome)
                log.append({"act": "settle", "id": identity, "cost": outcomes[outcome]})
            continue
        outcomes = [coin.choice([0.0, 0.001, 0.01, 0.1, 0.3]) * coin.random() for _ in range(2)]
        analyst = coin.choice(ANALYSTS)
        table = Charges.from_list([PureDP(each) for each in outcomes], PureDP(0.0))
        before = head(ledger)
        try:
            job = ledger.reserve(table, f"by {seed}", analyst=analyst)
        except BudgetRefused as no:
            moment = {
                "from": before,
                "to": head(ledger),
                "budget": no.budget,
                "remaining": no.remaining,
                "held": no.held,
            }
            log.append({"act": "refused", "analyst": analyst, "worst": max(outcomes), **moment})
        else:
            mine.append((job, outcomes))
            log.append({"act": "reserve", "id": job.id, "analyst": analyst, "cost": max(outcomes)})
    (folder / f"{seed}.json").write_text(json.dumps(log))


def run_processes(ledger: Ledger, folder: Path, requests: int) -> list[dict]:
    """The ledger is opened before the fork and used after it: a child must not share its parent's
    connection.
    """
    ledger.remaining()
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=work, args=(ledger, seed, folder, requests))
        for seed in range(PROCESSES)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * PROCESSES
    return [
        record
        for seed in range(PROCESSES)
        for record in json.loads((folder / f"{seed}.json").read_text())
    ]


@dataclass
class Moment:
    """The filters after an entry: the budget's, and those of the caps."""

    filters: dict[str, Filter]


def replay(ledger: Ledger) -> list[Moment]:
    """The state after each entry, computed here from the entries alone (no code of the ledger's own
    replay).
    """
    filters: dict[str, Filter] = {}
    worst: dict[str, tuple[str, Fraction]] = {}
    moments = [Moment({})]
    for entry in ledger.entries():
        facts = json.loads(entry.detail)
        if entry.action in ("create", "cap"):
            filters[entry.analyst] = Filter.empty(budget_from_dict(facts["terms"]))
        elif entry.action == "reserve":
            worst[entry.reservation] = (entry.analyst, Fraction(facts["worst"][0]))
            for who in {"", entry.analyst} & filters.keys():
                state = filters[who]
                held = state.held[0] + worst[entry.reservation][1]
                assert state.settled[0] + held <= state.budget.limits[0], (
                    f"overspent at {entry.sequence}"
                )
                filters[who] = Filter(state.budget, state.settled, (held,))
        else:
            analyst, most = worst.pop(entry.reservation)
            spent = Fraction(facts["spent"][0])
            assert spent <= most
            for who in {"", analyst} & filters.keys():
                state = filters[who]
                filters[who] = Filter(
                    state.budget, (state.settled[0] + spent,), (state.held[0] - most,)
                )
        moments.append(Moment(dict(filters)))
    return moments


def check_nothing_lost(ledger: Ledger, log: list[dict]) -> None:
    """What the processes were told is in the chain, each request once and at the same price."""
    told = Counter(
        (each["act"], each["id"], amount_of(each["cost"]))
        for each in log
        if each["act"] != "refused"
    )
    kept: Counter = Counter()
    for entry in ledger.entries():
        if entry.action in ("reserve", "settle", "abandon"):
            facts = json.loads(entry.detail)
            kept[
                entry.action,
                entry.reservation,
                Fraction(facts["worst" if entry.action == "reserve" else "spent"][0]),
            ] += 1
    assert told == kept
    assert set(told.values()) == {1}


def check_refusals(log: list[dict], moments: list[Moment]) -> int:
    """Every refusal names a state that the ledger was in during the call, and into which the
    request did not fit.
    """
    refusals = [each for each in log if each["act"] == "refused"]
    for each in refusals:
        who = each["budget"].partition("cap of ")[2]
        assert who in ("", each["analyst"])
        states = [moment.filters[who] for moment in moments[each["from"] : each["to"] + 1]]
        matching = [
            state
            for state in states
            if (state.budget.describe(state.remaining, up=False), state.budget.describe(state.held))
            == (each["remaining"], each["held"])
        ]
        assert any(not state.admits((amount_of(each["worst"]),)) for state in matching), each
    return len(refusals)


def check(ledger: Ledger, log: list[dict], requests: int) -> None:
    assert len(log) == PROCESSES * requests
    moments = replay(ledger)
    check_nothing_lost(ledger, log)
    refused = check_refusals(log, moments)
    acts = Counter(each["act"] for each in log)
    assert refused > requests / 10  # the budget was fought over
    assert min(acts[act] for act in ("reserve", "settle", "abandon")) > requests / 10
    assert len(moments) - 1 == 1 + len(CAPS) + sum(acts.values()) - refused
    last = moments[-1].filters
    for who in ("", *CAPS):
        state = ledger.standing(analyst=who).filter
        assert (state.settled, state.held) == (last[who].settled, last[who].held)
    assert ledger.verify() == []


def create(url: str | Path) -> Ledger:
    return Ledger.create(
        url, PureBudget(BUDGET), caps={who: PureBudget(cap) for who, cap in CAPS.items()}
    )


@REQUESTS
def test_sixteen_processes_on_one_sqlite_file(tmp_path, requests):
    """Catches a check and a charge that are not one transaction, lost updates, and a child that
    uses its parent's connection.
    """
    ledger = create(tmp_path / "ledger.db")
    check(ledger, run_processes(ledger, tmp_path, requests), requests)


@REQUESTS
def test_sixteen_processes_on_postgresql(postgres_url, tmp_path, requests):
    """The same against a server."""
    ledger = create(postgres_url)
    check(ledger, run_processes(ledger, tmp_path, requests), requests)


def grab(ledger: Ledger, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        ledger.reserve(Charges.from_list([PureDP(0.6)], PureDP(0.0)))
    except BudgetRefused:
        os._exit(3)
    os._exit(0)


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_of_many_who_grab_the_last_of_the_budget_one_gets_it(where, request, tmp_path):
    """Catches check-then-spend: all start at the same instant, and only one request fits."""
    url = tmp_path / "ledger.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    ledger = Ledger.create(url, PureBudget(1.0))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    children = [context.Process(target=grab, args=(ledger, barrier)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert Counter(child.exitcode for child in children) == {0: 1, 3: 7}
    assert ledger.remaining() == 0.4


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_many_threads_share_one_ledger(where, request, tmp_path):
    """Catches a connection used by two threads at once, or a pool that runs out and fails with an
    error of its own.
    """
    url = tmp_path / "ledger.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    ledger = Ledger.create(url, PureBudget(1.0))
    starting, refused = threading.Barrier(30), []

    def spend(_: int) -> None:
        starting.wait()
        for _ in range(5):
            try:
                ledger.settle(ledger.reserve(PureDP(0.01)), 0)
            except BudgetRefused as no:
                refused.append(no)

    with ThreadPoolExecutor(30) as pool:
        list(pool.map(spend, range(30)))
    assert len(refused) == 50
    assert ledger.verify() == []


def wait_together(ledger: Ledger, tasks: list[Callable[[], object]]) -> list[object]:
    """Results or errors of tasks that are all waiting before the first of them may write."""
    results: list[object] = [None] * len(tasks)

    def run(place: int) -> None:
        try:
            results[place] = tasks[place]()
        except (BudgetRefused, LedgerError) as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(tasks))]
    with ledger._store._commits.leading:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            while len(ledger._store._commits.queue) < number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_writers_that_wait_together_are_committed_together(where, request, tmp_path, monkeypatch):
    """Catches a commit per request, an order that changes, a refusal that spoils its neighbours, or
    an answer that is given to another thread.
    """
    url = tmp_path / "ledger.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    ledger = Ledger.create(url, PureBudget(1.0))
    transactions = []
    original = ledger._store.writing
    monkeypatch.setattr(ledger._store, "writing", lambda: transactions.append(1) or original())
    sizes = [0.5, 0.6, 0.25, 0.3, 0.25]
    tasks = [
        lambda size=size, place=place: ledger.reserve(
            PureDP(size), str(place), reservation_id=f"job {place}"
        )
        for place, size in enumerate(sizes)
    ]
    results = wait_together(ledger, tasks)
    assert len(transactions) == 1
    assert [isinstance(each, BudgetRefused) for each in results] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert [each.id for each in results if isinstance(each, Reservation)] == [
        "job 0",
        "job 2",
        "job 4",
    ]
    assert [entry.memo for entry in ledger.entries()] == ["", "0", "2", "4"]
    assert ledger.remaining() == 0.0
    assert ledger.verify() == []


def test_a_commit_that_fails_fails_for_all(tmp_path, monkeypatch):
    """Catches a thread that is told of a success which was rolled back with its neighbours."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(1.0))
    original = GroupCommit.run_one

    def fail(self: object, rows: LedgerRows, pending: object, *, alone: bool) -> None:
        original(self, rows, pending, alone=alone)
        if len(seen) == 2:
            raise sqlite3.OperationalError("disk I/O error")
        seen.append(pending)

    seen: list[object] = []
    monkeypatch.setattr(GroupCommit, "run_one", fail)
    results = wait_together(ledger, [lambda: ledger.reserve(PureDP(0.6)) for _ in range(3)])
    assert all(isinstance(each, LedgerError) for each in results)
    assert all("not recorded" in str(each) for each in results)
    assert len({id(each) for each in results}) == 3
    monkeypatch.undo()
    assert ledger.remaining() == 1.0
    ledger.reserve(PureDP(0.6))
    assert ledger.verify() == []


def test_forks_between_threads_that_write(tmp_path):
    """Catches a child that inherits half a transaction, or a lock that nobody will release."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(1000.0))
    stop, done = threading.Event(), []

    def spend() -> None:
        while not stop.is_set():
            ledger.settle(ledger.reserve(PureDP(0.01)), 0)
            done.append(1)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        child = os.fork()
        if child == 0:
            try:
                ledger.settle(ledger.reserve(PureDP(0.01)), 0)
                os._exit(0)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    for thread in threads:
        thread.join(60)
    assert ledger.verify() == []
    assert ledger.standing().filter.settled == ((len(done) + 15) * Fraction(1, 100),)


def test_the_checks_notice_an_overspent_chain(tmp_path):
    """The checks above are no test if a chain of entries that overspends passes them."""
    ledger = create(tmp_path / "ledger.db")
    with ledger._store.writing() as rows:
        rows.change(
            "UPDATE expost_totals SET terms = :t WHERE analyst = ''",
            t=json.dumps(PureBudget(1e6).as_dict()),
        )
    for _ in range(2):
        ledger.reserve(PureDP(BUDGET * 0.6))
    with pytest.raises(AssertionError, match="overspent at 5"):
        replay(ledger)
    assert any(problem.startswith("row 5: overspends") for problem in ledger.verify())


def test_those_who_come_while_the_lock_is_awaited_take_part(tmp_path, monkeypatch):
    """Catches a batch that is closed before the lock is obtained: another process may hold it for
    long, and everybody who came meanwhile would wait for one more commit.
    """
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(100.0))
    transactions = []
    original = ledger._store.writing
    monkeypatch.setattr(ledger._store, "writing", lambda: transactions.append(1) or original())
    descriptor = os.open(tmp_path / "ledger.db", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as another process would
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ledger.reserve, PureDP(1))
        while not transactions:
            time.sleep(0.001)
        others = [pool.submit(ledger.reserve, PureDP(1)) for _ in range(7)]
        while len(ledger._store._commits.queue) < 8:
            time.sleep(0.001)
        os.close(descriptor)
        ids = {each.result(60).id for each in [first, *others]}
    assert len(ids) == 8
    assert len(transactions) == 1
    assert ledger.verify() == []


def test_a_lock_that_is_not_obtained_fails_for_all_who_wait(tmp_path, monkeypatch):
    """Catches threads that each wait for the whole time limit, one after another."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(100.0))
    monkeypatch.setattr(expost.budget.store, "BUSY_SECONDS", 0.5)
    descriptor = os.open(tmp_path / "ledger.db", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    start = time.monotonic()
    results = wait_together(ledger, [lambda: ledger.reserve(PureDP(1)) for _ in range(8)])
    assert time.monotonic() - start < 4
    assert all(isinstance(each, LedgerError) for each in results)
    os.close(descriptor)
    time.sleep(0.1)  # the one who waited gives the lock back
    assert ledger.remaining() == 100.0
    ledger.reserve(PureDP(1))


def spend_in_threads(ledger: Ledger, threads: int, jobs: int, place: Path) -> None:
    """Reserve and settle in several threads; write down every id that was acknowledged."""

    def run(_: int) -> list[str]:
        done = []
        for _ in range(jobs):
            try:
                job = ledger.reserve(PureDP(0.01))
            except BudgetRefused:
                continue
            ledger.settle(job, 0)
            done.append(job.id)
        return done

    with ThreadPoolExecutor(threads) as pool:
        place.write_text(
            json.dumps([each for ids in pool.map(run, range(threads)) for each in ids])
        )


def test_threads_in_several_processes(tmp_path):
    """Catches shared commits of one process that overlap those of another."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(1.0))
    context = multiprocessing.get_context("fork")
    places = [tmp_path / f"{number}.json" for number in range(4)]
    children = [
        context.Process(target=spend_in_threads, args=(ledger, 6, 10, place)) for place in places
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 4
    told = [identity for place in places for identity in json.loads(place.read_text())]
    assert len(told) == len(set(told)) == 100  # exactly what the budget allows
    assert ledger.statuses() == dict.fromkeys(told, "settled")
    assert ledger.remaining() == 0.0
    assert ledger.verify() == []


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_settling_twice_at_once(where, request, tmp_path):
    """Catches two threads or connections that both refund the same reservation."""
    url = tmp_path / "ledger.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    ledgers = [Ledger.create(url, PureBudget(10.0)), Ledger.open(url)]
    for _ in range(10):
        table = Charges.from_list([PureDP(0.5), PureDP(0.25)], PureDP(0.0))
        job = ledgers[0].reserve(table)
        start = threading.Barrier(4)

        def settle(number: int, job: Reservation = job, start: threading.Barrier = start) -> str:
            start.wait()
            try:
                # Half of them name one outcome, half another; one outcome wins.
                ledgers[number % 2].settle(job.id, number // 2, secret=job.secret)
                return str(number // 2)
            except LedgerError:
                return "refused"

        with ThreadPoolExecutor(4) as pool:
            told = Counter(pool.map(settle, range(4)))
        assert told["refused"] == 2
        assert sorted(told.values()) == [2, 2]
        (won,) = set(told) - {"refused"}
        entries = [entry for entry in ledgers[0].entries() if entry.reservation == job.id]
        assert [entry.action for entry in entries] == ["reserve", "settle"]
        assert entries[1].facts["outcome"] == won
    assert ledgers[0].verify() == []
    assert ledgers[0].standing().filter.held == (0,)


def resume(path: Path, place: Path, barrier: object, runs: Path) -> None:
    """Resume a selection from its checkpoint; append a line per run."""

    def mechanism(data: object, randomness: object) -> float:
        with runs.open("a") as file:
            file.write("run\n")
        time.sleep(0.2)
        return 1.0

    candidates = [Candidate(mechanism, guarantee=PureDP(0))]  # never dropped
    barrier.wait()  # type: ignore[attr-defined]
    try:
        RandomDropping(0.1).select(
            candidates,
            [1, 2, 3],
            ledger=Ledger.open(path),
            checkpoint=place,
            data_fingerprint="three",
        )
    except (CheckpointMismatch, LedgerError):
        os._exit(3)
    os._exit(0)


def test_two_processes_resume_one_selection(tmp_path):
    """Catches two runs for one reservation: the second would be free."""
    Ledger.create(tmp_path / "ledger.db", PureBudget(10.0))
    runs = tmp_path / "runs"
    runs.touch()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    children = [
        context.Process(
            target=resume,
            args=(tmp_path / "ledger.db", tmp_path / "checkpoint", barrier, runs),
        )
        for _ in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert Counter(child.exitcode for child in children) == {0: 1, 3: 2}
    assert runs.read_text().count("run") == 1
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]
