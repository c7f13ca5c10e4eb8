"""The ``[data]`` table of a tuning job: the source of the rows and what is publicly known of them.

Bounds and classes are public knowledge that the user writes down. They are never computed from the
data. Nothing here reads a row.

Tests: ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expost.tuning.config_file import ConfigTable, is_number

BUILT_IN = ("digits", "breast_cancer")
DATA_KEYS = (
    "name",
    "path",
    "target",
    "features",
    "feature_bounds",
    "classes",
    "target_bounds",
    "holdout",
    "public_test",
)
_CNN_CLASSES = 10  # the most classes that "cnn" can distinguish

Bounds = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class DataSettings:
    """The source of the rows and what is publicly known about them.

    Parameters
    ----------
    name : str, optional
        A data set of scikit-learn: ``"digits"`` or ``"breast_cancer"``.
    path : Path, optional
        A file of rows: ``.npz``, ``.csv`` or ``.parquet``.
    target : str, optional
        The column to predict, in CSV and Parquet files.
    features : tuple of str, optional
        The feature columns. All columns except the target if None.
    bounds : tuple of (float, float), optional
        One pair (low, high) for all features, or one pair per feature. Values outside are clipped.
    classes : int or tuple of str, optional
        The number of classes or their names. Never taken from the labels.
    target_bounds : (float, float), optional
        Bounds of the target of a regression.
    holdout : float
        Share of the rows that is used to score models privately and never to train them.
    public_test : Path, optional
        A file of public rows for scoring.
    """

    name: str | None = None
    path: Path | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    bounds: Bounds | None = None
    classes: int | tuple[str, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    holdout: float = 0.2
    public_test: Path | None = None

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes


def read_data(
    table: ConfigTable, folder: Path, *, kind: str, loss: str, scoring: str, given: bool
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
    target = table.text("target")
    if path is not None and target is None and not path.endswith(".npz"):
        table.refuse("target", "name the column to predict")
    features = table.values.get("features")
    if features is not None and not (
        isinstance(features, list) and features and all(isinstance(f, str) for f in features)
    ):
        table.refuse("features", "give a list of column names")
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
    holdout = table.number("holdout", 0.2)
    if holdout is None or not 0 < holdout < 1:
        table.refuse("holdout", "give a share with 0 < holdout < 1")
    if "holdout" in table and scoring == "public":
        table.refuse(
            "holdout", "with public scoring all rows are used for training; leave this key out"
        )
    return DataSettings(
        name=name,
        path=None if path is None else folder / path,
        target=target,
        features=None if features is None else tuple(features),
        bounds=_bounds(table, name),
        classes=_classes(table, name, kind, loss),
        target_bounds=_target_bounds(table, loss),
        holdout=holdout,
        public_test=None if test is None else folder / test,
    )


def _bounds(table: ConfigTable, name: str | None) -> Bounds | None:
    """Read ``feature_bounds``; built-in data sets have published ones."""
    if "feature_bounds" not in table:
        if name is None:
            table.refuse(
                "feature_bounds",
                "give [low, high] for all features, or one pair per feature; bounds must be public "
                "knowledge, not computed from the data",
            )
        return ((0.0, 16.0),) if name == "digits" else None
    value = table.values["feature_bounds"]
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
        table.refuse("feature_bounds", "give [low, high] with low < high, or a list of such pairs")
    return tuple((float(low), float(high)) for low, high in pairs)


def _is_pair(pair: Any) -> bool:
    """Return whether ``pair`` is two ascending numbers with a finite difference."""
    if not (
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(is_number(each) for each in pair)
    ):
        return False
    return 0 < float(pair[1]) - float(pair[0]) < math.inf


def _classes(
    table: ConfigTable, name: str | None, kind: str, loss: str
) -> int | tuple[str, ...] | None:
    """Read ``classes`` and check it against the model."""
    value: Any = table.values.get("classes", {"digits": 10, "breast_cancer": 2}.get(name or ""))
    if loss == "squared":
        if "classes" in table:
            table.refuse("classes", "a regression has no classes; leave this key out")
        return None
    named = (
        isinstance(value, (list, tuple))
        and len(value) == len(set(map(str, value)))
        and len(value) >= 2
    )
    if named:
        value = tuple(str(each) for each in value)
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
    if not _is_pair(value):
        table.refuse(
            "target_bounds", "give public bounds [low, high] of the target with low < high"
        )
    return (float(value[0]), float(value[1]))
