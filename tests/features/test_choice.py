"""Features chosen by public facts, and chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import (
    Bins,
    Booleans,
    Chain,
    Columns,
    Dates,
    Numbers,
    OneHot,
    OrientedGradients,
    RandomFourier,
    SignedLogarithm,
    auto_features,
)
from expost.tuning.rows.table_schema import Column, TableSchema


def test_pictures() -> None:
    assert auto_features(shape="28x28") == OrientedGradients((28, 28))
    assert auto_features(shape=(1, 28, 28)) == OrientedGradients((28, 28))
    plain = TableSchema.plain(((0.0, 255.0),), 64).columns
    assert auto_features(shape=(8, 8), columns=plain) == OrientedGradients((8, 8))
    with pytest.raises(InvalidInput, match="64 values"):
        auto_features(shape=(8, 9), columns=plain)


def test_plain_numbers() -> None:
    assert auto_features(bounds=(0, 5)) == Numbers((0, 5))
    columns = TableSchema.plain(((0.0, 5.0),), 3).columns
    assert auto_features(columns=columns) == Numbers((0.0, 5.0))
    assert auto_features(columns=columns, regression=True).norm == "bound"
    several = TableSchema.plain(((0.0, 5.0), (0.0, 1.0)), 2).columns
    assert auto_features(columns=several) == Numbers(((0.0, 5.0), (0.0, 1.0)))
    with pytest.raises(InvalidInput):
        auto_features()


COLUMNS = (
    Column("number", 0, 100, name="age"),
    Column("number", 0, 99999, indicator=True, name="gain"),
    Column("number", 0, 1, fill=0.5, name="share"),
    Column("category", categories=("a", "b"), name="class"),
    Column("boolean", fill=1.0, name="member"),
    Column("date", 730000, 740000, name="since"),
)


def test_columns_by_their_kinds() -> None:
    chosen = auto_features(columns=COLUMNS, bins={"age": 5}, logarithms=["gain"])
    assert chosen == Columns(
        (
            ("age", Bins((0.0, 100.0), 5)),
            ("gain", SignedLogarithm((0.0, 99999.0), "indicator")),
            ("share", Numbers((0.0, 1.0), 0.5)),
            ("class", OneHot(("a", "b"))),
            ("member", Booleans(missing=1.0)),
            ("since", Dates((730000.0, 740000.0))),
        )
    )
    with pytest.raises(InvalidInput, match="no such column"):
        auto_features(columns=COLUMNS, bins={"size": 5})
    with pytest.raises(InvalidInput, match="only numbers"):
        auto_features(columns=COLUMNS, logarithms=["class"])


def test_the_same_rows_can_be_read_as_by_the_schema() -> None:
    """A cell that the schema cannot use makes the zero row, and numbers are scaled alike."""
    cells: list[Any] = [
        np.array([10, None, "x", 30.0], dtype=object),
        np.array([1, None, 3, "4"], dtype=object),
        np.array([None, 0.25, 1, 0], dtype=object),
        np.array(["a", "b", None, "a"], dtype=object),
        np.array([None, "no", True, 1], dtype=object),
        np.array(["2001-01-01"] * 3 + ["never"], dtype=object),
    ]
    encoded = TableSchema(COLUMNS).encode(cells)
    found = auto_features(columns=COLUMNS).transform_cells(cells)
    np.testing.assert_array_equal(np.isnan(encoded[:, 0]), ~found.any(axis=1))
    scaled = found[0] / found[0, -1] * (0.3 * np.sqrt(6))
    np.testing.assert_allclose(scaled[0], 2 * encoded[0, 0] - 1, atol=1e-9)


def test_a_chain_passes_rows_on() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, size=(4, 8, 8)).astype(float)
    pictures[1, 0, 0] = np.nan
    first, second = OrientedGradients("8x8"), RandomFourier(12, 2.0)
    chain = Chain([first, second])
    found = chain.transform(pictures)
    assert not found[1].any()
    rows = second.transform(first.transform(pictures))
    np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(rows, 1, 0))
    with pytest.raises(InvalidInput, match="64 values"):
        Chain([OrientedGradients("8x8"), OrientedGradients("8x8")])
    for steps in ([], [5], None):
        with pytest.raises(InvalidInput, match="steps"):
            Chain(steps)
