"""The ledger against bare durable commits and with a long history; the filter against OpenDP's."""

from __future__ import annotations

import multiprocessing
import secrets
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import Row, interleaved
from expost import Charges, PureDP
from expost.budget.budgets import PureBudget
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import RESERVE, SETTLE, Entry, digest
from expost.budget.limits import Filter, amount_of
from expost.budget.reservation_rows import request_digest, secret_digest
from expost.files import canonical

FEW, MANY = 1_000, 1_000_000
JOBS = 20  # per turn
TURNS = 15
PROCESS_TURNS = 5
THREADS = 16
QUERIES, BLOCK = 5_000, 500
CHARGE = PureDP(2.0**-30)
_TABLE = Charges.from_list([CHARGE], CHARGE)
_WHEN = "2025-01-01T00:00:00.000+00:00"


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        yield against_bare_commits(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield against_one_writer(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield against_one_process(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield against_history(Path(folder))
    yield from growth()


def against_bare_commits(folder: Path) -> Row:
    """Compare a job, which is two durable commits, with two bare commits of one row each.

    Both use the same journal mode and the same disk.
    """
    ledger = Ledger.create(folder / "ledger.db", PureDP(1000))
    ours, bare = interleaved(jobs(ledger), bare_commits(folder / "bare.db"), turns=TURNS)
    return Row("reserve + settle", ours / JOBS, "two bare durable commits", bare / JOBS, "≥ 0.5×")


def against_one_writer(folder: Path) -> Row:
    """Compare a job of one of sixteen threads with a job of one thread alone.

    Threads that wait together are committed together.
    """
    ledger = Ledger.create(folder / "ledger.db", PureDP(1000))
    many, one = interleaved(jobs_of_threads(ledger), jobs(ledger), turns=TURNS)
    return Row(
        f"reserve + settle, {THREADS} threads at once",
        many / (JOBS * THREADS),
        "one thread alone",
        one / JOBS,
        "",
    )


def against_one_process(folder: Path) -> Row:
    """Compare a job of one of sixteen processes with a job of one process alone.

    Processes follow one another; each job is two commits of its own.
    """
    ledger = Ledger.create(folder / "ledger.db", PureDP(1000))
    many, one = interleaved(jobs_of_processes(ledger), jobs(ledger), turns=PROCESS_TURNS)
    return Row(
        f"reserve + settle, {THREADS} processes at once",
        many / (JOBS * THREADS),
        "one process alone",
        one / JOBS,
        "",
    )


def jobs_of_processes(ledger: Ledger) -> Callable[[], None]:
    """Return a turn: some jobs in each of several processes."""
    run = jobs(ledger)
    context = multiprocessing.get_context("fork")

    def together() -> None:
        children = [context.Process(target=run) for _ in range(THREADS)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert all(child.exitcode == 0 for child in children)

    return together


def jobs_of_threads(ledger: Ledger) -> Callable[[], None]:
    """Return a turn: some jobs in each of several threads."""
    run = jobs(ledger)

    def together() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for each in [pool.submit(run) for _ in range(THREADS)]:
                each.result()

    return together


def against_history(folder: Path) -> Row:
    """Compare the same job in a ledger of a thousand entries and in one of a million."""
    short, long = (filled(folder / f"{entries}.db", entries) for entries in (FEW, MANY))
    assert short.verify() == []
    few, many = interleaved(jobs(short), jobs(long), turns=TURNS)
    return Row(
        f"reserve + settle at {MANY:,} entries",
        many / JOBS,
        f"at {FEW:,} entries",
        few / JOBS,
        "≥ 0.8×",
    )


def jobs(ledger: Ledger) -> Callable[[], None]:
    """Return a turn: some jobs, each reserved and settled."""

    def run() -> None:
        for _ in range(JOBS):
            ledger.settle(ledger.reserve(CHARGE, "benchmark"), 0)

    return run


def bare_commits(path: Path) -> Callable[[], None]:
    """Return a turn of bare durable commits."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=TRUNCATE")
    connection.execute("PRAGMA synchronous=EXTRA")
    connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, content TEXT)")

    def run() -> None:
        for _ in range(2 * JOBS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO bare (content) VALUES (?)", ("x" * 400,))
            connection.execute("COMMIT")

    return run


def filled(path: Path, entries: int) -> Ledger:
    """Make a ledger with this many entries (complete jobs), written at once.

    Every hash and every sum is the one that the ledger itself would write.
    """
    ledger = Ledger.create(path, PureDP(1000))
    (first,) = ledger.entries()
    ledger._store.close()
    count = entries // 2
    history = jobs_of_the_past(first, count)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    worst, table = canonical([str(amount_of(CHARGE.epsilon))]), canonical(_TABLE.as_dict())
    last = first
    for reserve, last in history:
        for entry in (reserve, last):
            connection.execute(
                "INSERT INTO expost_entries VALUES (?,?,?,?,?,?,?,?,?,?)",
                tuple(vars(entry).values()),
            )
        facts = reserve.facts
        job = (reserve.reservation, first.budget, "", "settled", worst, table, "0")
        more = (reserve.sequence, facts["request"], facts["secret"])
        marks = ",".join("?" * len(job + more))
        connection.execute(f"INSERT INTO expost_reservations VALUES ({marks})", job + more)
    settled = canonical([str(count * amount_of(CHARGE.epsilon))])
    connection.execute("UPDATE expost_totals SET settled = ?", (settled,))
    connection.execute("UPDATE expost_head SET sequence = ?, hash = ?", (last.sequence, last.hash))
    connection.execute("COMMIT")
    connection.close()
    return Ledger.open(path)


def jobs_of_the_past(first: Entry, count: int) -> Iterator[tuple[Entry, Entry]]:
    """Yield chained reserve and settle entries after the first entry."""
    amount = [str(amount_of(CHARGE.epsilon))]
    charges = digest(_TABLE.as_dict())
    told = {"worst": amount, "charges": charges, "secret": secret_digest("benchmark")}
    held = canonical(told | {"request": request_digest(first.budget, "", charges, None)})
    spent = canonical({"spent": amount, "outcome": "0"})
    last = first
    for _ in range(count):
        identity = secrets.token_hex(16)
        reserve = chained(last, RESERVE, identity, held, "benchmark")
        last = chained(reserve, SETTLE, identity, spent, "")
        yield reserve, last


def chained(last: Entry, action: str, identity: str, detail: str, memo: str) -> Entry:
    """Return the next entry of the hash chain."""
    told = {
        "time": _WHEN,
        "action": action,
        "budget": last.budget,
        "analyst": "",
        "reservation": identity,
        "memo": memo,
    }
    return Entry.after((last.sequence, last.hash), detail=detail, **told)


def growth() -> Iterator[Row]:
    """Compare the last of 5,000 requests with the first ones: 1× means that time does not grow."""
    for what, ask in (("expost's filter", our_filter()), ("OpenDP's filter", opendp_filter())):
        if ask is None:
            yield Row(
                f"a request late in {QUERIES:,}, OpenDP's filter",
                float("nan"),
                "not measured: it failed",
            )
            continue
        early, late = blocks(ask)
        yield Row(
            f"a request, last {BLOCK} of {QUERIES:,}, {what}", late, f"its first {BLOCK}", early
        )


def blocks(ask: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds per request in the first and in the last block."""
    times = []
    for _ in range(QUERIES // BLOCK):
        start = time.perf_counter()
        for _ in range(BLOCK):
            ask()
        times.append((time.perf_counter() - start) / BLOCK)
    return statistics.fmean(times[:1]), statistics.fmean(times[-1:])


def our_filter() -> Callable[[], None]:
    """Return one request to expost's filter."""
    state = Filter.empty(PureBudget(1000))
    amount = state.budget.coordinates(PureDP(0.001))

    def ask() -> None:
        nonlocal state
        state = state.reserve(amount).settle(amount, amount)

    return ask


def opendp_filter() -> Callable[[], None] | None:
    """Return one request to OpenDP's pure filter in memory, with a Laplace query.

    It also runs the query, about 20 µs of each request.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)
    try:
        odometer = dp.c.make_fully_adaptive_composition(*space, dp.max_divergence())
        queryable = dp.c.make_privacy_filter(odometer, d_in=1, d_out=1000.0)(0)
    except Exception:  # a peer that fails is a note in the table, not an error
        return None
    measurement = dp.m.make_laplace(*space, scale=1000.0)
    return lambda: queryable(measurement)
