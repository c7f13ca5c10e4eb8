"""The rows of a tuning job: read, moved into public bounds, and split by a public rule.

Neighbours. The number n of places is public; a person's row stands in its place, or the place is empty. Held-out places are spread evenly
by position: place i is held out iff ⌊(i+1)·h⌋ > ⌊i·h⌋. So the split depends on n and h alone, one person's row is in one part only, and the
training part and the held-out part are disjoint. (Files whose order repeats with a fixed period should be shuffled first.)

A value that is no number, or a label that is not listed, stops the job before anything is charged; that is for the curator, like any crash.
No message contains data. Tests: ``tests/tuning/test_rows.py``.
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
from expost.tuning.settings import Bounds, DataSettings


@dataclass(frozen=True, eq=False, repr=False)
class JobRows:
    """Scaled features and targets of the two parts; ``public``: the scoring part is public."""

    X: Array
    y: Array
    score_X: Array
    score_y: Array
    bounds: Bounds
    public: bool

    def as_data(self, identity: str) -> dict[str, Any]:
        """What candidates are given; ``identity`` tells jobs on the same rows apart in a checkpoint."""
        return {
            "X": self.X,
            "y": self.y,
            "score_X": self.score_X,
            "score_y": self.score_y,
            "job": identity,
        }


def held_out(n: int, share: float) -> npt.NDArray[np.bool_]:
    """Which of ``n`` places are held out: about ``share`` of them, evenly spread, whatever stands there."""
    exact = Fraction(str(share))
    counts = [floor(place * exact) for place in range(n + 1)]
    return np.diff(np.array(counts)) > 0


def load_rows(settings: DataSettings, X: Any = None, y: Any = None) -> JobRows:
    """Read and prepare the rows that ``settings`` describe (or those given)."""
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
            "data", f"{len(rows)} rows and targets of shape {labels.shape}", "give one target a row"
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
            f"{len(rows)} rows cannot be split so; give another share",
        )
    _check_classes(labels[~out], settings)
    return JobRows(rows[~out], labels[~out], rows[out], labels[out], bounds, False)


def scale(features: Any, bounds: Bounds) -> Array:
    """Features clipped to their public bounds and moved to [0, 1]."""
    try:
        table = np.asarray(features, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            "data", "features that are no numbers", "give numbers; encode categories first"
        ) from None
    if table.ndim == 0:
        raise InvalidInput("data", "one number", "give a table of rows and features")
    table = table.reshape(len(table), prod(table.shape[1:]))
    if not np.isfinite(table).all():
        raise InvalidInput(
            "data", "features with NaN or infinity", "fill such values, or leave the rows out"
        )
    if len(bounds) not in (1, table.shape[1]):
        raise InvalidInput(
            "data.feature_bounds",
            f"{len(bounds)} pairs",
            f"give one pair for all, or one for each of {table.shape[1]} features",
        )
    low, high = np.array(bounds).T
    return np.ascontiguousarray((np.clip(table, low, high) - low) / (high - low))


def _targets(values: Any, settings: DataSettings) -> Array:
    if np.ndim(values) != 1:
        raise InvalidInput(
            "data",
            f"targets in {np.ndim(values)} dimensions",
            "give one number or label a row, not a table",
        )
    if settings.target_bounds is not None:
        low, high = settings.target_bounds
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInput("data", "targets that are no numbers", "give numbers") from None
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
                "labels that are no numbers",
                'list their names: data.classes = ["no", "yes"]',
            ) from None
    top = settings.class_count or 0
    if not np.all((labels >= 0) & (labels < top) & (labels == np.floor(labels))):
        raise InvalidInput(
            "data.classes", settings.classes, "there are labels outside these classes"
        )
    return labels


def _check_classes(labels: Array, settings: DataSettings) -> None:
    """Refuse here, to the curator, what every training would refuse: as an outcome of a selection it would be published without noise."""
    if settings.target_bounds is None and np.all(labels == labels[0]):
        raise InvalidInput(
            "data", "training labels of one class", "give examples of at least two classes"
        )


def _label(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _given(X: Any, y: Any) -> tuple[Any, Any]:
    if X is None or y is None:
        raise InvalidInput("X, y", None, "give both, or neither and a source in [data]")
    return np.asarray(X), np.asarray(y)


def _read(source: str | Path | None, settings: DataSettings) -> tuple[Any, Any]:
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
    except Exception as error:  # a broken file raises whatever its parts raise, and may quote them
        raise InvalidInput(
            "data.path", source.name, f"the file cannot be read ({type(error).__name__})"
        ) from None


def _built_in(name: str) -> tuple[Any, Any]:
    bunch = _load_built_in(name)
    return bunch.data, bunch.target


def _load_built_in(name: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra("scikit-learn", "demo") from None
    return datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()


def _published_bounds() -> Bounds:
    """Of breast_cancer: the minima and maxima of its published description."""
    number = r"([0-9.]+)"
    text = _load_built_in("breast_cancer").DESCR
    row = rf"^\s*[a-z ]+\((?:mean|standard error|worst)\):\s+{number}\s+{number}\s*$"
    found = re.findall(row, text, re.MULTILINE)
    return tuple((float(low), float(high)) for low, high in found)


def _read_npz(path: Path, settings: DataSettings) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as archive:
        if not {"X", "y"} <= set(archive.files):
            raise InvalidInput("data.path", path.name, "the file holds arrays named X and y")
        try:
            return archive["X"], archive["y"]
        except ValueError:
            raise InvalidInput(
                "data.path",
                path.name,
                "arrays of Python objects are not read; give numbers or texts",
            ) from None


def _read_csv(path: Path, settings: DataSettings) -> tuple[Any, Any]:
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
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyarrow", "analytics") from None
    table = parquet.read_table(path)
    chosen, target = _columns(table.column_names, settings, path)
    features = [table.column(column).to_numpy() for column in chosen]
    return np.stack(features, axis=1), table.column(target).to_numpy()


def _columns(header: Sequence[str], settings: DataSettings, path: Path) -> tuple[list[int], int]:
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
