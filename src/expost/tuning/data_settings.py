"""The ``[data]`` table of a tuning job: the source of the rows and what is publicly known of them.

Bounds, categories, dates, fill values and classes are public knowledge that the user writes down.
They are never computed from the data. Nothing here reads a row. What is needed and not given is
reported when the columns are known, all at once (:mod:`expost.tuning.missing_facts`).

Tests: ``tests/tuning/test_settings.py``, ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.features.pictures import picture_shape
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.tables.encoding import Label, label_text, truths
from expost.tuning.config_file import ConfigTable, is_number
from expost.tuning.table_schema import Bounds

BUILT_IN = ("digits", "breast_cancer")
DATA_KEYS = (
    "name",
    "path",
    "target",
    "features",
    "feature_bounds",
    "categories",
    "booleans",
    "dates",
    "texts",
    "shape",
    "missing",
    "delimiter",
    "classes",
    "target_bounds",
    "rows",
    "integers",
    "holdout",
    "public_test",
)
INDICATOR = "indicator"
"""The fill of a column whose missing values get a number of their own."""
_CNN_CLASSES = 10  # the most classes that "cnn" can distinguish
_MOST_ROWS = 10**9


@dataclass(frozen=True)
class DataSettings:
    """The source of the rows and what is publicly known about them.

    Parameters
    ----------
    name : str, optional
        A data set of scikit-learn: ``"digits"`` or ``"breast_cancer"``.
    path : Path, optional
        A file of rows: ``.npz``, ``.csv``, ``.tsv``, ``.txt`` (each also ``.gz``) or ``.parquet``.
    target : str, optional
        The column to predict, in CSV and Parquet files and data frames.
    features : tuple of str, optional
        The feature columns. All columns except the target if None.
    bounds : tuple of (float, float), or mapping of str to (float, float), optional
        One pair (low, high) for all numbers, one pair per feature, or a pair by column name. Values
        outside are clipped.
    categories : mapping of str to tuple
        The public categories of a column. Every other value is "other".
    booleans : tuple of str
        Columns of true and false, yes and no, 1 and 0.
    dates : mapping of str to (str, str)
        First and last day of a column of ISO dates; days outside are clipped.
    texts : tuple of str
        Columns of text, of which hashed word and character n-grams are taken.
    shape : tuple of int, optional
        Shape of one row that is stored flat: height and width of a picture, and channels.
    missing : mapping of str to object
        The public value that replaces a missing one in a column, or ``"indicator"``.
    delimiter : str, optional
        Delimiter of a text file. Taken from the header line if None.
    classes : int or tuple, optional
        The number of classes or the labels. Never taken from the rows.
    target_bounds : (float, float), optional
        Bounds of the target of a regression.
    regression : bool
        Whether the target is a number.
    rows : int, optional
        Public number of rows. If it is given, the actual number is not public and neighbours are
        add-remove; if not, the number of places is public and neighbours are zero-out.
    integers : bool
        Whether the features are whole numbers that are clipped and not scaled, such as tokens.
    holdout : float
        Share of the rows that is used to score models privately and never to train them.
    public_test : Path, optional
        A file of public rows for scoring.
    """

    name: str | None = None
    path: Path | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    bounds: Bounds | Mapping[str, tuple[float, float]] | None = None
    categories: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)
    booleans: tuple[str, ...] = ()
    dates: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    missing: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str | None = None
    classes: int | tuple[Label, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    regression: bool = False
    rows: int | None = None
    integers: bool = False
    holdout: float = 0.2
    public_test: Path | None = None

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    @property
    def relation(self) -> str:
        """The neighbouring relation of the job: "add-remove" or "zero-out"."""
        return ZERO_OUT if self.rows is None else ADD_REMOVE


def read_data(
    table: ConfigTable,
    folder: Path,
    *,
    kind: str,
    loss: str,
    scoring: str,
    given: bool,
    training: str = "dp-sgd",
) -> DataSettings:
    """Read and check the ``[data]`` table.

    Parameters
    ----------
    table : ConfigTable
        The table.
    folder : Path
        Folder to which relative paths refer.
    kind, loss : str
        Kind and loss of the model.
    scoring : str
        ``"private"`` or ``"public"``.
    given : bool
        Whether the rows are passed as arrays.
    training : str
        How the model is trained; the default share of scoring rows depends on it.

    Returns
    -------
    DataSettings
        The checked settings.

    Raises
    ------
    InvalidInput
        If a key is missing, not valid, or does not match the other tables.
    """
    name, path, test = (
        table.text("name", None, BUILT_IN),
        table.text("path"),
        table.text("public_test"),
    )
    sources = (name is not None) + (path is not None) + given
    if sources != 1:
        keys = "X and y" if given else "name or path"
        table.refuse("path" if path else "name", f"give exactly one source of rows: {keys}")
    delimiter = table.text("delimiter")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        table.refuse("delimiter", "give one character, such as ; or a tab")
    if (test is not None) != (scoring == "public"):
        table.refuse(
            "public_test",
            'give a file of public rows together with privacy.scoring = "public", or neither',
        )
    if (
        test is not None
        and path is not None
        and (folder / test).resolve() == (folder / path).resolve()
    ):
        table.refuse(
            "public_test", "this is the file of the rows to protect; give a file of public rows"
        )
    classes = _classes(table, name, kind, loss)
    holdout = table.number("holdout", default_holdout(classes, training))
    if holdout is None or not 0 < holdout < 1:
        table.refuse("holdout", "give a share with 0 < holdout < 1")
    if "holdout" in table and scoring == "public":
        table.refuse(
            "holdout", "with public scoring all rows are used for training; leave this key out"
        )
    settings = DataSettings(
        name=name,
        path=None if path is None else folder / path,
        target=table.text("target"),
        features=_names(table, "features"),
        bounds=_bounds(table, name),
        categories=_categories(table),
        booleans=_names(table, "booleans") or (),
        dates=_dates(table),
        texts=_names(table, "texts") or (),
        shape=_shape(table),
        missing={
            column: _iso(fill) if isinstance(fill, date) else fill
            for column, fill in _by_name(table, "missing").items()
        },
        delimiter=delimiter,
        classes=classes,
        target_bounds=_target_bounds(table, loss),
        regression=loss == "squared",
        rows=table.count("rows", None, _MOST_ROWS),
        integers=table.flag("integers"),
        holdout=holdout,
        public_test=None if test is None else folder / test,
    )
    _check_kinds(table, settings)
    _check_missing(table, settings)
    return settings


def default_holdout(classes: Any, training: str) -> float:
    """Return the default share of rows that score: more where training needs few weights."""
    count = len(classes) if isinstance(classes, (list, tuple)) else classes
    several = isinstance(count, int) and count > 2
    return 0.2 if training == "dp-sgd" or several else 0.35


def _by_name(table: ConfigTable, key: str) -> dict[str, Any]:
    """Read a table of facts by column name."""
    value = table.values.get(key, {})
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        table.refuse(key, "give a table by column name, e.g. { age = … }")
    return dict(value)


def _names(table: ConfigTable, key: str) -> tuple[str, ...] | None:
    """Read a list of column names."""
    value = table.values.get(key)
    if value is None:
        return None
    if (
        not isinstance(value, (list, tuple))
        or not all(isinstance(each, str) for each in value)
        or len(set(value)) < len(value)
        or not value
    ):
        table.refuse(key, "give a list of column names")
    return tuple(value)


def _shape(table: ConfigTable) -> tuple[int, ...] | None:
    """Read ``shape``: whole numbers, or a text such as "28x28"."""
    value: Any = table.values.get("shape")
    if value is None:
        return None
    try:
        return picture_shape(value)
    except InvalidInput as error:
        table.refuse("shape", error.valid)


def _bounds(table: ConfigTable, name: str | None) -> Bounds | dict[str, tuple[float, float]] | None:
    """Read ``feature_bounds``; built-in data sets have published ones."""
    if "feature_bounds" not in table:
        return ((0.0, 16.0),) if name == "digits" else None
    value = table.values["feature_bounds"]
    if isinstance(value, Mapping):
        for column, pair in _by_name(table, "feature_bounds").items():
            if not _is_pair(pair):
                table.refuse("feature_bounds", f"give [low, high] with low < high for {column!r}")
        return {column: (float(low), float(high)) for column, (low, high) in value.items()}
    pairs = (
        [value]
        if isinstance(value, (list, tuple)) and all(is_number(each) for each in value)
        else value
    )
    if (
        not isinstance(pairs, (list, tuple))
        or not pairs
        or not all(_is_pair(pair) for pair in pairs)
    ):
        table.refuse(
            "feature_bounds",
            "give [low, high] with low < high for all features, a list of such pairs, one per "
            "feature, or a table of pairs by column name",
        )
    return tuple((float(low), float(high)) for low, high in pairs)


def _is_pair(pair: Any) -> bool:
    """Return whether ``pair`` is two ascending numbers with a finite difference."""
    if not (
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(is_number(each) for each in pair)
    ):
        return False
    return 0 < float(pair[1]) - float(pair[0]) < math.inf


def _is_label_list(value: Any, least: int) -> bool:
    """Return whether ``value`` lists different labels, at least so many."""
    return (
        isinstance(value, (list, tuple))
        and len(value) >= least
        and all(isinstance(each, (str, int, float, bool)) for each in value)
        and None not in (texts := [label_text(each) for each in value])
        and len(set(texts)) == len(value)
    )


def _categories(table: ConfigTable) -> dict[str, tuple[Label, ...]]:
    """Read ``categories``."""
    found = _by_name(table, "categories")
    for column, value in found.items():
        if not _is_label_list(value, 1):
            table.refuse(
                "categories", f"give the list of different public categories of {column!r}"
            )
    return {column: tuple(value) for column, value in found.items()}


def _dates(table: ConfigTable) -> dict[str, tuple[str, str]]:
    """Read ``dates``: first and last day by column name, as ISO text or TOML dates."""
    found = {}
    for column, value in _by_name(table, "dates").items():
        days = [_iso(each) for each in value] if isinstance(value, (list, tuple)) else []
        if len(days) != 2 or None in days or not days[0] < days[1]:  # type: ignore[operator]
            table.refuse(
                "dates",
                f'give the first and the last day of {column!r}: ["2000-01-01", "2026-12-31"]',
            )
        found[column] = (str(days[0]), str(days[1]))
    return found


def _iso(value: Any) -> str | None:
    """Return a day as ISO text, or None."""
    if isinstance(value, datetime):
        return value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        return None


def _check_kinds(table: ConfigTable, settings: DataSettings) -> None:
    """Refuse a column that is declared twice, or facts by name that cannot hold together."""
    by_name = settings.bounds if isinstance(settings.bounds, Mapping) else {}
    seen: dict[str, str] = {}
    kinds = {
        "feature_bounds": by_name,
        "categories": settings.categories,
        "booleans": settings.booleans,
        "dates": settings.dates,
        "texts": settings.texts,
    }
    for key, columns in kinds.items():
        for column in columns:
            if column in seen:
                table.refuse(key, f"{column!r} is also in {seen[column]}; give it in one of them")
            if column == settings.target:
                table.refuse(key, f"{column!r} is the target; its facts are in classes")
            seen[column] = key
    several = isinstance(settings.bounds, tuple) and len(settings.bounds) > 1
    if several and len(seen) > len(by_name):
        table.refuse(
            "feature_bounds", "with columns of several kinds, give the bounds by column name"
        )
    if settings.integers and (seen or settings.missing):
        table.refuse("integers", "whole numbers have bounds only; leave out facts by column name")


def _check_missing(table: ConfigTable, settings: DataSettings) -> None:
    """Check the public fill value of each column against its kind."""
    for column, fill in settings.missing.items():
        if column in settings.categories:
            table.refuse("missing", f'a missing value of {column!r} is "other"; leave it out')
        if column in settings.texts:
            table.refuse("missing", f"a missing text of {column!r} is empty; leave it out")
        if fill == INDICATOR:
            continue
        if column in settings.dates:
            if _iso(fill) is None:
                table.refuse("missing", f'give an ISO date or "indicator" for {column!r}')
        elif column in settings.booleans:
            if not isinstance(fill, (bool, int, str)) or math.isnan(fill_of(settings, column)):
                table.refuse("missing", f'give true, false or "indicator" for {column!r}')
        elif not is_number(fill):
            table.refuse("missing", f'give a public number or "indicator" for {column!r}')


def fill_of(settings: DataSettings, column: str) -> float:
    """Return the public fill value of a column as the number that its cells become."""
    fill = settings.missing[column]
    if column in settings.dates:
        return float(date.fromisoformat(_iso(fill) or "").toordinal())
    if column in settings.booleans:
        return float(truths(np.array([fill], dtype=object))[0])
    return float(fill)


def _classes(
    table: ConfigTable, name: str | None, kind: str, loss: str
) -> int | tuple[Label, ...] | None:
    """Read ``classes`` and check it against the model."""
    value: Any = table.values.get("classes", {"digits": 10, "breast_cancer": 2}.get(name or ""))
    if loss == "squared":
        if "classes" in table:
            table.refuse("classes", "a regression has no classes; leave this key out")
        return None
    if value is None:
        return None
    if _is_label_list(value, 2):
        value = tuple(value)
    elif isinstance(value, bool) or not isinstance(value, int) or value < 2:
        table.refuse(
            "classes",
            "give the number of classes (labels 0, 1, …) or the list of labels; both must be "
            "public knowledge",
        )
    count = len(value) if isinstance(value, tuple) else value
    if loss == "logistic" and count != 2:
        table.refuse(
            "classes", 'a logistic model has two classes; give 2, or model.kind = "softmax"'
        )
    if kind == "cnn" and count > _CNN_CLASSES:
        table.refuse(
            "classes", f'a "cnn" has at most {_CNN_CLASSES} classes; give a module of your own'
        )
    return value  # type: ignore[no-any-return]


def _target_bounds(table: ConfigTable, loss: str) -> tuple[float, float] | None:
    """Read ``target_bounds``, which a regression requires."""
    value: Any = table.values.get("target_bounds")
    if loss != "squared":
        if value is not None:
            table.refuse("target_bounds", "only a regression has target bounds; leave this key out")
        return None
    if value is None:
        return None
    if not _is_pair(value):
        table.refuse(
            "target_bounds", "give public bounds [low, high] of the target with low < high"
        )
    return (float(value[0]), float(value[1]))
