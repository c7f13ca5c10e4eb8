"""Text files (CSV, TSV, JSON lines): the header, and rows of which each is one line.

Stability. A file is split at line breaks first, and then every line by itself. So a line that is
added, removed or broken changes its own row and no other. A quoted cell cannot contain a line
break: with a parser that allows it, one quote that is not closed would swallow the lines after it.
A line that does not have exactly one cell per column, is no JSON object, is not UTF-8, or is longer
than 2 MB is ignored. No line can make a request fail. (DuckDB's own reader of JSON fails at a line
of more than 32 MB.) A carriage return ends a line, too.

DuckDB reads the lines and splits them. Only lines with a quote need a regular expression.
Tests: ``tests/analytics/test_text_lines.py``.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from expost.errors import InvalidInput

DELIMITERS = (",", ";", "\t", "|")
_NEVER = "\x01"  # where it occurs, the rest of the line is ignored


class Header(NamedTuple):
    """The delimiter of a file and the names of its columns, in their order."""

    delimiter: str
    names: tuple[str, ...]


def read_header(path: Path, delimiter: str | None = None) -> Header:
    """Return the delimiter and the column names; only the first line of the file is read.

    Parameters
    ----------
    path : Path
        A text file; a name ending in ``.gz`` is read as gzip.
    delimiter : str, optional
        The delimiter. By default a tab for ``.tsv``, else the one that gives the most columns.

    Returns
    -------
    Header
        The delimiter and the names. A column without a name is called by its place.

    Raises
    ------
    InvalidInput
        If the line names no columns, names one twice, or has a quote that is not closed.
    """
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as stream:
        line = stream.readline()
    if line.count(b'"') % 2:
        raise InvalidInput(
            "source",
            str(path),
            "a quote in the line of column names is not closed; names cannot have line breaks",
        )
    header = line.decode("utf-8-sig")
    delimiters: Sequence[str] = DELIMITERS
    if delimiter is not None:
        delimiters = (delimiter,)
    elif path.name.lower().endswith((".tsv", ".tsv.gz")):
        delimiters = ("\t",)
    parsed = [
        next(csv.reader(io.StringIO(header, newline=""), delimiter=each), []) for each in delimiters
    ]
    names, found = max(zip(parsed, delimiters, strict=True), key=lambda pair: len(pair[0]))
    if not any(names):
        raise InvalidInput("source", str(path), "the first line must name the columns")
    names = [name or f"column{place}" for place, name in enumerate(names)]
    if len({name.lower() for name in names}) < len(names):
        raise InvalidInput(
            "source",
            str(path),
            "two columns have the same name (capitals do not count); rename one",
        )
    return Header(found, tuple(names))


def read_lines(engine: Any, files: Sequence[str], header: Header) -> Any:
    """Return an Ibis table of text columns with one row per line.

    Parameters
    ----------
    engine : ibis.backends.duckdb.Backend
        The connection that reads.
    files : sequence of str
        Paths, as DuckDB takes them.
    header : Header
        What all files have as their first line.

    Returns
    -------
    ibis.Table
        One text column per name. An empty cell is NULL.
    """
    lines = _lines(engine, files, header=True)
    mark = _text(header.delimiter)
    point = f"\\x{{{ord(header.delimiter):x}}}"  # the delimiter in a regular expression
    cell = _text(f'{point}("(?:[^"]|"")*"|[^{point}]*)')
    split = (
        f"CASE WHEN contains(line, '\"') THEN regexp_extract_all({mark} || line, {cell}, 1) "
        f"ELSE string_split(line, {mark}) END"
    )
    chosen = ", ".join(
        f"{_unquoted(f'cells[{place}]')} AS {_name(name)}"
        for place, name in enumerate(header.names, start=1)
    )
    view = f"{lines.get_name()}_rows"
    engine.raw_sql(
        f"CREATE TEMP VIEW {_name(view)} AS SELECT {chosen} FROM (SELECT {split} AS cells FROM "
        f"(SELECT trim(line, chr(10) || chr(13)) AS line FROM {_name(lines.get_name())})) "
        f"WHERE len(cells) = {len(header.names)}"
    )
    return engine.table(view)


def read_json_lines(engine: Any, files: Sequence[str], names: Sequence[str]) -> Any:
    """Return an Ibis table of text columns with one row per line that is a JSON object.

    Parameters
    ----------
    engine : ibis.backends.duckdb.Backend
        The connection that reads.
    files : sequence of str
        Paths, as DuckDB takes them.
    names : sequence of str
        The keys to read, without repetitions.

    Returns
    -------
    ibis.Table
        One text column per name. A key that is missing or null is NULL.
    """
    lines = _lines(engine, files, header=False)
    chosen = ", ".join(
        f"json_extract_string(line, {_text(_pointer(name))}) AS {_name(name)}" for name in names
    )
    view = f"{lines.get_name()}_rows"
    # The inner CASE: conditions of WHERE may be evaluated after what is selected.
    engine.raw_sql(
        f"CREATE TEMP VIEW {_name(view)} AS SELECT {chosen} FROM (SELECT "
        "CASE WHEN json_valid(line) THEN line ELSE 'null' END AS line "
        f"FROM {_name(lines.get_name())}) WHERE json_type(line) = 'OBJECT'"
    )
    return engine.table(view)


def _lines(engine: Any, files: Sequence[str], *, header: bool) -> Any:
    """Return an Ibis table with one text column, ``line``."""
    return engine.read_csv(
        list(files),
        header=header,
        auto_detect=False,
        delim=_NEVER,
        quote="",
        escape="",
        columns={"line": "VARCHAR"},
        ignore_errors=True,
        strict_mode=False,
    )


def _pointer(name: str) -> str:
    """Return the JSON pointer of a key."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _unquoted(cell: str) -> str:
    """Return SQL for a cell without its quotes; NULL if it is empty."""
    whole = f"length({cell}) >= 2 AND starts_with({cell}, '\"') AND ends_with({cell}, '\"')"
    bare = f"replace(substr({cell}, 2, length({cell}) - 2), '\"\"', '\"')"
    return f"nullif(CASE WHEN {whole} THEN {bare} ELSE {cell} END, '')"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
