"""Ledger URLs that are nearly right: no traceback, no password, no file that nobody asked for."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import PureDP
from expost.budget.ledger import Ledger
from tests.fuzz.command import assert_refused, expost
from tests.fuzz.profiles import examples

PASSWORD = "hushhush"
SCHEMES = [
    "postgresql",
    "postgres",
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "postgresql+moon",
    "POSTGRESQL",
    "mysql",
    "sqlite",
    "sqlite+aiosqlite",
    "http",
    "",
    "é",
]
PASSWORDS = [
    PASSWORD,
    f"{PASSWORD}@x",
    f"x@{PASSWORD}",
    f"{PASSWORD}:x",
    f"{PASSWORD}/x",
    f"{PASSWORD}?x",
    f"{PASSWORD}#x",
    f"%{PASSWORD}",
    f"{PASSWORD}\udcff",
    f"{PASSWORD} x",
    f"[{PASSWORD}",
]
HOSTS = [
    "localhost:1",
    "[::1]:1",
    "[::1:1",
    "localhost:port",
    "localhost:999999",
    "",
    "localhost:1,localhost:2",
    "/tmp",
]
OPTIONS = [
    "",
    "?",
    "?sslmode=moon",
    f"?password={PASSWORD}",
    "?connect_timeout=x",
    "?host=/nowhere",
    "?%zz=1",
    "?options=x&user=u",
    "?uri=true",
    "?mode=ro",
]


def files(folder: Path) -> set[str]:
    """What is there, apart from what SQLite keeps beside a file while it is open."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("urls")
    Ledger.create(made / "sound.db", PureDP(1), "people")
    (made / "garbage.db").write_bytes(b"garbage " * 1000)
    (made / "cut.db").write_bytes((made / "sound.db").read_bytes()[:5000])
    (made / "folder.db").mkdir()
    return made


@examples(120)
@given(
    scheme=st.sampled_from(SCHEMES),
    slashes=st.sampled_from(["://", "://", "://", ":", ":/", ":///"]),
    password=st.sampled_from(PASSWORDS),
    host=st.sampled_from(HOSTS),
    options=st.sampled_from(OPTIONS),
    command=st.sampled_from([["show"], ["verify"], ["create", "--name=x", "--epsilon=1"]]),
)
def test_a_password_is_never_shown(
    folder: Path,
    scheme: str,
    slashes: str,
    password: str,
    host: str,
    options: str,
    command: list[str],
) -> None:
    """Catches a driver's message that repeats the URL, a second half of a password taken for the
    host, a typing error taken for a file.
    """
    if scheme.startswith("sqlite"):
        slashes = slashes.removesuffix("/")  # with three the rest is a file's name
    with contextlib.chdir(folder):
        before = files(folder)
        done = expost(
            "ledger",
            command[0],
            f"{scheme}{slashes}u:{password}@{host}/db{options}",
            *command[1:],
            "--json",
        )
        assert files(folder) == before
    assert_refused(done)
    assert PASSWORD not in done.err, done.err


@examples(60)
@given(
    prefix=st.sampled_from(["", "sqlite:///", "sqlite:", "sqlite://", "file:"]),
    name=st.sampled_from(
        [
            "sound.db",
            "garbage.db",
            "cut.db",
            "folder.db",
            "none.db",
            "none/none.db",
            "",
            "a\x00b",
            "b\udcff",
            "n" * 300,
        ]
    )
    | st.text(max_size=10),
    options=st.sampled_from(["", "", "?mode=ro", "?uri=true", "?cache=x&uri=true"]),
    command=st.sampled_from([["show"], ["entries"], ["verify"], ["export"], ["abandon", "x"]]),
)
def test_looking_makes_no_file(
    folder: Path, prefix: str, name: str, options: str, command: list[str]
) -> None:
    """Catches a ledger that appears because somebody looked, and a damaged file that ends in a
    traceback.
    """
    before = files(folder)
    place = f"{folder}/{name}".replace("//", "/")
    done = expost("ledger", command[0], f"{prefix}{place}{options}", *command[1:], "--json")
    assert done.code in (0, 1, 2), done
    if done.code == 2:
        assert_refused(done)
    assert files(folder) == before
