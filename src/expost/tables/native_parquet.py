"""Parquet files read by DuckDB itself: half the time and memory of Arrow's reader, or Arrow's.

DuckDB fails at text that is not UTF-8, and at some times (:mod:`expost.tables.file_rows`). So it
reads only columns of whole numbers, floats, truth values and text, of one type in all files, and
if a query fails, the same query runs once more on Arrow's rows, where broken cells are NULL. Both
readers give the same rows where none is broken, so the answer does not depend on which one it was.

*Statistics of files are not used*: they leave out NaN, and some writers get them wrong, so that
one person's row in a row group would decide how the rows of others are read. Hence
``can_have_nan``, and no optimizer that moves conditions into the reader or reasons about ranges.
Test: ``tests/analytics/test_native_parquet.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from expost.tables.file_rows import quoted, tame_scanner

_STATISTICS = "statistics_propagation", "filter_pushdown", "join_filter_pushdown"
_OPTIMIZERS = ",".join((*_STATISTICS, "late_materialization"))  # which use statistics
_PLAIN = ("is_string", "is_integer", "is_boolean", "is_float32", "is_float64")
_FILES = "expost_parquet_views"  # of an engine: what is read natively, and Arrow's rows of it


def read_natively(engine: Any, names: Sequence[str], rows: Any, used: Collection[str]) -> Any:
    """Return an Ibis table of Parquet files that DuckDB reads; None if it must not.

    ``names`` are the files as DuckDB reads them, ``rows`` is Arrow's data set of them.
    """
    view = f"expost_rows_{id(rows):x}"
    files = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    read = f"read_parquet([{files}], can_have_nan = true, hive_partitioning = false)"
    try:
        engine.raw_sql(f"SET disabled_optimizers = '{_OPTIMIZERS}'")
        engine.raw_sql(f"CREATE TEMP VIEW {quoted(view)} AS SELECT * FROM {read}")
        table = engine.table(view)
    except Exception:  # a type that DuckDB does not know
        return None
    if not _same_columns(table, rows, used):
        return None

    vars(engine).setdefault(_FILES, []).append((view, rows, used))
    return table


def _same_columns(table: Any, rows: Any, used: Collection[str]) -> bool:
    """Whether both readers have the same columns, and those that are used are plain."""
    import ibis

    if list(table.columns) != rows.schema.names:
        return False
    return all(
        any(getattr(table[name].type(), plain)() for plain in _PLAIN)
        and table[name].type() == _logical(ibis, rows.schema.field(name).type)
        for name in (used or table.columns)
        if name in table.columns
    )


def _logical(ibis: Any, kind: Any) -> Any:
    """The type of a column of Arrow, as DuckDB has it."""
    import pyarrow as pa  # type: ignore[import-untyped]

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        return ibis.dtype(kind)
    except Exception:
        return None


def reads_with_arrow(engine: Any) -> bool:
    """Let an engine read its Parquet files through Arrow from now on; False if it does already."""
    views = vars(engine).pop(_FILES, [])
    for view, rows, used in views:
        scanner = f"{view}_arrow"
        engine.con.register(scanner, tame_scanner(rows, used))
        engine.raw_sql(f"CREATE OR REPLACE TEMP VIEW {quoted(view)} AS SELECT * FROM {scanner}")
    return bool(views)
