"""Opening tables: files, folders, databases, data frames, through Ibis. Nothing is ever written.

How rows are read must not depend on the rows, or one person could change every count. So the
delimiter of a CSV file is that of its header (or the one given), quotes are double, all columns are
text and nothing is guessed. One line is one row: each line is split by itself, a quote that is not
closed ends with its line, and a line with too few or too many cells is ignored
(:mod:`expost.tables.file_rows`). JSON lines are read as text columns of the given names; lines
that are not JSON are ignored. Columns of Python objects in a pandas table are read as text, value
by value. Database files are opened read-only, and a missing one is an error.

**Views.** The guarantee is for the rows of a table. In a view with LIMIT, a window or an aggregate,
one person's row decides whether other rows are there, or what they hold, so that removing a person
would change more than this person's rows. Such views and queries are refused, by their definition
and before anything is charged; so are views on such views. A view that selects columns and rows,
one by one, is a table like any other. Joins and subqueries are allowed: what is joined must be
public, or belong to the same person, and nothing here can check that.

**Copies** (:func:`copied_rows`). Training reads a database's table in batches from a Parquet file:
one version of the table, which later changes do not reach. Its order is the engine's and may depend
on any row, so whoever reads it must not let the order decide anything
(:mod:`expost.tuning.rows.job_rows` splits such rows by coins). Numbers become float64 and
everything else becomes text inside the engine, by casts that fail at no row.
Tests: ``tests/analytics/test_sources.py``, ``test_views.py``, ``test_file_sources.py``,
``test_server_sources.py`` (real servers), ``tests/tuning/test_database_rows.py``;
neighbours: ``tests/hostile/test_analytics.py``.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from expost.errors import InvalidInput, MissingExtra
from expost.execution.calls import call_or_failure
from expost.files import DUCKDB, SQLITE, is_database
from expost.tables.file_rows import (
    parquet_rows,
    quoted,
    read_header,
    read_json_lines,
    read_lines,
    read_natively,
    tame_scanner,
)
from expost.tables.typed_columns import ibis_module


def check_database(source: str, field: str) -> None:
    """Refuse a URL with a password: it would be written into job files."""
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


_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_JSON = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_SUFFIXES = (*_TEXT, *_JSON, ".parquet", *DUCKDB, *SQLITE)
_DEFINITIONS = {
    "duckdb": "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal",
    "postgres": "SELECT relname, pg_get_viewdef(oid) FROM pg_class WHERE relkind IN ('v', 'm') AND "
    "relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')",
}
_PLAN = re.compile(
    r"^[\s:+\-]*(?:GlobalLimit|LocalLimit|Offset|Tail|Window|Aggregate|Deduplicate|Distinct)\b",
    re.MULTILINE,
)


def open_source(
    source: str | Path,
    table: str | None = None,
    *,
    delimiter: str | None = None,
    columns: Sequence[str] = (),
    beside: Any = None,
    natively: bool = False,
) -> Any:
    """Open a file, a folder, a glob, or a table behind a connection URL as an Ibis table.

    ``beside``: an opened table of files, in whose engine files are read: both can be joined.
    ``natively``: queries run by :func:`typed_columns.fetch` only, so that DuckDB may read Parquet
    files itself (:mod:`expost.tables.file_rows`).
    """
    text = str(source)
    if "://" in text:
        return _open_url(text, table)
    files = _files(text)
    suffix = _suffix(files[0])
    if any(_suffix(path) != suffix for path in files):
        raise InvalidInput("source", text, "the files are of different kinds; name one kind")
    if suffix in (*DUCKDB, *SQLITE):
        return _open_database(files[0], suffix, table, columns)
    try:
        engine = _engine() if beside is None else ibis_module().get_backend(beside)
        if natively and suffix == ".parquet":
            return _read_parquet(engine, files, columns, natively=True)
        return _read(engine, files, suffix, delimiter, columns)
    except (InvalidInput, MissingExtra):
        raise
    except Exception as error:  # messages may quote what they stumbled over
        known = isinstance(error, OSError) and error.strerror
        reason = error.strerror if known else type(error).__name__  # type: ignore[attr-defined]
        raise InvalidInput("source", text, f"cannot be read: {reason}") from None


def _files(text: str) -> list[Path]:
    """The files that a name means: itself, those in the folder, or those that match the glob."""
    path = Path(text)
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and _suffix(entry))
    else:
        start = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else text
        matched = start.glob(pattern) if re.search(r"[*?\[]", text) else ()
        files = sorted(path for path in matched if path.is_file())
    if not files:
        raise InvalidInput(
            "source", text, "there is no such file; give a file, a folder, a glob or a URL"
        )
    if not _suffix(files[0]):
        raise InvalidInput("source", text, "give a file ending in " + ", ".join(_SUFFIXES))
    return files


def _suffix(path: Path) -> str:
    """The known ending of a file name, or an empty text."""
    name = path.name.lower()
    return max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default="")


def _read(
    engine: Any,
    files: Sequence[Path],
    suffix: str,
    delimiter: str | None,
    columns: Sequence[str],
) -> Any:
    names = [_literal(path) for path in files]
    if suffix == ".parquet":
        return _read_parquet(engine, files, columns)
    if suffix in _JSON:
        if not columns:
            raise InvalidInput("columns", None, "name the columns of a JSON-lines file")
        return read_json_lines(engine, names, list(dict.fromkeys(columns)))
    headers = [read_header(path, delimiter) for path in files]
    if any(header != headers[0] for header in headers):
        raise InvalidInput("source", str(files[0].parent), "the files have different headers")
    return read_lines(engine, names, headers[0])


def _read_parquet(
    engine: Any, files: Sequence[Path], columns: Sequence[str], *, natively: bool = False
) -> Any:
    """The rows of Parquet files, read by Arrow: DuckDB's reader fails at broken cells."""
    if natively:
        table = read_natively(engine, files, [_literal(path) for path in files], columns)
        if table is not None:
            return table
    rows = parquet_rows([str(path.absolute()) for path in files])
    scanner = tame_scanner(rows, columns)
    name = f"expost_rows_{id(scanner):x}"  # its own: the connection keeps the scanner
    engine.con.register(name, scanner)
    return engine.table(name)


def _open_database(path: Path, suffix: str, table: str | None, columns: Sequence[str]) -> Any:
    """A table of a database file, read-only."""
    if not table:
        raise InvalidInput("table", table, "say which table of the database to use, with --table")
    try:
        if suffix in DUCKDB or _is_duckdb(path):
            return _named(ibis_module().duckdb.connect(str(path), read_only=True), table)
        return _read_sqlite(path, table, columns)
    except (InvalidInput, MissingExtra):
        raise
    except Exception as error:
        raise InvalidInput(
            "source", str(path), f"cannot be opened: {type(error).__name__}"
        ) from None


def opening_reads_rows(source: str | Path) -> bool:
    """Return whether opening a source reads its rows, so that a row may be why it fails."""
    text = str(source)
    path = Path(text.removeprefix("sqlite://").partition("?")[0])
    kind = text.startswith("sqlite://") or ("://" not in text and _suffix(path) in SQLITE)
    return kind and path.is_file() and not _is_duckdb(path)


def _is_duckdb(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(12)[8:12] == b"DUCK"


def _read_sqlite(path: Path, table: str, columns: Sequence[str]) -> Any:
    """The wanted columns as text: SQLite columns have no fixed type, so nothing else is total."""
    import pyarrow as pa  # type: ignore[import-untyped]

    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    try:
        rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        known = [row[0] for row in rows]
        if not known:
            raise InvalidInput("table", table, "the database has no such table")
        views = "SELECT name, sql FROM sqlite_master WHERE type = 'view'"
        check_view(table, dict(connection.execute(views).fetchall()), "sqlite")
        wanted = [name for name in columns if name in known] or known
        listed = ", ".join(f"CAST({quoted(name)} AS TEXT)" for name in wanted)
        rows = connection.execute(f"SELECT {listed} FROM {quoted(table)}").fetchall()
    finally:
        connection.close()
    arrays = {
        name: pa.array([cells[index] for cells in rows], pa.string())
        for index, name in enumerate(wanted)
    }
    return ibis_module().memtable(pa.table(arrays))


def _open_url(url: str, table: str | None) -> Any:
    ibis = ibis_module()
    if not table:
        raise InvalidInput("table", table, "say which table of the database to use, with --table")
    kind, _, rest = url.partition("://")
    if kind in ("duckdb", "sqlite"):
        path = Path(rest.partition("?")[0])
        if not path.is_file():
            raise InvalidInput(
                "source", without_password(url), "cannot be opened: there is no such file"
            )
        return _open_database(path, f".{kind}", table, ())
    try:
        return _named(ibis.connect(url), table)
    except (InvalidInput, MissingExtra):
        raise
    except Exception as error:
        raise InvalidInput(
            "source", without_password(url), f"cannot be opened: {_harmless(error, url)}"
        ) from None


def _named(connection: Any, table: str) -> Any:
    """A table by its name, by schema and name, or (on Spark) by the path of its Parquet files."""
    if connection.name == "pyspark" and ("/" in table or table.endswith(".parquet")):
        return connection.read_parquet(table)
    try:
        opened = connection.table(table)
    except Exception:
        schema, _, name = table.partition(".")
        if not name:
            raise
        opened = connection.table(name, database=schema)
    return require_rowwise(opened)


def _engine() -> Any:
    """DuckDB in memory; what does not fit goes to a folder that others cannot read."""
    folder = tempfile.TemporaryDirectory(prefix="expost")
    connection = ibis_module().duckdb.connect(temp_directory=folder.name)
    weakref.finalize(connection, folder.cleanup)
    return connection


def _literal(path: Path) -> str:
    """A path that DuckDB takes for one file, although its name has wildcards in it."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path.absolute()))


def as_table(data: Any, columns: Sequence[str] = ()) -> Any:
    """An Ibis table from one, or from a pandas, polars or pyarrow table.

    ``columns`` are those that will be used; cells that DuckDB cannot hold are NULL there.
    """
    ibis = ibis_module()
    if isinstance(data, ibis.Table):
        return require_rowwise(data)
    if type(data).__module__.startswith("pyspark."):
        return _spark_table(data)
    try:
        from pyarrow import dataset

        rows = dataset.dataset(_arrow_table(data, columns))
        return ibis.memtable(tame_scanner(rows, columns).to_table())
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    except InvalidInput:
        raise
    except Exception:
        raise InvalidInput(
            "table",
            type(data).__name__,
            "give an Ibis, pandas, polars or pyarrow table of plain columns, a Spark data frame, "
            "or a mapping group → count",
        ) from None


def _arrow_table(data: Any, columns: Sequence[str]) -> Any:
    """A pandas, polars or pyarrow table, records, or columns by name, as an Arrow table.

    Lists have no types: their values are text. Records have the columns that will be used, whether
    any record has them or not; what is no record is a row of gaps.
    """
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.partition(".")[0] == "polars":
        return (data.collect() if hasattr(data, "collect") else data).to_arrow()
    if isinstance(data, (list, tuple)):
        if 2 * sum(isinstance(row, Mapping) for row in data) < len(data):
            raise InvalidInput("table", "a list", "most rows are no records: give mappings")
        records = [row if isinstance(row, Mapping) else {} for row in data]
        data = {name: [row.get(name) for row in records] for name in columns}
    if isinstance(data, Mapping):
        texts = {name: [_cell_text(cell) for cell in cells] for name, cells in data.items()}
        return pa.table({name: pa.array(cells, pa.string()) for name, cells in texts.items()})
    return pa.Table.from_pandas(without_objects(data), preserve_index=False)


def without_objects(data: Any) -> Any:
    """Return a pandas table whose columns of Python objects are text; other tables as they are.

    The type of such a column would otherwise be guessed from its rows, and one odd value would end
    the request.
    """
    if type(data).__module__.partition(".")[0] != "pandas" or not hasattr(data, "columns"):
        return data
    import pyarrow as pa
    from pandas import ArrowDtype

    odd = [
        index
        for index, kind in enumerate(data.dtypes)
        if str(kind) in ("object", "category") or getattr(kind, "storage", None) == "python"
    ]
    columns = {index: data.iloc[:, index] for index in range(data.shape[1])}
    kind = ArrowDtype(pa.string())
    for index in odd:
        texts = pa.array(_cell_texts(columns[index]), pa.string())
        columns[index] = type(columns[index])(texts, index=data.index, dtype=kind)
    if not odd:
        return data
    copy = type(data)(columns, index=data.index)
    copy.columns = data.columns
    return copy


def _cell_texts(series: Any) -> list[str | None]:
    """A column of pandas as text, cell by cell."""
    if str(series.dtype) != "category":
        return [_cell_text(cell) for cell in series]
    # each category once: a gap among whole numbers would turn the cells into floats
    texts = [_cell_text(label) for label in series.cat.categories.to_numpy(dtype=object)]
    return [texts[code] if code >= 0 else None for code in series.cat.codes]


def _cell_text(value: Any) -> str | None:
    """One cell as text, NULL if it has none; never fails."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if not isinstance(value, (str, int, float, Decimal, date, time, timedelta, np.generic)):
        return None
    try:
        known = bool(value == value)
        return str(value).encode("utf-8", "backslashreplace").decode() if known else None
    except Exception:  # a signalling NaN, an integer with too many digits
        return None


def _spark_table(frame: Any) -> Any:
    """A Spark data frame, under a name of its own in its session."""
    ibis = ibis_module()
    check_plan(frame)
    name = f"expost_{id(frame):x}"
    frame.createOrReplaceTempView(name)
    return ibis.pyspark.connect(frame.sparkSession).table(name)


def may_collate(data: Any) -> bool:
    """Whether text columns may have a collation.

    Those of databases, not of files and data frames.
    """
    if isinstance(data, (str, Path)):
        return is_database(data)
    return isinstance(data, ibis_module().Table) or type(data).__module__.startswith("pyspark.")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def without_password(url: str) -> str:
    """Return a URL without its user, password and options."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{'…@' if '@' in rest else ''}{host}{'?…' if '?' in rest else ''}"


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
        for text in secret
        for part in (text, unquote(text), *re.split(r"[/?#@:&=]", text))
        if part
    }
    line = _first_line(error)
    return type(error).__name__ if any(part in line for part in parts) else line


def require_rowwise(table: Any) -> Any:
    """Return an Ibis table; refuse one whose rows depend on each other, by its definition."""
    ops = ibis_module().expr.operations
    mixing = (ops.Limit, ops.WindowFunction, ops.Reduction, ops.Distinct)
    written = (ops.SQLQueryResult, ops.SQLStringView)  # SQL that the user wrote
    for node in table.op().find((*mixing, *written, ops.DatabaseTable)):
        if not isinstance(node, ops.DatabaseTable):
            raise _refused("the query")
        _check_table(node.source, node.name)
    return table


def check_view(name: str, views: Mapping[str, str], dialect: str) -> None:
    """Refuse a view, or a view that it reads, if its rows depend on each other."""
    from sqlglot import exp, parse_one

    folded = {view.lower(): text for view, text in views.items()}
    left, seen = [name.lower()], set()
    while left:
        view = left.pop()
        if view in seen or view not in folded:
            continue
        seen.add(view)
        tree = call_or_failure(lambda text: parse_one(text, dialect=dialect), folded[view])
        mixing = (exp.Limit, exp.Fetch, exp.Offset, exp.TableSample, exp.Window, exp.AggFunc)
        if not isinstance(tree, exp.Expression) or tree.find(
            *mixing, exp.Group, exp.Distinct, exp.Qualify, exp.Command
        ):
            raise _refused(name)
        left += [table.name.lower() for table in tree.find_all(exp.Table)]


def _check_table(engine: Any, name: str) -> None:
    """Refuse a view of a database, by its definition."""
    if engine.name == "pyspark":
        check_plan(engine._session.table(name))
    elif engine.name in _DEFINITIONS:
        cursor = engine.raw_sql(_DEFINITIONS[engine.name])
        check_view(name, dict(cursor.fetchall()), engine.name)


def check_plan(frame: Any) -> None:
    """Refuse a Spark data frame whose rows depend on each other, by its plan."""
    plan = call_or_failure(lambda: frame._jdf.queryExecution().analyzed().toString())
    if isinstance(plan, str) and _PLAN.search(plan):
        raise _refused("the data frame")


def _refused(name: str) -> InvalidInput:
    return InvalidInput(
        "table",
        name,
        "it is a view or a query with LIMIT, a window, a sample, DISTINCT or an aggregate, or "
        "written in SQL that is not read: one person's row could change the rows of others. Give "
        "the table itself, and use where for conditions",
    )
