"""``count``, ``sum`` and ``mean``, the functions and the command, with hostile rows.

The judgement is exact. The answers are a function of the private values per group, the public
settings and the coins, and they keep the claim if one person changes at most m values by at most
the sensitivity. So the values are compared on both sides, and everything else that leaves (exit
code, exception, streams, names of groups, files, actions in the ledger) must be the same.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

import expost
from expost import Ledger, PureDP, SimulationRandomness
from expost.analytics import query
from tests.cli.counting import expost as command
from tests.hostile.acts import SECRET
from tests.hostile.judge import one_person_apart, within_claim

__all__ = ["command"]  # a fixture

GROUPS = ["a", "b", "c"]
BASE = [("p0", "a", "1"), ("p1", "a", "2"), ("p2", "b", "3"), ("p2", "a", "4"), ("p3", "c", "5")]
KINDS = ["count", "rows", "sum", "mean"]
LINES: dict[str, bytes] = {
    "one row more": b"new,a,7\n",
    "an empty line": b"\n",
    "an empty line with a blank": b" \n",
    "no value": b"new,a,\n",
    "NaN": b"new,a,nan\n",
    "infinity": b"new,a,-inf\n",
    "huge": b"new,a,1e308\n",
    "too large for a float": b"new,a,1e999\n",
    "no number": f"new,a,{SECRET}\n".encode(),
    "no user": b",a,7\n",
    "no group": b"new,,7\n",
    "an unlisted group": b"new,z,7\n",
    "every group, often": b"".join(b"new,%s,9\n" % g.encode() * 30 for g in GROUPS),
    "too few cells": b"new\n",
    "too many cells": b"new,a,7,8\n",
    "text after a quote": b'new,"a"b,7\n',
    "a quote that is not closed": b'new,"a\n',
    "bytes that are no text": b"new,\xff\xfe,7\n",
    "a zero byte": b"new,a\0,7\n",
    "another line end": b"new,a,7\r\n",
    "a lone line end": b"new,a\r,7\n",
    "a long cell": b"new," + b"x" * 2_100_000 + b",7\n",
    "the separator of columns": b"new,a\x1fb,7\n",
}
CELLS: dict[str, Any] = {
    "None": None,
    "NaN": math.nan,
    "infinity": -math.inf,
    "a number": 3,
    "a Boolean": True,
    "a text": SECRET,
    "half a letter": "\ud800",
    "bytes": b"\xff",
    "an integer with many digits": 10**5000,
    "a decimal": Decimal("1e400"),
    "a signalling NaN": Decimal("sNaN"),
    "a date": datetime.date(2020, 1, 1),
    "an array": np.zeros(2),
    "an object": object(),
}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The private values of each request, in the order of the requests."""
    seen: list[Any] = []
    make = query.refinement_of

    def watch(request: Any, progress: Any, groups: Any, values: Any, *rest: Any, **how: Any) -> Any:
        seen.append((request, progress.most, values))
        return make(request, progress, groups, values, *rest, **how)

    monkeypatch.setattr(query, "refinement_of", watch)
    return seen


def ask(kind: str, data: Any, seed: int = 1, **more: Any) -> Any:
    options: dict[str, Any] = {
        "by": "g",
        "user": "u",
        "keys": GROUPS,
        "epsilon": 2.0,
        "randomness": SimulationRandomness(seed),
        "simulation": True,
        **more,
    }
    if kind in ("count", "rows"):
        return expost.count(data, count_rows=kind == "rows", **options)
    call = {"sum": expost.sum, "mean": expost.mean}[kind]
    return call(data, "v", bounds=(-2, 5), max_rows_per_user=2, **options)


def shape(result: Any) -> Any:
    """What must not depend on a row: everything but the noisy numbers and what was spent."""
    document = result.as_dict()
    groups = sorted(str(each["group"]) for each in document["answers"] + document["unanswered"])
    kept = ("query", "source", "public", "guarantee", "max_groups_per_user", "simulated")
    return sorted(document), groups, {name: document.get(name) for name in kept}


def judge(first: Any, here: Any, second: Any, there: Any) -> None:
    assert here == there
    (request, most, values), (_, _, others) = first, second
    one_person_apart(
        [(values.first, others.first), (values.second, others.second)],
        request.measure.sensitivity,
        most,
    )
    limit = request.limit(most)
    for one, other in ((values.kept, others.kept), (values.removed, others.removed)):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) <= limit


def compare(watched: list[Any], asked: Callable[[Any], Any], here: Any, others: Any) -> None:
    """Compare a table with each of its neighbours."""
    base = shape(asked(here))
    first = watched.pop()
    for there in others:
        judge(first, base, *reversed((shape(asked(there)), watched.pop())))


def table(folder: Path, lines: bytes, *, first: bool = False, name: str = "rows.csv") -> Path:
    """A file in a folder of its own: the name of the file is in the certificate."""
    folder.mkdir(exist_ok=True)
    rows = "".join(",".join(row) + "\n" for row in BASE).encode()
    (folder / name).write_bytes(b"u,g,v\n" + (lines + rows if first else rows + lines))
    return folder / name


@pytest.mark.parametrize(
    ("kind", "first", "cap", "part"),
    [
        ("count", True, None, slice(None)),
        ("sum", False, 2, slice(None)),
        ("rows", False, None, slice(0, None, 2)),
        ("mean", True, 2, slice(1, None, 2)),
        pytest.param("rows", False, None, slice(1, None, 2), marks=pytest.mark.long),
        pytest.param("mean", True, 2, slice(0, None, 2), marks=pytest.mark.long),
    ],
)
def test_lines_of_a_file(tmp_path, watched, kind, first, cap, part):
    """Every hostile line, at the start and at the end, with and without a cap on groups."""
    there = (
        table(tmp_path / f"there{number}", line, first=first)
        for number, line in enumerate([*LINES.values()][part])
    )
    here = table(tmp_path / "here", b"")
    compare(watched, lambda path: ask(kind, path, max_groups_per_user=cap), here, there)


@pytest.mark.parametrize("kind", KINDS)
def test_row_0_removed(tmp_path, watched, kind):
    whole, less = table(tmp_path / "here", b""), table(tmp_path / "there", b"")
    less.write_bytes(whole.read_bytes().replace(b"p0,a,1\n", b""))
    compare(watched, lambda path: ask(kind, path), whole, [less])


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_json(tmp_path, watched, kind):
    def written(number: int, lines: list[str]) -> Path:
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / "rows.jsonl"
        rows = [json.dumps(dict(zip("ugv", row, strict=True))) for row in BASE]
        path.write_text("\n".join(rows + lines) + "\n")
        return path

    long = "x" * (33 << 20)  # DuckDB's own reader fails at such a line
    lines = [f'{{"u": "{long}", "g": "a"}}'] if kind == "count" else []
    lines += ["{", "[]", "7", "", '{"u": {"x": 1}, "g": "a"}', '{"u": "new", "g": "a", "v": 7}']
    there = (written(number + 1, [line]) for number, line in enumerate(lines))
    compare(watched, lambda path: ask(kind, path), written(0, []), there)


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_rows_of_parquet(tmp_path, watched, kind):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def written(number: int, rows: list[tuple[Any, ...]]) -> Path:
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / "rows.parquet"
        kinds = [("u", pa.string()), ("g", pa.string()), ("v", pa.float64())]
        cells = zip(zip(*rows, strict=True), kinds, strict=True)
        columns = [pa.array(column, kind) for column, (_, kind) in cells]
        parquet.write_table(pa.table(columns, pa.schema(kinds)), path)
        return path

    base = [(user, group, float(value)) for user, group, value in BASE]
    values = (math.nan, math.inf, -math.inf, 1e308, 5e-324, None, 7.0)
    there = (
        written(number + 1, [("new", "a", value), *base]) for number, value in enumerate(values)
    )
    compare(watched, lambda path: ask(kind, path), written(0, base), there)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        *(("text", column) for column in ("u", "g", "w", "unused")),
        *(("seconds", column) for column in ("g", "unused")),
        *((kind, "g") for kind in ("milliseconds", "time", "date", "dictionary")),
    ],
)
def test_cells_at_which_the_engine_fails(tmp_path, watched, kind, column):
    """Broken text, a timestamp that overflows, a time after midnight, in every kind of table.

    DuckDB fails at some of them, and at timestamps in data frames for the rest of the process.
    """
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    texts = [b"a", b"b", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff"]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(texts))]
    broken = pa.Array.from_buffers(pa.string(), len(texts), buffers)
    columns = {
        "text": broken,
        "dictionary": pa.DictionaryArray.from_arrays(pa.array(range(5), pa.int32()), broken),
        "seconds": pa.array([0, 1, 2**62, -(2**62), 2**55]).view(pa.timestamp("s")),
        "milliseconds": pa.array([0, 1, 2**62, -(2**62), 2**60]).view(pa.timestamp("ms")),
        "time": pa.array([0, 1, 2**62, -(2**62), 2**50]).view(pa.time64("us")),
        "date": pa.array([0, 1, 2**30, -(2**30), 2**31 - 1], pa.int32()).view(pa.date32()),
    }
    odd = columns[kind]
    keys = {"text": ["a"], "dictionary": ["a"], "time": ["00:00:00"], "date": ["1970-01-01"]}
    more: dict[str, Any] = {
        "keys": keys.get(kind, ["1970-01-01 00:00:00"]) if column == "g" else ["a"],
        "where": ["w=x"] if column == "w" else [],
    }

    def made(cells: Any) -> Any:
        plain = {"u": [str(each) for each in range(5)], "g": ["a"] * 5, "w": ["x"] * 5}
        return pa.table({**plain, "unused": [1] * 5, column: cells})

    gaps = pa.array([True, True, False, False, False])
    missing = pa.compute.if_else(gaps, odd, pa.scalar(None, odd.type))
    for number, as_kind in enumerate(("arrow", "pandas", "parquet")):
        found = []
        for side, cells in enumerate((odd, missing)):
            data = made(cells)
            if as_kind == "pandas":
                data = data.to_pandas(types_mapper=pandas.ArrowDtype)
            if as_kind == "parquet":
                path = tmp_path / str(2 * number + side) / "rows.parquet"
                path.parent.mkdir()
                whole = kind == "seconds" and side == 0  # Arrow cannot write these
                parquet.write_table(made(missing if whole else cells), path)
                data = path
            found.append((shape(ask("count", data, **more)), watched.pop()[2].first.tolist()))
        assert found[0] == found[1]
        expected = {"unused": 5, "g": 1, "u": 2, "w": 0}[column]
        assert found[0][1] == [expected]
    assert ask("count", pa.table({"u": [1], "g": ["a"]}), keys=["a"]).spent > 0


@pytest.mark.parametrize(
    ("kind", "column"),
    [("count", "u"), ("count", "g"), ("sum", "v"), ("mean", "v"), ("rows", "unused")],
)
def test_cells_of_a_data_frame(watched, kind, column):
    """A column of Python objects: its type is not guessed from rows."""
    pandas = pytest.importorskip("pandas")

    def frame(value: Any) -> Any:
        columns = dict(zip("ugv", zip(*BASE, ("new", "a", "7"), strict=True), strict=True))
        columns["unused"] = ("x",) * len(columns["u"])
        made = pandas.DataFrame(
            {name: pandas.Series(cells, dtype=object) for name, cells in columns.items()}
        )
        made[column].array[-1] = value
        return made

    compare(watched, lambda data: ask(kind, data), frame(None), map(frame, CELLS.values()))
    hashable = (frame(CELLS[name]).astype("category") for name in ("a number", "bytes", "a date"))
    compare(watched, lambda data: ask(kind, data), frame(None).astype("category"), hashable)


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_gap_in_a_column_of_truth_values(watched, kind):
    """Such a column of pandas becomes one of Python objects, which are read as text."""
    pandas = pytest.importorskip("pandas")

    def frame(cells: Any) -> Any:
        names = {"u": list(range(len(cells))), "g": ["a"] * len(cells), "v": cells}
        return pandas.DataFrame(names)

    cells = [n % 3 > 0 for n in range(60)]
    others = (frame([*cells, value]) for value in (None, math.nan, True, "x"))
    compare(watched, lambda data: ask(kind, data), frame(cells), others)
    ask(kind, frame([*cells, None]))
    assert watched.pop()[2].first.max() == {"sum": 40, "mean": 160}[kind]  # Σv or Σ(v + 2)


@pytest.mark.parametrize("kind", ["count", "mean"])
def test_groups_found_privately(tmp_path, watched, kind):
    """Which groups exist is private: a group of one person does not show."""
    more = {"keys": None, "private_keys": True, "delta": 1e-6, "epsilon": 1.0}
    lines = [b"", b"new,only mine,7\n", b"new,a,7\n", b"new\n", b'new,"\x1f",7\n']
    here, *there = (
        shape(ask(kind, table(tmp_path / str(number), line), **more))
        for number, line in enumerate(lines)
    )
    assert here[1] == []  # every group has few people
    assert all(each == here for each in there)


def unwarned(stream: str, document: Any) -> str:
    """The stream without the warnings of the document, which are made of its released numbers."""
    for warning in document["warnings"]:
        assert f"warning: {warning}\n" in stream
        stream = stream.replace(f"warning: {warning}\n", "")
    assert "warning:" not in stream
    return stream


@pytest.mark.parametrize("kind", ["--count-rows", "--mean"])
def test_the_command(tmp_path, command, watched, kind):
    """Exit code, streams, files and the actions in the ledger are the same on both sides."""
    (tmp_path / "keys.txt").write_text("\n".join(GROUPS) + "\n")
    options = ["--by", "g", "--user", "u", "--keys", tmp_path / "keys.txt", "--epsilon", 2]
    options += ["--max-rows-per-user", 2, kind]
    options += [] if kind == "--count-rows" else ["v", "--bounds", 0, 5]

    def left(folder: Path, line: bytes) -> Any:
        source = table(folder, line)
        ledger = Ledger.create(folder / "ledger.db", PureDP(100))
        more = ["--json", "--ledger", folder / "ledger.db", "--out", folder / "answers.csv"]
        done = command("count", source, *options, *more)
        document = done.document
        groups = sorted(each["group"] for each in document["answers"] + document["unanswered"])
        entries = [entry.action for entry in ledger.entries()]
        assert SECRET not in done.out + done.err
        files = sorted(path.name for path in folder.iterdir())
        said = unwarned(done.err, document).replace(str(folder), "folder")
        return done.code, said, sorted(document), groups, entries, files

    here = left(tmp_path / "here", b"")
    first = watched.pop()
    assert here[0] == 0
    shown = [LINES[name] for name in LINES if name.startswith(("NaN", "no ", "too ", "every"))]
    for number, line in enumerate(shown):
        there = left(tmp_path / f"there{number}", line)
        judge(first, here, watched.pop(), there)


def test_the_law_of_the_answers():
    """By many runs: nobody, and one person; the charge is part of what leaves."""

    def request(counts: Any, randomness: Any) -> float:
        result = expost.count(
            counts, keys=["a"], epsilon=0.5, plus_minus=8, randomness=randomness, simulation=True
        )
        (answer,) = (*result.answers, *result.unanswered)
        return float(answer.estimate + 1000 * result.spent)

    within_claim(request, {"a": 0}, {"a": 1}, claim=PureDP(0.5), runs=100)


def test_the_judgement_sees_a_leak():
    """Test of the test: two groups changed although m is 1, and a change above the sensitivity."""
    with pytest.raises(AssertionError):
        one_person_apart([(np.array([1, 1]), np.array([2, 2]))], 1, 1)
    with pytest.raises(AssertionError):
        one_person_apart([(np.array([1, 1]), np.array([1, 3]))], 1, 2)
