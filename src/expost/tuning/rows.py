"""Load the rows of a tuning job, clip them to public bounds and split them by a public rule.

Neighbours. The number n of positions is public. A person's row is at its position, or the position
is empty. Held-out positions are spread evenly: position i is held out iff ⌊(i+1)·h⌋ > ⌊i·h⌋, where
h is the share ``holdout``. So the split depends only on n and h, each person's row is in exactly
one part, and the training part and the held-out part are disjoint. Shuffle a file first if its
order repeats with a fixed period.

A value that is not a number, or a label that is not listed, stops the job before anything is
charged. Such an error is for the curator, like any crash. No message contains data.

Tests: ``tests/tuning/test_rows.py``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Array
from expost.errors import ExpostError, InvalidInput, MissingExtra
from expost.tuning.data_settings import Bounds, DataSettings


@dataclass(frozen=True, eq=False, repr=False)
class JobRows:
    """Scaled features and targets of the training part and of the scoring part.

    Parameters
    ----------
    X, y : ndarray
        Features and targets of the training rows.
    score_X, score_y : ndarray
        Features and targets of the scoring rows.
    bounds : tuple of (float, float)
        The public bounds used to scale the features.
    public : bool
        Whether the scoring rows are public.
    """

    X: Array
    y: Array
    score_X: Array
    score_y: Array
    bounds: Bounds
    public: bool

    def as_data(self, identity: str) -> dict[str, Any]:
        """Return the data that candidates receive.

        Parameters
        ----------
        identity : str
            Identifies the job. A checkpoint uses it to distinguish jobs on the same rows.

        Returns
        -------
        dict
            The arrays ``X``, ``y``, ``score_X`` and ``score_y``, and ``job``, the identity.
        """
        return {
            "X": self.X,
            "y": self.y,
            "score_X": self.score_X,
            "score_y": self.score_y,
            "job": identity,
        }


def held_out(n: int, share: float) -> npt.NDArray[np.bool_]:
    """Return which of ``n`` positions are held out.

    About ``share`` of the positions are held out, evenly spread. The rows are not used.

    Parameters
    ----------
    n : int
        Number of positions.
    share : float
        Share to hold out, with 0 < share < 1. It is used as the exact decimal that is written.

    Returns
    -------
    ndarray of bool
        True at held-out positions.
    """
    exact = Fraction(str(share))
    counts = [floor(place * exact) for place in range(n + 1)]
    return np.diff(np.array(counts)) > 0


def load_rows(settings: DataSettings, X: Any = None, y: Any = None) -> JobRows:
    """Load, check, scale and split the rows of a job.

    Parameters
    ----------
    settings : DataSettings
        The source of the rows and what is publicly known about them.
    X, y : array_like, optional
        Features and targets to use instead of the source in ``settings``.

    Returns
    -------
    JobRows
        The training rows and the scoring rows.

    Raises
    ------
    InvalidInput
        If the rows cannot be read, do not match the settings, or cannot be split.
    """
    if X is not None or y is not None:
        features, targets = _given(X, y)
    else:
        features, targets = _read(settings.name or settings.path, settings)
    bounds = settings.bounds or _published_bounds()
    rows, labels = scale(features, bounds), _targets(targets, settings)
    if not len(rows):
        raise InvalidInput("data", "no rows", "give at least two rows")
    if labels.shape != (len(rows),):
        raise InvalidInput(
            "data",
            f"{len(rows)} rows and targets of shape {labels.shape}",
            "give one target per row",
        )
    if settings.public_test is not None:
        _check_classes(labels, settings)
        test_features, test_targets = _read(settings.public_test, settings)
        test, test_labels = scale(test_features, bounds), _targets(test_targets, settings)
        if test.shape[1:] != rows.shape[1:] or len(test) != len(test_labels) or not len(test):
            raise InvalidInput(
                "data.public_test",
                settings.public_test.name,
                "give rows with the same columns as the data",
            )
        return JobRows(rows, labels, test, test_labels, bounds, True)
    out = held_out(len(rows), settings.holdout)
    if out.all() or not out.any():
        raise InvalidInput(
            "data.holdout",
            settings.holdout,
            f"{len(rows)} rows cannot be split in this way; give another share",
        )
    _check_classes(labels[~out], settings)
    return JobRows(rows[~out], labels[~out], rows[out], labels[out], bounds, False)


def scale(features: Any, bounds: Bounds) -> Array:
    """Clip features to their public bounds and scale them to [0, 1].

    Parameters
    ----------
    features : array_like
        One row per example. Further dimensions are flattened.
    bounds : tuple of (float, float)
        One pair (low, high) for all features, or one pair per feature.

    Returns
    -------
    ndarray of shape (rows, features)
        The scaled features.

    Raises
    ------
    InvalidInput
        If the features are not finite numbers, or if the number of bounds does not match.
    """
    try:
        table = np.asarray(features, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            "data", "features that are not numbers", "give numbers; encode categories first"
        ) from None
    if table.ndim == 0:
        raise InvalidInput("data", "one number", "give a table of rows and features")
    table = table.reshape(len(table), prod(table.shape[1:]))
    if not np.isfinite(table).all():
        raise InvalidInput(
            "data", "features with NaN or infinity", "replace these values, or leave the rows out"
        )
    if len(bounds) not in (1, table.shape[1]):
        raise InvalidInput(
            "data.feature_bounds",
            f"{len(bounds)} pairs",
            f"give one pair for all features, or one pair for each of {table.shape[1]} features",
        )
    low, high = np.array(bounds).T
    return np.ascontiguousarray((np.clip(table, low, high) - low) / (high - low))


def _targets(values: Any, settings: DataSettings) -> Array:
    """Return scaled targets of a regression, or class numbers."""
    if np.ndim(values) != 1:
        raise InvalidInput(
            "data",
            f"targets in {np.ndim(values)} dimensions",
            "give one number or label per row, not a table",
        )
    if settings.target_bounds is not None:
        low, high = settings.target_bounds
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInput("data", "targets that are not numbers", "give numbers") from None
        if not np.isfinite(numbers).all():
            raise InvalidInput("data", "targets with NaN or infinity", "give finite numbers")
        return np.asarray((np.clip(numbers, low, high) - low) / (high - low))
    if isinstance(settings.classes, tuple):
        place = {name: number for number, name in enumerate(settings.classes)}
        labels = np.array(
            [place.get(_label(value), -1) for value in np.asarray(values).tolist()],
            dtype=np.float64,
        )
    else:
        try:
            labels = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInput(
                "data",
                "labels that are not numbers",
                'list their names: data.classes = ["no", "yes"]',
            ) from None
    top = settings.class_count or 0
    if not np.all((labels >= 0) & (labels < top) & (labels == np.floor(labels))):
        raise InvalidInput(
            "data.classes",
            settings.classes,
            "there are labels outside these classes; list every label that may occur",
        )
    return labels


def _check_classes(labels: Array, settings: DataSettings) -> None:
    """Refuse training labels of a single class.

    Every training would refuse them. As the outcome of a selection this fact would be published
    without noise, so it is reported here, to the curator only.
    """
    if settings.target_bounds is None and np.all(labels == labels[0]):
        raise InvalidInput(
            "data", "training labels of one class", "give examples of at least two classes"
        )


def _label(value: Any) -> str:
    """Return a label as text; 1.0 becomes "1"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _given(X: Any, y: Any) -> tuple[Any, Any]:
    """Return the arrays that the caller passed."""
    if X is None or y is None:
        raise InvalidInput("X, y", None, "give both, or give neither and name a source in [data]")
    return np.asarray(X), np.asarray(y)


def _read(source: str | Path | None, settings: DataSettings) -> tuple[Any, Any]:
    """Read features and targets from a built-in data set or a file."""
    if isinstance(source, str):
        return _built_in(source)
    assert source is not None
    if not source.is_file():
        raise InvalidInput("data.path", str(source), "there is no such file")
    readers = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
    if source.suffix.lower() not in readers:
        raise InvalidInput("data.path", source.name, "give a file ending in " + ", ".join(readers))
    try:
        return readers[source.suffix.lower()](source, settings)
    except (ExpostError, OSError):
        raise
    except Exception as error:  # a damaged file can raise anything, and the text may quote data
        raise InvalidInput(
            "data.path", source.name, f"the file cannot be read ({type(error).__name__})"
        ) from None


def _built_in(name: str) -> tuple[Any, Any]:
    """Return features and targets of a data set that scikit-learn contains."""
    bunch = _load_built_in(name)
    return bunch.data, bunch.target


def _load_built_in(name: str) -> Any:
    """Load a data set that scikit-learn contains."""
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    return datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()


def _published_bounds() -> Bounds:
    """Return the minima and maxima in the published description of breast_cancer."""
    number = r"([0-9.]+)"
    text = _load_built_in("breast_cancer").DESCR
    row = rf"^\s*[a-z ]+\((?:mean|standard error|worst)\):\s+{number}\s+{number}\s*$"
    found = re.findall(row, text, re.MULTILINE)
    return tuple((float(low), float(high)) for low, high in found)


def _read_npz(path: Path, settings: DataSettings) -> tuple[Any, Any]:
    """Read the arrays ``X`` and ``y`` of an ``.npz`` file; pickles are refused."""
    with np.load(path, allow_pickle=False) as archive:
        if not {"X", "y"} <= set(archive.files):
            raise InvalidInput("data.path", path.name, "the file must contain arrays named X and y")
        try:
            return archive["X"], archive["y"]
        except ValueError:
            raise InvalidInput(
                "data.path",
                path.name,
                "arrays of Python objects are not read; give numbers or strings",
            ) from None


def _read_csv(path: Path, settings: DataSettings) -> tuple[Any, Any]:
    """Read the feature columns and the target column of a CSV file with a header."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        chosen, target = _columns(header, settings, path)
        features, targets = [], []
        for number, row in enumerate(reader, start=2):
            if not row:
                continue
            try:
                features.append([float(row[column]) for column in chosen])
                targets.append(row[target])
            except (ValueError, IndexError):
                raise InvalidInput(
                    "data.path",
                    f"{path.name}, line {number}",
                    "give a number in every feature column",
                ) from None
    return np.array(features).reshape(-1, len(chosen)), np.array(targets)


def _read_parquet(path: Path, settings: DataSettings) -> tuple[Any, Any]:
    """Read the feature columns and the target column of a Parquet file."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    table = parquet.read_table(path)
    chosen, target = _columns(table.column_names, settings, path)
    features = [table.column(column).to_numpy() for column in chosen]
    return np.stack(features, axis=1), table.column(target).to_numpy()


def _columns(header: Sequence[str], settings: DataSettings, path: Path) -> tuple[list[int], int]:
    """Return the positions of the feature columns and of the target column."""
    names = list(header)
    for wanted, key in [
        (settings.target, "target"),
        *((name, "features") for name in settings.features or ()),
    ]:
        if wanted not in names:
            raise InvalidInput(f"data.{key}", wanted, f"{path.name} has no such column")
    target = names.index(settings.target or "")
    features = settings.features or tuple(name for name in names if name != settings.target)
    if settings.target in features or not features:
        raise InvalidInput(
            "data.features", list(features), "give at least one column besides the target"
        )
    return [names.index(name) for name in features], target
