"""Files: the header and lines of text files, and cells of Parquet files that DuckDB can hold.

**Text files** (CSV, TSV, JSON lines): rows of which each is one line.

Stability. A file is split at line breaks first, and then every line by itself. So a line that is
added, removed or broken changes its own row and no other. A quoted cell cannot contain a line
break: with a parser that allows it, one quote that is not closed would swallow the lines after it.
A line that does not have exactly one cell per column, is no JSON object, is not UTF-8, or is longer
than 2 MB is ignored. No line can make a request fail. (DuckDB's own reader of JSON fails at a line
of more than 32 MB.) A carriage return ends a line, too.

DuckDB reads the lines and splits them. Only lines with a quote need a regular expression.

**Arrow tables and Parquet files.** DuckDB fails at text that is not UTF-8, at a time of day beyond
midnight, and at a timestamp that overflows when its unit is changed. One such cell would end a
request, and a broken timestamp in a data frame ends every later request of the process. Such cells
become NULL here, each by itself, before DuckDB sees them. Dates and timestamps are kept in the
years 1 to 9999. Columns that are not used are not read: they have their name and their type, and
NULL in every row.

**Parquet files read by DuckDB itself** take half the time and memory of Arrow's reader. DuckDB
reads only columns of whole numbers, floats, truth values and text, of one type in all files, and
if a query fails, the same query runs once more on Arrow's rows, where broken cells are NULL. Both
readers give the same rows where none is broken, so the answer does not depend on which one it was.
*Statistics of files are not used*: they leave out NaN, and some writers get them wrong, so that
one person's row in a row group would decide how the rows of others are read. Hence
``can_have_nan``, and no optimizer that moves conditions into the reader or reasons about ranges.

Tests: ``tests/analytics/test_native_parquet.py``, ``tests/analytics/test_text_lines.py``,
``tests/hostile/test_analytics.py``.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from expost.errors import InvalidInput

DELIMITERS = (",", ";", "\t", "|")
_NEVER = "\x01"  # where it occurs, the rest of the line is ignored
_UTF8 = r"\A[\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}]*\z"  # what UTF-8 can encode
_SECONDS = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_DAY = 86_400
_LONGEST = 10**9  # seconds of a duration
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WORD = 2**63 - 1


class Header(NamedTuple):
    """The delimiter of a file and the names of its columns, in their order."""

    delimiter: str
    names: tuple[str, ...]


def read_header(path: Path, delimiter: str | None = None) -> Header:
    """Return the delimiter and the column names; only the first line of the file is read."""
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
        next(csv.reader(io.StringIO(header, newline=""), delimiter=mark), []) for mark in delimiters
    ]
    names, mark = max(zip(parsed, delimiters, strict=True), key=lambda pair: len(pair[0]))
    if not any(names):
        raise InvalidInput("source", str(path), "the first line must name the columns")
    names = [name or f"column{index}" for index, name in enumerate(names)]
    if len({name.lower() for name in names}) < len(names):
        raise InvalidInput(
            "source",
            str(path),
            "two columns have the same name (capitals do not count); rename one",
        )
    return Header(mark, tuple(names))


def read_lines(engine: Any, files: Sequence[str], header: Header) -> Any:
    """Return an Ibis table of text columns with one row per line."""
    lines = _lines(engine, files, header=True)
    mark = _text(header.delimiter)
    point = f"\\x{{{ord(header.delimiter):x}}}"  # the delimiter in a regular expression
    cell = _text(f'{point}("(?:[^"]|"")*"|[^{point}]*)')
    split = (
        f"CASE WHEN contains(line, '\"') THEN regexp_extract_all({mark} || line, {cell}, 1) "
        f"ELSE string_split(line, {mark}) END"
    )
    chosen = ", ".join(
        f"{_unquoted(f'cells[{index}]')} AS {quoted(name)}"
        for index, name in enumerate(header.names, start=1)
    )
    view = f"{lines.get_name()}_rows"
    engine.raw_sql(
        f"CREATE TEMP VIEW {quoted(view)} AS SELECT {chosen} FROM (SELECT {split} AS cells FROM "
        f"(SELECT trim(line, chr(10) || chr(13)) AS line FROM {quoted(lines.get_name())})) "
        f"WHERE len(cells) = {len(header.names)}"
    )
    return engine.table(view)


def read_json_lines(engine: Any, files: Sequence[str], names: Sequence[str]) -> Any:
    """Return an Ibis table of text columns with one row per line that is a JSON object."""
    lines = _lines(engine, files, header=False)
    chosen = ", ".join(
        f"json_extract_string(line, {_text(_pointer(name))}) AS {quoted(name)}" for name in names
    )
    view = f"{lines.get_name()}_rows"
    # The inner CASE: conditions of WHERE may be evaluated after what is selected.
    engine.raw_sql(
        f"CREATE TEMP VIEW {quoted(view)} AS SELECT {chosen} FROM (SELECT "
        "CASE WHEN json_valid(line) THEN line ELSE 'null' END AS line "
        f"FROM {quoted(lines.get_name())}) WHERE json_type(line) = 'OBJECT'"
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


def quoted(value: str) -> str:
    """Return a name in SQL."""
    return '"' + value.replace('"', '""') + '"'


def tame_scanner(data: Any, used: Collection[str]) -> Any:
    """Return a scanner over a data set whose used columns hold only what DuckDB can hold."""
    import pyarrow as pa  # type: ignore[import-untyped]

    chosen = {}
    for field in data.schema:
        if used and field.name not in used:
            chosen[field.name] = _constant(pa.scalar(None, field.type))
        else:
            chosen[field.name] = _tame(field.name, field.type)
    return data.scanner(columns=chosen)


def parquet_rows(files: Sequence[str]) -> Any:
    """Return a data set of Parquet files with the same columns.

    A name like ``year=2026`` of a folder is a column, as in DuckDB. A column that has no values in
    one file (type null) may have any type in the others.
    """
    import pyarrow as pa
    from pyarrow import dataset, parquet

    schemas = [parquet.read_schema(path).remove_metadata() for path in files]
    try:
        schema = pa.unify_schemas(schemas)
    except pa.ArrowException:
        schema = None
    if schema is None or any(set(other.names) != set(schema.names) for other in schemas):
        raise InvalidInput("source", "Parquet files", "the files have different columns")
    rows = dataset.dataset(list(files), format="parquet", partitioning="hive")
    for field in rows.schema:
        if field.name not in schema.names:
            schema = schema.append(field)
    return rows.replace_schema(schema)


def _constant(scalar: Any) -> Any:
    """Return an expression with one value in every row."""
    from pyarrow import compute

    return compute.scalar(scalar)


def _tame(name: str, kind: Any) -> Any:
    """Return an expression for a column, NULL where DuckDB would fail; it fails at no cell."""
    import pyarrow as pa
    from pyarrow import compute

    cells = compute.field(name)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        cells = cells.cast(kind)
    if str(kind) == "string_view":
        kind = pa.large_string()
        cells = cells.cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        fine = compute.match_substring_regex(cells, _UTF8)
    elif pa.types.is_float16(kind):
        return cells.cast(pa.float32())
    elif pa.types.is_decimal256(kind):
        return cells.cast(pa.float64())
    elif (ends := _ends(kind)) is not None:
        numbers = cells.cast(pa.int64())
        if pa.types.is_time32(kind) or pa.types.is_date32(kind):
            numbers = cells.cast(pa.int32()).cast(pa.int64())
        fine = (numbers >= ends[0]) & (numbers <= ends[1])
    else:
        return cells
    return compute.if_else(fine, cells, pa.scalar(None, kind))


def _ends(kind: Any) -> tuple[int, int] | None:
    """Return the smallest and the largest number of a temporal type; None for other types."""
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return _SECONDS[0] // _DAY, _SECONDS[1] // _DAY
    if pa.types.is_date64(kind):
        return _SECONDS[0] * 1000, _SECONDS[1] * 1000 + 999
    if pa.types.is_time(kind):
        return 0, _DAY * _PER_SECOND[kind.unit] - 1
    if pa.types.is_timestamp(kind):
        parts = _PER_SECOND[kind.unit]
        return max(-_WORD, _SECONDS[0] * parts), min(_WORD, (_SECONDS[1] + 1) * parts - 1)
    if pa.types.is_duration(kind):
        longest = _LONGEST * _PER_SECOND[kind.unit]
        return -longest, longest
    return None


Columns = Collection[str]
_STATISTICS = "statistics_propagation", "filter_pushdown", "join_filter_pushdown"
_OPTIMIZERS = ",".join((*_STATISTICS, "late_materialization"))  # which use statistics
_PLAIN = ("is_string", "is_integer", "is_boolean", "is_float32", "is_float64")
_FILES = "expost_parquet_views"  # of an engine: what is read natively, and Arrow's rows of it


def read_natively(engine: Any, files: Sequence[Path], names: Sequence[str], used: Columns) -> Any:
    """Return an Ibis table of Parquet files that DuckDB reads; None if it must not.

    ``names`` are the files as DuckDB reads them.
    """
    from pyarrow import parquet

    if any("=" in part for path in files for part in path.parts):
        return None  # a folder may be a column
    schemas = [parquet.read_schema(path).remove_metadata() for path in files]
    view = f"expost_rows_{uuid4().hex}"
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    read = f"read_parquet([{listed}], can_have_nan = true, hive_partitioning = false)"
    try:
        engine.raw_sql(f"SET disabled_optimizers = '{_OPTIMIZERS}'")
        engine.raw_sql(f"CREATE TEMP VIEW {quoted(view)} AS SELECT * FROM {read}")
        table = engine.table(view)
    except Exception:  # a type that DuckDB does not know
        return None
    if not all(_same_columns(table, schema, used) for schema in schemas):
        return None
    vars(engine).setdefault(_FILES, []).append((view, files, used))
    return table


def _same_columns(table: Any, schema: Any, used: Columns) -> bool:
    """Whether both readers have the same columns, and those that are used are plain."""
    if list(table.columns) != schema.names:
        return False
    return all(
        any(getattr(table[name].type(), plain)() for plain in _PLAIN)
        and table[name].type() == _logical(schema.field(name).type)
        for name in (used or table.columns)
        if name in table.columns
    )


def _logical(kind: Any) -> Any:
    """The type of a column of Arrow, as DuckDB has it; None if there is none."""
    import ibis
    import pyarrow as pa

    try:
        return ibis.dtype(kind.value_type if pa.types.is_dictionary(kind) else kind)
    except Exception:
        return None


def reads_with_arrow(engine: Any) -> bool:
    """Let an engine read its Parquet files through Arrow from now on; False if it does already."""
    views = vars(engine).pop(_FILES, [])
    for view, files, used in views:
        scanner, rows = f"{view}_arrow", parquet_rows([str(path.absolute()) for path in files])
        engine.con.register(scanner, tame_scanner(rows, used))
        engine.raw_sql(f"CREATE OR REPLACE TEMP VIEW {quoted(view)} AS SELECT * FROM {scanner}")
    return bool(views)
