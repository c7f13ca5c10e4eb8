"""Queries: no single row of a table changes anything that leaves, but for the noisy numbers.

The same neighbours as for counts, at the outermost call: a line of one new person, of any kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import SimulationRandomness
from expost.analytics import cap_choice, query, sql_run, sql_tables
from expost.analytics.quantile_search import CellCounts
from expost.analytics.sql_request import check_query
from expost.errors import InvalidInput
from tests.hostile.judge import one_person_apart

HEAD = b"u,g,v,d,p\n"
ROWS = [
    (f"p{n % 9}", "abc"[n % 3], str(n % 7), f"2024-0{n % 9 + 1}-11", str(n % 4)) for n in range(40)
]
LINES: dict[str, bytes] = {
    "a usual row": b"new,a,3,2024-05-01,1\n",
    "rows in all groups": b"new,a,3,2024-05-01,1\nnew,b,4,2024-06-01,2\nnew,c,5,2024-07-01,3\n",
    "many rows": b"new,a,6,2024-05-01,1\n" * 30,
    "a division by zero": b"new,a,0,2024-05-01,0\n",
    "a huge number": b"new,a,1e308,2024-05-01,1e308\n",
    "a tiny number": b"new,a,5e-324,2024-05-01,1e-320\n",
    "no number": b"new,a,NaN,2024-05-01,inf\n",
    "text for a number": b"new,a,x,2024-05-01,y\n",
    "a day that is none": b"new,a,1,2024-02-30,1\n",
    "a day beyond the calendar": b"new,a,1,292277026596-01-01,1\n",
    "an infinite day": b"new,a,1,infinity,1\n",
    "no person": b",a,1,2024-05-01,1\n",
    "empty cells": b"new,,,,\n",
    "an unknown group": b"new,zzz,1,2024-05-01,99\n",
    "too few cells": b"new,a\n",
    "a quote that is not closed": b'new,"a,1,2024-05-01,1\n',
    "bytes that are no text": b"new,\xff\xfe,1,2024-05-01,1\n",
    "the separator of groups": b"new,a\x1fb,1,2024-05-01,1\n",
    "a formula": b"new,=1+1,1,2024-05-01,1\n",
    "SQL": b"new,'; DROP TABLE t; --,1,2024-05-01,1\n",
}
QUESTIONS = {
    "arithmetic": "SELECT g, COUNT(*) AS n, SUM(LEAST(v / p, 9)) AS s, "
    "AVG(LN(v) + SQRT(p - 1)) AS m FROM rows WHERE v * 2 > 1 OR p IS NULL GROUP BY g",
    "dates": "SELECT EXTRACT(QUARTER FROM d) AS q, COUNT(DISTINCT u) AS n FROM rows "
    "WHERE DATE_DIFF('day', d, DATE '2025-01-01') > 0 GROUP BY q",
    "quantiles": "SELECT g, COUNT(*) AS n, MEDIAN(v / p) AS m, MAX(v) AS x, MIN(v) FILTER (WHERE "
    "d > DATE '2024-03-01') AS y FROM rows GROUP BY g",
    "different values": "SELECT g, COUNT(DISTINCT p) AS n, COUNT(DISTINCT v * p) AS x, "
    "COUNT(DISTINCT d) FILTER (WHERE v > 2) AS y FROM rows GROUP BY g",
    "amounts": "SELECT g, SUM(v) AS s, SUM(v - 3) FILTER (WHERE p > 1) AS t, VAR_POP(v) AS w, "
    "COUNT(v) AS n FROM rows GROUP BY g",
    "joins": "SELECT kind, STDDEV(v) AS s FROM rows LEFT JOIN public ON p = id GROUP BY kind",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "arithmetic": {"keys": ["a", "b", "c"], "bounds": {"v": (0, 7), "p": (0, 4), "m": (-9, 9)}},
    "dates": {},
    "quantiles": {"keys": ["a", "b", "c"], "bounds": {"v": (0, 7), "m": (0, 7)}},
    "different values": {"keys": ["a", "b", "c"]},
    "amounts": {"keys": ["a", "b", "c"], "bounds": {"v": (0, 7)}, "max_rows_per_user": None},
    "joins": {"bounds": {"v": (0, 7)}, "public": ["public"]},
}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The private values of every part, in the order in which parts run."""
    seen: list[Any] = []
    make = query.refinement_of

    def watch(request: Any, progress: Any, groups: Any, values: Any, *rest: Any, **how: Any) -> Any:
        seen.append((request, progress.most, values))
        return make(request, progress, groups, values, *rest, **how)

    draw = sql_run.quantile_run_of

    def watch_cells(job: Any, request: Any, groups: Any, cells: Any, randomness: Any) -> Any:
        empty = CellCounts.empty()
        grid = np.arange(request.measure.low, request.measure.high + 2)
        counts = np.array([cells.get(group, empty).histogram(grid) for group in groups])
        seen.append((request, job.most_groups, counts))
        return draw(job, request, groups, cells, randomness)

    def third(users: Any, candidates: Any, *rest: Any, **how: Any) -> Any:
        return candidates[2]  # of all tables: a cap is released, so what follows is given it

    monkeypatch.setattr(cap_choice, "choose_cap", third)
    monkeypatch.setattr(query, "refinement_of", watch)
    monkeypatch.setattr(sql_run.QueryRun, "_is_hopeless", lambda *_: False)  # the order is fixed
    monkeypatch.setattr(sql_run, "quantile_run_of", watch_cells)
    return seen


def table(folder: Path, lines: bytes) -> Path:
    folder.mkdir()
    rows = "".join(",".join(row) + "\n" for row in ROWS).encode()
    (folder / "rows.csv").write_bytes(HEAD + lines + rows)
    (folder / "public.csv").write_text("id,kind\n1,x\n2,y\n3,x\n")
    return folder


def ask(name: str, folder: Path) -> Any:
    return expost.query(
        QUESTIONS[name],
        source=[folder / "rows.csv", folder / "public.csv"],
        user="u",
        epsilon=3.0,
        within=0.3,
        max_groups_per_user=2,
        randomness=SimulationRandomness(5),
        simulation=True,
        **{"max_rows_per_user": 2} | OPTIONS[name],
    )


def shape(result: Any) -> Any:
    """Everything but the noisy numbers and what follows from them."""
    document = result.as_dict()
    kept = ("columns", "guarantee", "protects", "question", "unit", "within", "max_groups_per_user")
    groups = [[row.values[name] for name in result.columns[:1]] for row in result.rows]
    return sorted(document), groups, [document[name] for name in kept], sorted(result.certificate())


EVERYWHERE = LINES.keys() & {"rows in all groups", "many rows"}  # what caps are for
"""Lines that every question meets; of the others half, each of them three questions."""


def lines_of(name: str, rest: bool) -> list[bytes]:
    turn = [*QUESTIONS].index(name) % 2
    half = {line for number, line in enumerate(LINES) if number % 2 == turn} | EVERYWHERE
    return [LINES[line] for line in LINES if (line in half) != rest]


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", QUESTIONS)
def test_no_line_changes_more_than_one_person(tmp_path, watched, name, rest):
    here = shape(ask(name, table(tmp_path / "here", b"")))
    first = list(watched)
    for number, line in enumerate(lines_of(name, rest)):
        watched.clear()
        assert shape(ask(name, table(tmp_path / str(number), line))) == here
        assert len(watched) == len(first)
        for (request, most, values), (_, _, others) in zip(first, watched, strict=True):
            if isinstance(values, np.ndarray):  # rows of each group and cell
                changed = np.abs(values - others).sum(axis=1)
                assert changed.max() <= request.measure.rows
                assert (changed > 0).sum() <= most
                continue
            one_person_apart(
                [(values.first, others.first), (values.second, others.second)],
                request.measure.sensitivity,
                most,
            )
            limit = request.limit(most)
            for one, other in ((values.kept, others.kept), (values.removed, others.removed)):
                assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) <= limit


def test_a_gap_in_a_column_of_truth_values(watched):
    """Such a column of pandas becomes one of Python objects, which are read as text."""
    pandas = pytest.importorskip("pandas")
    sql = (
        "SELECT COUNT_IF(b) AS n, SUM(b) AS s, COUNT(*) FILTER (WHERE NOT b) AS m, "
        "COUNT(*) FILTER (WHERE b = TRUE OR b IS FALSE) AS q FROM t"
    )
    seen = []
    for more in ([], [None], ["x"]):
        cells = [n % 3 > 0 for n in range(60)] + more
        frame = pandas.DataFrame({"u": list(range(len(cells))), "b": cells})
        seeded: dict[str, Any] = {"randomness": SimulationRandomness(1), "simulation": True}
        asked = {"source": {"t": frame}, "user": "u", "bounds": {"b": (0, 1)}, "epsilon": 9}
        expost.query(sql, **asked, **seeded)
        seen.append(sorted(int(values.first[0]) for _, _, values in watched))
        watched.clear()
    assert seen == [[20, 40, 40, 60]] * 3


def test_a_gap_in_a_column_of_whole_numbers():
    """Such a column of pandas becomes one of floats: the grid of quantiles does not tell."""
    pandas = pytest.importorskip("pandas")
    grids = []
    for more in (3, None):
        frame = pandas.DataFrame({"u": range(60), "v": [*range(59), more]})
        asked = {"source": {"t": frame}, "user": "u", "epsilon": 2, "bounds": {"v": (0, 99)}}
        checked = check_query("SELECT MEDIAN(v) AS m FROM t", asked)
        grids.append(checked.requests[0].measure.grid)
    assert grids[0] == grids[1]


def private_twice(folder: Path) -> dict[str, tuple[Any, str, str]]:
    """Sources in which a table that is declared public is the private one: source, FROM, JOIN."""
    path = table(folder, b"") / "rows.csv"
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(folder / "rows.duckdb")) as database:
        database.execute(
            "CREATE TABLE rows AS SELECT * FROM read_csv(?, all_varchar=true)", [str(path)]
        )
    (folder / "link.csv").symlink_to(path)
    frame = {"u": ["a", "b"], "g": ["x", "y"]}
    database_file = folder / "rows.duckdb"
    return {
        "one source for all names": ([path], "rows", "other"),
        "one file under two names": ({"rows": path, "other": str(path)}, "rows", "other"),
        "a link": ({"rows": path, "other": folder / "link.csv"}, "rows", "other"),
        "one table in memory": ({"rows": frame, "other": frame}, "rows", "other"),
        "a schema": ([database_file], "rows", "main.rows"),
        "a URL and a file": (
            {"rows": (f"duckdb://{database_file}", "rows"), "other": (str(database_file), "rows")},
            "rows",
            "other",
        ),
    }


@pytest.mark.parametrize("case", range(6))
def test_the_private_table_is_not_read_as_a_public_one(tmp_path, monkeypatch, case):
    """Whether its keys are unique, and which values it has, would be told in the clear."""
    source, name, other = list(private_twice(tmp_path / "here").values())[case]

    def read(*_: Any) -> Any:
        raise AssertionError("rows were read before anything was reserved")

    monkeypatch.setattr(sql_tables, "fetch", read)
    monkeypatch.setattr(sql_tables, "_fetched", read)
    with pytest.raises(InvalidInput, match="source is that of the private table"):
        expost.query(
            f"SELECT x.g, COUNT(*) AS n FROM {name} JOIN {other} AS x ON {name}.u = x.u "
            "GROUP BY x.g",
            source=source,
            user="u",
            public=[other],
            epsilon=1.0,
        )


def test_the_person_is_a_column_of_the_private_table():
    """A column of a public table would name persons of whom nobody is protected."""
    rows = {"u": [str(n) for n in range(90)], "k": [str(n % 3) for n in range(90)]}
    public = {"id": ["0", "1", "2"], "u": ["x", "y", "y"]}
    ask: dict[str, Any] = {"source": {"rows": rows, "p": public}, "public": ["p"], "epsilon": 50.0}
    sql = "SELECT COUNT(DISTINCT p.u) AS n, COUNT(DISTINCT rows.u) AS m FROM rows JOIN p ON k = id"
    with pytest.raises(InvalidInput, match="column of the private table"):
        expost.query(sql, user="p.u", **ask)
    with pytest.raises(InvalidInput, match="the table has the columns"):
        expost.query(sql, user="id", **ask)
    seeded: dict[str, Any] = {"randomness": SimulationRandomness(1), "simulation": True}
    result = expost.query(sql, user="u", one_row_per_user=True, **ask, **seeded)
    assert [part.kind for part in result.parts] == ["distinct", "users"]
    assert result.records()[0]["n"] == pytest.approx(2, abs=1.5)
    assert result.records()[0]["m"] == pytest.approx(90, abs=15)  # not 30 or 3
