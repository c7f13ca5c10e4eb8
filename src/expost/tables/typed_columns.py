"""Columns of a table by their types: texts of groups, keys, numbers, conditions on rows.

Columns are addressed as columns, never pasted into SQL, so a name with quotes in it is just a name.
A cell that is NULL, NaN, infinite or no number counts as missing, and no row can make a request
fail. Column types that cannot work are refused before anything is charged.

Keys and conditions are read by the type of their column, which is public: ``1``, ``1.0`` and
``"1"`` name the same group of a column of numbers, also if a gap has made them floats; a day names
its midnight in a column of timestamps, and the whole day in a condition. What cannot be a value of
the column is refused before anything is charged.

Groups are told apart byte by byte, whatever collation a database column has (else the name under
which "Ann" and "ann" are counted together would be that of whichever row comes first).
Tests: ``tests/analytics/test_sources.py``, ``test_sums.py``, ``test_typed_keys.py``,
``test_written_queries.py``.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np

from expost.errors import InvalidInput, MissingExtra
from expost.tables.file_rows import reads_with_arrow

SEPARATOR = "\x1f"  # between the names of several grouping columns
_LARGEST, _LEAST = "1e300", "1e-300"  # what is larger counts as infinite, what is smaller as 0
_WHOLE = 2**53  # below, a float is a whole number exactly if it looks like one
_CASELESS = ("duckdb", "pyspark")  # engines for which the columns g and G are one
_BYTES = {  # functions from text to bytes and back, with their further arguments
    "duckdb": ("encode", "decode", ()),
    "postgres": ("convert_to", "convert_from", ("UTF8",)),
    "pyspark": ("encode", "decode", ("UTF-8",)),
}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NANOSECONDS = re.compile(r"\.\d{6}\d*[1-9]")
_SIGN = re.compile(r">=|<=|!=|==|=|>|<")
_BETWEEN = re.compile(
    r"\b(?:or|and)\b|[|&;,]", re.IGNORECASE
)  # two conditions, if they were allowed
_TABLE, _SALT = f"t{secrets.token_hex(16)}", secrets.token_hex(16)
_DRAWN_NAMES = ("ibis_read_", "expost_rows_")
_DRAWN_SALT = 32  # hexadecimal digits
_MOST_KEPT, _LONGEST = 512, 100_000
_WRITTEN: OrderedDict[Hashable, str] = OrderedDict()
_LOCK = threading.Lock()


def ibis_module() -> Any:
    """Return the ``ibis`` module, or say how to install it."""
    try:
        import ibis
    except ImportError:
        raise MissingExtra("ibis-framework", "analytics") from None
    return ibis


def with_name(value: Any, name: str) -> Any:
    """Return a value with a name; the ``name`` of Ibis writes out the whole value to compare."""
    from ibis.expr.operations import Alias

    return Alias(value, name).to_expr()


def fetch_arrow(expression: Any) -> Any:
    """Run a query and return an Arrow table; an error names its kind, never a value or a line."""
    return _run(expression, lambda: expression.to_pyarrow())


@contextmanager
def held(*parts: Any) -> Iterator[Any]:
    """All rows of some tables, for several queries; DuckDB computes them once, one by one."""
    engine = ibis_module().get_backend(parts[0])
    if engine.name != "duckdb":
        (only,) = parts
        yield only
        return
    name = f"expost_held_{uuid4().hex}"
    try:
        schema = parts[0].schema()
        table = _run(parts[0], lambda: engine.create_table(name, schema=schema, temp=True))
        for part in parts:
            _run(part, partial(engine.insert, name, part))
        yield table
    finally:
        with suppress(Exception):  # the answer is there, or there is no table
            engine.raw_sql(f'DROP TABLE IF EXISTS "{name}"')


def _run(expression: Any, job: Callable[[], Any]) -> Any:
    """Run a query; once more if a reader that fails at broken cells can be replaced."""
    try:
        return job()
    except Exception as error:
        problem = type(error).__name__
    table = expression.table if isinstance(expression, KnownQuery) else expression
    if reads_with_arrow(ibis_module().get_backend(table)):
        return _run(expression, job)
    raise InvalidInput("source", "the table", f"cannot be counted: {problem}")


def fetch(expression: Any) -> dict[str, list[Any]]:
    """Run a query and return its columns as lists; errors as in :func:`fetch_arrow`."""
    table = fetch_arrow(expression)
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


def check_once(table: Any, asked: Hashable, write: Callable[[], Any]) -> None:
    """:func:`check_compiles`, unless an equal query was not refused.

    The tables that ``table`` reads (not their names) and ``asked`` determine what is written.
    """
    from ibis.expr.operations import PhysicalTable

    schemas = tuple(tuple(read.schema.items()) for read in table.op().find(PhysicalTable))
    key = hash(("checked", engine_of(table), schemas, asked))  # listed groups may be many
    if _kept(key) is None:
        check_compiles(write())
        _keep(key, "")


@dataclass(frozen=True)
class KnownQuery:
    """A query of a table, in SQL that was written before if an equal one was run.

    Ibis takes longer to write a query than DuckDB to run it. ``asked`` and the types of the table,
    all of it public, determine the query but for the salt. Its text is kept with marks in the
    places of the table's name and of the salt: both are drawn at random, so they occur nowhere
    else, and the salt of no run is kept. Tables of databases have names that could occur elsewhere,
    so their queries are written each time.
    """

    table: Any
    asked: Hashable
    salt: str
    write: Callable[[], Any]

    def check(self) -> None:
        """Refuse a query that the engine's dialect cannot express, unless an equal one was not."""
        check_once(self.table, self.asked, self.write)

    def to_pyarrow(self) -> Any:
        """Run the query, as an Ibis expression does; it is written if no equal one was."""
        key = self._key()
        if key is None or len(self.salt) != _DRAWN_SALT:
            return self.write().to_pyarrow()
        text, name = _kept(key), self.table.get_name()
        connection = ibis_module().get_backend(self.table)
        if text is None:
            from ibis.expr.operations import InMemoryTable

            expression = self.write()
            if expression.op().find(InMemoryTable):  # a long list, which Ibis brings along
                return expression.to_pyarrow()
            written = str(connection.compile(expression))
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


def engine_of(table: Any) -> str:
    """Return the name of the engine that reads a table."""
    return str(ibis_module().get_backend(table).name)


def check_column(table: Any, option: str, name: str, engine: str) -> None:
    """Refuse a column that is not there, that is ambiguous, or whose type has no text."""
    known = list(table.columns)
    if name not in known:
        raise InvalidInput(option, name, columns_words(known, name))
    if engine in _CASELESS and sum(column.lower() == name.lower() for column in known) > 1:
        raise InvalidInput(
            option, name, f"{engine} cannot tell it from a column with other capitals; rename one"
        )
    kind = table[name].type()
    if kind.is_nested() or (kind.is_unknown() and engine == "postgres"):
        raise InvalidInput(
            option, name, "its type is not supported: give a column of text, numbers or dates"
        )


def columns_words(known: Sequence[str], wanted: str) -> str:
    """The columns there are; not those with a line break, which may be rows drawn into a header."""
    if any("\n" in name or "\r" in name for name in known):
        return (
            f"the table has {len(known)} other columns (a name with a line break: is a quote "
            "missing in the first line?)"
        )
    folded = {column.lower(): column for column in known}
    close = get_close_matches(str(wanted).lower(), list(folded), n=2)
    parts = [folded.get(part.strip().lower()) for part in str(wanted).split(",")]
    if len(parts) > 1 and None not in parts:
        return f"name the columns one by one: --by {' --by '.join(map(str, parts))}, by={parts!r}"
    hint = (
        f"did you mean {' or '.join(repr(folded[column]) for column in close)}? " if close else ""
    )
    return hint + "the table has the columns " + ", ".join(repr(column) for column in known[:50])


def column_text(column: Any, engine: str, collated: bool) -> Any:
    """Return a column as text, written as :func:`key_text` writes keys."""
    kind = column.type()
    if kind.is_floating():
        text = _number_text(column)
    elif kind.is_timestamp():
        text = _in_utc(column).cast("string")
    else:
        text = column if kind.is_string() else column.cast("string")
    return byte_by_byte(text, engine) if collated else text


def _number_text(column: Any) -> Any:
    """Floats as text; whole ones as whole numbers, so that a gap in a column renames no group."""
    null = ibis_module().null("float64")
    whole = (column.abs() < _WHOLE).ifelse(column.cast("float64"), null).cast("int64")
    return (whole.cast("float64") == column).ifelse(whole.cast("string"), column.cast("string"))


def _in_utc(column: Any) -> Any:
    """A timestamp without its time zone."""
    return column if column.type().timezone is None else column.cast("timestamp")


def key_text(table: Any, by: Sequence[str], key: Any, *, objects: bool) -> str:
    """Return a key as the text of its group; the types of the columns say how it is read."""
    parts = tuple(key) if len(by) > 1 else (key,)
    return SEPARATOR.join(
        _typed_text(table[name].type(), name, part, objects)
        for name, part in zip(by, parts, strict=True)
    )


def _typed_text(kind: Any, name: str, value: Any, objects: bool) -> str:
    """One value as the engine writes it in a column of this type."""
    truth = isinstance(value, bool) or type(value).__name__ == "bool"  # NumPy's, too
    if kind.is_string() and truth and not objects:
        raise InvalidInput(
            "keys", value, f"the column {name!r} is text: give keys as they are written there"
        )
    if kind.is_string():
        return str(value).lower() if truth else str(value)
    text = str(value).strip()
    try:
        return _written(kind, text)
    except (ValueError, ArithmeticError):
        raise InvalidInput("keys", value, f"the column {name!r} holds {_example(kind)}") from None


def _written(kind: Any, text: str) -> str:
    """A value as the engine writes it; ValueError if the type cannot have it."""
    if kind.is_boolean():
        return str(_truth(text)).lower()
    if kind.is_integer():
        return str(_whole(text))
    if kind.is_floating():
        return _float_text(float(text), np.float32 if kind.is_float32() else float)
    if kind.is_decimal() and kind.scale is not None:
        step = Decimal(1).scaleb(-kind.scale)
        if Decimal(text) != (exact := Decimal(text).quantize(step)):
            raise ValueError
        return format(exact, "f")
    if kind.is_date():
        return _day(text).isoformat()
    if kind.is_timestamp():
        moment = _moment(text)
        return _trimmed(moment.isoformat(" ", "seconds"), moment.microsecond)
    if kind.is_time():
        clock = time.fromisoformat(text)
        return _trimmed(clock.isoformat("seconds"), clock.microsecond)
    return text.lower() if kind.is_uuid() else text


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError from None


def _whole(text: str) -> int:
    if not abs(float(text)) < 2.0**65 or Decimal(text) % 1:
        raise ValueError
    return int(Decimal(text))


def _float_text(value: float, kind: Any) -> str:
    """The shortest decimal that is the same number in the precision of the column."""
    if not abs(value) <= float(np.finfo(kind).max):
        raise ValueError
    rounded = kind(value)
    return str(int(rounded)) if rounded % 1 == 0 and abs(rounded) < _WHOLE else str(rounded)


def _moment(text: str) -> datetime:
    """A time in UTC, without its zone; finer than microseconds is refused, not cut off."""
    moment = datetime.fromisoformat(text)
    if _NANOSECONDS.search(text):
        raise ValueError
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _day(text: str) -> date:
    moment = _moment(text)
    if moment.time() != time():
        raise ValueError
    return moment.date()


def _trimmed(text: str, microseconds: int) -> str:
    return f"{text}.{microseconds:06d}".rstrip("0") if microseconds else text


def _example(kind: Any) -> str:
    """What a column of a type holds, for an error message."""
    if kind.is_boolean():
        return "true and false: give one of them"
    if kind.is_numeric():
        return f"numbers ({kind}): give one that such a column can hold"
    if kind.is_date():
        return "dates: give one like 2024-02-01"
    if kind.is_timestamp():
        return "times: give one like 2024-02-01 or 2024-02-01 12:30:00"
    return f"values of type {kind}: give one of them"


def byte_by_byte(text: Any, engine: str) -> Any:
    """Return the same text without the collation of its column."""
    ibis = ibis_module()
    if engine not in _BYTES:
        return text
    if engine == "postgres":  # an enum is no text there, although Ibis says so
        text = ibis.udf.scalar.builtin(_alone, name="text", signature=(("string",), "string"))(text)
    there, back, further = _BYTES[engine]
    shape, more = (_with_encoding, ("string",)) if further else (_alone, ())
    encode = ibis.udf.scalar.builtin(shape, name=there, signature=(("string", *more), "binary"))
    decode = ibis.udf.scalar.builtin(shape, name=back, signature=(("binary", *more), "string"))
    return decode(encode(text, *further), *further)


def _alone(value: Any) -> Any:
    """The shape of a function of the engine; Ibis wants a Python function to read it from."""


def _with_encoding(value: Any, encoding: Any) -> Any:
    """The same, with the name of an encoding."""


def finite_column(column: Any, engine: str, option: str) -> Any:
    """Return a column as float64, NULL where it is no finite number; never fails on a row.

    Numbers above 1e300 in size count as infinite. Engines sort NaN above every number. A truth
    value is 1 or 0, also as text: one gap turns such a column of pandas into text.
    """
    ibis = ibis_module()
    kind = column.type()
    if kind.is_boolean():
        column = column.cast("int8")
    elif kind.is_string() and engine == "duckdb":
        truth = truth_column(column).cast("int8").cast("float64")
        column = ibis.coalesce(column.try_cast("float64"), truth)
    elif kind.is_decimal() and engine == "postgres":
        column = _within_floats(column)
    elif not kind.is_numeric():
        raise InvalidInput(
            option, column.get_name(), "it holds no numbers: give a column of numbers"
        )
    value = column.cast("float64")
    return (value.abs() <= float(_LARGEST)).ifelse(value, ibis.null("float64"))


def truth_column(text: Any) -> Any:
    """Return a column of text as truth values, NULL where it is neither "true" nor "false"."""
    ibis, folded = ibis_module(), text.lower()
    known = folded.isin(["true", "false"])
    return known.ifelse(folded == "true", ibis.null("boolean"))


def _within_floats(column: Any) -> Any:
    """A numeric of PostgreSQL that its cast to float64 accepts: neither too large nor too small."""
    ibis = ibis_module()
    largest, least, zero = (ibis.literal(text).cast("decimal") for text in (_LARGEST, _LEAST, "0"))
    large_enough = (column.abs() >= least).ifelse(column, zero)
    return (column.abs() <= largest).ifelse(large_enough, ibis.null("decimal"))


def split_condition(text: Any) -> tuple[str, str, str]:
    """Return the column, the sign and the value of a condition such as ``age>=18``."""
    sign = _SIGN.search(text) if isinstance(text, str) else None
    name = text[: sign.start()].strip() if sign else ""
    if sign is None or not name:
        raise InvalidInput("where", text, "give conditions like status=active or age>=18")
    return name, sign[0], text[sign.end() :].strip()


def condition(table: Any, text: str, engine: str, collated: bool) -> Any:
    """Return a condition as a truth value of the engine; NULL where a cell is missing."""
    name, sign, wanted = split_condition(text)
    check_column(table, "where", name, engine)
    if len(wanted) > 1 and wanted[0] == wanted[-1] and wanted[0] in "'\"":
        wanted = wanted[1:-1]
    elif any(_column_compared(part) in table.columns for part in _BETWEEN.split(wanted)[1:]):
        raise InvalidInput(
            "where", text, "give one condition at a time (all must hold), or a text in quotes"
        )
    left, right = _comparable(table[name], wanted, sign, engine, collated)
    if sign in ("=", "=="):
        return left == right
    return {
        "!=": left.__ne__,
        ">": left.__gt__,
        "<": left.__lt__,
        ">=": left.__ge__,
        "<=": left.__le__,
    }[sign](right)


def _column_compared(text: str) -> str | None:
    """The name before the first sign of a comparison; None if there is no sign."""
    sign = re.search("[<>=!]", text)
    return text[: sign.start()].strip("(\"'` \t\r\n") if sign else None


def _comparable(
    column: Any, wanted: str, sign: str, engine: str, collated: bool
) -> tuple[Any, Any]:
    """Both sides of a condition, by the type of the column; a text may hold numbers."""
    kind = column.type()
    if kind.is_string():
        return _comparable_text(column, wanted, sign, engine, collated)
    try:
        if kind.is_boolean():
            return column, _truth(wanted)
        if kind.is_integer() and abs(float(wanted)) < 2.0**63 and not Decimal(wanted) % 1:
            return column, int(Decimal(wanted))  # exact beyond 2^53
        if kind.is_numeric():
            value = float(wanted)
            if value != value:
                raise ValueError
            return finite_column(column, engine, "where"), value
        if kind.is_date():
            return column, _day(wanted)
        if kind.is_timestamp():
            moment, day = _moment(wanted), _is_day(wanted)
            return (column.cast("date"), moment.date()) if day else (_in_utc(column), moment)
        if kind.is_time():
            return column, time.fromisoformat(wanted)
    except (ValueError, ArithmeticError):
        name = column.get_name()
        raise InvalidInput("where", wanted, f"the column {name!r} holds {_example(kind)}") from None
    return column_text(column, engine, collated), wanted.lower() if kind.is_uuid() else wanted


def _comparable_text(
    column: Any, wanted: str, sign: str, engine: str, collated: bool
) -> tuple[Any, Any]:
    """Numbers if an inequality with a number says so, else text; "True" and "true" are equal."""
    equality = sign in ("=", "==", "!=")
    try:
        value = None if equality else float(wanted)
    except ValueError:
        value = None
    if value is not None:
        if value != value:
            raise InvalidInput("where", wanted, "compare with a number")
        return finite_column(column, engine, "where"), value
    text = column_text(column, engine, collated)
    if equality and wanted.lower() in ("true", "false"):
        return text.lower(), wanted.lower()
    return text, wanted


def _is_day(text: str) -> bool:
    """Whether a time is written as a day."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
