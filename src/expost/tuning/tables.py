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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.analytics.text_lines import read_header
from expost.arrays import Array
from expost.errors import ExpostError, InvalidInput, MissingExtra
from expost.tables.column_cells import Frame, block_of, flat, frame_of
from expost.tuning.data_settings import DataSettings
from expost.tuning.table_schema import find_column, near

_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_SUFFIXES = (".npz", ".parquet", *_TEXT)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Features and targets as they were read.

    Parameters
    ----------
    cells : ndarray of shape (rows, features), or tuple of ndarray
        One block of numbers, or one array per column.
    targets : ndarray or None
        The target column; None if there is none to read.
    names : tuple of str, optional
        Names of the features. None for arrays.
    types : tuple of str
        Type of each feature by name, "" if the source has none (text files).
    source : str
        What the table is called in error messages.
    shape : tuple of int, optional
        Shape of one row of an array with more than two dimensions, before it was flattened.
    """

    cells: Array | tuple[Array, ...]
    targets: Array | None
    names: tuple[str, ...] | None = None
    types: tuple[str, ...] = ()
    source: str = "the array"
    shape: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        """Number of feature columns."""
        return self.cells.shape[1] if isinstance(self.cells, np.ndarray) else len(self.cells)

    @property
    def rows(self) -> int:
        """Number of rows, or of places."""
        return len(self.cells) if isinstance(self.cells, np.ndarray) else len(self.cells[0])


def read_source(source: str | Path, settings: DataSettings) -> Table:
    """Read a built-in data set or a file.

    Parameters
    ----------
    source : str or Path
        Name of a built-in data set, or a file.
    settings : DataSettings
        The columns to read.

    Returns
    -------
    Table
        The features and targets.

    Raises
    ------
    InvalidInput
        If the file or a column is missing, or the file is damaged. It does not depend on rows.
    """
    if isinstance(source, str):
        bunch = load_built_in(source)
        return Table(bunch.data, bunch.target, source=source)
    if not source.is_file():
        raise InvalidInput("data.path", str(source), "there is no such file")
    name = source.name.lower()
    if not name.endswith(_SUFFIXES):
        raise InvalidInput(
            "data.path", source.name, "give a file ending in " + ", ".join(_SUFFIXES)
        )
    try:
        if name.endswith(".npz"):
            return _read_npz(source)
        if name.endswith(".parquet"):
            return _read_parquet(source, settings)
        return _read_text(source, settings)
    except (ExpostError, OSError):
        raise
    except Exception as error:  # a damaged file can raise anything, and the text may quote data
        raise InvalidInput(
            "data.path", source.name, f"the file cannot be read ({type(error).__name__})"
        ) from None


def load_built_in(name: str) -> Any:
    """Load a data set that scikit-learn contains."""
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    return datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()


def given_table(X: Any, y: Any, settings: DataSettings) -> Table:
    """Return the arrays or the data frame that the caller passed.

    Parameters
    ----------
    X : array_like or data frame
        Features, or a pandas, polars or pyarrow table.
    y : array_like, optional
        Targets. By default the column ``settings.target`` of the data frame.
    settings : DataSettings
        The columns to read.

    Returns
    -------
    Table
        The features and targets.

    Raises
    ------
    InvalidInput
        If an argument, a shape, a type or a column is not valid. It does not depend on rows.
    """
    if X is None:
        raise InvalidInput("X, y", None, "give both, or give neither and name a source in [data]")
    frame = frame_of(X)
    targets = None if y is None else flat(y)
    if frame is not None:
        return _of_columns(frame, settings, "the data frame", targets)
    if targets is None:
        raise InvalidInput("y", None, "give one target per row, or a data frame and its target")
    return _array_table(X, targets)


def _array_table(X: Any, targets: Array, source: str = "the array") -> Table:
    """Return an array of rows as a table that remembers the shape of a row."""
    shape = tuple(np.shape(X)[1:]) if hasattr(X, "shape") else ()
    block = block_of(X)
    return Table(block, targets, source=source, shape=shape if len(shape) > 1 else None)


def cells_for(X: Any, names: Sequence[str] | None, width: int) -> Array | list[Array]:
    """Return the cells of new rows, in the order of the features of a model.

    Parameters
    ----------
    X : array_like or data frame
        The rows. Columns of a data frame are found by name, and further ones are ignored.
    names : sequence of str or None
        Names of the features, if the model knows them.
    width : int
        Number of features.

    Raises
    ------
    InvalidInput
        If a column is missing, or the number of columns is wrong.
    """
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
        found = len(frame.names)
        table: Array | list[Array] = [frame.column(place) for place in range(found)]
    else:
        table = block_of(X)
        found = table.shape[1]
    if found != width:
        raise InvalidInput(
            "X", f"{found} columns", f"the model was trained with {width} columns; give the same"
        )
    return table


def _of_columns(
    frame: Frame, settings: DataSettings, source: str, targets: Array | None = None
) -> Table:
    """Return the wanted columns of a table with names."""
    features, target = choose_columns(frame.names, settings, source, targets is not None)
    cells = tuple(frame.column(place) for place in features)
    if target is not None:
        targets = frame.column(target)
    return Table(
        cells,
        targets,
        tuple(frame.names[place] for place in features),
        tuple(frame.types[place].lower() for place in features),
        source,
    )


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
    features = settings.features or tuple(name for name in names if name != settings.target)
    if settings.target in features or not features:
        raise InvalidInput(
            "data.features", list(features), "give at least one column besides the target"
        )
    return [list(names).index(name) for name in features], None if given else target


def _read_npz(path: Path) -> Table:
    """Read the arrays ``X`` and ``y`` of an ``.npz`` file; pickles are refused."""
    with np.load(path, allow_pickle=False) as archive:
        if not {"X", "y"} <= set(archive.files):
            raise InvalidInput("data.path", path.name, "the file must contain arrays named X and y")
        try:
            return _array_table(archive["X"], flat(archive["y"]), path.name)
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(
                "data.path",
                path.name,
                "arrays of Python objects are not read; give numbers or strings",
            ) from None


def _read_parquet(path: Path, settings: DataSettings) -> Table:
    """Read the wanted columns of a Parquet file."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    names = list(parquet.read_schema(path).names)
    features, target = choose_columns(names, settings, path.name)
    wanted = [names[place] for place in (*features, *(() if target is None else (target,)))]
    frame = frame_of(parquet.read_table(path, columns=wanted))
    assert frame is not None
    return _of_columns(frame, replace(settings, features=tuple(wanted[: len(features)])), path.name)


def _read_text(path: Path, settings: DataSettings) -> Table:
    """Read the wanted columns of a text file with a header; every further line is a place."""
    try:
        delimiter, names = read_header(path, settings.delimiter)
    except InvalidInput as error:
        raise InvalidInput("data.path", path.name, error.valid) from None
    features, target = choose_columns(names, settings, path.name)
    wanted = [*features, *(() if target is None else (target,))]
    found: list[list[str | None]] = [[] for _ in wanted]
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as stream:
        stream.readline()  # the header
        for line in stream:
            cells = _cells(line.rstrip(b"\r\n").decode("utf-8", "replace"), delimiter, len(names))
            for column, place in zip(found, wanted, strict=True):
                column.append(None if cells is None else cells[place])
    columns = [np.array(column, dtype=object) for column in found]
    targets = None if target is None else columns.pop()
    chosen = tuple(names[place] for place in features)
    return Table(tuple(columns), targets, chosen, ("",) * len(columns), path.name)


def count_places(source: Path, settings: DataSettings) -> int:
    """Return the number of places of a file; cells of text and Parquet files are not read.

    Parameters
    ----------
    source : Path
        The file.
    settings : DataSettings
        The columns to read.

    Raises
    ------
    InvalidInput
        As :func:`read_source`.
    """
    name = source.name.lower()
    if source.is_file() and name.endswith(".parquet"):
        return _count_parquet(source)
    if not source.is_file() or not name.endswith(_TEXT):
        return read_source(source, settings).rows
    opener: Any = gzip.open if name.endswith(".gz") else open
    with opener(source, "rb") as stream:
        stream.readline()  # the header
        return sum(1 for _ in stream)


def _count_parquet(path: Path) -> int:
    """Return the number of rows that the footer of a Parquet file states."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    try:
        return int(parquet.read_metadata(path).num_rows)
    except Exception as error:
        raise InvalidInput(
            "data.path", path.name, f"the file cannot be read ({type(error).__name__})"
        ) from None


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
