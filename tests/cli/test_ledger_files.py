"""``expost ledger`` on damaged, foreign and locked files, and on no files: one line, code 2."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from expost import PureDP
from expost.budget.ledger import Ledger
from tests.cli.test_ledger_cli import expost  # noqa: F401  (a fixture)

LOOK = (
    *(("show",), ("show", "--json"), ("entries",), ("verify",), ("export", "--json")),
    ("watch", "--looks", "1", "--every", "0.01"),
)
WRITE = (
    ("create", "--name", "more", "--epsilon", "1", "--add"),
    ("change", "--epsilon", "2", "--reason", "more"),
    ("alert", "--at", "0.5", "--command", "true"),
    *(("abandon", "one"), ("upgrade",), ("recover",)),
)
COMMANDS = (*LOOK, *WRITE)
FEW = (LOOK[0], LOOK[3], WRITE[1], WRITE[4], WRITE[5])
CREATE = ("create", "--name", "v", "--epsilon", "1")


def command(url: object, words: tuple[str, ...]) -> tuple[object, ...]:
    """A command on a ledger: the URL comes first, then the rest."""
    return ("ledger", words[0], url, *words[1:])


def one_line(done) -> None:
    """An error in one line, without anything of the database driver."""
    assert done.code == 2, (done.code, done.err, done.out)
    if done.out:  # with --json
        assert list(json.loads(done.out)) == ["error"]
    assert done.err.count("\n") == 1
    assert done.err.startswith("error: ")
    for word in ("Traceback", "sqlalchemy", "Background on this error", "SELECT", "psycopg."):
        assert word not in done.err


def sound(path: Path) -> Path:
    ledger = Ledger.create(path, PureDP(10), "visits")
    ledger.settle(ledger.reserve(PureDP(1), "first", reservation_id="one"), 0)
    ledger.reserve(PureDP(2), "second", reservation_id="two")
    ledger._store.close()
    return path


def foreign(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def bound_socket(path: Path) -> None:
    os.chdir(path.parent)  # the name of a socket is short
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path.name)


STRANGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.touch(),
    "text": lambda path: path.write_text("a text that is no database\n" * 100),
    "bytes": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "half a header": lambda path: path.write_bytes(b"SQLite form"),
    "header and noise": lambda path: path.write_bytes(
        b"SQLite format 3\x00" + random.Random(2).randbytes(8176)
    ),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "nowhere": lambda path: path.symlink_to(path.with_name("none")),
    "pipe": lambda path: os.mkfifo(path),
    "socket": bound_socket,
    "null device": lambda path: path.symlink_to("/dev/null"),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "another database": lambda path: foreign(path, "CREATE TABLE people (name TEXT)"),
    "a table of the same name": lambda path: foreign(
        path, "CREATE TABLE expost_meta (other TEXT)", "INSERT INTO expost_meta VALUES ('x')"
    ),
    "no rows": lambda path: foreign(path, "CREATE TABLE expost_meta (name TEXT, value TEXT)"),
    "a strange schema": lambda path: foreign(
        path,
        "CREATE TABLE expost_meta (name TEXT, value TEXT)",
        "INSERT INTO expost_meta VALUES ('schema', 'x\ny')",
    ),
    "a schema of the future": lambda path: foreign(
        path,
        "CREATE TABLE expost_meta (name TEXT, value TEXT)",
        "INSERT INTO expost_meta VALUES ('schema', '99')",
    ),
    "only the schema": lambda path: foreign(
        path,
        "CREATE TABLE expost_meta (name TEXT, value TEXT)",
        "INSERT INTO expost_meta VALUES ('schema', '2')",
    ),
}


@pytest.mark.parametrize("words", FEW, ids=" ".join)
@pytest.mark.parametrize("name", STRANGE)
def test_strange_files(expost, tmp_path, monkeypatch, name, words):  # noqa: F811
    """Catches a traceback, an error of the driver, or a command that waits for ever."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ledger.db"
    STRANGE[name](path)
    one_line(expost(*command(path, words)))


@pytest.mark.parametrize("name", [name for name in STRANGE if name not in ("empty", "nowhere")])
def test_no_ledger_is_made_over_a_strange_file(expost, tmp_path, monkeypatch, name):  # noqa: F811
    """Catches a command that destroys what is there."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ledger.db"
    STRANGE[name](path)
    before = path.read_bytes() if path.is_file() else None
    done = expost(*command(path, CREATE))
    if name == "another database":
        assert done.code == 0  # the tables of a ledger have names of their own
        return
    one_line(done)
    assert before == (path.read_bytes() if path.is_file() else None)


@pytest.mark.parametrize("words", FEW, ids=" ".join)
@pytest.mark.parametrize(
    "url", ["none.db", "none/none.db", "x" * 300, "a\nb.db", "sqlite://", "oracle://x", "", "~"]
)
def test_names_of_nothing(expost, tmp_path, monkeypatch, url, words):  # noqa: F811
    """Catches a name that a database driver complains about in its own words."""
    monkeypatch.chdir(tmp_path)
    one_line(expost(*command(url, words)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_locked_file(expost, tmp_path, monkeypatch, words):  # noqa: F811
    """Catches a wait without an end, and the driver's "database is locked"."""
    monkeypatch.setattr("expost.budget.store.BUSY_SECONDS", 0.1)
    path = sound(tmp_path / "ledger.db")
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        done = expost(*command(path, words))
        one_line(done)
        assert "another process" in done.err
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "words", [each for each in WRITE if each[0] not in ("upgrade", "recover")], ids=" ".join
)
def test_a_database_that_another_program_has_locked(
    expost,  # noqa: F811
    tmp_path,
    monkeypatch,
    words,
):
    """Catches the driver's own words, where another program holds SQLite's lock and not ours."""
    monkeypatch.setattr("expost.budget.store.BUSY_SECONDS", 0.1)
    path = sound(tmp_path / "ledger.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        one_line(expost(*command(path, words)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_files_without_permission(expost, tmp_path, words):  # noqa: F811
    """Catches a traceback for a file that may not be read or written."""
    path = sound(tmp_path / "ledger.db")
    path.chmod(0o000)
    one_line(expost(*command(path, words)))
    path.chmod(0o400)
    done = expost(*command(path, words))
    if words in WRITE:
        one_line(done)
    else:
        assert done.code == 0


def test_damaged_ledgers(expost, tmp_path):  # noqa: F811
    """Catches a traceback for a ledger of which some bytes are wrong."""
    original = sound(tmp_path / "original.db")
    content = original.read_bytes()
    coin = random.Random(7)
    path = tmp_path / "ledger.db"
    for turn in range(60):
        damaged = bytearray(content)
        for _ in range(coin.choice([1, 3, 40])):
            damaged[coin.randrange(len(damaged))] = coin.randrange(256)
        if coin.random() < 0.2:
            del damaged[coin.randrange(100, len(damaged)) :]
        path.write_bytes(damaged)
        Path(f"{path}-journal").unlink(missing_ok=True)
        words = COMMANDS[turn % len(COMMANDS)]
        done = expost(*command(path, words))
        assert done.code in (0, 1, 2), (turn, words, done.err)
        if done.code == 2:
            one_line(done)


EDITS = (
    "UPDATE expost_meta SET value = 'two'",
    "UPDATE expost_head SET hash = 7",
    "UPDATE expost_head SET sequence = 'many'",
    "DELETE FROM expost_head",
    "DELETE FROM expost_totals",
    "UPDATE expost_totals SET terms = '{}'",
    "UPDATE expost_totals SET terms = 'no JSON'",
    "UPDATE expost_totals SET terms = x'ff'",
    "UPDATE expost_totals SET settled = '[\"1/0\"]'",
    "UPDATE expost_totals SET held = '[]'",
    "UPDATE expost_totals SET held = NULL",
    "UPDATE expost_totals SET period = 3, renews = 'month', past = '?'",
    "UPDATE expost_entries SET detail = 'no JSON'",
    "UPDATE expost_entries SET detail = '[]'",
    "UPDATE expost_entries SET detail = '{}'",
    "UPDATE expost_entries SET time = 12",
    "UPDATE expost_entries SET memo = x'00ff'",
    "UPDATE expost_reservations SET charges = '{}'",
    'UPDATE expost_reservations SET charges = \'{"shares": -1, "worst": {}}\'',
    "UPDATE expost_reservations SET worst = '[null]'",
    "UPDATE expost_reservations SET status = 'odd'",
    "DROP TABLE expost_alerts",
    "DROP TABLE expost_entries",
    "ALTER TABLE expost_totals RENAME TO expost_sums",
)


@pytest.mark.parametrize("edit", EDITS)
def test_edited_ledgers(expost, tmp_path, edit):  # noqa: F811
    """Catches a traceback for rows that hold something else than a ledger writes."""
    original = sound(tmp_path / "original.db")
    path = tmp_path / "ledger.db"
    for words in (*FEW, ("show", "--json"), ("export", "--json")):
        shutil.copyfile(original, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            try:
                connection.execute(edit)
            except sqlite3.IntegrityError:
                return  # a column that must not be empty
            connection.commit()
        done = expost(*command(path, words))
        assert done.code in (0, 1, 2), (words, done.err)
        if done.code == 2:
            one_line(done)
        if words == ("verify",):
            assert done.code in (1, 2)


def test_a_file_in_wal_mode_is_named(expost, tmp_path):  # noqa: F811
    """Catches a ledger of expost 0.1, or one that another program switched, that is converted."""
    path = sound(tmp_path / "ledger.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    assert struct.unpack("BB", path.read_bytes()[18:20]) == (2, 2)
    one_line(expost("ledger", "abandon", path, "two"))
    assert struct.unpack("BB", path.read_bytes()[18:20]) == (2, 2)
