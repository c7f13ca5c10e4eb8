"""Load the rows of a tuning job, clip them to public bounds and split them.

Neighbours. There are two relations, and the settings decide which one holds.

``"zero-out"`` (``data.rows`` is not given). The number n of places is public. A person's row is at
its place, or the place is empty. Held-out places are spread evenly: place i is held out iff
⌊(i+1)·h⌋ > ⌊i·h⌋, where h is the share ``holdout``. So the split depends only on n and h, each
person's row is in exactly one part, and the training part and the held-out part are disjoint.
Shuffle a file first if its order repeats with a fixed period.

``"add-remove"`` (``data.rows`` is given). A person's row is there or not, and the actual number of
rows is secret. Each row goes to scoring with probability h and to training otherwise, by its own
coin; the coins come from a secret key that is drawn once per job. They are independent of the rows,
so two data sets that differ by one person can be split alike: given the coins, the person is in one
part, and the other rows lie as before. A guarantee that holds for every outcome of the coins holds
for their mixture (the divergences used are jointly quasi-convex, and the ex-post condition is
linear in the two laws). All numbers that anything released depends on (sampling rate, steps,
divisors) are computed from ``data.rows``: round((1 − h)·rows) for training, the rest for scoring.

Every row is allowed. A row that cannot be encoded (:mod:`expost.tuning.table_schema`), or whose
target is outside the public classes, becomes an empty place: it has features 0 and the target NaN,
adds nothing to a training, and counts as half right in private scoring (at half of the largest loss
in a regression), or as wrong with noise reduction. So no error here depends on a value in a row,
and data of one class are no error. Only rows that are declared public are checked strictly. No
message contains data.

Tests: ``tests/tuning/test_rows.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.randomness.keyed import SEED_BYTES, KeyedRandomness
from expost.randomness.source import Randomness
from expost.tuning.data_settings import DataSettings
from expost.tuning.missing_facts import schema_of
from expost.tuning.table_schema import Bounds, TableSchema
from expost.tuning.tables import Table, given_table, load_built_in, read_source


@dataclass(frozen=True, eq=False, repr=False)
class JobRows:
    """Encoded features and targets of the training part and of the scoring part.

    Parameters
    ----------
    X, y : ndarray
        Features and targets of the training rows. The target is NaN at an empty place.
    score_X, score_y : ndarray
        Features and targets of the scoring rows.
    schema : TableSchema
        The public facts by which rows are encoded.
    public : bool
        Whether the scoring rows are public.
    places, score_places : int
        Public numbers of training rows and of scoring rows. With add-remove neighbours the actual
        numbers may differ.
    relation : str
        The neighbouring relation, ``"zero-out"`` or ``"add-remove"``.
    key : bytes
        Secret key of the split; empty if the split is public.
    shape : tuple of int, optional
        Shape of one row, if the data is an array with more than two dimensions.
    """

    X: Array
    y: Array
    score_X: Array
    score_y: Array
    schema: TableSchema
    public: bool
    places: int
    score_places: int
    relation: str = ZERO_OUT
    key: bytes = b""
    shape: tuple[int, ...] | None = None
    _whole: tuple[Array, Array] | None = None
    _share: float = 0.0

    @property
    def public_rows(self) -> int | None:
        """The number that ``Fleet.train(rows=)`` needs; None if the places are public."""
        return self.places if self.relation == ADD_REMOVE else None

    def with_key(self, key: bytes) -> JobRows:
        """Return the rows split by another key, such as the one of an interrupted job.

        Parameters
        ----------
        key : bytes
            The key that the job drew when it started. It is ignored if the split is public.
        """
        if self._whole is None or key == self.key:
            return self
        return _split_by_coins(self, key)

    def whole(self, identity: str) -> dict[str, Any]:
        """Return the rows before a secret split, for the fingerprint of a job.

        A resumed job needs it to find its key.

        Parameters
        ----------
        identity : str
            Identifies the job.
        """
        if self._whole is None:
            return self.as_data(identity)
        return {"X": self._whole[0], "y": self._whole[1], "job": identity}

    def as_data(self, identity: str) -> dict[str, Any]:
        """Return the data that candidates receive.

        Parameters
        ----------
        identity : str
            Identifies the job. A checkpoint uses it to distinguish jobs on the same rows.

        Returns
        -------
        dict
            The arrays ``X``, ``y``, ``score_X`` and ``score_y``; ``rows`` and ``score_rows``, the
            public numbers of rows, or None if the numbers of places are public; and ``job``, the
            identity.
        """
        secret = self.relation == ADD_REMOVE
        return {
            "X": self.X,
            "y": self.y,
            "score_X": self.score_X,
            "score_y": self.score_y,
            "rows": self.public_rows,
            "score_rows": self.score_places if secret and not self.public else None,
            "job": identity,
        }


def held_out(n: int, share: float) -> npt.NDArray[np.bool_]:
    """Return which of ``n`` places are held out.

    About ``share`` of the places are held out, evenly spread. The rows are not used.

    Parameters
    ----------
    n : int
        Number of places.
    share : float
        Share to hold out, with 0 < share < 1. It is used as the exact decimal that is written.

    Returns
    -------
    ndarray of bool
        True at held-out places.
    """
    exact = Fraction(str(share))
    counts = [floor(place * exact) for place in range(n + 1)]
    return np.diff(np.array(counts)) > 0


def drawn_out(n: int, share: float, key: bytes) -> npt.NDArray[np.bool_]:
    """Return which of ``n`` rows are held out, by one secret coin per row.

    Parameters
    ----------
    n : int
        Number of rows.
    share : float
        Probability of being held out, rounded to a multiple of 2^{−64}. No guarantee depends on it.
    key : bytes
        Secret key of the coins; equal keys give equal coins.

    Returns
    -------
    ndarray of bool
        True at held-out rows.
    """
    threshold = np.uint64(min(2**64 - 1, round(Fraction(str(share)) * 2**64)))
    return np.asarray(KeyedRandomness(key).words(n) < threshold)


def load_rows(
    settings: DataSettings, X: Any = None, y: Any = None, *, randomness: Randomness | None = None
) -> JobRows:
    """Load, encode and split the rows of a job.

    Parameters
    ----------
    settings : DataSettings
        The source of the rows and what is publicly known about them.
    X : array_like or data frame, optional
        Features to use instead of the source in ``settings``: an array, or a pandas, polars or
        pyarrow table.
    y : array_like, optional
        Targets; not needed if ``X`` is a data frame with the column ``settings.target``.
    randomness : Randomness, optional
        Source of the key of a secret split. Entropy of the operating system by default.

    Returns
    -------
    JobRows
        The training rows and the scoring rows.

    Raises
    ------
    InvalidInput
        If a file, column, type or public fact is missing or not valid. It does not depend on the
        values in rows, nor on their number if ``settings.rows`` is given.
    """
    given = X is not None or y is not None
    source = settings.name or settings.path
    if not given and source is None:
        raise InvalidInput("data", None, "give X and y, or name a source in [data]")
    table = given_table(X, y, settings) if given else read_source(source, settings)  # type: ignore[arg-type]
    if settings.name == "breast_cancer" and settings.bounds is None:
        settings = replace(settings, bounds=_published_bounds())
    schema = schema_of(settings, table, python=given)
    rows, labels = _encoded(table, schema)
    empty = np.isnan(rows[:, 0]) | np.isnan(labels)  # an unusable row is NaN in every column
    if empty.any():
        rows[empty], labels[empty] = 0.0, np.nan
    if schema.integers:
        rows[empty] = np.ceil([column.low for column in schema.columns])
        rows = rows.astype(np.int64)
    if settings.rows is None:
        split = _public_places(settings, schema, rows, labels)
    else:
        split = _secret_rows(settings, schema, rows, labels, randomness or Randomness())
    if settings.shape is not None and prod(settings.shape) != table.width:
        raise InvalidInput(
            "data.shape", settings.shape, f"a row has {table.width} values; give as many"
        )
    return replace(split, shape=settings.shape or table.shape)


def _public_places(
    settings: DataSettings, schema: TableSchema, rows: Array, labels: Array
) -> JobRows:
    """Split by places; their number is public."""
    n = len(rows)
    if n == 0:
        raise InvalidInput("data", "no rows", "give at least two rows")
    if settings.public_test is not None:
        test, test_labels = _public_test(settings, schema)
        return JobRows(rows, labels, test, test_labels, schema, True, n, len(test))
    out = held_out(n, settings.holdout)
    if out.all() or not out.any():
        raise _cannot_split(settings, n)
    kept = int(n - out.sum())
    return JobRows(rows[~out], labels[~out], rows[out], labels[out], schema, False, kept, n - kept)


def _secret_rows(
    settings: DataSettings,
    schema: TableSchema,
    rows: Array,
    labels: Array,
    randomness: Randomness,
) -> JobRows:
    """Split by coins; all numbers come from the public number of rows."""
    n = settings.rows
    assert n is not None
    if settings.public_test is not None:
        test, test_labels = _public_test(settings, schema)
        return JobRows(rows, labels, test, test_labels, schema, True, n, len(test), ADD_REMOVE)
    places = round((1 - Fraction(str(settings.holdout))) * n)
    if not 0 < places < n:
        raise _cannot_split(settings, n)
    nothing = rows[:0]
    unsplit = JobRows(
        nothing,
        labels[:0],
        nothing,
        labels[:0],
        schema,
        False,
        places,
        n - places,
        ADD_REMOVE,
        _whole=(rows, labels),
        _share=settings.holdout,
    )
    return _split_by_coins(unsplit, randomness.bytes(SEED_BYTES))


def _split_by_coins(job: JobRows, key: bytes) -> JobRows:
    """Return the rows of a job, split by the coins of a key."""
    assert job._whole is not None
    rows, labels = job._whole
    out = drawn_out(len(rows), job._share, key)
    return replace(
        job, X=rows[~out], y=labels[~out], score_X=rows[out], score_y=labels[out], key=key
    )


def _cannot_split(settings: DataSettings, n: int) -> InvalidInput:
    """Return the error of a share that leaves a part empty."""
    return InvalidInput(
        "data.holdout",
        settings.holdout,
        f"{n} rows cannot be split in this way; give another share",
    )


def _encoded(table: Table, schema: TableSchema) -> tuple[Array, Array]:
    """Return features and targets as numbers, NaN where a row cannot be used."""
    assert table.targets is not None
    if table.targets.shape != (table.rows,):
        raise InvalidInput(
            "data",
            "rows and targets of different lengths",  # the numbers may be secret
            "give one target per row",
        )
    return schema.encode(table.cells), schema.targets(table.targets)


def _public_test(settings: DataSettings, schema: TableSchema) -> tuple[Array, Array]:
    """Return the public rows for scoring. They are public, so they may be refused by value."""
    path = settings.public_test
    assert path is not None
    # by name, whatever their order
    table = read_source(path, replace(settings, features=schema.names or settings.features))
    width = table.width if table.names is None else len(table.names)
    if width != len(schema.columns) or table.targets is None or not table.rows:
        raise InvalidInput(
            "data.public_test", path.name, "give rows with the same columns as the data"
        )
    rows, labels = _encoded(table, schema)
    if np.isnan(rows).any() or np.isnan(labels).any():
        raise InvalidInput(
            "data.public_test",
            path.name,
            "give a readable value in every column and a label that data.classes lists",
        )
    return (rows.astype(np.int64) if schema.integers else rows), labels


def _published_bounds() -> Bounds:
    """Return the minima and maxima in the published description of breast_cancer."""
    number = r"([0-9.]+)"
    text = load_built_in("breast_cancer").DESCR
    row = rf"^\s*[a-z ]+\((?:mean|standard error|worst)\):\s+{number}\s+{number}\s*$"
    found = re.findall(row, text, re.MULTILINE)
    return tuple((float(low), float(high)) for low, high in found)
