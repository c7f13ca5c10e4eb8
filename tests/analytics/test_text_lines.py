"""Rows of text files: each line by itself, whatever it contains."""

from __future__ import annotations

import csv as csv_module
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.tables.file_rows import read_header
from expost.tables.sources import open_source

CELLS = st.text(alphabet="ab,;\"' ", min_size=1, max_size=6)
CLEAN = [(f"u{place}", f"g{place % 3}") for place in range(6)]


def read(path, content: bytes, **options) -> list[tuple[str | None, ...]]:
    """The rows of a file with this content."""
    path.write_bytes(content)
    frame = open_source(path, **options).to_pyarrow()
    return [tuple(row.values()) for row in frame.to_pylist()]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "rows.csv"


@settings(max_examples=60, deadline=None)
@given(
    odd=st.one_of(
        st.binary(max_size=12), st.text(alphabet=',"\r\\ab;\x01\x00', max_size=8).map(str.encode)
    ).map(lambda line: line.replace(b"\n", b"")),
    place=st.integers(0, 6),
    end=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
)
@example(odd=b'x,"', place=0, end=b"\n", last=True)
@example(odd=b"x\r", place=2, end=b"\r\n", last=True)
@example(odd=b"", place=3, end=b"\n", last=False)
@example(odd=b"\xff,\xfe", place=1, end=b"\n", last=True)
def test_a_line_changes_no_other_row(file, odd, place, end, last):
    """The rows of the other lines are there, in their order, and nothing fails."""
    lines = [",".join(row).encode() for row in CLEAN]
    lines.insert(place, odd)
    rows = read(file, b"u,g" + end + end.join(lines) + (end if last else b""))
    assert [row for row in rows if row in CLEAN] == CLEAN


def test_a_line_that_is_too_long_is_ignored(file):
    content = b"u,g\nu0,g0\n" + b"x" * 3_000_000 + b",y\nu1,g1\n"
    assert read(file, content) == [("u0", "g0"), ("u1", "g1")]


@pytest.mark.parametrize("line", [b"a", b"a,b,c", b"", b'"a', b'a,"b,c"d,e'])
def test_lines_with_another_number_of_cells_are_ignored(file, line):
    assert read(file, b"u,g\nu0,g0\n" + line + b"\nu1,g1\n") == [("u0", "g0"), ("u1", "g1")]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.text(alphabet="ab,;\"' ", min_size=1, max_size=6)] * 2),
        min_size=1,
        max_size=5,
    ),
    delimiter=st.sampled_from([",", ";", "|", "\t", "~"]),
    quoting=st.sampled_from([csv_module.QUOTE_MINIMAL, csv_module.QUOTE_ALL]),
)
def test_what_a_csv_writer_writes_is_read(file, rows, delimiter, quoting):
    """Quoted cells with delimiters and doubled quotes come back as they were."""
    text = io.StringIO()
    writer = csv_module.writer(text, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writerow(["u", "g"])
    writer.writerows(rows)
    assert read(file, text.getvalue().encode(), delimiter=delimiter) == rows


def test_empty_cells_are_missing(file):
    assert read(file, b'u,g\n,g0\nu1,""\n') == [(None, "g0"), ("u1", None)]


def test_a_name_with_a_line_break_is_refused(tmp_path):
    """Otherwise a quote that is not closed would draw rows into the header."""
    (tmp_path / "a.csv").write_text('u,"g\nu1,g1"\n')
    with pytest.raises(InvalidInput, match="not closed"):
        read_header(tmp_path / "a.csv")
