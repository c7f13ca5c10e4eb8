"""Answers as tables and files: keys in columns, digits by the interval, real formats."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import expost
from expost import SimulationRandomness
from expost.analytics import count_result
from expost.analytics.count_result import (
    AnswerTable,
    Measured,
    check_out,
    number_text,
    round_answer,
)
from expost.certificates.document import read_certificate
from expost.cli.count import read_keys
from expost.errors import InvalidInput, MissingExtra

KEYS = [("north", "=1+1"), ("south", "a|b\n"), ("south", "tiny")]


@pytest.fixture(scope="module")
def result() -> Any:
    pa = pytest.importorskip("pyarrow")
    sizes = dict(zip(KEYS, (2000, 700, 1), strict=True))
    rows = [key for key, size in sizes.items() for _ in range(size)]
    table = pa.table({"u": range(len(rows)), "r": [r for r, _ in rows], "p": [p for _, p in rows]})
    return expost.count(
        table,
        by=["r", "p"],
        user="u",
        keys=KEYS,
        epsilon=1,
        one_row_per_user=True,
        randomness=SimulationRandomness(1),
        simulation=True,
    )


@pytest.mark.parametrize(
    ("numbers", "whole", "expected"),
    [
        ((41214.875, 40702.1, 41727.6), True, (41210, 40700, 41730)),
        ((181.4, 163.2, 199.6), True, (181, 163, 200)),
        ((3.2, -1.5, 8.0), True, (3, -2, 8)),
        ((0.123456, 0.12, 0.13), False, (0.1235, 0.12, 0.13)),
        ((1234.5678, 1000.0, 1500.0), False, (1230.0, 1000.0, 1500.0)),
        ((7.25, 7.25, 7.25), False, (7.25, 7.25, 7.25)),
        ((math.nan, -math.inf, math.inf), True, (None, None, None)),
        ((5.5, -math.inf, math.inf), True, (6, None, None)),
    ],
)
def test_digits(numbers, whole, expected):
    assert round_answer(*numbers, whole=whole) == expected


@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-9, 1e12),
    st.booleans(),
)
def test_rounding_keeps_the_interval(centre, width, whole):
    """The interval only grows, by at most a tenth per side, and the estimate stays near."""
    low, high = centre - width, centre + width
    if not low < high:
        return
    short = round_answer(centre, low, high, whole=whole)
    unit = max((high - low) / 20, 1.0 if whole else 0.0) * (1 + 1e-6)
    slack = 1e-15 * max(abs(low), abs(high))
    assert low - unit - slack <= short.low <= low + slack
    assert high - slack <= short.high <= high + unit + slack
    assert abs(short.estimate - centre) <= unit / 2 + slack


def test_numbers_for_people():
    assert number_text(41210) == "41,210"
    assert number_text(1234.5) == "1,234.5"
    assert number_text(12.0) == "12"
    assert number_text(None) == "–"
    assert number_text(1e-9) == "1e-09"


def test_a_data_frame(result):
    frame = result.to_frame()
    assert list(frame.columns) == ["r", "p", "estimate", "low", "high", "spent", "answered"]
    assert sorted(zip(frame.r, frame.p, strict=True)) == sorted(KEYS)
    assert str(frame.estimate.dtype) == "Int64"
    assert frame.answered.tolist() == [True, True, False]


def test_csv(result, tmp_path):
    result.save(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    assert header[:3] == ["r", "p", "estimate"]
    assert {tuple(row[:2]) for row in rows} == {(r, p.replace("=", "'=")) for r, p in KEYS}
    assert [row[-1] for row in rows] == ["yes", "yes", "no"]


def test_parquet(result, tmp_path):
    from pyarrow import parquet

    result.save(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == result.answer_table().header
    assert [str(kind) for kind in table.schema.types[:3]] == ["string", "string", "int64"]
    empty = AnswerTable(("g",), (), (Measured((), (), (), ()),))
    empty.save(tmp_path / "empty.parquet")
    assert parquet.read_table(tmp_path / "empty.parquet").num_rows == 0


def test_a_workbook(result, tmp_path):
    """A real workbook: a formula in a name stays text, and the certificate has a sheet."""
    openpyxl = pytest.importorskip("openpyxl")
    result.save(tmp_path / "boss.xlsx")
    book = openpyxl.load_workbook(tmp_path / "boss.xlsx")
    assert book.sheetnames == ["Answers", "Certificate"]
    rows = list(book["Answers"].iter_rows())
    assert [cell.value for cell in rows[0]] == result.answer_table().header
    names = {rows[i][1].value: rows[i][1].data_type for i in range(1, 4)}
    assert names["=1+1"] == "s"
    assert isinstance(rows[1][2].value, int)
    words = {row[0].value: row[1].value for row in book["Certificate"].iter_rows()}
    assert "what these answers cost" in words["charge"]
    assert words["certificate"] == "Certificate of counts, sums or means"


def test_json_is_the_certificate(result, tmp_path):
    result.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document == result.certificate()
    assert document["answers"][0]["estimate"] == result.answers[0].estimate  # all digits
    assert read_certificate(tmp_path / "a.json")["kind"] == "count"


def test_markdown(result, tmp_path):
    result.save(tmp_path / "a.md")
    lines = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# 2 of 3 groups answered within 10%"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert all(line.replace("\\|", "").count("|") == 8 for line in table)
    assert any(line.startswith("- charge: ") for line in lines)


def test_several_measures_and_keys_named_like_columns():
    one = Measured([1.0], [0.0], [2.0], [True], "orders", whole=True)
    two = Measured([0.5], [0.4], [0.6], [False], "share")
    table = AnswerTable(("low",), [("x",)], (one, two))
    assert table.header == [
        *("low", "orders", "orders_low", "orders_high", "orders_answered"),
        *("share", "share_low", "share_high", "share_answered"),
    ]
    assert AnswerTable(("low",), [("x",)], (one,)).header[1:3] == ["orders", "low_"]
    assert table.rows() == [["x", 1, 0, 2, True, 0.5, 0.4, 0.6, False]]
    assert table.to_frame()["share"].dtype == float


def test_files_that_cannot_be_written(tmp_path, monkeypatch):
    """Each is refused before anything is read."""
    (tmp_path / "there.csv").write_text("")
    for name, words in (
        ("a.txt", "ending in .csv"),
        ("a", "ending in"),
        ("there.csv", "exists"),
        ("no/a.csv", "folder"),
    ):
        with pytest.raises(InvalidInput, match=words):
            check_out(tmp_path / name)
    monkeypatch.setattr(count_result.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="xlsx"):
        check_out(tmp_path / "a.xlsx")
    check_out(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("g\na\nb\n", ["g"], ["a", "b"]),
        ("a\nb\n", ["g"], ["a", "b"]),
        ("x,g\n1,a\n2,b\n", ["g"], ["a", "b"]),
        ("p,r\n1,n\n2,s\n", ["r", "p"], [("n", "1"), ("s", "2")]),
        ("n,1\ns,2\n", ["r", "p"], [("n", "1"), ("s", "2")]),
    ],
)
def test_headers_of_keys_files(tmp_path: Path, text, columns, expected):
    (tmp_path / "keys.csv").write_text(text)
    assert read_keys(tmp_path / "keys.csv", columns) == expected


def test_a_short_line_of_a_keys_file(tmp_path: Path):
    (tmp_path / "keys.csv").write_text("r,p\nn\n")
    with pytest.raises(InvalidInput, match="2 cells"):
        read_keys(tmp_path / "keys.csv", ["r", "p"])
