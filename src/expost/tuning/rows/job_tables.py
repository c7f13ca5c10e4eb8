"""Read the rows of a job from arrays, data frames and files. No row makes reading fail.

Which columns a table has, their types and (unless a public number of rows is given) its number of
places are public; errors depend on nothing else. A place of a CSV file is a line after the header:
a line is read by itself, so that a quote that is not closed, a blank line or a wrong number of
cells leaves one place empty and moves no other. (A cell with a line break in it therefore makes its
lines empty places.) Bytes that are not UTF-8 spoil their cell only.

Tests: ``tests/tuning/test_rows.py``.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import ExpostError, InvalidInput, MissingExtra
from expost.tables.cells import Frame, block_of, flat, frame_of
from expost.tables.file_rows import read_header
from expost.tables.sources import total_columns
from expost.tuning.request.settings import NO_TARGET, DataSettings
from expost.tuning.rows.job_columns import find_column, given_persons, near, person_codes

_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_SUFFIXES = (".npz", ".parquet", *_TEXT)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Features and targets as they were read."""

    cells: Array | tuple[Array, ...]
    targets: Array | None
    names: tuple[str, ...] | None = None
    types: tuple[str, ...] = ()
    source: str = "the array"
    shape: tuple[int, ...] | None = None
    users: Array | None = None

    @property
    def width(self) -> int:
        """Number of feature columns."""
        return self.cells.shape[1] if isinstance(self.cells, np.ndarray) else len(self.cells)

    @property
    def rows(self) -> int:
        """Number of rows, or of places."""
        return len(self.cells) if isinstance(self.cells, np.ndarray) else len(self.cells[0])

    def part(self, some: slice) -> Table:
        """Return some of the rows."""
        block = isinstance(self.cells, np.ndarray)
        cells = self.cells[some] if block else tuple(column[some] for column in self.cells)
        targets, users = (
            None if column is None else column[some] for column in (self.targets, self.users)
        )
        return replace(self, cells=cells, targets=targets, users=users)


def whole_table(tables: Sequence[Table]) -> Table:
    """Return the rows of tables that were read column by column as one table."""

    def whole(columns: Iterable[Array | None]) -> Array:
        parts = [part for part in columns if part is not None and len(part)]
        if len({part.dtype for part in parts}) == 1:
            return np.concatenate(parts)
        cells = np.empty(sum(map(len, parts)), dtype=object)
        cells[:] = [cell for part in parts for cell in part]
        return cells

    first = tables[0]
    cells = tuple(whole(table.cells[index] for table in tables) for index in range(first.width))
    targets = None if first.targets is None else whole(table.targets for table in tables)
    users = None if first.users is None else whole(table.users for table in tables)
    return replace(first, cells=cells, targets=targets, users=users)


def read_source(source: str | Path, settings: DataSettings) -> Table:
    """Read a built-in data set or a file."""
    if isinstance(source, str):
        if settings.user is not None:
            raise InvalidInput("data.user", settings.user, f"{source} has one row per person")
        bunch = load_built_in(source)
        return Table(bunch.data, bunch.target, source=source)
    if not files_of(source):
        raise InvalidInput("data.path", str(source), "there is no such file")
    name = source.name.lower()
    if not name.endswith(_SUFFIXES):
        raise InvalidInput(
            "data.path", source.name, "give a file ending in " + ", ".join(_SUFFIXES)
        )
    try:
        if name.endswith(".npz"):
            return _read_npz(source, settings)
        return whole_table([read_head(source, settings), *read_batches(source, settings, 2**16)])
    except Exception as error:
        if _may_be_shown(error):
            raise
        raise _unreadable(source, error) from None


def load_built_in(name: str) -> Any:
    """Load a data set that scikit-learn contains."""
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    return datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()


def given_table(X: Any, y: Any, settings: DataSettings, groups: Any = None) -> Table:
    """Return the arrays or the data frame that the caller passed."""
    if X is None:
        raise InvalidInput("X, y", None, "give both, or give neither and name a source in [data]")
    frame = frame_of(X)
    if y is not None and settings.classes == NO_TARGET:
        raise InvalidInput(
            "y",
            type(y).__name__,
            "the module computes the loss of a row from the row alone; leave the targets out",
        )
    targets = None if y is None else flat(y)
    users = None if groups is None else given_persons(groups)
    if frame is not None:
        table = _of_columns(frame, settings, "the data frame", targets, users)
    elif targets is None and settings.classes != NO_TARGET:
        raise InvalidInput("y", None, "give one target per row, or a data frame and its target")
    elif settings.user is not None and users is None:
        raise InvalidInput(
            "data.user", settings.user, "an array has no such column; pass groups=, one per row"
        )
    else:
        table = replace(_array_table(X, targets), users=users)
    if groups is not None:
        given_persons(users, table.rows)
    return table


def _array_table(X: Any, targets: Array | None, source: str = "the array") -> Table:
    """Return an array of rows as a table that remembers the shape of a row."""
    shape = tuple(np.shape(X)[1:]) if hasattr(X, "shape") else ()
    block = block_of(X)
    return Table(block, targets, source=source, shape=shape if len(shape) > 1 else None)


def cells_for(X: Any, names: Sequence[str] | None, width: int) -> Array | list[Array]:
    """Return the cells of new rows, in the order of the features of a model."""
    frame = frame_of(X)
    if frame is not None and names is not None:
        known = frame.names
        absent = [name for name in names if name not in known]
        if absent:
            columns = f"the column{'s' * (len(absent) > 1)} {', '.join(map(repr, absent[:10]))}"
            error = InvalidInput("X", "a table", f"add {columns}, with which the model was trained")
            error.args = (
                f"X lacks {columns}, with which the model was trained"
                + near(absent[0], known, "X has"),
            )
            raise error
        return [frame.column(known.index(name)) for name in names]
    if frame is not None:
        count = len(frame.names)
        table: Array | list[Array] = [frame.column(index) for index in range(count)]
    else:
        table = block_of(X)
        count = table.shape[1]
    if count != width:
        raise InvalidInput(
            "X", f"{count} columns", f"the model was trained with {width} columns; give the same"
        )
    return table


def _of_columns(
    frame: Frame,
    settings: DataSettings,
    source: str,
    targets: Array | None = None,
    users: Array | None = None,
) -> Table:
    """Return the wanted columns of a table with names."""
    features, target = choose_columns(frame.names, settings, source, targets is not None)
    if users is None:
        for index in user_column(frame.names, settings, source):
            users = frame.column(index)
    cells = tuple(frame.column(index) for index in features)
    if target is not None:
        targets = frame.column(target)
    return Table(
        cells,
        targets,
        tuple(frame.names[index] for index in features),
        tuple(frame.types[index].lower() for index in features),
        source,
        users=users,
    )


def user_column(names: Sequence[str], settings: DataSettings, source: str) -> list[int]:
    """Return the position of the column that tells persons apart, if one was named."""
    if settings.user is None:
        return []
    return [find_column(settings.user, names, "data.user", source)]


def choose_columns(
    names: Sequence[str], settings: DataSettings, source: str, given: bool = False
) -> tuple[list[int], int | None]:
    """Return the positions of the feature columns and of the target column.

    The target is None if the targets are given or no column was named.
    """
    if len(set(names)) < len(names):
        raise InvalidInput("data", "two columns with one name", "rename one of them")
    target = None
    if settings.target is not None and not (given and settings.target not in names):
        target = find_column(settings.target, names, "data.target", source)
    for key in ("features", "booleans", "categories", "dates", "texts", "missing", "bounds"):
        wanted = getattr(settings, key) or ()
        if key == "bounds" and isinstance(wanted, tuple):
            continue
        for name in wanted:
            field = "feature_bounds" if key == "bounds" else key
            find_column(name, names, f"data.{field}", source)
    apart = (settings.target, settings.user)
    features = settings.features or tuple(name for name in names if name not in apart)
    if settings.user is not None and settings.user in features:
        raise InvalidInput("data.features", settings.user, "it tells persons apart; leave it out")
    if settings.target in features or not features:
        raise InvalidInput(
            "data.features", list(features), "give at least one column besides the target"
        )
    return [list(names).index(name) for name in features], None if given else target


def _read_npz(path: Path, settings: DataSettings) -> Table:
    """Read the arrays ``X`` and ``y`` of an ``.npz`` file, and persons; pickles are refused."""
    wanted, user = {"X"} if settings.classes == NO_TARGET else {"X", "y"}, settings.user
    with np.load(path, allow_pickle=False) as archive:
        if not wanted <= set(archive.files):
            raise InvalidInput(
                "data.path",
                path.name,
                f"the file must contain arrays named {' and '.join(sorted(wanted))}",
            )
        if user is not None:
            find_column(user, archive.files, "data.user", path.name)
        try:
            targets = None if settings.classes == NO_TARGET else flat(archive["y"])
            table = _array_table(archive["X"], targets, path.name)
            if user is None:
                return table
            return replace(table, users=given_persons(archive[user], table.rows))
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(
                "data.path",
                path.name,
                "arrays of Python objects are not read; give numbers or strings",
            ) from None


def _parquet() -> Any:
    """Return pyarrow's module for Parquet."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    return parquet


def _parquet_columns(path: Path, settings: DataSettings) -> tuple[DataSettings, list[str]]:
    """Return the settings with all features of a Parquet file, and the columns to read."""
    names = list(_parquet().read_schema(path).names)
    positions, target = choose_columns(names, settings, path.name)
    features = [names[index] for index in positions]
    wanted = features if target is None else [*features, names[target]]
    wanted = [*wanted, *(names[index] for index in user_column(names, settings, path.name))]
    return replace(settings, features=tuple(features)), wanted


def _text_batches(path: Path, settings: DataSettings, size: int) -> Iterator[Table]:
    """Read the wanted columns of a text file with a header, in batches of ``size`` lines.

    Every line after the header is a place. The last batch is empty.
    """
    try:
        delimiter, names = read_header(path, settings.delimiter)
    except InvalidInput as error:
        raise InvalidInput("data.path", path.name, error.valid) from None
    features, target = choose_columns(names, settings, path.name)
    user = user_column(names, settings, path.name)
    wanted = [*features, *(() if target is None else (target,)), *user]
    chosen = tuple(names[index] for index in features)
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as stream:
        stream.readline()  # the header
        while True:
            by_column: list[list[str | None]] = [[] for _ in wanted]
            count = 0
            for line in islice(stream, size):
                count += 1
                text = line.rstrip(b"\r\n").decode("utf-8", "replace")
                cells = _cells(text, delimiter, len(names))
                for column, index in zip(by_column, wanted, strict=True):
                    column.append(None if cells is None else cells[index])
            columns = [np.array(column, dtype=object) for column in by_column]
            users = columns.pop() if user else None
            targets = None if target is None else columns.pop()
            types = ("",) * len(columns)
            yield Table(tuple(columns), targets, chosen, types, path.name, users=users)
            if not count:
                return


def files_of(source: Path) -> list[Path]:
    """Return the files that a path names, sorted by name if it is a pattern such as ``rows-*.csv``.

    Their names and their number are public.
    """
    if "*" in source.name and not source.is_file():
        return sorted(path for path in source.parent.glob(source.name) if path.is_file())
    return [source] if source.is_file() else []


def can_stream(source: Path) -> bool:
    """Return whether :func:`read_batches` can read a file, or the files of a pattern."""
    return bool(files_of(source)) and source.name.lower().endswith((".parquet", *_TEXT))


def read_head(source: Path, settings: DataSettings) -> Table:
    """Return the columns of what :func:`read_batches` reads, without rows."""
    source = files_of(source)[0]
    if source.name.lower().endswith(".parquet"):
        chosen, wanted = _parquet_columns(source, settings)
        frame = frame_of(_parquet().read_schema(source).empty_table().select(wanted))
        assert frame is not None
        return _of_columns(frame, chosen, source.name)
    return next(_text_batches(source, settings, 0))


def head_and_places(source: str | Path, settings: DataSettings) -> tuple[Table, int]:
    """Return the columns of a source without its rows, and its number of places, or of persons."""
    if isinstance(source, Path) and can_stream(source):
        return read_head(source, settings), count_places(source, settings)
    table = read_source(source, settings)
    return table.part(slice(0)), _units(table)


def head_as_dict(head: Table) -> dict[str, Any]:
    """Return the columns of a table in JSON types; :func:`head_from_dict` reads them back."""
    block = isinstance(head.cells, np.ndarray)
    return {
        "width": head.width,
        "dtype": head.cells.dtype.str if block else None,  # type: ignore[union-attr]
        "target": head.targets is not None,
        "names": head.names,
        "types": head.types,
        "shape": head.shape,
    }


def head_from_dict(record: Mapping[str, Any], source: str) -> Table:
    """Return a table without rows."""
    nothing = np.empty(0, dtype=object)
    cells: Array | tuple[Array, ...] = (nothing,) * record["width"]
    if record["dtype"] is not None:
        cells = np.empty((0, record["width"]), dtype=record["dtype"])
    names, shape = record["names"], record["shape"]
    return Table(
        cells,
        nothing if record["target"] else None,
        None if names is None else tuple(names),
        tuple(record["types"]),
        source,
        None if shape is None else tuple(shape),
    )


def open_table(settings: DataSettings) -> tuple[Any, Table]:
    """Return the wanted columns of a database table, as an Ibis table and without rows."""
    from expost.tables.sources import open_source

    opened = open_source(str(settings.database), settings.table)
    names = list(opened.columns)
    positions, target = choose_columns(names, settings, f"the table {settings.table}")
    others = user_column(names, settings, f"the table {settings.table}")
    others = others if target is None else [target, *others]
    wanted = [names[index] for index in (*positions, *others)]
    selected = total_columns(opened, wanted)
    frame = frame_of(selected.schema().to_pyarrow().empty_table())
    assert frame is not None
    return selected, _of_columns(frame, settings, f"the table {settings.table}")


def read_batches(source: Path, settings: DataSettings, size: int) -> Iterator[Table]:
    """Read Parquet files or text files in batches of at most ``size`` rows, in order.

    What a row becomes does not depend on the batch that it is in.
    """
    settings = replace(settings, features=read_head(source, settings).names)
    for file in files_of(source):
        try:
            if file.name.lower().endswith(".parquet"):
                yield from _parquet_batches(file, settings, size)
            else:
                yield from _text_batches(file, settings, size)
        except Exception as error:
            if _may_be_shown(error):
                raise
            raise _unreadable(file, error) from None


def _parquet_batches(path: Path, settings: DataSettings, size: int) -> Iterator[Table]:
    """Read the wanted columns of a Parquet file in batches."""
    import pyarrow as pa

    chosen, wanted = _parquet_columns(path, settings)
    with _parquet().ParquetFile(path) as file:
        for batch in file.iter_batches(size, columns=wanted, use_threads=False):
            frame = frame_of(pa.Table.from_batches([batch]).select(wanted))
            assert frame is not None
            yield _of_columns(frame, chosen, path.name)


def _may_be_shown(error: Exception) -> bool:
    """Return whether an error says nothing about rows.

    A damaged file can raise anything, and the text may quote data. Errors of the operating system
    have a number; those that a library calls so have none.
    """
    if isinstance(error, OSError):
        return error.errno is not None
    return isinstance(error, ExpostError)


def _unreadable(source: Path, error: Exception) -> InvalidInput:
    """Return the error of a damaged file; only the type of the error is shown."""
    return InvalidInput(
        "data.path", source.name, f"the file cannot be read ({type(error).__name__})"
    )


def count_places(source: Path, settings: DataSettings) -> int:
    """Return the number of places of a file, or of persons; other cells are not read."""
    if settings.user is not None and can_stream(source):
        only = DataSettings(features=(settings.user,), delimiter=settings.delimiter)
        names: set[str] = set()
        for table in read_batches(source, only, 2**16):
            names.update(person_codes(table.cells[0])[1])
        return len(names)
    if not can_stream(source):
        return _units(read_source(source, settings))
    if source.name.lower().endswith(".parquet"):
        return sum(map(_count_parquet, files_of(source)))
    opener: Any = gzip.open if source.name.lower().endswith(".gz") else open
    count = 0
    for file in files_of(source):
        with opener(file, "rb") as stream:
            stream.readline()  # the header
            count += sum(1 for _ in stream)
    return count


def _units(table: Table) -> int:
    """Return the number of rows, or of the persons that they belong to."""
    return table.rows if table.users is None else len(person_codes(table.users)[1])


def _count_parquet(path: Path) -> int:
    """Return the number of rows that the footer of a Parquet file states."""
    parquet = _parquet()
    try:
        return int(parquet.read_metadata(path).num_rows)
    except Exception as error:
        raise _unreadable(path, error) from None


def _cells(line: str, delimiter: str, width: int) -> list[str] | None:
    """Return the cells of a line, or None if the place is empty."""
    if '"' not in line:
        cells = line.split(delimiter)
    else:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error:  # a quote that is not closed, or a cell that is too long
            return None
    return cells if len(cells) == width else None
