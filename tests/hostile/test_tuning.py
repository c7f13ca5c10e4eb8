"""``tune``, the function and the command, with hostile rows in arrays, data frames and files.

The judgement is exact. Everything that leaves is a function of the public settings, the coins and
the encoded rows. A row that cannot be used must be encoded as an empty place, from every source,
and then a whole job gives the same certificate and model for each seed. Any other row must change
one place of one part.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs the native extra")

import expost
from expost import ApproxBudget, Ledger, SimulationRandomness
from expost.cli.main import main
from expost.tuning.request.settings import read_settings
from expost.tuning.rows import job_rows as tuning_rows
from expost.tuning.rows.job_rows import JobRows, load_rows
from tests.hostile.acts import SECRET
from tests.hostile.judge import same_as_tame
from tests.tuning.jobs import TOML, clouds, job

N, PLACES = 20, (0, 4, 19)
"""Rows, and the places that are changed: the first one, a held-out one, the last one."""

NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    "NaN": (math.nan, 0.5, 1),
    "infinity": (math.inf, -math.inf, 1),
    "a label outside": (0.5, 0.5, 7),
    "a label between": (0.5, 0.5, 0.5),
    "no label": (0.5, 0.5, math.nan),
    "an infinite label": (0.5, 0.5, -math.inf),
}
CELLS: dict[str, tuple[Any, Any, Any]] = {
    **NUMBERS,
    "a text": (SECRET, 0.5, 1),
    "a text label": (0.5, 0.5, SECRET),
    "None": (None, None, None),
    "half a letter": ("\ud800", 0.5, 1),
    "bytes": (b"\xff", 0.5, 1),
    "an object": (object(), 0.5, 1),
    "a list": ([1, 2], 0.5, 1),
}
LINES: dict[str, bytes] = {
    "an empty line": b"",
    "a blank line": b"  ",
    "too few cells": b"0.5",
    "too many cells": b"0.5,0.5,1,1",
    "no number": f"{SECRET},0.5,1".encode(),
    "NaN": b"nan,0.5,1",
    "infinity": b"0.5,-inf,1",
    "a label outside": b"0.5,0.5,7",
    "no label": b"0.5,0.5,",
    "bytes that are no text": b"0.5,\xff\xfe,1",
    "a quote that is not closed": b'"0.5,0.5,1',
    "text after a quote": b'"0.5"x,0.5,1',
    "a zero byte": b"0.\0005,0.5,1",
    "a long cell": b"0.5," + b"x" * 200_000 + b",1",
}


def data() -> tuple[Any, Any]:
    X, y = clouds(N)
    return np.clip(X, 0, 1), y.astype(float)


def settings(**more: Any) -> Any:
    changed = {"feature_bounds": [0, 1], "classes": [0, 1], **more}
    return read_settings(job(data=changed), given_data=True).data


def encoded(job_rows: JobRows) -> list[Any]:
    """Everything that candidates get; NaN is written as text, so that lists can be compared."""
    found = job_rows.as_data("job")
    return [
        np.where(np.isnan(value), -1e9, value).tolist() if isinstance(value, np.ndarray) else value
        for value in found.values()
    ]


def emptied(place: int) -> list[Any]:
    X, y = data()
    X[place], y[place] = math.nan, math.nan
    return encoded(load_rows(settings(), X, y))


@pytest.mark.parametrize("place", PLACES)
def test_arrays(place):
    for row in NUMBERS.values():
        X, y = data()
        X[place], y[place] = row[:2], row[2]
        assert encoded(load_rows(settings(), X, y)) == emptied(place)
    for row in CELLS.values():  # arrays of Python objects
        X, y = (each.astype(object) for each in data())
        X[place, 0], X[place, 1], y[place] = row
        assert encoded(load_rows(settings(), X, y)) == emptied(place)


@pytest.mark.parametrize("kind", ["object", "categories"])
@pytest.mark.parametrize("place", PLACES)
def test_data_frames(place, kind):
    pandas = pytest.importorskip("pandas")
    X, y = data()
    for name, row in CELLS.items():
        columns = [list(X[:, 0]), list(X[:, 1]), list(y)]
        frame = pandas.DataFrame(
            {
                name: pandas.Series(cells, dtype=object)
                for name, cells in zip("abt", columns, strict=True)
            }
        )
        for column, value in zip("abt", row, strict=True):
            frame[column].array[place] = value
        if kind == "categories":
            if name == "a list":
                continue  # cannot be a category
            frame = frame.astype("category")
        assert encoded(load_rows(settings(target="t"), frame)) == emptied(place), name


def written(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"a,b,t\n" + b"".join(line + b"\n" for line in lines))
    return path


def lines_of(X: Any, y: Any) -> list[bytes]:
    return [f"{a!r},{b!r},{int(t)}".encode() for (a, b), t in zip(X.tolist(), y, strict=True)]


def in_file(path: Path, **more: Any) -> Any:
    changed = {"feature_bounds": [0, 1], "classes": [0, 1], "path": str(path), "target": "t"}
    changed.update(more)
    return read_settings(job(data=changed)).data


@pytest.mark.parametrize("place", PLACES)
def test_lines_of_csv(tmp_path, place):
    for name, line in LINES.items():
        lines = lines_of(*data())
        lines[place] = line
        path = written(tmp_path / "rows.csv", lines)
        assert encoded(load_rows(in_file(path))) == emptied(place), name


@pytest.mark.parametrize("place", PLACES)
def test_rows_of_parquet(tmp_path, place):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for row in (*NUMBERS.values(), (None, 0.5, 1), (0.5, 0.5, None)):
        X, y = data()
        columns = [list(X[:, 0]), list(X[:, 1]), list(y)]
        for column, value in zip(columns, row, strict=True):
            column[place] = value
        made = {
            name: pa.array(cells, pa.float64()) for name, cells in zip("abt", columns, strict=True)
        }
        parquet.write_table(pa.table(made), tmp_path / "rows.parquet")
        assert encoded(load_rows(in_file(tmp_path / "rows.parquet"))) == emptied(place)


def broken_text(texts: list[str], place: int) -> Any:
    """A column of text that is not UTF-8 at one place, as other writers may leave it."""
    pa = pytest.importorskip("pyarrow")
    cells = [text.encode() for text in texts]
    cells[place] = b"\xff\xfe"
    ends = np.cumsum([0, *map(len, cells)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(pa.string(), len(cells), buffers)


@pytest.mark.parametrize("place", PLACES)
def test_cells_at_which_a_library_fails(tmp_path, place):
    """Broken text, a date after the year 9999, a time after midnight: as if there was no cell."""
    pa, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    y = data()[1]

    def numbers(kind: Any, odd: int | None, width: Any) -> Any:
        cells: list[int | None] = [7 * number for number in range(N)]
        cells[place] = odd
        return pa.array(cells, width).view(kind)

    texts = ["xyz"[number % 3] for number in range(N)]
    gap = pa.array([None if number == place else text for number, text in enumerate(texts)])
    zurich = pa.timestamp("s", "Europe/Zurich")
    cases: dict[str, tuple[Any, ...]] = {
        "text": ({"categories": {"a": ["x", "y"]}}, broken_text(texts, place), gap),
        "time": (
            {"categories": {"a": ["00:00:07"]}},
            numbers(pa.time32("s"), 10**9, pa.int32()),
            numbers(pa.time32("s"), None, pa.int32()),
        ),
        **{
            name: (
                {"dates": {"a": ["1970-01-01", "1970-03-01"]}},
                numbers(kind, odd, width),
                numbers(kind, None, width),
            )
            for name, kind, odd, width in (
                ("date", pa.date32(), 4_000_000, pa.int32()),
                ("timestamp", zurich, 2**50, pa.int64()),
            )
        },
    }
    for name, (facts, *columns) in cases.items():
        known = {**facts, "feature_bounds": None}
        found = []
        for column in columns:
            table = pa.table({"a": column, "t": y})
            with_arrow = table.to_pandas(types_mapper=pandas.ArrowDtype)
            parquet.write_table(table, tmp_path / "rows.parquet")
            found.append(
                [
                    encoded(load_rows(settings(target="t", **known), table)),
                    encoded(load_rows(settings(target="t", **known), with_arrow)),
                    encoded(load_rows(in_file(tmp_path / "rows.parquet", **known))),
                ]
            )
        most = 1 if "dates" in facts else 0  # a day is clipped where the library can read it
        for here, empty in zip(*found, strict=True):
            for part in (0, 2):
                changed = [a != b for a, b in zip(here[part], empty[part], strict=True)]
                assert sum(changed) <= most, name


@pytest.mark.parametrize("place", PLACES)
def test_cells_of_lists(place):
    """One odd cell does not change the type, and with it the meaning, of all the others."""
    X, y = data()
    for odd in ("x", 2, 0.5, None, b"1"):
        truths: list[Any] = [bool(each) for each in y]
        truths[place] = odd
        for classes in ([False, True], 2):
            found = encoded(load_rows(settings(classes=classes), X.tolist(), truths))
            whole = encoded(load_rows(settings(classes=classes), X.tolist(), y.astype(bool)))
            assert sum(a != b for a, b in zip(found[1], whole[1], strict=True)) <= 1
            assert sum(a != b for a, b in zip(found[3], whole[3], strict=True)) <= 1
        rows: list[list[Any]] = [[bool(round(a)), np.float32(b)] for a, b in X]
        same = encoded(load_rows(settings(), rows, y))
        rows[place] = [odd, odd]
        found = encoded(load_rows(settings(), rows, y))
        for part in (0, 2):
            assert sum(a != b for a, b in zip(found[part], same[part], strict=True)) <= 1
        tokens: list[list[Any]] = [[1, 2] for _ in range(N)]
        tokens[place] = [odd, 2]
        whole_numbers = settings(integers=True, feature_bounds=[0, 9])
        found = encoded(load_rows(whole_numbers, tokens, y))
        assert sum(row != [1, 2] for row in found[0] + found[2]) <= 1


def test_whole_numbers_with_a_gap():
    """A gap turns whole numbers into floats in many libraries; labels with 16 digits stay."""
    pa, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    first, second = 2**52 + 1, 2**60 + 1
    cells = [(first, second)[number % 2] for number in range(N)]
    known = settings(target="t", categories={"a": [first, second]}, feature_bounds=None)
    table = pa.table({"a": cells, "t": data()[1]})
    whole = encoded(load_rows(known, table))
    gap = pa.table({"a": [None, *cells[1:]], "t": data()[1]})
    nullable = pandas.DataFrame(
        {"a": pandas.array(gap["a"].to_pylist(), dtype="Int64"), "t": data()[1]}
    )
    with_arrow = gap.to_pandas(types_mapper=pandas.ArrowDtype)
    for frame in (gap, nullable, with_arrow, polars.from_arrow(gap)):
        found = encoded(load_rows(known, frame))
        assert sum(a != b for a, b in zip(found[0], whole[0], strict=True)) == 1
        assert found[2:] == whole[2:]
    small = settings(target="t", categories={"a": [first, 2**52]}, feature_bounds=None)
    floats = pandas.DataFrame({"a": [None, *([float(first)] * (N - 1))], "t": data()[1]})
    texts = pandas.DataFrame({"a": ["", *([str(first)] * (N - 1))], "t": data()[1]})
    assert encoded(load_rows(small, floats)) == encoded(load_rows(small, texts))


def test_no_warning_leaves(recwarn):
    """A cell that is an array of one number is read with a warning, which is not passed on."""
    X, y = (each.astype(object) for each in data())
    X[3, 0], y[5] = np.array([0.5]), np.longdouble("1e400")
    load_rows(settings(), X, y)
    assert [str(each.message) for each in recwarn] == []


def test_lengths_are_not_told():
    """With a public number of rows, the actual number is not in an error either."""
    X, y = data()
    with pytest.raises(expost.InvalidInput) as refused:
        load_rows(settings(rows=15), X, y[:-1])
    assert str(N) not in str(refused.value)


@pytest.mark.parametrize("place", PLACES)
def test_a_row_changes_one_place_of_one_part(place):
    """Huge values, the only row of a class, and an emptied row: the split does not move."""
    X, y = data()
    for base in (y, np.zeros(N)):
        whole = load_rows(settings(), X, base)
        for row, label in (((1e308, -1e308), 1), ((0.1, 0.2), 1), ((math.nan, 0), 0)):
            other, labels = X.copy(), base.copy()
            other[place], labels[place] = row, label
            found = load_rows(settings(), other, labels)
            changes = [
                int((~np.isclose(a, b, 0, 0, True)).reshape(len(a), -1).any(axis=1).sum())
                for a, b in (
                    (np.column_stack([whole.X, whole.y]), np.column_stack([found.X, found.y])),
                    (
                        np.column_stack([whole.score_X, whole.score_y]),
                        np.column_stack([found.score_X, found.score_y]),
                    ),
                )
            ]
            assert sum(changes) <= 1


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_number_of_rows(monkeypatch, place):
    """Add-remove: given the coins of the others, one row is missing in one part.

    Nothing else follows the actual number of rows.
    """
    X, y = data()
    coins = np.random.default_rng(3).random(N) < 0.3
    known = settings(rows=15)

    def load(kept: Any) -> Any:
        monkeypatch.setattr(tuning_rows, "drawn_out", lambda *_: coins[kept])
        return encoded(load_rows(known, X[kept], y[kept], randomness=SimulationRandomness(1)))

    everybody = np.ones(N, dtype=bool)
    others = everybody.copy()
    others[place] = False
    whole, less = load(everybody), load(others)
    assert whole[4:] == less[4:]  # the public numbers
    missing = [len(a) - len(b) for a, b in zip(whole[:4], less[:4], strict=True)]
    assert missing == ([0, 0, 1, 1] if coins[place] else [1, 1, 0, 0])
    for a, b in zip(whole[:4], less[:4], strict=True):
        left = list(a)
        for each in b:
            left.remove(each)  # raises if a row is there that was not
        assert len(left) == len(a) - len(b)


@pytest.mark.parametrize("place", PLACES)
def test_a_whole_job(place):
    """The certificate and the model are those of an empty place, for each seed."""

    def left(rows: Any, seed: int) -> Any:
        result = expost.tune(
            job(data={"classes": [0, 1]}),
            *rows,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        model = None if result.model is None else list(result.model.parameters.values())
        return result.certificate(), [value.tolist() for value in model or []]

    def with_row(row: tuple[Any, Any, Any]) -> Any:
        X, y = clouds(60)
        X, y = X.astype(object), y.astype(object)
        X[place, 0], X[place, 1], y[place] = row
        return X, y

    for row in (NUMBERS["NaN"], CELLS["a text"], CELLS["a text label"]):
        same_as_tame(
            lambda seed, row=row: left(with_row(row), seed),
            lambda seed: left(with_row((None, None, None)), seed),
            seeds=1,
        )


def test_the_command(tmp_path, monkeypatch, capfd):
    """Exit code, keys of the document, files and the ledger's actions, for every hostile line."""
    text = TOML.replace('"rows.npz"', '"rows.csv"\ntarget = "t"').replace(
        "at_least = 0.7", "at_least = 0.0001"
    )
    X, y = clouds(60)

    def left(number: int, line: bytes | None) -> Any:
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        lines = lines_of(np.clip(X, 0, 1), y)
        if line is not None:
            lines[0] = line
        written(folder / "rows.csv", lines)
        (folder / "job.toml").write_text(text)
        ledger = Ledger.create("ledger.db", ApproxBudget(1000, 0.1, "zero-out"))
        more = ["--ledger", "ledger.db", "--out", "out", "--json"]
        monkeypatch.setattr(sys, "argv", ["expost", "tune", "job.toml", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert SECRET not in out + err
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        actions = {entry.action for entry in ledger.entries()}
        assert ledger.open_reservations() == []
        return int(ended.value.code or 0), sorted(json.loads(out)), files, actions

    here = left(0, None)
    assert here[0] == 0
    for number, name in enumerate(["an empty line", "too few cells", "no number", "NaN"]):
        assert left(number + 1, LINES[name]) == here, name


def test_lines_are_what_a_writer_writes():
    """Test of the test: the lines of the unchanged file are proper CSV."""
    X, y = data()
    text = b"\n".join(lines_of(X, y)).decode()
    assert [[float(cell) for cell in row] for row in csv.reader(io.StringIO(text))] == [
        [*row, label] for row, label in zip(X.tolist(), y.tolist(), strict=True)
    ]


def test_a_plan_is_the_same_for_all_neighbours():
    """It is made of the settings and the number of places; only its times are measured."""

    def planned(X: Any, y: Any) -> dict[str, Any]:
        X, y = (np.concatenate([each] * 10) for each in (X, y))
        document = expost.plan_job(job(data={"feature_bounds": [0, 1]}), X, y).as_dict()
        return {key: value for key, value in document.items() if not key.startswith("seconds")}

    X, y = data()
    tame = planned(X, y)
    for row in NUMBERS.values():
        X, y = data()
        X[4], y[4] = row[:2], row[2]
        assert planned(X, y) == tame
    X, _ = data()
    assert planned(X, np.zeros(N)) == tame  # one class only
