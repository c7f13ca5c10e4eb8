"""``expost count`` on nearly correct tables, with a ledger: a charged answer or a clear refusal.

What the ledger contains afterwards (docs/ledger.md): nothing for a refused request; a job settled
at 0 if it failed before any look was released; the settled charge of an answer. There is never a
settled charge without an answer, and never an answer without a settled charge.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import PureDP
from expost.budget.ledger import Ledger
from tests.fuzz.command import Books, Done, assert_refused, expost
from tests.fuzz.profiles import examples
from tests.fuzz.strategies import TEXTS, damaged

CANARY = "zibeben"
"""A cell of a row. It is no key, so nothing may show it."""
TABLE = f"u,g\n1,a\n2,a\n3,b\n{CANARY}4,{CANARY}5\n".encode()
CELLS = st.sampled_from(
    [
        b"1",
        b"a",
        b"",
        b'"a"',
        b'"a',
        b'""',
        b'a"b',
        b"\x00",
        b"\xff",
        b"a" * 3_000_000,
        b'"\n"',
        b"\r",
        "é".encode(),
        b"NULL",
        CANARY.encode(),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Rows of cells that a parser may stumble over: ragged, quoted, empty, enormous, no text."""
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff\xfe"]))
    delimiter, end = (
        draw(st.sampled_from([b",", b";", b"\t", b"|"])),
        draw(st.sampled_from([b"\n", b"\r\n", b"\r"])),
    )
    header = draw(
        st.sampled_from(
            [
                [b"u", b"g"],
                [b"u", b"g", b"g"],
                [b"u", b"G"],
                [b"g"],
                [],
                [b"", b"u", b"g"],
                [b'"u"', b'"g"'],
                [b'"u"', b'"g'],
            ]
        )
    )
    rows = draw(st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=4))
    return (
        mark
        + end.join(delimiter.join(row) for row in [header, *rows])
        + draw(st.sampled_from([b"", end]))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("count")
    Ledger.create(made / "empty.db", PureDP(1000), "people")._store.close()
    (made / "keys.txt").write_text("a\nb\n")
    return made


def fresh_ledger(folder: Path) -> Path:
    made = folder / f"{uuid4().hex}.db"
    shutil.copy(folder / "empty.db", made)
    return made


def count(folder: Path, *further: str, name: str = "table.csv", column: str = "g") -> Done:
    """The command on the table in the folder; what it leaves in the ledger fits how it ended."""
    ledger = fresh_ledger(folder)
    words = [
        "count",
        str(folder / name),
        f"--by={column}",
        "--user=u",
        "--epsilon=2",
        f"--keys={folder / 'keys.txt'}",
    ]
    done = expost(*words, f"--ledger={ledger}", "--json", *further)
    books = Books.of(ledger)
    if done.code == 0:
        assert json.loads(done.out)["answers"] is not None
        assert (books.reserved, books.finished, books.held) == (1, 1, 0.0)
        assert 0 < books.settled <= 2  # type: ignore[operator]
    elif done.code == 3:
        assert books.reserved == 0
        assert list(json.loads(done.out)) == ["error"]
    else:
        assert_refused(done)
        assert (books.settled, books.held) == (0.0, 0.0)
        assert (books.reserved, books.finished) in ((0, 0), (1, 1))
    assert CANARY not in done.text or CANARY.encode() in first_line((folder / name).read_bytes()), (
        done
    )
    return done


def first_line(content: bytes) -> bytes:
    """Return the column names, which a refusal may list.

    In a file without a header this is a row (docs/known-limits.md).
    """
    return re.split(rb"[\r\n]", content, maxsplit=1)[0]


@pytest.mark.slow
@examples(40)
@given(content=tables() | damaged(TABLE))
def test_tables(folder: Path, content: bytes) -> None:
    """Catches a traceback, a cell in a message and a charge without an answer.

    A quote in the header can draw rows into it.
    """
    (folder / "table.csv").write_bytes(content)
    count(folder)


@examples(10)
@given(
    content=damaged(b"PAR1" + bytes(60) + b"PAR1") | damaged(b"\x1f\x8b\x08" + bytes(40)),
    name=st.sampled_from(["t.parquet", "t.csv.gz", "t.tsv"]),
)
def test_files_of_other_kinds(folder: Path, content: bytes, name: str) -> None:
    (folder / name).write_bytes(content)
    assert count(folder, name=name).code in (0, 2)


@examples(40)
@given(data=st.data())
def test_options(folder: Path, data: st.DataObject) -> None:
    """A wrong request is refused before anything is charged.

    Noise too large to draw, names that no database accepts.
    """
    (folder / "table.csv").write_bytes(TABLE)
    numbers = st.sampled_from(
        [
            "0",
            "-1",
            "nan",
            "inf",
            "1e300",
            "1e-300",
            "5e-324",
            "0.5",
            "1",
            "2",
            "1e-9",
            "",
            "x",
            "9" * 400,
        ]
    )
    numeric = [
        "within",
        "epsilon",
        "delta",
        "max-group-epsilon",
        "confidence",
        "ratio",
        "max-groups-per-user",
    ]
    words = [
        f"--{name}={data.draw(numbers)}"
        for name in data.draw(st.lists(st.sampled_from(numeric), max_size=3))
    ]
    named = ["by", "user", "table", "budget", "analyst", "order", "rule"]
    words += [
        f"--{name}={data.draw(TEXTS)}"
        for name in data.draw(st.lists(st.sampled_from(named), max_size=1))
    ]
    sound_table(folder, words)


def sound_table(folder: Path, words: list[str]) -> Done:
    """Run the command on a valid table: an answer and its charge, or a refusal without a charge."""
    ledger = fresh_ledger(folder)
    common = [
        "count",
        str(folder / "table.csv"),
        "--by=g",
        "--user=u",
        "--epsilon=2",
        f"--keys={folder / 'keys.txt'}",
    ]
    done = expost(*common, f"--ledger={ledger}", "--json", *words)
    books = Books.of(ledger)
    assert (done.code == 0) == ("error" not in json.loads(done.out)), done
    assert (books.reserved, books.finished) == ((1, 1) if done.code == 0 else (0, 0)), (
        done
    )  # the table is sound: it is the request's fault
    assert CANARY not in done.text
    return done


@examples(15)
@given(keys=damaged(b"a\nb\n"), prior=damaged(b"group,size\na,5\nb,7\n"))
def test_keys_and_priors(folder: Path, keys: bytes, prior: bytes) -> None:
    (folder / "table.csv").write_bytes(TABLE)
    (folder / "other.txt").write_bytes(keys)
    (folder / "prior.csv").write_bytes(prior)
    done = sound_table(
        folder, [f"--keys={folder / 'other.txt'}", f"--prior={folder / 'prior.csv'}"]
    )
    assert done.code in (0, 2)
