"""Which public features the linear models of a job use, by public facts alone.

``model.features`` is ``"auto"`` (the default), ``"plain"`` (numbers scaled to ±1 and nothing else),
or the record of features (:func:`expost.features.features_from_dict`) that take encoded rows. With
"auto", pictures (``data.shape``, or rows that are arrays of that shape) become oriented gradients;
columns become one-hot categories and numbers on a scale from −1 to 1, with bins, and with a
logarithm if their bounds are wide; arrays of many numbers stay as they are, between 0 and 1.

Tests: ``tests/tuning/test_progressive_jobs.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from expost.errors import InvalidInput
from expost.features import EncodedColumns, Features, OrientedGradients, features_from_dict
from expost.features.encoded import BINS
from expost.features.pictures import picture_shape
from expost.tuning.table_schema import TableSchema

_WIDE = 200  # arrays with at least so many numbers are usually sparse, or pixels


def features_for(
    wanted: str | Mapping[str, Any], schema: TableSchema, shape: tuple[int, ...] | None
) -> Features | None:
    """Return the features of encoded rows; None for tokens, which have none.

    Parameters
    ----------
    wanted : str or mapping
        ``model.features``.
    schema : TableSchema
        How rows are encoded.
    shape : tuple of int, optional
        Shape of a picture, if rows are pictures.
    """
    if schema.integers:
        return None
    regression = schema.class_count is None
    norm = "bound" if regression else "row"
    if isinstance(wanted, Mapping):
        features = features_from_dict(wanted)
        if (features.columns or schema.width) != schema.width:
            raise InvalidInput(
                "model.features",
                features.kind,
                f"they take rows of {features.columns} values; encoded rows have {schema.width}",
            )
        return features
    if wanted == "auto" and shape is not None:
        sides = picture_sides(shape)
        if sides is not None and prod(sides) == schema.width:
            return OrientedGradients(sides, norm=norm)
    named = schema.names is not None
    bins = BINS if wanted == "auto" and named and not regression else 0
    numbers, position = [], 0
    for column in schema.columns:
        if column.kind in ("number", "date"):
            numbers.append((position, column.low, column.high))
        position += column.width
    if not named and schema.width >= _WIDE:
        numbers = []
    logarithm = wanted == "auto" and named and not regression
    dated = {column.name for column in schema.columns if column.kind == "date"}
    return EncodedColumns(schema.width, tuple(numbers), bins, logarithm and not dated, norm=norm)


def picture_sides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return height, width and channels of a picture, or None if a shape is no picture's."""
    if len(shape) == 3 and shape[0] <= 4 < min(shape[1:]):
        return None if shape[0] > 1 else tuple(shape[1:])  # channels first: flat rows differ
    try:
        sides = picture_shape(tuple(shape))
    except InvalidInput:
        return None
    return sides if min(sides[:2]) >= 8 else None
