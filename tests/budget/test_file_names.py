"""One file under several names: hard links, bind mounts, renamed files, and crashes under one name
that are met under another. No name may split a ledger or lose an entry that was acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from expost import PureDP
from expost.budget import database_file
from expost.budget.database_file import (
    check_file_system,
    file_system_of,
    has_journal,
    journal_of,
    token,
)
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import LedgerRows
from expost.budget.operations import problems_of
from expost.errors import BudgetRefused, LedgerError


def fork(task: Callable[[], None]) -> int:
    """The id of a child that does the task and ends."""
    child = os.fork()
    if child == 0:
        try:
            task()
        finally:
            os._exit(3)
    return child


def in_child(task: Callable[[], None]) -> int:
    """The exit status of a child that does the task and ends; the task ends it with 0."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(task), 0)[1])


@contextmanager
def bound(old: Path, new: Path) -> Iterator[Path]:
    """A second name of a file or folder by a bind mount, or a skip that says why not."""
    new.mkdir() if old.is_dir() else new.touch()
    done = subprocess.run(["mount", "--bind", old, new], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("cannot make bind mounts here (not root?)")
    try:
        yield new
    finally:
        subprocess.run(["umount", "-l", new], check=True)


def crash_in_a_transaction(path: Path, *, torn: bool) -> None:
    """A process dies in a transaction: ``torn`` means that parts of it are in the file already."""

    def task() -> None:
        ledger = Ledger.open(path)
        connect = ledger._store._connect_file

        def spilling() -> sqlite3.Connection:
            connection = connect()
            connection.execute("PRAGMA cache_spill = ON")
            connection.execute("PRAGMA cache_size = 1")
            return connection

        if torn:
            ledger._store.close()
            ledger._store._engine, ledger._store._connect_file = None, spilling
        with ledger._store.writing() as rows:
            rows.run("UPDATE expost_totals SET settled = '[\"0\"]', held = '[\"0\"]'")
            for number in range(200):
                rows.run(
                    "INSERT INTO expost_reservations VALUES "
                    "(:i, 'default', '', 'open', '[]', :c, NULL, 0, '', '')",
                    i=f"ghost {number}",
                    c="x" * 3000,
                )
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(task) == -signal.SIGKILL
    assert journal_of(path).stat().st_size > 0
    assert has_journal(path) == torn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "home" / "ledger.db"
    place.parent.mkdir()
    ledger = Ledger.create(place, PureDP(1))
    ledger.settle(ledger.reserve(PureDP(0.25)), 0)
    ledger._store.close()
    return place


# Hard links.


def test_hard_links_are_refused(path, tmp_path):
    """Catches two names with two journals: 2.0 was spent of a budget of 1."""
    other = tmp_path / "other.db"
    os.link(path, other)
    for name in (path, other):
        with pytest.raises(LedgerError, match="2 hard links"):
            Ledger.open(name)
        with pytest.raises(LedgerError, match="2 hard links"):
            Ledger.open(name, read_only=True)
    other.unlink()
    assert Ledger.open(path).remaining() == 0.75


def test_a_hard_link_that_is_made_later_is_refused(path, tmp_path):
    """Catches a check that is made at opening only."""
    ledger = Ledger.open(path)
    os.link(path, tmp_path / "other.db")
    with pytest.raises(LedgerError, match="hard links"):
        ledger.reserve(PureDP(0.5))
    with pytest.raises(LedgerError, match="hard links"):
        ledger.remaining()
    (tmp_path / "other.db").unlink()
    ledger.reserve(PureDP(0.5))
    assert ledger.remaining() == 0.25


@pytest.mark.parametrize("fate", ["renamed", "removed", "replaced"])
def test_a_file_that_is_no_longer_there_is_not_written(path, fate):
    """Catches charges that go to a file that nobody will open again."""
    ledger = Ledger.open(path)
    content = path.read_bytes()
    if fate == "renamed":
        path.rename(path.with_name("new.db"))
    else:
        path.unlink()
    if fate == "replaced":
        path.write_bytes(content)
    with pytest.raises(LedgerError, match="renamed or replaced"):
        ledger.reserve(PureDP(0.5))


def test_a_symbolic_link_is_another_spelling(path, tmp_path):
    """Catches a journal beside the link, where a crash would leave it unseen."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    first, second = Ledger.open(path), Ledger.open(link)
    second.reserve(PureDP(0.5))
    with pytest.raises(BudgetRefused):
        first.reserve(PureDP(0.5))
    assert token(link) == token(path)
    crash_in_a_transaction(link, torn=True)
    assert not (tmp_path / "link.db-journal").exists()
    assert Ledger.open(path).verify() == []
    assert Ledger.open(path).remaining() == 0.25


# Bind mounts.


def spend(names: list[Path], requests: int, seed: int, log: Path) -> None:
    """Reserve and settle under names at random, and write down every answer."""
    coin = random.Random(seed)
    ledgers = [Ledger.open(name) for name in names]
    with log.open("a") as file:
        for _ in range(requests):
            ledger = coin.choice(ledgers)
            try:
                job = ledger.reserve(PureDP(0.01), str(seed))
            except BudgetRefused:
                continue
            file.write(json.dumps(job.id) + "\n")
            file.flush()
            coin.choice(ledgers).settle(job, 0)
    os._exit(0)


def test_two_bind_mounts_are_one_ledger(path, tmp_path):
    """Catches what containers do: one file at two places, spent twice over."""
    with bound(path, tmp_path / "bound.db") as other:
        log = tmp_path / "log"
        children = [
            fork(lambda seed=seed: spend([path, other][:: -1 if seed % 2 else 1], 40, seed, log))
            for seed in range(4)
        ]
        assert [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children] == [0] * 4
        for name in (path, other):
            ledger = Ledger.open(name)
            assert ledger.remaining() == 0.0
            assert ledger.verify() == []
        assert len(log.read_text().splitlines()) == 75
        ledger._store.close()
        del ledger


def test_a_crash_under_one_name_is_not_missed_under_another(path, tmp_path):
    """Catches a second name that takes the torn file of a crashed process for the ledger."""
    with bound(path, tmp_path / "bound.db") as other:
        crash_in_a_transaction(path, torn=True)
        raw = sqlite3.connect(f"{other.as_uri()}?mode=ro&immutable=1", uri=True)
        assert problems_of(LedgerRows("sqlite", raw)) != []  # the file is torn indeed
        raw.close()
        for use in (
            lambda: Ledger.open(other),
            lambda: Ledger.open(other, read_only=True),
            lambda: Ledger.recover(other),
        ):
            with pytest.raises(LedgerError, match="name"):
                use()
        ledger = Ledger.open(path)  # SQLite rolls back here, where the journal is
        assert ledger.verify() == []
        assert ledger.remaining() == 0.75
        second = Ledger.open(other)
        second.reserve(PureDP(0.75))
        assert ledger.remaining() == 0.0
        del ledger, second


def test_a_stale_journal_is_not_rolled_back(path, tmp_path):
    """Catches a journal that removes what was acknowledged under another name in the meantime."""
    with bound(path, tmp_path / "bound.db") as other:
        whole = path.read_bytes()
        crash_in_a_transaction(path, torn=True)
        marker = path.read_bytes()[60:64]
        with path.open("r+b") as file:  # as if the crash had come before the first page
            file.write(whole[:60] + marker + whole[64:])
            file.truncate(len(whole))
        with pytest.raises(LedgerError, match="another name"):
            Ledger.open(other)
        Ledger.recover(other)
        second = Ledger.open(other)
        second.settle(second.reserve(PureDP(0.5)), 0)
        for use in (lambda: Ledger.open(path), lambda: Ledger.open(path, read_only=True)):
            with pytest.raises(LedgerError, match="journal"):
                use()
        assert second.remaining() == 0.25
        Ledger.recover(path)
        assert Ledger.open(path).remaining() == 0.25
        assert Ledger.open(path).verify() == []
        del second


def test_an_open_ledger_notices_a_crash_under_another_name(path, tmp_path):
    """Catches a check that is made at opening only."""
    with bound(path, tmp_path / "bound.db") as other:
        second = Ledger.open(other)
        crash_in_a_transaction(path, torn=True)
        for use in (second.remaining, second.verify, lambda: second.reserve(PureDP(0.1))):
            with pytest.raises(LedgerError, match="another name"):
                use()
        Ledger.open(path)
        assert second.remaining() == 0.75
        assert second.verify() == []


def test_the_folder_may_be_bound(path, tmp_path):
    """Catches a refusal where the journal is found anyway: the folder is the same."""
    with bound(path.parent, tmp_path / "bound") as folder:
        crash_in_a_transaction(path, torn=True)
        ledger = Ledger.open(folder / "ledger.db")
        assert ledger.verify() == []
        assert ledger.remaining() == 0.75
        del ledger


@pytest.mark.slow
def test_kill_9_under_two_names(disk_folder):
    """Catches an acknowledged entry that is lost when processes die under both names in turn."""
    coin = random.Random(11)
    path, log = disk_folder / "home" / "ledger.db", disk_folder / "log"
    path.parent.mkdir()
    log.touch()
    Ledger.create(path, PureDP(1000))._store.close()
    with bound(path, disk_folder / "bound.db") as other:
        refused = 0
        for number in range(60):
            name = coin.choice([path, other])
            try:
                Ledger.open(name)
            except LedgerError:  # the last crash was under the other name
                refused += 1
                name = other if name == path else path
                Ledger.open(name)
            before = log.stat().st_size
            child = fork(lambda name=name, number=number: spend([name], 1000, number, log))
            begun = time.monotonic()  # on a busy machine the child may take long to write anything
            while log.stat().st_size == before and time.monotonic() < begun + 20:
                time.sleep(0.002)
            time.sleep(coin.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert log.stat().st_size > before  # it was killed while it wrote
        assert refused  # and some of them in a commit
        for name in (path, other, path):
            try:
                ledger = Ledger.open(name)
            except LedgerError:
                continue
            assert ledger.verify() == []
            known = {entry.reservation for entry in ledger.entries()}
            told = {json.loads(line) for line in log.read_text().splitlines()}
            assert told <= known
            del ledger


# Network file systems.

MOUNTS = """\
24 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 24 0:25 / /mnt/share\\040one rw shared:1 - nfs4 server:/x rw
31 24 0:26 / /mnt/loop rw - fuse.sshfs me@host:/ rw
32 24 0:27 / /mnt/share\\040one/local rw - xfs /dev/vdb rw
broken line
"""


def test_file_systems_are_recognised(tmp_path):
    """Catches a mount inside another one, an escaped space, and a system that has no such table."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)

    def kind(place: str) -> str:
        return file_system_of(Path(place), str(table))

    assert kind("/data/ledger.db") == "ext4"
    assert kind("/mnt/share one/ledger.db") == "nfs4"
    assert kind("/mnt/share one/local/ledger.db") == "xfs"
    assert kind("/mnt/share onee/ledger.db") == "ext4"
    assert kind("/mnt/loop/a/ledger.db") == "fuse.sshfs"
    assert file_system_of(Path("/home"), str(tmp_path / "none")) == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "lustre"])
def test_network_file_systems_are_refused(path, monkeypatch, kind):
    """Catches a budget that rests on locks which another host does not see."""
    monkeypatch.setattr(database_file, "file_system_of", lambda place: kind)
    with pytest.raises(LedgerError, match="network"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="network"):
        Ledger.create(path.with_name("new.db"), PureDP(1))
    monkeypatch.setenv(database_file.NETWORK_VARIABLE, "1")
    assert check_file_system(path) is False
    ledger = Ledger.open(path)
    ledger.reserve(PureDP(0.25))
    assert ledger.remaining() == 0.5


# Reading only, and files of other programs.


def test_reading_writes_nothing(path):
    """Catches an auditor who changes what is audited."""
    journal_of(path).unlink()
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir()))
    ledger = Ledger.open(path, read_only=True)
    assert ledger.verify() == []
    assert len(list(ledger.entries())) == 3
    for act in (
        lambda: ledger.reserve(PureDP(0.1)),
        lambda: ledger.abandon("none"),
        lambda: ledger.add_budget("x", PureDP(1)),
    ):
        with pytest.raises(LedgerError, match="reading only"):
            act()
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())) == before


def test_a_read_only_folder_can_be_audited(path):
    """Catches a reader that needs to write beside the file."""
    if not all(parent.stat().st_mode & 0o001 for parent in Path(os.__file__).parents):
        pytest.skip("other users cannot read this interpreter, so a child cannot become one")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    for parent in path.parents[1:4]:
        if "/pytest-" in str(parent):
            parent.chmod(0o755)

    def look() -> None:
        for only_reading in (True, False):  # imports all that is needed, as long as it can
            Ledger.open(path, read_only=only_reading).remaining()
        assert Ledger.open(path, read_only=True).verify() == []
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        ledger = Ledger.open(path, read_only=True)
        assert ledger.verify() == []
        assert ledger.remaining() == 0.75
        try:
            Ledger.open(path).reserve(PureDP(0.1))
        except LedgerError:
            os._exit(0)
        os._exit(4)

    try:
        assert in_child(look) == 0
    finally:
        path.parent.chmod(0o700)


def test_the_journal_mode_of_a_foreign_file_is_kept(tmp_path):
    """Catches a database of another program that is switched by being looked at."""
    for mode in ("wal", "delete"):
        foreign = tmp_path / f"{mode}.db"
        connection = sqlite3.connect(foreign)
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("CREATE TABLE things (name TEXT)")
        connection.commit()
        connection.close()
        before = foreign.read_bytes()
        for use in (Ledger.open, lambda url: Ledger.open(url, read_only=True), Ledger.upgrade):
            with pytest.raises(LedgerError, match="no ledger"):
                use(foreign)
        assert foreign.read_bytes() == before
