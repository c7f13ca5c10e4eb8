"""Columns of tables: numbers, logarithms, bins, categories, dates, and their facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import (
    Bins,
    Booleans,
    Columns,
    Dates,
    Features,
    Numbers,
    OneHot,
    SignedLogarithm,
)
from expost.features.columns import signed_logarithm


def values(features: Features, X: Any) -> Any:
    """Return the features before rows are scaled."""
    return features._values(features._read(X))


def test_numbers_are_clipped_and_scaled() -> None:
    found = values(Numbers((0, 10)), np.array([[-5.0], [0], [5], [10], [99]]))
    np.testing.assert_array_equal(found[:, 0], [-1, -1, 0, 1, 1])
    found = values(Numbers(((0, 1), (0, 4))), np.array([[1.0, 1.0]]))
    np.testing.assert_array_equal(found, [[1, -0.5]])
    found = values(Numbers((0, 10), missing="indicator"), np.array([[np.nan], [10]]))
    np.testing.assert_array_equal(found, [[0, 1], [1, 0]])
    found = values(Numbers((0, 10), missing=10), np.array([[np.nan], [0]]))
    np.testing.assert_array_equal(found, [[1], [-1]])


def test_rows_are_scaled_with_their_constant() -> None:
    """The angle of (value, constant) keeps the value, also if there is one column."""
    found = Numbers((-1, 1)).transform(np.array([[1.0], [0.5], [-1.0]]))
    np.testing.assert_allclose(found[:, 0] / found[:, 1], [1 / 0.3, 0.5 / 0.3, -1 / 0.3])
    linear = Numbers((-1, 1), norm="bound").transform(np.array([[1.0], [0.5], [-1.0]]))
    np.testing.assert_allclose(linear[:, 0], np.array([1, 0.5, -1]) / np.sqrt(1.09))
    np.testing.assert_allclose(linear[:, 1], 0.3 / np.sqrt(1.09))


def test_logarithms() -> None:
    x = np.concatenate([-np.logspace(-9, 12, 500), [0], np.logspace(-9, 12, 500)])
    np.testing.assert_allclose(signed_logarithm(x), np.sign(x) * np.log1p(np.abs(x)), atol=1e-13)
    found = values(SignedLogarithm((0, 999)), np.array([[0.0], [9], [99], [999], [5000], [-3]]))
    np.testing.assert_allclose(found[:, 0], [-1, -1 / 3, 1 / 3, 1, 1, -1], atol=1e-12)
    tiny = values(SignedLogarithm((0, 1e-300), unit=1.0), np.array([[0.0], [1e-300]]))
    assert np.isfinite(tiny).all()


def test_bins() -> None:
    found = values(Bins((0, 10), 5), np.array([[-1.0], [0], [2], [9.9], [10], [11], [np.nan]]))
    np.testing.assert_array_equal(found.argmax(axis=1)[:6], [0, 0, 1, 4, 4, 4])
    np.testing.assert_array_equal(found.sum(axis=1), [1, 1, 1, 1, 1, 1, 0])
    found = values(Bins(edges=[0, 5]), np.array([[-1.0], [0], [4.9], [5]]))
    np.testing.assert_array_equal(found.argmax(axis=1), [0, 1, 1, 2])


def test_categories_truths_and_dates() -> None:
    found = values(OneHot(["a", 1]), np.array([["a"], ["1.0"], [None], ["z"]], dtype=object))
    np.testing.assert_array_equal(found, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    found = values(Booleans(), np.array([["yes"], [False], ["?"]], dtype=object))
    np.testing.assert_array_equal(found[:, 0], [1, -1, np.nan])
    dates = Dates(("2020-01-01", "2020-01-03"), missing="indicator")
    found = values(dates, ["2020-01-02", "2021-01-01", None])
    np.testing.assert_array_equal(found, [[0, 0], [1, 0], [0, 1]])


def test_a_data_frame_is_read_by_names() -> None:
    pandas = pytest.importorskip("pandas")
    features = Columns(
        [("age", Numbers((0, 100))), ("colour", OneHot(["red"])), (["x", "y"], Bins((0, 1), 2))]
    )
    frame = pandas.DataFrame(
        {"y": [0.1, 0.2], "colour": ["red", None], "more": [1, 2], "age": [50, 0], "x": [0.9, 0.1]}
    )
    found = values(features, frame)
    np.testing.assert_array_equal(found, [[0, 1, 0, 0, 1, 1, 0], [-1, 0, 1, 1, 0, 1, 0]])
    listed = frame[["age", "colour", "x", "y"]].to_numpy(dtype=object)
    np.testing.assert_array_equal(values(features, listed), found)
    assert list(features.get_feature_names_out()) == [
        *("age", "colour=red", "colour=other", "x_bin0", "x_bin1", "y_bin0", "y_bin1", "constant")
    ]
    with pytest.raises(InvalidInput, match="colour"):
        features.transform(frame.drop(columns="colour"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Numbers((1, 1)),
        lambda: Numbers((0, float("inf"))),
        lambda: Numbers((-1e308, 1e308)),
        lambda: Numbers([]),
        lambda: Numbers("ab"),
        lambda: Numbers((0, 1), missing="mean"),
        lambda: SignedLogarithm((0, 1), unit=0),
        lambda: Bins(),
        lambda: Bins((0, 1), edges=[1]),
        lambda: Bins((0, 1), 1),
        lambda: Bins(edges=[1, 1]),
        lambda: Bins(edges=[]),
        lambda: OneHot([]),
        lambda: OneHot("ab"),
        lambda: OneHot([1, "1"]),
        lambda: OneHot([None]),
        lambda: Dates(("2020", "2021")),
        lambda: Dates(5),
        lambda: Columns([]),
        lambda: Columns([("a", 5)]),
        lambda: Columns([(0, Numbers(((0, 1), (0, 1))))]),
        lambda: Columns([("a", OneHot(["x"]))], names=["b"]),
    ],
)
def test_facts_that_are_not_valid_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
