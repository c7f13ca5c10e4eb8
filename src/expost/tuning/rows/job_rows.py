"""Load the rows of a tuning job, clip them to public bounds and split them.

Neighbours. There are two relations, and the settings decide which one holds.

``"zero-out"`` (``data.rows`` is not given). The number n of places is public. A person's row is at
its place, or the place is empty. Of every 100 neighbouring places 100·h are held out, where h is
the share ``holdout``; which of them is decided by a public hash of their numbers. So the split
depends only on n and h, each person's row is in exactly one part, and the training part and the
held-out part are disjoint. Sorted files are split evenly, and so are those whose order repeats.

``"add-remove"`` (``data.rows`` is given). A person's row is there or not, and the actual number of
rows is secret. Each row goes to scoring with probability h and to training otherwise, by its own
coin; the coins come from a secret key that is drawn once per job. They are independent of the rows,
so two data sets that differ by one person can be split alike: given the coins, the person is in one
part, and the other rows lie as before. A guarantee that holds for every outcome of the coins holds
for their mixture (the divergences used are jointly quasi-convex, and the ex-post condition is
linear in the two laws). All numbers that anything released depends on (sampling rate, steps,
divisors) are computed from ``data.rows``: round((1 − h)·rows) for training, the rest for scoring.

Every row is allowed. A row that cannot be encoded (:mod:`expost.features.columns`), or
whose target is outside the public classes, becomes an empty place: it has features 0 and the target
NaN, adds nothing to a training, and counts as half right in private scoring (at half of the largest
loss in a regression), or as wrong with noise reduction. So no error here depends on a value in a
row, and data of one class are no error. Only rows that are declared public are checked strictly. No
message contains data.

With ``data.user`` the same is said of persons: :mod:`expost.tuning.rows.job_columns`.

Tests: ``tests/tuning/test_rows.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, floor, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Array, Integers
from expost.errors import InvalidInput
from expost.features.columns import Bounds, TableSchema
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.randomness.source import SEED_BYTES, KeyedRandomness, Randomness
from expost.tables.cells import GOLDEN, mixed_words
from expost.tables.sources import CopiedTable, copied_rows
from expost.tuning.request.defaults import schema_of
from expost.tuning.request.settings import NO_TARGET, DataSettings
from expost.tuning.rows.job_columns import PersonRows, in_slots
from expost.tuning.rows.job_tables import (
    Table,
    can_stream,
    count_places,
    files_of,
    given_table,
    load_built_in,
    open_table,
    read_batches,
    read_head,
    read_source,
    whole_table,
)

_BATCH = 2**16  # rows that are read together
PIECE = 2**12
"""Rows that are encoded together; nothing depends on it."""

Piece = Callable[[], tuple[Array, ...]]
"""Returns training rows, their targets, scoring rows and their targets."""


@dataclass(frozen=True, eq=False, repr=False)
class JobRows:
    """Encoded features and targets of the training part and of the scoring part.

    ``X``, ``y``: features and targets of the training rows. The target is NaN at an empty place.
    ``score_X``, ``score_y``: features and targets of the scoring rows. ``schema``: the public facts
    by which rows are encoded. ``public``: whether the scoring rows are public. ``places``,
    ``score_places``: public numbers of training rows and of scoring rows. With add-remove
    neighbours the actual numbers may differ. ``relation``: the neighbouring relation,
    ``"zero-out"`` or ``"add-remove"``. ``key``: secret key of the split; empty if the split is
    public. ``shape``: shape of one row, if the data is an array with more than two dimensions.
    ``file``: the rows as a file that was not read yet; then the arrays of private rows are empty.
    ``shares``, ``most``: the shares of training and scoring rows and the most rows of a person, if
    the unit of privacy is a person; then ``places`` are persons.
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
    file: FileRows | None = None
    shares: tuple[Integers, Integers | None] | None = None
    most: int = 1
    _whole: tuple[Array, Array] | PersonRows | None = None
    _share: float = 0.0

    @property
    def public_rows(self) -> int | None:
        """The number that ``Fleet.train(rows=)`` needs; None if the places are public."""
        return self.places if self.relation == ADD_REMOVE else None

    def with_key(self, key: bytes) -> JobRows:
        """Return the rows split by another key, such as the one of an interrupted job.

        ``key``: the key that the job drew when it started. It is ignored if the split is public.
        """
        if not self.key or key == self.key:
            return self
        if self.file is not None:
            return replace(self, file=replace(self.file, key=key), key=key)
        return _split_by_coins(self, key)

    def whole(self, identity: str) -> dict[str, Any]:
        """Return the rows before a secret split, for the fingerprint of a job.

        A resumed job needs it to find its key.
        """
        if self.file is not None:
            return {"file": self.file.digest, "job": identity}
        if self._whole is None:
            return self.as_data(identity)
        if isinstance(self._whole, PersonRows):
            return {**vars(self._whole), "job": identity}
        return {"X": self._whole[0], "y": self._whole[1], "job": identity}

    def as_data(self, identity: str) -> JobData:
        """Return the data that candidates receive.

        ``identity``: identifies the job. A checkpoint uses it to distinguish jobs on the same rows.
        Returns: the arrays ``X``, ``y``, ``score_X`` and ``score_y``; ``rows`` and ``score_rows``,
        the public numbers of rows, or None if the numbers of places are public; and ``job``, the
        identity. Of a file that is not read, ``key`` in place of the arrays of private rows.
        """
        secret = self.relation == ADD_REMOVE
        arrays: dict[str, Any] = {
            "X": self.X,
            "y": self.y,
            "score_X": self.score_X,
            "score_y": self.score_y,
        }
        if self.file is not None:
            arrays = {"key": self.key, **({"public": self.score_X} if self.public else {})}
        if self.shares is not None:
            arrays |= {"shares": self.shares[0], "score_shares": self.shares[1]}
        return JobData(
            **arrays,
            rows=self.public_rows,
            score_rows=self.score_places if secret and not self.public else None,
            job=identity,
        )

    def loaded(self) -> JobRows:
        """Return the rows as arrays."""
        if self.file is None:
            return self
        none = self.X[:0], self.y[:0], self.score_X[:0], self.score_y[:0]
        pieces = [none, *(piece() for piece in self.pieces())]  # there may be no rows
        X, y, score_X, score_y = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        if self.public:
            score_X, score_y = self.score_X, self.score_y
        return replace(self, X=X, y=y, score_X=score_X, score_y=score_y, file=None)

    def in_positions(self) -> JobRows:
        """Return rows of a public number of persons, with fixed positions for each person."""
        if self.shares is None or self.relation == ADD_REMOVE:
            return self
        score_X, score_y, held = self.score_X, self.score_y, self.shares[1]
        X, y, shares = in_slots(self.X, self.y, self.shares[0], self.places, self.most)
        if held is not None:
            score_X, score_y, held = in_slots(score_X, score_y, held, self.score_places, self.most)
        return replace(self, X=X, y=y, score_X=score_X, score_y=score_y, shares=(shares, held))

    def pieces(self) -> Iterator[Piece]:
        """Return functions that return training and scoring rows of some of the places, in order.

        Public scoring rows are in none of them. Shares of persons come last.
        """
        if self.file is not None:
            yield from self.file.pieces(self.schema)
            return
        some = slice(0, 0) if self.public else slice(None)
        score_X, score_y = self.score_X[some], self.score_y[some]
        arrays: tuple[Array, ...] = (self.X, self.y, score_X, score_y)
        if self.shares is not None:
            held = np.zeros(0, dtype=np.int64) if self.shares[1] is None else self.shares[1]
            arrays = (*arrays, self.shares[0], held)
        for start in range(0, max(len(self.X), len(score_X)), PIECE):
            part = slice(start, start + PIECE)
            yield partial(_sliced, arrays, part)


class JobData(dict[str, Any]):
    """The data of a job; ``parts`` holds rows of a large table, and stays in this process.

    They are the same rows, so they are no part of what identifies the data. Nor is ``device``, on
    which sums over rows that are not in parts are made.
    """

    parts: Any = None
    device = "cpu"

    def __reduce__(self) -> tuple[Any, ...]:
        return JobData, (), None, None, iter(self.items())


@dataclass(frozen=True, eq=False, repr=False)
class FileRows:
    """The private rows of a file: they are read piece by piece and split as arrays are.

    ``path``: the file, or a pattern of files. ``settings``: the columns to read. ``count``: number
    of places; secret with add-remove neighbours. ``share``: share of the rows that is held out; 0:
    none. ``key``: secret key of the split; empty if the split is public. ``copy``: the copy of a
    database table that the file is; it goes with these rows.
    """

    path: Path
    settings: DataSettings
    count: int
    share: float
    key: bytes = b""
    copy: CopiedTable | None = None

    @cached_property
    def digest(self) -> str:
        """Hash of the file or files, for fingerprints. It is secret."""
        digests = []
        for file in files_of(self.path):
            with open(file, "rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
        return " ".join(digests)

    def pieces(self, schema: TableSchema) -> Iterator[Piece]:
        """Return functions that return some of the rows, encoded and split."""
        if not self.share:
            out = np.zeros(self.count, dtype=bool)
        elif self.key:
            out = drawn_out(self.count, self.share, self.key)
        else:
            out = held_out(self.count, self.share)
        start = 0
        for table in read_batches(self.path, self.settings, _BATCH):
            if start + table.rows > self.count:
                break
            for first in range(0, table.rows, PIECE):
                some = slice(first, first + PIECE)
                there = out[start + first : start + min(first + PIECE, table.rows)]
                yield partial(_encoded_piece, table.part(some), schema, there)
            start += table.rows
        if start != self.count:  # whether it did does not depend on the rows of one version
            raise InvalidInput(
                "data.path", self.path.name, "the file has changed while it was read; start again"
            )


def _encoded_piece(table: Table, schema: TableSchema, out: Array) -> tuple[Array, ...]:
    """Return training rows, their targets, scoring rows and their targets."""
    rows, labels = _usable_rows(table, schema)
    return rows[~out], labels[~out], rows[out], labels[out]


def _sliced(arrays: tuple[Array, ...], part: slice) -> tuple[Array, ...]:
    """Return a part of every array."""
    return tuple(array[part] for array in arrays)


_BLOCK = 100  # neighbouring places that are split together


def held_out(n: int, share: float) -> npt.NDArray[np.bool_]:
    """Return which of ``n`` places are held out.

    About ``share`` of the places are held out, evenly spread by a public hash. The rows are not
    used.

    ``share``: share to hold out, with 0 < share < 1. It is used as the exact decimal that is
    written.
    """
    exact = Fraction(str(share))
    blocks = -(-n // _BLOCK)
    ends = np.array([floor(min(end * _BLOCK, n) * exact) for end in range(blocks + 1)])
    words = np.full(blocks * _BLOCK, np.iinfo(np.uint64).max)
    words[:n] = mixed_words(np.arange(n, dtype=np.uint64) * GOLDEN)
    # Rank places by their hash: every k-th place would follow files whose order repeats.
    ranks = words.reshape(blocks, _BLOCK).argsort(axis=1, kind="stable").argsort(axis=1)
    return np.asarray((ranks < np.diff(ends)[:, None]).ravel()[:n])


def drawn_out(n: int, share: float, key: bytes) -> npt.NDArray[np.bool_]:
    """Return which of ``n`` rows are held out, by one secret coin per row.

    ``share``: probability of being held out, rounded to a multiple of 2^{−64}. No guarantee depends
    on it. ``key``: secret key of the coins; equal keys give equal coins.
    """
    threshold = np.uint64(min(2**64 - 1, round(Fraction(str(share)) * 2**64)))
    return np.asarray(KeyedRandomness(key).words(n) < threshold)


def split_places(
    settings: DataSettings, n: int, randomness: Randomness
) -> tuple[Array, int, int, bytes]:
    """Return which of ``n`` rows are held out, and the public numbers of training and scoring rows.

    Last comes the key of the coins if the number of rows is secret.
    """
    kept, held, key = _numbers_of_parts(settings, n, randomness)
    out = drawn_out(n, settings.holdout, key) if key else held_out(n, settings.holdout)
    return out, kept, held, key


def _numbers_of_parts(
    settings: DataSettings, n: int, randomness: Randomness
) -> tuple[int, int, bytes]:
    """Return the public numbers of training and scoring rows, and the key of a secret split."""
    total = n if settings.rows is None else settings.rows
    kept = (1 - Fraction(str(settings.holdout))) * total
    training = ceil(kept) if settings.rows is None else round(kept)
    if not 0 < training < total:
        raise InvalidInput(
            "data.holdout",
            settings.holdout,
            f"the {'rows' if settings.user is None else 'persons'} (n_samples = {total}) cannot be "
            "split in this way; give another share",
        )
    return (
        training,
        total - training,
        b"" if settings.rows is None else randomness.bytes(SEED_BYTES),
    )


def load_rows(
    settings: DataSettings,
    X: Any = None,
    y: Any = None,
    *,
    groups: Any = None,
    randomness: Randomness | None = None,
    lazy: bool = False,
) -> JobRows:
    """Load, encode and split the rows of a job.

    ``settings``: the source of the rows and what is publicly known about them. ``X``: features to
    use instead of the source in ``settings``: an array, or a pandas, polars or pyarrow table.
    ``y``: targets; not needed if ``X`` is a data frame with the column ``settings.target``.
    ``groups``: the person of each row, if ``settings.user`` names no column of ``X``.
    ``randomness``: source of the key of a secret split. Entropy of the operating system by default.
    ``lazy``: leave the rows of a Parquet or text file in the file (:attr:`JobRows.file`). Returns:
    the training rows and the scoring rows. Raises InvalidInput: a file, column, type or public fact
    is missing or not valid. It does not depend on the values in rows, nor on their number if
    ``settings.rows`` is given.
    """
    given = X is not None or y is not None
    source = settings.name or settings.path
    copy = None
    if settings.database is not None and not given:
        selected, head = open_table(settings)
        schema_of(settings, head)  # what is missing is asked for before rows are read
        copy = copied_rows(selected, settings.table)
        source = copy.path
    if not given and source is None:
        raise InvalidInput("data", None, "give X and y, or name a source in [data]")
    later = not given and isinstance(source, Path) and can_stream(source)
    later = later and (lazy or copy is not None or not source.is_file())  # type: ignore[union-attr]
    if later and settings.user is not None:  # a person's rows are anywhere in a file
        assert isinstance(source, Path)
        batches = read_batches(source, settings, _BATCH)
        table, later = whole_table([read_head(source, settings), *batches]), False
    elif later:
        assert isinstance(source, Path)
        table = read_head(source, settings)
    elif given:
        table = given_table(X, y, settings, groups)
    else:
        table = read_source(source, settings)  # type: ignore[arg-type]
    count = count_places(source, settings) if later else table.rows  # type: ignore[arg-type]
    split = _split(settings, table, count, randomness or Randomness(), python=given)
    if later:
        share = 0.0 if split.public else settings.holdout
        file = FileRows(source, settings, count, share, split.key, copy)  # type: ignore[arg-type]
        split = replace(split, file=file)
        split = split if lazy else split.loaded()
    return split


def rows_of_head(settings: DataSettings, head: Table, places: int) -> JobRows:
    """Return the parts of a job's rows without the rows: all that its price depends on."""
    return _split(settings, head, places, Randomness())


def _split(
    settings: DataSettings,
    table: Table,
    count: int,
    randomness: Randomness,
    *,
    python: bool = False,
) -> JobRows:
    """Encode and split the rows of a table with ``count`` places; there may be no rows yet."""
    if settings.name == "breast_cancer" and settings.bounds is None:
        settings = replace(settings, bounds=_published_bounds())
    schema = schema_of(settings, table, python=python)
    rows, labels = _usable_rows(table, schema)
    if settings.user is not None:
        split = _persons(settings, schema, rows, labels, table, count, randomness)
    elif settings.rows is None:
        split = _public_places(settings, schema, rows, labels, count)
    else:
        split = _secret_rows(settings, schema, rows, labels, randomness)
    if settings.shape is not None and prod(settings.shape) != table.width:
        raise InvalidInput(
            "data.shape", settings.shape, f"a row has {table.width} values; give as many"
        )
    return replace(split, shape=settings.shape or table.shape)


def _usable_rows(table: Table, schema: TableSchema) -> tuple[Array, Array]:
    """Return encoded rows and targets; a row that cannot be used is an empty place."""
    return with_empty_places(*_encoded(table, schema), schema)


def with_empty_places(rows: Array, labels: Array, schema: TableSchema) -> tuple[Array, Array]:
    """Return rows and targets with an empty place for each row that cannot be used."""
    empty = np.isnan(rows[:, 0]) | np.isnan(labels)  # an unusable row is NaN in every column
    if empty.any():
        rows[empty], labels[empty] = 0.0, np.nan
    if schema.integers:
        rows[empty] = np.ceil([column.low for column in schema.columns])
        rows = rows.astype(np.int64)
    return rows, labels


def _public_places(
    settings: DataSettings, schema: TableSchema, rows: Array, labels: Array, n: int
) -> JobRows:
    """Split by places; their number n is public. There may be no rows yet."""
    if n == 0:
        raise InvalidInput("data", "no rows", "give at least two rows")
    if settings.public_test is not None:
        test, test_labels = _public_test(settings, schema)
        return JobRows(rows, labels, test, test_labels, schema, True, n, len(test))
    out, kept, held, _ = split_places(settings, n, Randomness())
    out = out[: len(rows)]
    return JobRows(rows[~out], labels[~out], rows[out], labels[out], schema, False, kept, held)


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
    out, places, held, key = split_places(settings, len(rows), randomness)
    return JobRows(
        rows[~out],
        labels[~out],
        rows[out],
        labels[out],
        schema,
        False,
        places,
        held,
        ADD_REMOVE,
        key,
        _whole=(rows, labels),
        _share=settings.holdout,
    )


def split_persons(
    settings: DataSettings,
    schema: TableSchema,
    persons: PersonRows,
    randomness: Randomness,
    public: bool = False,
) -> JobRows:
    """Split the rows of persons, all of one person alike; ``public``: none of them scores."""
    n, relation, most = len(persons.names), settings.relation, settings.max_rows_per_user
    if n == 0 and settings.rows is None:
        raise InvalidInput("data.user", settings.user, "nobody is named; give at least two persons")
    if public or settings.public_test is not None:
        test = persons.rows[:0], persons.labels[:0]
        if settings.public_test is not None:
            test = _public_test(settings, schema)
        own, shares = (persons.rows, persons.labels, *test), (persons.shares, None)
        parts = settings.rows or n, len(test[0]), relation
        return JobRows(*own, schema, True, *parts, shares=shares, most=most)
    kept, held, key = _numbers_of_parts(settings, n, randomness)
    training, scoring, both = persons.split(persons.held_out(settings.holdout, key))
    return JobRows(
        *training,
        *scoring,
        schema,
        False,
        kept,
        held,
        relation,
        key,
        shares=both,
        most=most,
        _whole=persons if key else None,
        _share=settings.holdout,
    )


def _persons(
    settings: DataSettings,
    schema: TableSchema,
    rows: Array,
    labels: Array,
    table: Table,
    count: int,
    randomness: Randomness,
) -> JobRows:
    """Split by persons; without rows yet, by their number."""
    if table.rows == 0 and count and settings.rows is None:
        numbers = _public_places(settings, schema, rows, labels, count)
        none = np.zeros(0, dtype=np.int64)
        held = None if numbers.public else none
        return replace(numbers, shares=(none, held), most=settings.max_rows_per_user)
    users = table.users if table.users is not None else np.zeros(0)
    persons = PersonRows.of(rows, labels, users, settings.max_rows_per_user)
    return split_persons(settings, schema, persons, randomness)


def _split_by_coins(job: JobRows, key: bytes) -> JobRows:
    """Return the rows of a job, split by the coins of a key."""
    assert job._whole is not None
    if isinstance(job._whole, PersonRows):
        training, scoring, both = job._whole.split(job._whole.held_out(job._share, key))
        (X, y), (score_X, score_y) = training, scoring
        return replace(job, X=X, y=y, score_X=score_X, score_y=score_y, shares=both, key=key)
    rows, labels = job._whole
    out = drawn_out(len(rows), job._share, key)
    return replace(
        job, X=rows[~out], y=labels[~out], score_X=rows[out], score_y=labels[out], key=key
    )


def _encoded(table: Table, schema: TableSchema) -> tuple[Array, Array]:
    """Return features and targets as numbers, NaN where a row cannot be used."""
    if schema.classes == NO_TARGET:
        return schema.encode(table.cells), np.zeros(table.rows)
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
    # by name, whatever their order; they belong to nobody
    features = schema.names or settings.features
    table = read_source(path, replace(settings, features=features, user=None))
    width = table.width if table.names is None else len(table.names)
    known = table.targets is not None or settings.classes == NO_TARGET
    if width != len(schema.columns) or not known or not table.rows:
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
    pairs = re.findall(row, text, re.MULTILINE)
    return tuple((float(low), float(high)) for low, high in pairs)
