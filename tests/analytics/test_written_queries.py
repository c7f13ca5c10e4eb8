"""Queries that are written once: the same answers, for each table its own, and no salt is kept."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.analytics import contribution
from expost.analytics.contribution import Measure, measured, totals
from expost.analytics.request import check_request
from expost.randomness.source import SimulationRandomness
from expost.tables import typed_columns
from expost.tables.typed_columns import KnownQuery

ASKED: dict[str, Any] = {"kind": "count", "by": ["city"], "keys": ["a", "b", "o'c"], "user": "who"}
ASKED |= {"within": 0.2, "epsilon": 2.0, "max_groups_per_user": 1}


def write(path: Path, rows: int, cities: str = "ab") -> Path:
    with path.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["who", "city", "age"])
        lines.writerows([f"p{n}", cities[n % len(cities)], n % 90] for n in range(rows))
    return path


@pytest.fixture(autouse=True)
def forgotten() -> None:
    typed_columns._WRITTEN.clear()


def known(path: Path, salt: str, calls: list[str], **more: Any) -> KnownQuery:
    """The query of a count of a file."""
    request = check_request(str(path), ASKED | more)

    def write_query() -> Any:
        calls.append(salt)
        pairs = measured(request.rows(), request.measure, request.keys, salt)
        return totals(pairs, 1, salt, 1)

    return KnownQuery(request.table, (request.shape, 1), salt, write_query)


def test_written_once_and_run_on_each_table(tmp_path: Path) -> None:
    calls: list[str] = []
    salts = [f"{number:032x}" for number in (7, 8, 9)]
    for rows, salt in zip((100, 40, 10), salts, strict=True):
        query = known(write(tmp_path / f"{rows}.csv", rows), salt, calls)
        told = contribution.run_totals(query)
        plain = contribution.run_totals(query.write())
        assert told.groups == plain.groups
        assert told.first.tolist() == plain.first.tolist() == [rows // 2, rows // 2]
        assert told.removed == plain.removed
    # Each was written for ``plain``; the one that was kept, once more.
    assert calls == [salts[0], *salts]


def test_no_salt_and_no_name_is_kept(tmp_path: Path) -> None:
    salt = "0123456789abcdef" * 2
    query = known(write(tmp_path / "a.csv", 10), salt, [])
    contribution.run_totals(query)
    kept = "".join(typed_columns._WRITTEN.values())
    assert typed_columns._SALT in kept
    assert typed_columns._TABLE in kept
    assert salt not in kept
    assert query.table.get_name() not in kept


def test_the_salt_decides_which_groups_count(tmp_path: Path) -> None:
    """Catches a salt that stays in the text: everybody would keep the same group for ever."""
    path = tmp_path / "both.csv"
    path.write_text("who,city,age\n" + "".join(f"p{n},{c},1\n" for n in range(400) for c in "ab"))
    kept = [
        contribution.run_totals(known(path, f"{number:032x}", [])).first.tolist()
        for number in range(6)
    ]
    assert all(sum(first) == 400 for first in kept)
    assert len({first[0] for first in kept}) > 1


def test_other_questions_and_other_tables_are_written_anew(tmp_path: Path) -> None:
    calls: list[str] = []
    path, salt = write(tmp_path / "a.csv", 60), "ab" * 16
    first = contribution.run_totals(known(path, salt, calls)).first.tolist()
    for more in ({"where": ["age>=30"]}, {"keys": ["a", "b"]}, {"by": ["age"], "keys": ["1"]}):
        before = len(calls)
        contribution.run_totals(known(path, salt, calls, **more))
        assert len(calls) == before + 1
    whole = tmp_path / "more.csv"
    whole.write_text("who,city,age,sex\np,a,1,f\n")
    before = len(calls)
    contribution.run_totals(known(whole, salt, calls))
    assert len(calls) == before + 1  # it has other columns
    assert contribution.run_totals(known(path, salt, calls)).first.tolist() == first


def test_what_has_no_name_of_its_own_is_written_each_time(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(write(tmp_path / "a.csv", 20))
    request = check_request(frame, ASKED)
    query = KnownQuery(request.table, request.shape, "cd" * 16, lambda: pytest.fail("not yet"))
    assert query._key() is None
    rows = request.rows()
    usable = measured(rows, Measure(), request.keys, "cd" * 16)
    again = KnownQuery(request.table, request.shape, "cd" * 16, lambda: totals(usable, 1, "s"))
    assert contribution.run_totals(again).first.tolist() == [10, 10]
    assert not any(typed_columns._WRITTEN.values())  # that a question was checked has no text


def test_a_column_that_is_not_there_is_refused_each_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 20)
    for _ in range(2):
        with pytest.raises(expost.InvalidInput):
            check_request(str(path), ASKED | {"by": ["town"]})
    assert not typed_columns._WRITTEN


def test_the_store_of_texts_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_columns, "_MOST_KEPT", 3)
    path = write(tmp_path / "a.csv", 20)
    for age in range(5):
        contribution.run_totals(known(path, "ef" * 16, [], where=[f"age>={age}"]))
        assert len(typed_columns._WRITTEN) <= 3


def test_counts_with_a_seed_are_what_they_were(tmp_path: Path) -> None:
    """The second question, whose text is known, has the answers of the first."""
    path = write(tmp_path / "a.csv", 3000)
    source = [SimulationRandomness(5), SimulationRandomness(5)]
    told = [expost.count(str(path), **_words(), randomness=one, simulation=True) for one in source]
    assert told[0].as_dict() == told[1].as_dict()


def _words() -> dict[str, Any]:
    return {name: value for name, value in ASKED.items() if name != "kind"}


@pytest.mark.parametrize("cap", ["none", 1, "auto"])
def test_a_long_list_of_groups(tmp_path: Path, cap: Any) -> None:
    """Ibis brings a long list along as a table of its own: such a query is not kept."""
    cities = [f"c{number}" for number in range(2500)]
    path = tmp_path / "rows.csv"
    lines = [f"p{row},{cities[row % 2500]}" for row in range(5000)]
    path.write_text("who,city\n" + "\n".join(lines) + "\n")
    asked = {"by": "city", "keys": cities, "user": "who", "max_groups_per_user": cap}
    asked |= {"epsilon": 1e6, "plus_minus": 0.3, "confidence": 1 - 1e-6}
    for _ in range(2):
        found = expost.count(path, **asked)
        counts = {answer.group: round(answer.estimate) for answer in found.answers}
        assert counts == dict.fromkeys(cities, 2)
