"""Tables: CSV, Parquet, databases and data frames, through Ibis. The counting runs inside the engine; one row per group comes back.

Rows whose user or group is NULL belong to nobody or to no group: they are ignored. Whether there were any is said to the curator only.
Columns are addressed as columns, never pasted into SQL, so a name with quotes in it is just a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput, MissingExtra

_GROUP, _COUNT, _NULLS = "expost_group", "expost_count", "expost_nulls"
_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")


@dataclass(frozen=True)
class GroupCounts:
    """Distinct users per group. Private: never shown as it is."""

    groups: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    rows_ignored: bool


def open_source(source: str | Path, table: str | None = None) -> Any:
    """An Ibis table from a file name, or from a connection URL and the name of a table."""
    ibis = _ibis()
    text = str(source)
    if "://" in text:
        if not table:
            raise InvalidInput("table", table, "say which table of the database to count, with --table")
        try:
            connection = ibis.connect(text)
            return connection.table(table)
        except Exception as error:
            raise InvalidInput("source", _without_password(text), f"cannot be opened: {_first_line(error)}") from None
    path = Path(text)
    if not path.is_file():
        raise InvalidInput("source", text, "there is no such file; give a CSV or Parquet file, or a connection URL")
    if not text.lower().endswith(_SUFFIXES):
        raise InvalidInput("source", text, "give a file ending in " + ", ".join(_SUFFIXES))
    try:
        if text.lower().endswith(".parquet"):
            return ibis.duckdb.connect().read_parquet(path)
        return ibis.duckdb.connect().read_csv(path, header=True, all_varchar=True)
    except Exception as error:
        raise InvalidInput("source", text, f"cannot be read: {_first_line(error)}") from None


def as_table(data: Any) -> Any:
    """An Ibis table from one, or from a pandas, polars or pyarrow table."""
    ibis = _ibis()
    if isinstance(data, ibis.Table):
        return data
    try:
        return ibis.memtable(data)
    except Exception:
        raise InvalidInput(
            "table", type(data).__name__, "give an Ibis, pandas, polars or pyarrow table, or a mapping group → count"
        ) from None


def count_users(pairs: Any, keys: Sequence[str]) -> GroupCounts:
    """Distinct users in each of the listed groups (absent ones count 0)."""
    found = _aggregate(pairs)
    counted = {str(group): int(count) for group, count in zip(found[_GROUP], found[_COUNT], strict=True) if group is not None}
    ignored = any(group is None or int(nulls) > 0 for group, nulls in zip(found[_GROUP], found[_NULLS], strict=True))
    return GroupCounts(tuple(keys), np.array([counted.get(group, 0) for group in keys], dtype=np.int64), ignored)


def count_bounded(pairs: Any, contributions: int) -> GroupCounts:
    """Users per group when each user counts in at most ``contributions`` groups, the first by name."""
    ibis = _ibis()
    pairs = pairs.filter(pairs[_GROUP].notnull() & pairs["expost_user"].notnull()).distinct()
    rank = ibis.row_number().over(ibis.window(group_by="expost_user", order_by=_GROUP))
    bounded = pairs.mutate(expost_rank=rank).filter(ibis._.expost_rank < contributions)
    found = _fetch(bounded.group_by(_GROUP).aggregate(**{_COUNT: ibis._.count()}))
    order = sorted(range(len(found[_GROUP])), key=lambda place: str(found[_GROUP][place]))
    groups = tuple(str(found[_GROUP][place]) for place in order)
    return GroupCounts(groups, np.array([int(found[_COUNT][place]) for place in order], dtype=np.int64), False)


def pair_columns(table: Any, by: str, user: str) -> Any:
    """The two columns that matter, under names of ours; groups as text."""
    known = list(table.columns)
    for field, name in (("by", by), ("user", user)):
        if name not in known:
            raise InvalidInput(field, name, "the table has the columns " + ", ".join(repr(each) for each in known[:50]))
    group = table[by]
    text = group if group.type().is_string() else group.cast("string")
    return table.select(**{_GROUP: text, "expost_user": table[user]})


def _aggregate(pairs: Any) -> dict[str, list[Any]]:
    ibis = _ibis()
    user = ibis._.expost_user
    counted = pairs.group_by(_GROUP).aggregate(**{_COUNT: user.nunique(), _NULLS: user.isnull().sum()})
    return _fetch(counted)


def _fetch(expression: Any) -> dict[str, list[Any]]:
    try:
        table = expression.to_pyarrow()
    except Exception as error:
        raise InvalidInput("source", "the table", f"cannot be counted: {_first_line(error)}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _ibis() -> Any:
    try:
        import ibis
    except ImportError:
        raise MissingExtra("ibis-framework", "analytics") from None
    return ibis


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
