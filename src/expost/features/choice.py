"""Choose features by public facts, and read features that a file describes.

Tests: ``tests/features/test_choice.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from expost.errors import InvalidInput
from expost.features.columns import (
    Bins,
    Booleans,
    Dates,
    EncodedColumns,
    Numbers,
    OneHot,
    SignedLogarithm,
)
from expost.features.combined import Chain, Columns
from expost.features.feature_map import Features
from expost.features.fourier import RandomFourier
from expost.features.functions import Encoder, Function
from expost.features.pictures import OrientedGradients, picture_shape
from expost.features.text import HashedText

_KINDS: dict[str, type[Features]] = {
    features.kind: features
    for features in (
        Bins,
        Booleans,
        Chain,
        Columns,
        Dates,
        EncodedColumns,
        Encoder,
        Function,
        HashedText,
        Numbers,
        OneHot,
        OrientedGradients,
        RandomFourier,
        SignedLogarithm,
    )
}


def features_from_dict(
    record: Mapping[str, Any], functions: Mapping[str, Any] | None = None
) -> Features:
    """Return the features that ``as_dict`` described. Nothing is imported and no code runs.

    Parameters
    ----------
    record : mapping
        What :meth:`Features.as_dict` returned, perhaps read from JSON.
    functions : mapping of str to callable, optional
        The functions and encoders that the features use, by the names in the record. A record
        holds no code, and a name in it is never imported.

    Returns
    -------
    Features
        Equal features.

    Raises
    ------
    InvalidInput
        If it does not describe features that this version knows, or a function is not given.
    """
    kind = record.get("features") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput("features", kind, "this version knows " + ", ".join(_KINDS))
    known = functions or {}
    absent = sorted(function_names(record) - set(known))
    if absent:
        pairs = ", ".join(f"{name!r}: …" for name in absent)
        raise InvalidInput(
            "functions",
            sorted(known) or None,
            f"the features use {', '.join(map(repr, absent))}, and a file holds no code: pass "
            f"functions={{{pairs}}}",
        )
    parameters = {
        name: _given(value, functions) for name, value in record.items() if name != "features"
    }
    if "function" in parameters:
        parameters["function"] = known[str(parameters["function"])]
    try:
        return _KINDS[kind](**parameters)
    except TypeError:
        raise InvalidInput("features", "a record", "it has other parameters") from None


def function_names(record: Any) -> set[str]:
    """Return the names of the functions and encoders in a record of features, at any depth."""
    if isinstance(record, Mapping):
        inner = [function_names(value) for name, value in record.items() if name != "function"]
        own = {str(record["function"])} if "function" in record else set()
        return own.union(*inner)
    if isinstance(record, (list, tuple)):
        return set().union(*map(function_names, record))
    return set()


def _given(value: Any, functions: Mapping[str, Any] | None) -> Any:
    """Return a parameter from its JSON form."""
    if isinstance(value, Mapping):
        return features_from_dict(value, functions)
    if isinstance(value, (list, tuple)):
        return tuple(_given(item, functions) for item in value)
    return value


def auto_features(
    *,
    shape: Any = None,
    columns: Sequence[Any] | None = None,
    bounds: Any = None,
    bins: Mapping[Any, int] | None = None,
    logarithms: Sequence[Any] = (),
    regression: bool = False,
) -> Features:
    """Choose features by public facts: never by the rows.

    Parameters
    ----------
    shape : tuple of int, or str, optional
        Shape of a picture: oriented gradients.
    columns : sequence, optional
        Facts about each column: objects with the attributes ``kind`` ("number", "category",
        "boolean", "date" or "text"), ``low``, ``high``, ``categories``, ``fill``, ``indicator`` and
        ``name`` (or None). Categories become one-hot, text becomes hashed n-grams, and the others
        are scaled to ±1.
    bounds : pair, or sequence of pairs, optional
        Public bounds of plain numbers: scaled to ±1.
    bins : mapping of column to int, optional
        Columns of numbers, by name or position, to cut into so many bins.
    logarithms : sequence of column, optional
        Columns of skewed numbers, by name or position, whose signed logarithm is taken.
    regression : bool
        Whether the target is a number. Then rows are divided by a public bound instead of their
        own norm.

    Returns
    -------
    Features
        The features.

    Raises
    ------
    InvalidInput
        If there are no facts to choose by.
    """
    norm = "bound" if regression else "row"
    if shape is not None:
        # Arrays of grey pictures for torch have one channel in front.
        grey = isinstance(shape, (list, tuple)) and len(shape) == 3 and shape[0] == 1
        sides = picture_shape(shape[1:] if grey else shape)
        if columns is not None and len(columns) != prod(sides):
            raise InvalidInput("shape", shape, f"a row has {len(columns)} values")
        return OrientedGradients(sides, norm=norm)
    if columns is None:
        if bounds is None:
            raise InvalidInput("features", "auto", "give the shape, the columns or their bounds")
        return Numbers(bounds, norm=norm)
    bins, known = dict(bins or {}), {_key(column, at) for at, column in enumerate(columns)}
    for wanted in [*bins, *logarithms]:
        if wanted not in known and not (isinstance(wanted, int) and wanted < len(columns)):
            raise InvalidInput("columns", wanted, "there is no such column")
    plain = not bins and not logarithms and all(_is_plain(column) for column in columns)
    if plain:
        pairs = tuple((float(column.low), float(column.high)) for column in columns)
        return Numbers(pairs[0] if len(set(pairs)) == 1 else pairs, norm=norm)
    parts = []
    for at, column in enumerate(columns):
        key = _key(column, at)
        count = bins.get(key, bins.get(at))
        parts.append((key, _of_column(column, count, key in logarithms or at in logarithms)))
    return Columns(tuple(parts), norm=norm)


def _key(column: Any, position: int) -> Any:
    """Return the name of a column, or its position."""
    return position if getattr(column, "name", None) is None else column.name


def _is_plain(column: Any) -> bool:
    """Return whether a column is numbers of an array, without fill values."""
    return (
        column.kind == "number"
        and column.name is None
        and column.fill is None
        and not column.indicator
    )


def _of_column(column: Any, bins: int | None, logarithm: bool) -> Features:
    """Return the features of one column."""
    if (bins is not None or logarithm) and column.kind != "number":
        raise InvalidInput("columns", column.name, "only numbers have bins or a logarithm")
    if column.kind == "category":
        return OneHot(tuple(column.categories))
    if column.kind == "text":
        return HashedText()
    bounds = (float(column.low), float(column.high))
    if bins is not None:
        return Bins(bounds, bins)
    missing = "indicator" if column.indicator else column.fill
    if column.kind == "boolean":
        return Booleans(missing=missing)
    if column.kind == "date":
        return Dates(bounds, missing)
    return SignedLogarithm(bounds, missing) if logarithm else Numbers(bounds, missing)
