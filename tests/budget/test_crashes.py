"""Crashes: kill −9 at random moments of a selection, full disks, read-only files, flipped bits.

A child process selects in a loop and records every release, synced to disk, before it continues.
Whatever is killed at any time, the ledger must have charged at least what was recorded, and the
same call must finish the same selection.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from expost import Candidate, PureDP, RandomDropping
from expost.budget.ledger import Ledger, Reservation
from expost.budget.limits import amount_of
from expost.errors import BudgetRefused, ExpostError, LedgerError

pytestmark = pytest.mark.slow

SIZES = (0.001, 0.002, 0.004)
SELECTOR = RandomDropping(overhead=0.002)


# Children: forked, so that a life costs milliseconds, not an interpreter's start.


def fork(task: Callable[[], None]) -> int:
    """The id of a child that does the task and ends; 3 is its exit code if the task raised."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            task()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def append(path: Path, record: dict[str, Any], *, sync: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(record).encode() + b"\n")
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class World:
    """A folder, a ledger, and the children's notes: attempts started, candidates run, releases
    seen.
    """

    folder: Path
    url: str

    def candidates(self, attempt: int) -> list[Candidate]:
        def measure(data: object, randomness: object) -> int:
            value = secrets.randbelow(10**9)
            time.sleep(0.002)
            append(self.folder / "runs", {"attempt": attempt, "pid": os.getpid(), "value": value})
            return value

        return [
            Candidate(measure, {"size": size}, repeats=3, guarantee=PureDP(size)) for size in SIZES
        ]

    def checkpoint(self, attempt: int) -> Path:
        return self.folder / f"{attempt}.checkpoint"

    def next_attempt(self) -> int:
        """The one that was interrupted, or a new one."""
        started = [each["attempt"] for each in records(self.folder / "started")]
        waiting = [attempt for attempt in started if self.checkpoint(attempt).exists()]
        return waiting[0] if waiting else max(started, default=0) + 1

    def select(self, ledger: Ledger, attempt: int) -> None:
        append(self.folder / "started", {"attempt": attempt})
        release = SELECTOR.select(
            self.candidates(attempt),
            [1, 2, 3],
            ledger=ledger,
            memo=str(attempt),
            checkpoint=self.checkpoint(attempt),
        )
        note = {
            "attempt": attempt,
            "pid": os.getpid(),
            "index": release.index,
            "value": release.value,
        }
        append(self.folder / "released", note | {"spent": release.spent.epsilon}, sync=True)

    def live(self, selections: int, ready: int | None = None) -> None:
        ledger = Ledger.open(self.url)
        if ready is not None:
            os.write(ready, b"!")
        for _ in range(selections):
            self.select(ledger, self.next_attempt())


@dataclass
class Witness:
    """What a checkpoint held whenever somebody looked; read here with ten lines of our own."""

    kept: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def look(self, attempt: int, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        whole = lines[:-1]
        for line in whole:
            digest, _, text = line.partition(b" ")
            assert hashlib.sha256(text).hexdigest().encode() == digest
        header, *rest = (json.loads(line.partition(b" ")[2]) for line in whole)
        assert (
            self.kept.setdefault(attempt, header["draws"]["kept"]) == header["draws"]["kept"]
        )  # never drawn anew
        found = [each["output"] for each in rest]
        assert [each["run"] for each in rest] == list(range(len(rest)))
        assert found[: len(self.outputs[attempt])] == self.outputs[attempt]  # finished outputs stay
        self.outputs[attempt] = found


def phase(world: World, ledger: Ledger, attempt: int) -> str:
    """Where an attempt was when its process died."""
    status = {
        entry.memo: entry.reservation for entry in ledger.entries() if entry.action == "reserve"
    }.get(str(attempt))
    state = "not reserved" if status is None else ledger.status_of(status)
    return f"{state}, {'checkpoint' if world.checkpoint(attempt).exists() else 'no checkpoint'}"


def kill_and_look(world: World, kills: int, seed: int) -> tuple[Witness, Counter]:
    coin, witness, phases = random.Random(seed), Witness(), Counter[str]()
    ledger = Ledger.open(world.url)
    start = time.monotonic()
    assert wait(fork(lambda: world.live(8))) == 0
    span = (time.monotonic() - start) / 8
    for number in range(kills):
        reader, writer = os.pipe()
        child = fork(lambda writer=writer: world.live(10**6, writer))
        if coin.random() < 0.95:
            os.read(reader, 1)
        time.sleep(coin.uniform(0, 1.5 * span))
        os.kill(child, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL
        os.close(reader), os.close(writer)
        attempt = max((each["attempt"] for each in records(world.folder / "started")), default=0)
        phases[phase(world, ledger, attempt)] += 1
        if world.checkpoint(attempt).exists():
            witness.look(attempt, world.checkpoint(attempt))
        state = ledger.standing().filter
        released = sum(
            (amount_of(each["spent"]) for each in records(world.folder / "released")), Fraction(0)
        )
        assert state.settled[0] + state.held[0] >= released
        if number % 10 == 0:
            assert ledger.verify() == []
    assert wait(fork(lambda: world.live(2))) == 0  # the interrupted one, and one more
    return witness, phases


def check_story(world: World, witness: Witness) -> None:
    ledger = Ledger.open(world.url)
    assert ledger.verify() == []
    assert ledger.open_reservations() == []  # every interrupted selection was finished
    # A process killed before its checkpoint appeared leaves a draft. It is removed when the name
    # is used again, which does not happen here.
    left = [
        path.name
        for path in world.folder.glob("*.checkpoint*")
        if path.name.split(".")[-2] != "checkpoint"
    ]
    assert left == []
    reserved = Counter(entry.memo for entry in ledger.entries() if entry.action == "reserve")
    assert set(reserved.values()) == {1}  # one charge per selection, however often it was killed
    outcome_of = {
        entry.reservation: entry.facts for entry in ledger.entries() if entry.action == "settle"
    }
    identity_of = {
        entry.memo: entry.reservation for entry in ledger.entries() if entry.action == "reserve"
    }
    charges = SELECTOR.charges(world.candidates(0))
    runs = records(world.folder / "runs")
    for release in records(world.folder / "released"):
        attempt = release["attempt"]
        settled = outcome_of[identity_of[str(attempt)]]
        assert settled["outcome"] == str(release["index"])
        assert (
            Fraction(settled["spent"][0])
            == amount_of(release["spent"])
            == amount_of(charges[release["index"]].epsilon)
        )
        fresh = [
            each["value"]
            for each in runs
            if (each["attempt"], each["pid"]) == (attempt, release["pid"])
        ]
        outputs = witness.outputs.get(attempt, []) + fresh
        assert release["value"] == max(
            outputs
        )  # the same selection: finished outputs kept, the rest run once
        if attempt in witness.kept:
            assert len(outputs) == len(witness.kept[attempt])
            assert release["index"] == witness.kept[attempt][outputs.index(max(outputs))]


def test_kill_9_at_any_moment_on_sqlite(disk_folder):
    """Catches a release that is not charged, a selection drawn anew, a second charge, or a ledger
    that a crash breaks.
    """
    world = World(disk_folder, str(disk_folder / "ledger.db"))
    Ledger.create(world.url, PureDP(1000))
    witness, phases = kill_and_look(world, 210, seed=1)
    check_story(world, witness)
    assert phases["open, checkpoint"] > 20  # killed while running
    assert len(phases) >= 3


def test_kill_9_at_any_moment_on_postgresql(postgres_url, tmp_path):
    """The same against a server, which must drop the transactions of the dead."""
    world = World(tmp_path, postgres_url)
    Ledger.create(world.url, PureDP(1000))
    witness, _ = kill_and_look(world, 40, seed=2)
    check_story(world, witness)


def test_kill_9_while_a_ledger_is_made(disk_folder):
    """Catches half a ledger: one that is there, refuses to be made again, and cannot be used."""
    coin = random.Random(3)
    made = 0
    for number in range(25):
        url = disk_folder / f"{number}.db"
        child = fork(lambda url=url: Ledger.create(url, PureDP(1)) and None)
        time.sleep(coin.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        wait(child)
        try:
            Ledger.create(url, PureDP(1))
        except LedgerError:  # there is one already, and a whole one
            made += 1
        assert Ledger.open(url).verify() == []
        assert Ledger.open(url).remaining() == 1.0
    assert made < 25


def test_a_forked_child_holds_locks_of_its_own(tmp_path):
    """Catches a child that relies on the lock of its parent.

    SQLite's library remembers the lock across a fork, but the system does not. Whoever opens the
    ledger after the parent has ended could then reset the file while the child uses it.
    """
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    inode = (tmp_path / "ledger.db").stat().st_ino
    if not Path("/proc/locks").exists():
        pytest.skip("no /proc/locks here")

    def look() -> None:
        with ledger._store.reading() as rows:
            rows.one("SELECT COUNT(*) FROM expost_entries")
            lines = Path("/proc/locks").read_text().splitlines()
            assert any(f":{inode} " in line and f" {os.getpid()} " in line for line in lines)

    look()
    assert wait(fork(look)) == 0
    look()


# Full disks and read-only files.


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size, or a skip that says why not."""
    place = folder / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(
            "cannot mount a small file system here (not root?); "
            "the limit on file sizes is tested instead"
        )
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def spend_until_it_fails(ledger: Ledger, seed: int) -> tuple[list[str], list[str], LedgerError]:
    """Reserve and settle until the disk is full: what was acknowledged, and the error."""
    coin = random.Random(seed)
    reserved: list[Reservation] = []
    settled: list[str] = []
    while True:
        try:
            if coin.random() < 0.3 and len(settled) < len(reserved):
                ledger.settle(reserved[len(settled)], 0)
                settled.append(reserved[len(settled)].id)
            else:
                reserved.append(ledger.reserve(PureDP(0.001), "m" * coin.randrange(8000)))
        except LedgerError as error:
            return [job.id for job in reserved], settled, error


def acknowledged(ledger: Ledger) -> tuple[list[str], list[str]]:
    entries = list(ledger.entries())
    return tuple(
        [each.reservation for each in entries if each.action == act]
        for act in ("reserve", "settle")
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_full_disk(tmp_path, seed):
    """Catches a charge that was acknowledged and lost, one that was refused and kept, and a ledger
    that cannot go on afterwards.
    """
    with small_disk(tmp_path, "1m") as place:
        filler = place / "filler"
        filler.write_bytes(b"\0" * random.Random(seed).randrange(200_000, 600_000))
        ledger = Ledger.create(place / "ledger.db", PureDP(10))
        reserved, settled, error = spend_until_it_fails(ledger, seed)
        assert "full" in str(error) or "I/O" in str(error)
        assert "not recorded" in str(error)
        assert acknowledged(ledger) == (reserved, settled)
        filler.unlink()
        ledger = Ledger.open(place / "ledger.db")
        assert ledger.verify() == []
        assert acknowledged(ledger) == (reserved, settled)
        ledger.settle(ledger.reserve(PureDP(0.5)), 0)
        assert ledger.verify() == []
        ledger._store.close()


def test_a_full_disk_in_the_middle_of_a_selection(tmp_path):
    """Catches a release that gets out although its outputs or its charge could not be written."""
    with small_disk(tmp_path, "600k") as place:
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10))
        big = Candidate(lambda data, randomness: "x" * 400_000, guarantee=PureDP(0.01), repeats=40)
        call = {"score": lambda value: 1.0, "ledger": ledger, "checkpoint": place / "job"}
        with pytest.raises(OSError, match="No space"):
            RandomDropping(overhead=1.0).select([big], [1], **call)
        assert ledger.verify() == []
        assert len(ledger.open_reservations()) == 1  # charged at its worst, and can be resumed
        subprocess.run(["mount", "-o", "remount,size=200m", place], check=True)
        release = RandomDropping(overhead=1.0).select([big], [1], **call)
        assert release.value == "x" * 400_000
        assert ledger.open_reservations() == []
        assert sum(entry.action == "reserve" for entry in ledger.entries()) == 1


def test_no_room_for_a_checkpoint(tmp_path):
    """Catches secrets left behind in a half-written file, and a charge for a selection that never
    began.
    """
    with small_disk(tmp_path, "100k") as place:
        (place / "filler").write_bytes(b"\0" * 102_400)
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10))
        many = [Candidate(lambda data, randomness: 1.0, guarantee=PureDP(0.01), repeats=5000)]
        with pytest.raises(OSError, match="No space"):
            RandomDropping(overhead=1.0).select(many, [1], ledger=ledger, checkpoint=place / "job")
        assert [path.name for path in place.iterdir()] == ["filler"]
        assert ledger.open_reservations() == []


def test_files_that_may_not_grow(tmp_path):
    """A full disk for those who cannot mount one: the system refuses to make files larger."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10))
    before = ledger.reserve(PureDP(0.5), reservation_id="before")

    def cramped() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        reserved, settled, error = spend_until_it_fails(ledger, 0)
        assert "not recorded" in str(error)
        append(tmp_path / "told", {"reserved": reserved, "settled": settled})

    assert wait(fork(cramped)) == 0
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert ledger.verify() == []
    told = records(tmp_path / "told")[0]
    assert acknowledged(ledger) == (["before", *told["reserved"]], told["settled"])
    ledger.settle(before, 0)


def test_a_read_only_file():
    """Catches a raw error, or a reservation that is granted though it cannot be written."""
    folder = Path(
        tempfile.mkdtemp()
    )  # not under tmp_path, whose parents another user may not enter
    path = folder / "ledger.db"
    ledger = Ledger.create(path, PureDP(10))
    ledger.reserve(PureDP(0.5))
    ledger._store.close()

    def try_it() -> None:
        if os.geteuid() == 0:  # for whom no file is read-only
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        for act in (
            lambda: ledger.reserve(PureDP(0.1)),
            lambda: Ledger.open(path).reserve(PureDP(0.1)),
        ):
            with pytest.raises(LedgerError, match="could not be used"):
                act()

    path.chmod(0o444)
    folder.chmod(0o555)
    assert wait(fork(try_it)) == 0
    folder.chmod(0o700)
    path.chmod(0o600)
    ledger = Ledger.open(path)
    assert ledger.verify() == []
    assert ledger.remaining() == 9.5
    ledger.reserve(PureDP(0.5))
    shutil.rmtree(folder)


# Flipped bits and torn files.


def rows_of(path: Path) -> dict[str, list[tuple]] | None:
    """Every row, read by SQLite alone, without indexes; None if that fails."""
    tables = (
        "expost_meta",
        "expost_head",
        "expost_totals",
        "expost_reservations",
        "expost_entries",
    )
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(
                f"SELECT * FROM {table} NOT INDEXED ORDER BY rowid"
            ).fetchall()
            for table in tables
        }
    except sqlite3.Error:
        return None
    finally:
        connection.close()


def complaint(path: Path) -> str | None:
    """What opening and verifying say; an exception that is not ours is a failure of the test."""
    try:
        ledger = Ledger.open(path)
        try:
            return "; ".join(ledger.verify()) or None
        finally:
            ledger._store.close()
    except ExpostError as error:
        return str(error)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A ledger with some history, all of it in one file."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path, PureDP(10), caps={"ann": PureDP(5)})
    for number in range(25):
        job = ledger.reserve(
            PureDP(0.01 * number), f"job {number}", analyst="ann" if number % 2 else ""
        )
        if number % 3:
            ledger.settle(job, 0)
    ledger._store.close()
    assert (tmp_path / "ledger.db-journal").stat().st_size == 0
    assert complaint(path) is None
    return path


def test_every_flipped_bit_that_matters_is_found(finished, tmp_path):
    """Catches a damaged row, or a damaged index (which would hide a cap or lose an update), that
    verify lets pass.
    """
    original, coin = finished.read_bytes(), random.Random(5)
    expected, victim, harmless = rows_of(finished), tmp_path / "victim.db", 0
    for _ in range(500):
        content = bytearray(original)
        content[coin.randrange(len(content))] ^= 1 << coin.randrange(8)
        victim.write_bytes(content)
        if complaint(victim) is None:
            assert rows_of(victim) == expected
            harmless += 1
        for left in tmp_path.glob("victim.db-*"):
            left.unlink()
    assert harmless < 400  # most of a file is rows and indexes


def test_flips_inside_rows_are_all_found(finished, tmp_path):
    """The same, aimed at the texts of the rows themselves."""
    original, coin = finished.read_bytes(), random.Random(6)
    victim = tmp_path / "victim.db"
    needles = [entry.hash.encode() for entry in Ledger.open(finished).entries()] + [
        b'"worst":',
        b"job 1",
        b"settled",
        b'["1/',
    ] * 5
    for needle in needles:
        place = original.find(needle)
        while place >= 0:
            content = bytearray(original)
            content[place + coin.randrange(len(needle))] ^= 1 << coin.randrange(7)
            victim.write_bytes(content)
            changed = rows_of(victim) != rows_of(finished)
            assert complaint(victim) is not None or not changed
            for left in tmp_path.glob("victim.db-*"):
                left.unlink()
            place = original.find(needle, place + 1) if needle == b"job 1" else -1


def test_a_damaged_index_is_found(finished, tmp_path):
    """Catches an index that no longer finds an analyst's cap: every row is whole, yet the cap would
    not be enforced.
    """
    connection = sqlite3.connect(finished)
    ((root,),) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_expost_totals_1'"
    )
    ((size,),) = connection.execute("PRAGMA page_size")
    connection.close()
    content, victim = bytearray(finished.read_bytes()), tmp_path / "victim.db"
    place = content.index(b"ann", (root - 1) * size)
    assert place < root * size
    content[place] ^= 4  # "enn"
    victim.write_bytes(content)
    assert rows_of(victim) == rows_of(finished)
    assert "file: " in (complaint(victim) or "")


def test_a_file_cut_short_is_found(finished, tmp_path):
    """Catches a torn file that opens as a smaller ledger."""
    original, victim = finished.read_bytes(), tmp_path / "victim.db"
    for keep in (1, 100, 1000, 4096, len(original) // 2, len(original) - 4096, len(original) - 1):
        victim.write_bytes(original[:keep])
        assert complaint(victim) is not None, keep
        for left in tmp_path.glob("victim.db-*"):
            left.unlink()


def test_a_copy_is_whole(tmp_path):
    """Catches a ledger whose last entries are in another file that a copy lacks."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path, PureDP(10))
    for _ in range(5):
        ledger.reserve(PureDP(0.1))
    shutil.copy(path, tmp_path / "alone.db")
    assert complaint(tmp_path / "alone.db") is None
    assert Ledger.open(tmp_path / "alone.db").remaining() == ledger.remaining() == 9.5


def test_refusals_survive_a_crash_too(tmp_path):
    """Catches a budget that a killed process has loosened: what was full before the kill is full
    after it.
    """
    url = tmp_path / "ledger.db"
    Ledger.create(url, PureDP(1)).reserve(PureDP(0.9))

    def push() -> None:
        ledger = Ledger.open(url)
        while True:
            try:
                ledger.reserve(PureDP(0.2))
            except BudgetRefused:
                continue
            os._exit(0)

    for _ in range(5):
        child = fork(push)
        time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL
    assert Ledger.open(url).remaining() == 0.1


def spend_in_threads(path: Path, log: Path) -> None:
    """Eight threads reserve and settle; every answer is written down before the next request."""
    ledger = Ledger.open(path)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run() -> None:
        while True:
            job = ledger.reserve(PureDP(1e-6))
            os.write(descriptor, f"reserve {job.id}\n".encode())
            ledger.settle(job, 0)
            os.write(descriptor, f"settle {job.id}\n".encode())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_kill_9_while_threads_share_commits(tmp_path):
    """Catches an answer that is given before the shared commit is durable, or half a batch."""
    path, log = tmp_path / "ledger.db", tmp_path / "log"
    log.touch()
    Ledger.create(path, PureDP(1000))._store.close()
    coin = random.Random(3)
    for _ in range(20):
        size = log.stat().st_size
        child = fork(lambda: spend_in_threads(path, log))
        deadline = time.monotonic() + 20
        while log.stat().st_size < size + 200 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(coin.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        wait(child)
        told = [line.split() for line in log.read_text().splitlines()]
        ledger = Ledger.open(path)
        kept = {(entry.action, entry.reservation) for entry in ledger.entries()}
        assert {tuple(each) for each in told if len(each) == 2} <= kept
        assert ledger.verify() == []
        ledger._store.close()
    assert len(told) >= 80  # every life was long enough to be told something
