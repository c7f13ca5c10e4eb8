"""Columns of Arrow tables and Parquet files, without cells that the engine cannot hold.

DuckDB fails at text that is not UTF-8, at a time of day beyond midnight, and at a timestamp that
overflows when its unit is changed. One such cell would end a request, and a broken timestamp in a
data frame ends every later request of the process. Such cells become NULL here, each by itself,
before DuckDB sees them. Dates and timestamps are kept in the years 1 to 9999. Columns that are not
used are not read: they have their name and their type, and NULL in every row.

Tests: ``tests/hostile/test_analytics.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from expost.errors import InvalidInput

_TEXT = r"\A[\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}]*\z"  # what UTF-8 can encode
_SECONDS = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_DAY = 86_400
_LONGEST = 10**9  # seconds of a duration
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WORD = 2**63 - 1


def tame_scanner(data: Any, used: Collection[str]) -> Any:
    """Return a scanner over a data set whose used columns hold only what DuckDB can hold.

    Parameters
    ----------
    data : pyarrow.dataset.Dataset
        The rows: an Arrow table or Parquet files.
    used : collection of str
        The columns that will be read; all of them if it is empty.

    Returns
    -------
    pyarrow.dataset.Scanner
        It has the columns of ``data`` in their order.
    """
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

    Raises
    ------
    InvalidInput
        If the types of a column differ: whether one can be changed into the other would depend on
        rows.
    """
    import pyarrow as pa
    from pyarrow import dataset, parquet

    schemas = [parquet.read_schema(path).remove_metadata() for path in files]
    try:
        schema = pa.unify_schemas(schemas)
    except pa.ArrowException:
        schema = None
    if schema is None or any(set(each.names) != set(schema.names) for each in schemas):
        raise InvalidInput("source", "Parquet files", "the files have different columns")
    found = dataset.dataset(list(files), format="parquet", partitioning="hive")
    for field in found.schema:
        if field.name not in schema.names:
            schema = schema.append(field)
    return found.replace_schema(schema)


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
        fine = compute.match_substring_regex(cells, _TEXT)
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
