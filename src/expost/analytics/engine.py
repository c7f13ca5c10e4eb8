"""Ibis, imported at first use, and how results are fetched without quoting data in errors."""

from __future__ import annotations

from typing import Any

from expost.errors import InvalidInput, MissingExtra


def ibis_module() -> Any:
    """Return the ``ibis`` module, or say how to install it."""
    try:
        import ibis
    except ImportError:
        raise MissingExtra("ibis-framework", "analytics") from None
    return ibis


def fetch(expression: Any) -> dict[str, list[Any]]:
    """Run a query and return its columns; an error names its kind, never a value or a line."""
    try:
        table = expression.to_pyarrow()
    except Exception as error:
        raise InvalidInput(
            "source", "the table", f"cannot be counted: {type(error).__name__}"
        ) from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def check_compiles(expression: Any) -> None:
    """Refuse a query that the engine's dialect cannot express; nothing is run."""
    ibis = ibis_module()
    try:
        ibis.to_sql(expression, dialect=ibis.get_backend(expression).name)
    except Exception as error:
        raise InvalidInput(
            "source", "the table", f"the query cannot be written for it: {type(error).__name__}"
        ) from None
