"""Tables: CSV, Parquet, databases and data frames, through Ibis. The counting runs inside the engine; one row per group comes back.

Rows whose user or group is NULL belong to nobody or to no group: they are ignored. Whether there were any is said to the curator only.
Columns are addressed as columns, never pasted into SQL, so a name with quotes in it is just a name.

How rows are read must not depend on the rows, or one person could change every count. So the delimiter of a CSV file is that of its header,
quotes are double, and nothing is guessed; and groups are told apart byte by byte, whatever collation a database column has (else the name
under which "Ann" and "ann" are counted together would be that of whichever row comes first).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput, MissingExtra

_GROUP, _COUNT, _NULLS = "expost_group", "expost_count", "expost_nulls"
_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")
_DELIMITERS = (",", ";", "\t", "|")
_CASELESS = ("duckdb", "pyspark")  # engines for which the columns g and G are one
_BYTES = {  # functions from text to bytes and back, with their further arguments
    "duckdb": ("encode", "decode", ()),
    "postgres": ("convert_to", "convert_from", ("UTF8",)),
    "pyspark": ("encode", "decode", ("UTF-8",)),
}


@dataclass(frozen=True)
class GroupCounts:
    """Distinct users per group. Private: never shown as it is."""

    groups: tuple[str, ...]
    counts: npt.NDArray[np.int64] = field(repr=False)
    rows_ignored: bool


def open_source(source: str | Path, table: str | None = None) -> Any:
    """An Ibis table from a file name, or from a connection URL and the name of a table."""
    ibis = _ibis()
    text = str(source)
    if "://" in text:
        if not table:
            raise InvalidInput(
                "table", table, "say which table of the database to count, with --table"
            )
        try:
            connection = ibis.connect(text)
            return connection.table(table)
        except Exception as error:
            raise InvalidInput(
                "source", _without_password(text), f"cannot be opened: {_harmless(error, text)}"
            ) from None
    path = Path(text)
    if not path.is_file():
        raise InvalidInput(
            "source", text, "there is no such file; give a CSV or Parquet file, or a connection URL"
        )
    if not text.lower().endswith(_SUFFIXES):
        raise InvalidInput("source", text, "give a file ending in " + ", ".join(_SUFFIXES))
    try:
        if text.lower().endswith(".parquet"):
            return _engine().read_parquet(_literal(path))
        return _engine().read_csv(_literal(path), **_csv_format(path))
    except InvalidInput:
        raise
    except Exception as error:  # messages may quote what they stumbled over
        reason = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else type(error).__name__
        )
        raise InvalidInput("source", text, f"cannot be read: {reason}") from None


def _engine() -> Any:
    """DuckDB in memory; what does not fit goes to a folder that others cannot read (by default: .tmp, wherever one happens to be)."""
    folder = tempfile.TemporaryDirectory(prefix="expost")
    connection = _ibis().duckdb.connect(temp_directory=folder.name)
    weakref.finalize(connection, folder.cleanup)
    return connection


def _csv_format(path: Path) -> dict[str, Any]:
    """All that DuckDB would otherwise guess from the rows; from the header alone."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as stream:
        line = stream.readline()
        while line.count(b'"') % 2 and (
            more := stream.readline()
        ):  # a name with a line break in it
            line += more
    if line.count(b'"') % 2:
        raise InvalidInput("source", str(path), "a quote in the line of column names is not closed")
    header = line.decode("utf-8-sig")
    delimiters = ("\t",) if path.suffix.lower() == ".tsv" else _DELIMITERS
    parsed = [
        next(csv.reader(io.StringIO(header, newline=""), delimiter=each), []) for each in delimiters
    ]
    names, delimiter = max(zip(parsed, delimiters, strict=True), key=lambda found: len(found[0]))
    if not any(names):
        raise InvalidInput("source", str(path), "the first line must name the columns")
    names = [name or f"column{place}" for place, name in enumerate(names)]
    if len({name.lower() for name in names}) < len(names):
        raise InvalidInput(
            "source",
            str(path),
            "two columns have the same name (capitals do not count); rename one",
        )
    columns = dict.fromkeys(names, "VARCHAR")
    return {
        "header": True,
        "auto_detect": False,
        "delim": delimiter,
        "quote": '"',
        "escape": '"',
        "columns": columns,
    }


def _literal(path: Path) -> str:
    """A path that DuckDB takes for one file, although its name has wildcards in it."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path.absolute()))


def as_table(data: Any) -> Any:
    """An Ibis table from one, or from a pandas, polars or pyarrow table."""
    ibis = _ibis()
    if isinstance(data, ibis.Table):
        return data
    try:
        return ibis.memtable(data)
    except Exception:
        raise InvalidInput(
            "table",
            type(data).__name__,
            "give an Ibis, pandas, polars or pyarrow table of plain columns, or a mapping group → count",
        ) from None


def count_users(pairs: Any, keys: Sequence[str]) -> GroupCounts:
    """Distinct users in each of the listed groups (absent ones count 0)."""
    found = _aggregate(pairs)
    counted = {
        str(group): int(count)
        for group, count in zip(found[_GROUP], found[_COUNT], strict=True)
        if group is not None
    }
    ignored = any(
        group is None or nulls for group, nulls in zip(found[_GROUP], found[_NULLS], strict=True)
    )
    return GroupCounts(
        tuple(keys), np.array([counted.get(group, 0) for group in keys], dtype=np.int64), ignored
    )


def count_bounded(pairs: Any, contributions: int) -> GroupCounts:
    """Users per group when each user counts in at most ``contributions`` groups, the first by name."""
    ibis = _ibis()
    pairs = pairs.filter(pairs[_GROUP].notnull() & pairs["expost_user"].notnull()).distinct()
    rank = ibis.row_number().over(ibis.window(group_by="expost_user", order_by=_GROUP))
    bounded = pairs.mutate(expost_rank=rank).filter(ibis._.expost_rank < contributions)
    found = _fetch(bounded.group_by(_GROUP).aggregate(**{_COUNT: ibis._.count()}))
    order = sorted(range(len(found[_GROUP])), key=lambda place: str(found[_GROUP][place]))
    groups = tuple(str(found[_GROUP][place]) for place in order)
    return GroupCounts(
        groups, np.array([int(found[_COUNT][place]) for place in order], dtype=np.int64), False
    )


def pair_columns(table: Any, by: str, user: str, *, collated: bool = False) -> Any:
    """The two columns that matter, under names of ours; groups as text, ``collated`` if it may have a collation to be rid of."""
    ibis = _ibis()
    known, engine = list(table.columns), ibis.get_backend(table).name
    for option, name in (("by", by), ("user", user)):
        if name not in known:
            raise InvalidInput(option, name, _columns_of(known))
        if engine in _CASELESS and sum(each.lower() == name.lower() for each in known) > 1:
            raise InvalidInput(
                option,
                name,
                f"{engine} cannot tell it from a column with other capitals; rename one",
            )
    group = table[by]
    text = group if group.type().is_string() else group.cast("string")
    return table.select(
        **{_GROUP: _byte_by_byte(text, engine) if collated else text, "expost_user": table[user]}
    )


def _columns_of(known: Sequence[str]) -> str:
    """What columns there are; not where one has a line break in its name, which may be a row that a quote has drawn into the header."""
    if any("\n" in name or "\r" in name for name in known):
        return f"the table has {len(known)} other columns (a name with a line break: is a quote missing in the first line?)"
    return "the table has the columns " + ", ".join(repr(each) for each in known[:50])


def may_collate(data: Any) -> bool:
    """Whether text columns may have a collation: those of databases, not of files and data frames."""
    return "://" in str(data) if isinstance(data, (str, Path)) else isinstance(data, _ibis().Table)


def _byte_by_byte(text: Any, engine: str) -> Any:
    """The same text without the collation of its column."""
    ibis = _ibis()
    if engine not in _BYTES:
        return text
    there, back, further = _BYTES[engine]
    shape, more = (_with_encoding, ("string",)) if further else (_alone, ())
    encode = ibis.udf.scalar.builtin(shape, name=there, signature=(("string", *more), "binary"))
    decode = ibis.udf.scalar.builtin(shape, name=back, signature=(("binary", *more), "string"))
    return decode(encode(text, *further), *further)


def _alone(value: Any) -> Any:
    """The shape of a function of the engine; Ibis wants a Python function to read it from."""


def _with_encoding(value: Any, encoding: Any) -> Any:
    """The same, with the name of an encoding."""


def _aggregate(pairs: Any) -> dict[str, list[Any]]:
    ibis = _ibis()
    user = ibis._.expost_user
    counted = pairs.group_by(_GROUP).aggregate(
        **{_COUNT: user.nunique(), _NULLS: user.isnull().any()}
    )
    return _fetch(counted)


def _fetch(expression: Any) -> dict[str, list[Any]]:
    try:
        table = expression.to_pyarrow()
    except Exception as error:
        line = re.search(r"CSV Error on Line: \d+", str(error))  # other messages may quote a value
        raise InvalidInput(
            "source", "the table", f"cannot be counted: {line[0] if line else type(error).__name__}"
        ) from None
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
    place = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{'…@' if '@' in rest else ''}{place}{'?…' if '?' in rest else ''}"


def _harmless(error: Exception, url: str) -> str:
    """The first line of a message, unless it holds any part of a password."""
    rest = url.partition("://")[2]
    options = [
        value
        for key, value in parse_qsl(rest.partition("?")[2])
        if re.search("pass|pwd|token|secret|key", key, re.IGNORECASE)
    ]
    secret = [rest.rpartition("@")[0].partition(":")[2], *options]
    parts = {
        part
        for each in secret
        for part in (each, unquote(each), *re.split(r"[/?#@:&=]", each))
        if part
    }
    line = _first_line(error)
    return type(error).__name__ if any(part in line for part in parts) else line
