"""Queries in SQL that were written before: Ibis takes longer to write one than DuckDB to run it.

A query is known by the types of its table and by what is asked of it, all of which is public. Its
text is kept with marks in the places of the table's name and of the salt: both are drawn at random,
so they occur nowhere else, and the salt of no run is kept. Files that DuckDB reads are asked in
this way; tables of databases have names that could occur elsewhere.
Tests: ``tests/analytics/test_written_queries.py``.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from expost.tables.typed_columns import check_compiles, ibis_module

_TABLE, _SALT = f"t{secrets.token_hex(16)}", secrets.token_hex(16)
_DRAWN_NAMES = ("ibis_read_", "expost_rows_")
_DRAWN_SALT = 32  # hexadecimal digits
_MOST_KEPT, _LONGEST = 512, 100_000
_WRITTEN: OrderedDict[Hashable, str] = OrderedDict()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class KnownQuery:
    """A query of a table. ``asked`` and the table's types determine it, but for the salt."""

    table: Any
    asked: Hashable
    salt: str
    write: Callable[[], Any]

    def check(self) -> None:
        """Refuse a query that the engine's dialect cannot express, unless an equal one was not."""
        key = self._key()
        if key is None or _kept((key, "checked")) is None:
            check_compiles(self.write())
            if key is not None:
                _keep((key, "checked"), "")

    def to_pyarrow(self) -> Any:
        """Run the query, as an Ibis expression does; it is written if no equal one was."""
        key = self._key()
        if key is None or len(self.salt) != _DRAWN_SALT:
            return self.write().to_pyarrow()
        text, name = _kept(key), self.table.get_name()
        connection = ibis_module().get_backend(self.table)
        if text is None:
            written = str(connection.compile(self.write()))
            text = written.replace(name, _TABLE).replace(self.salt, _SALT)
            _keep(key, text)
        own = text.replace(_TABLE, name).replace(_SALT, self.salt)
        return connection.con.sql(own).to_arrow_table()

    def _key(self) -> Hashable:
        """What the query is known by; None for one that is written each time."""
        from ibis.expr import operations

        table = self.table.op()
        if not isinstance(table, operations.DatabaseTable):
            return None
        drawn = table.name.startswith(_DRAWN_NAMES)
        if not drawn or ibis_module().get_backend(self.table).name != "duckdb":
            return None
        return tuple(table.schema.items()), table.namespace, self.asked


def _kept(key: Hashable) -> str | None:
    with _LOCK:
        text = _WRITTEN.get(key)
        if text is not None:
            _WRITTEN.move_to_end(key)
        return text


def _keep(key: Hashable, text: str) -> None:
    with _LOCK:
        if len(text) <= _LONGEST:
            _WRITTEN[key] = text
        while len(_WRITTEN) > _MOST_KEPT:
            _WRITTEN.popitem(last=False)
