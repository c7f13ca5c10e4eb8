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
from pathlib import Path
from typing import Any
from uuid import uuid4

from expost.tables.file_rows import parquet_rows, quoted, tame_scanner

Columns = Collection[str]
_STATISTICS = "statistics_propagation", "filter_pushdown", "join_filter_pushdown"
_OPTIMIZERS = ",".join((*_STATISTICS, "late_materialization"))  # which use statistics
_PLAIN = ("is_string", "is_integer", "is_boolean", "is_float32", "is_float64")
_FILES = "expost_parquet_views"  # of an engine: what is read natively, and Arrow's rows of it


def read_natively(engine: Any, files: Sequence[Path], names: Sequence[str], used: Columns) -> Any:
    """Return an Ibis table of Parquet files that DuckDB reads; None if it must not.

    ``names`` are the files as DuckDB reads them.
    """
    from pyarrow import parquet  # type: ignore[import-untyped]

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
