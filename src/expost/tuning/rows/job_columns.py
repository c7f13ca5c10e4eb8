"""How a job finds its columns and its persons, and which features its encoded rows get.

``model.features``, and each entry of ``search.features``, is ``"auto"``, ``"plain"``
(numbers scaled to ±1 and nothing else), features that take encoded rows, or their record
(:func:`expost.features.features_from_dict`); a job may name functions in it, as it may name the
code of its model. With "auto", pictures (``data.shape``, or rows that are arrays of that shape)
become oriented gradients; columns become one-hot categories and numbers on a scale from −1 to 1,
with bins, and with a logarithm if their bounds are wide; arrays of many numbers stay as they are,
between 0 and 1.

With a user column (``data.user``) the unit of privacy is a person with any number of rows.

**Who is who.** A person is the text of a cell of the user column, without blanks around it. A
whole number is one person however its type writes it (1, 1.0, "1", "1.0"). Other texts are compared
as they are written: "007" and "7" are two persons, and so are "0e12" and "0e34". Two people who are
read as one would not be protected: the rows of one move the average of both. A row without a person
(a gap, NaN) belongs to nobody and is left out, by itself.

**What a person keeps.** Of the rows that can be used at most r (``max_rows_per_user``): those with
the smallest hash of the person, the encoded row and its target, and of equal hashes with the
smallest cells. A person without a usable row keeps one empty place. So what a person keeps is a
function of this person's rows alone, whatever others have, and in which order rows come.

**Shares.** The k rows that a person keeps have shares that add up to exactly :data:`SHARES`, as
equal as whole numbers can be. Everything that is made of rows is a sum in which a row counts with
its share: a row's contribution has norm at most c, so that of a person is a convex combination of
vectors of norm at most c, and has norm at most c, too (docs/theory.md, "Persons with many rows").
The number of rows of a person, and of all, is in nothing else.

**Neighbours.** Without ``data.rows`` the list of persons is public ("zero-out"): a person has any
rows, or only empty ones. The share h of the persons with the smallest public hash is held out; how
many that are depends on the number of persons alone. With ``data.rows``, the public number of
persons, a person is there with all rows or not at all ("add-remove"), and goes to scoring by a coin
that is made of the secret key and the person's own name. In both cases nobody else moves.

**Positions.** How a network's gradient, or a prediction of least squares, is rounded may depend on
its position in a pass. There :func:`in_slots` gives every person r positions; those that are not
used have the share 0.

Tests: ``tests/tuning/test_table_schema.py``, ``tests/tuning/test_progressive_jobs.py``,
``tests/tuning/test_persons.py``, ``tests/theorems/test_persons.py``.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from hashlib import blake2b
from math import floor, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.features import EncodedColumns, Features, OrientedGradients, features_from_dict
from expost.features.columns import BINS, TableSchema, numbers_among
from expost.features.functions import function_names
from expost.features.texts_and_pictures import picture_shape
from expost.selection.held_out import SHARES
from expost.tables.cells import flat, label_text, mixed_words
from expost.training.lattice_rows import rounded_rows
from expost.tuning.request.factories import FeatureFunction


def find_column(wanted: str, names: Sequence[str], field: str, source: str) -> int:
    """Return the position of a column by its name."""
    if wanted in names:
        return list(names).index(wanted)
    raise InvalidInput(field, wanted, f"{source} has no such column{near(wanted, names)}")


def near(wanted: str, names: Sequence[str], subject: str = "it has") -> str:
    """Return "; did you mean …?" with similar names, or the names there are."""
    folded = {name.lower(): name for name in names}
    close = get_close_matches(wanted.lower(), list(folded), n=3)
    if close:
        return "; did you mean " + " or ".join(repr(folded[name]) for name in close) + "?"
    if any("\n" in name for name in names) or not names:
        return ""
    more = ", …" if len(names) > 20 else ""
    return f"; {subject} the columns " + ", ".join(repr(name) for name in names[:20]) + more


Choice = str | Mapping[str, Any] | Features
"""What a job says about features: "auto", "plain", a record, or in Python the features."""

CHOICES = ("auto", "plain")
_WIDE = 200  # arrays with at least so many numbers are usually sparse, or pixels


def is_choice(value: object) -> bool:
    """Return whether a value is what a job may say about features."""
    return isinstance(value, (Mapping, Features)) or (isinstance(value, str) and value in CHOICES)


def features_for(
    wanted: Choice, schema: TableSchema, shape: tuple[int, ...] | None, folder: Path | None = None
) -> Features | None:
    """Return the features of encoded rows; None for tokens, which have none."""
    if schema.integers:
        return None
    regression = schema.class_count is None
    norm = "bound" if regression else "row"
    if not isinstance(wanted, str):
        features = wanted if isinstance(wanted, Features) else from_record(wanted, folder or Path())
        if (features.columns or schema.width) != schema.width:
            raise InvalidInput(
                "features",
                features.kind,
                f"they take rows of {features.columns} values; encoded rows have {schema.width}",
            )
        if not features.transform_cells(np.full((1, schema.width), 0.5)).any():  # made up
            raise InvalidInput(
                "features",
                features.describe(),
                f"they cannot read a row of {schema.width} numbers, each 0.5, which is what "
                "encoded rows look like",
            )
        return features
    if wanted == "auto" and shape is not None:
        sides = picture_sides(shape)
        if sides is not None and prod(sides) == schema.width:
            return OrientedGradients(sides, norm=norm)
    named = schema.names is not None
    bins = BINS if wanted == "auto" and named and not regression else 0
    numbers = scaled_numbers(schema)
    logarithm = wanted == "auto" and named and not regression
    return EncodedColumns(schema.width, tuple(numbers), bins, logarithm, norm=norm)


def scaled_numbers(schema: TableSchema) -> list[tuple[int, float, float]]:
    """Return position and bounds of the numbers that a model gets between −1 and 1."""
    sparse = schema.names is None and schema.width >= _WIDE
    return [] if sparse else numbers_among(schema.columns)


def picture_sides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return height, width and channels of a picture, or None if a shape is no picture's."""
    if len(shape) == 3 and shape[0] <= 4 < min(shape[1:]):
        return None if shape[0] > 1 else tuple(shape[1:])  # channels first: flat rows differ
    try:
        sides = picture_shape(tuple(shape))
    except InvalidInput:
        return None
    return sides if min(sides[:2]) >= 8 else None


def from_record(record: Mapping[str, Any], folder: Path) -> Features:
    """Return the features of a record whose functions the user trusts; their code is loaded."""
    functions = {name: FeatureFunction(name, folder) for name in function_names(record)}
    return features_from_dict(record, functions)


class FeatureRows:
    """The features of encoded rows, rounded as in training.

    They are computed once per array and forgotten together with it.

    A result refers to what made it, so nothing that is private may stay here after a job.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._known: list[tuple[weakref.ref[Array], Floats]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the map to a worker, not what it has computed."""
        return FeatureRows, (self.features,)

    def checkpoint_identity(self) -> Features:
        """Return the map, which is all that distinguishes two of these."""
        return self.features

    def of(self, X: Array) -> Floats:
        """Return the features of encoded rows."""
        for known, rows in self._known:
            if known() is X:
                return rows
        cells = np.asarray(X)
        flat = cells.reshape(len(X), prod(cells.shape[1:]))
        rows = rounded_rows(self.features.transform_cells(flat))
        self._known = [*self._known[-1:], (weakref.ref(X, self._forget), rows)]
        return rows

    def _forget(self, gone: weakref.ref[Array]) -> None:
        """Forget the features of an array that is no more."""
        self._known = [pair for pair in self._known if pair[0] is not gone]

    def __call__(self, data: Any) -> Any:
        """Return features and targets of the training rows; of a large table, its parts."""
        parts = getattr(data, "parts", None)
        if parts is not None:
            return parts.training(self.features)
        return with_shares(data, self.of(data["X"]))


def with_shares(data: Any, rows: Array) -> Any:
    """Return training rows with their targets and, if they belong to persons, their shares."""
    targets, shares = np.asarray(data["y"], dtype=np.float64), data.get("shares")
    return (rows, targets) if shares is None else (rows, targets, shares / SHARES)


Words = npt.NDArray[np.uint64]
_WHOLE = re.compile(r"(0|[1-9][0-9]{0,15})\.0+")


@dataclass(frozen=True, eq=False, repr=False)
class PersonRows:
    """The rows that persons keep, person by person, with their shares.

    ``codes`` holds the number of each row's person in ``names``, which are sorted.
    """

    rows: Array
    labels: Array
    shares: Integers
    codes: Integers
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: Array, labels: Array, users: Array, most: int) -> PersonRows:
        """Choose the rows of each person, of encoded rows with empty places."""
        codes, names = person_codes(users)
        empty = np.isnan(labels)
        owned = np.flatnonzero(codes >= 0)
        several = np.bincount(codes[owned], ~empty[owned], len(names)) > 1
        ranked = np.zeros(len(codes), dtype=np.uint64)
        chosen = owned[several[codes[owned]]]
        words = name_words(names, b"rows")[codes[chosen]]
        ranked[chosen] = _row_words(rows[chosen], labels[chosen], words)
        order = owned[np.lexsort((ranked[owned], empty[owned], codes[owned]))]
        _break_ties(order, rows, labels, ranked, codes)
        number = _numbered(codes[order])
        kept = order[(number < most) & (~empty[order] | (number == 0))]
        of_row = codes[kept]
        sizes, number = np.bincount(of_row, minlength=len(names))[of_row], _numbered(of_row)
        shares = (number + 1) * SHARES // sizes - number * SHARES // sizes
        return cls(rows[kept] + 0, labels[kept], shares, of_row, names)  # −0.0 is 0.0 here, too

    def held_out(self, share: float, key: bytes) -> npt.NDArray[np.bool_]:
        """Return which persons are held out; without a key as many as their number says."""
        words = name_words(self.names, b"split", key)
        exact = Fraction(str(share))
        if key:
            return np.asarray(words < np.uint64(min(2**64 - 1, round(exact * 2**64))))
        out = np.zeros(len(words), dtype=bool)
        out[np.argsort(words, kind="stable")[: floor(len(words) * exact)]] = True
        return out

    def split(self, out: Array) -> tuple[tuple[Array, Array], tuple[Array, Array], Any]:
        """Return rows and targets of training and scoring, and the shares of both."""
        there = out[self.codes]
        parts = [(self.rows[some], self.labels[some]) for some in (~there, there)]
        return parts[0], parts[1], (self.shares[~there], self.shares[there])


def given_persons(groups: Any, rows: int | None = None) -> Array:
    """Return the person of each row, as it was passed; ``rows``: their number."""
    try:
        users = flat(groups)
    except InvalidInput:
        raise InvalidInput("groups", "a table", "give one person per row, a flat array") from None
    if rows is not None and len(users) != rows:
        raise InvalidInput("groups", "persons of another number of rows", "give one per row")
    return users


def person_codes(users: Array) -> tuple[Integers, tuple[str, ...]]:
    """Return the number of each row's person, −1 without one, and the sorted names."""
    read: dict[Any, Any] = {}

    def text(cell: Any) -> Any:
        if type(cell) not in (str, int, float):
            return call_or_failure(_person, cell)
        key = (type(cell), cell)
        if key not in read:
            read[key] = call_or_failure(_person, cell)
        return read[key]

    texts = [text(cell) for cell in users.tolist()]
    known = {text for text in texts if isinstance(text, str)}
    names = tuple(sorted(known))
    numbers: dict[Any, int] = {name: number for number, name in enumerate(names)}
    codes = [numbers[text] if isinstance(text, str) else -1 for text in texts]
    return np.array(codes, dtype=np.int64), names


def _person(cell: Any) -> str | None:
    """Return the person of a cell; texts that read as one number are several persons."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if not isinstance(cell, str):
        return label_text(cell)
    text = str(cell).strip()
    if text.lower() in ("", "nan"):
        return None
    whole = _WHOLE.fullmatch(text)
    return text if whole is None else whole[1]


def name_words(names: Sequence[str], purpose: bytes, key: bytes = b"") -> Words:
    """Return a hash of each name; a good one only makes choices fair."""
    digests = (
        blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=key, person=purpose)
        for name in names
    )
    return np.array([int.from_bytes(digest.digest()) for digest in digests], dtype=np.uint64)


def in_slots(
    rows: Array, labels: Array, shares: Integers, persons: int, most: int
) -> tuple[Array, Array, Integers]:
    """Return ``most`` positions for each of so many persons; unused ones have the share 0."""
    before = np.cumsum(shares) - shares  # the shares of every person add up to SHARES
    person = before // SHARES
    position = person * most + _numbered(person)
    wide = np.zeros((persons * most, *rows.shape[1:]), dtype=rows.dtype)
    goals, parts = np.full(persons * most, np.nan), np.zeros(persons * most, dtype=np.int64)
    wide[position], goals[position], parts[position] = rows, labels, shares
    return wide, goals, parts


def _numbered(codes: Integers) -> Integers:
    """Return 0, 1, 2, … within each run of equal codes."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    lengths = np.diff(np.append(starts, len(codes)))
    return np.asarray(np.arange(len(codes)) - np.repeat(starts, lengths))


def _break_ties(
    order: Integers, rows: Array, labels: Array, ranked: Words, codes: Integers
) -> None:
    """Order a person's usable rows of equal hash by their cells.

    A person can make such rows, and the order of a database may depend on the rows of others.
    """
    same = (np.diff(codes[order]) == 0) & (np.diff(ranked[order]) == 0)
    same &= ~np.isnan(labels[order[1:]])
    if same.any():
        tied = np.append(same, False) | np.append(False, same)
        some = order[tied]
        cells = rows[some].reshape(len(some), prod(rows.shape[1:]))
        order[tied] = some[np.lexsort((*cells.T, labels[some], ranked[some], codes[some]))]


def _row_words(rows: Array, labels: Array, words: Words) -> Words:
    """Return a hash of each row, its target and the word of its person."""
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    total = words.copy()
    for column in (*flat.T, labels):
        bits = (np.asarray(column, dtype=np.float64) + 0.0).view(np.uint64)  # −0.0 is 0.0
        total = mixed_words(total + bits)
    return total
