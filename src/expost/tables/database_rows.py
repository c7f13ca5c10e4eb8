"""Copy the columns of a database table to a Parquet file, so that training reads them in batches.

A copy is one version of the table: later changes do not reach a job that has begun. Its order is
the engine's and may depend on any row, so whoever reads it must not let the order decide anything
(:mod:`expost.tuning.rows.job_rows` splits such rows by coins). Numbers become float64 and
everything else becomes text inside the engine, by casts that fail at no row.

Tests: ``tests/tuning/test_database_rows.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from expost.errors import InvalidInput


def check_database(source: str, field: str) -> None:
    """Refuse a URL with a password: it would be written into job files."""
    from expost.tables.sources import without_password

    if "://" in source and urlsplit(source).password:
        raise InvalidInput(
            field,
            without_password(source),
            "leave the password out; the driver reads it from its environment (PGPASSWORD) or file",
        )


def total_columns(opened: Any, columns: Sequence[str]) -> Any:
    """Return some columns of an Ibis table as numbers or text."""
    from expost.tables.typed_columns import check_column, engine_of

    engine = engine_of(opened)
    for name in columns:
        check_column(opened, "data.features", name, engine)
    return opened.select([_total(opened[name], engine).name(name) for name in columns])


def copied_rows(selected: Any, table: str | None) -> CopiedTable:
    """Copy what :func:`total_columns` returned to a file that only this user can read.

    No row makes this fail: what an engine says of one is not shown.
    """
    copy = CopiedTable()
    try:
        selected.to_parquet(copy.path)
        return copy
    except Exception as error:  # its text may quote a row
        problem = type(error).__name__
    raise InvalidInput("data.table", table, f"the table cannot be read ({problem})")


class CopiedTable:
    """The copy of a table; it is deleted with the last reference to it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="expost")
        self.path = Path(self._folder.name) / "rows.parquet"


def _total(column: Any, engine: str) -> Any:
    """Return a column as numbers or text, by a cast that fails at no row."""
    from expost.tables.typed_columns import column_text, finite_column

    kind = column.type()
    if kind.is_floating() or kind.is_integer():
        return column.cast("float64")
    if kind.is_decimal():  # a cast of its own fails where a number is too large
        return finite_column(column, engine, "data.features")
    if kind.is_boolean() or kind.is_string() or kind.is_temporal():
        return column_text(column, engine, False)
    raise InvalidInput(
        "data.features",
        column.get_name(),
        f"a column of type {kind} is not read; name other columns in data.features",
    )
