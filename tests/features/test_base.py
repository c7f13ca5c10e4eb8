"""What holds for all features: rows apart, norm at most 1, no row fails, saving, scikit-learn."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from expost.errors import InvalidInput
from expost.features import (
    Columns,
    Features,
    OrientedGradients,
    RandomFourier,
    features_from_dict,
)
from expost.features.feature_map import fold, scaled_rows, unit
from expost.features.functions import _KINDS

from .conftest import FEATURES, Rows

Case = tuple[Features, Rows]


def exact_square(row: Any) -> Fraction:
    return sum((Fraction(value) ** 2 for value in row.tolist()), Fraction(0))


def test_every_kind_is_tested() -> None:
    """A new kind of features without a case here fails."""
    used = {features.kind for features, _ in FEATURES.values()}
    assert used == set(_KINDS)


@pytest.mark.parametrize("seed", range(3))
def test_rows_do_not_depend_on_other_rows_nor_on_batches(case: Case, seed: int) -> None:
    features, rows = case
    generator = np.random.default_rng(seed)
    X = rows(generator, 41)
    found = features.transform(X)
    order = generator.permutation(41)
    start = 0
    while start < 41:
        part = order[start : start + int(generator.integers(1, 14))]
        start += len(part)
        np.testing.assert_array_equal(features.transform(X[part]), found[part])


def test_rows_do_not_depend_on_memory_layout(case: Case) -> None:
    features, rows = case
    X = rows(np.random.default_rng(5), 23)
    found = features.transform(X)
    np.testing.assert_array_equal(features.transform(np.asfortranarray(X)), found)
    np.testing.assert_array_equal(features.transform(np.repeat(X, 2, axis=0)[::2]), found)
    np.testing.assert_array_equal(features.transform(X.tolist()), found)


def test_the_exact_norm_is_at_most_one(case: Case) -> None:
    features, rows = case
    found = features.transform(rows(np.random.default_rng(1), 20))
    squares = [exact_square(row) for row in found]
    assert max(squares) <= 1
    if features.norm == "row":
        assert min(square for square in squares if square) > 1 - Fraction(1, 2**30)


_WILD = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [5e-324, 2.0**-1022, 1e308, -1e308, 2.0**1000, 0.1, 1.0]
)


@settings(max_examples=150, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=_WILD))
def test_the_exact_norm_is_at_most_one_for_wild_numbers(values: Any) -> None:
    with np.errstate(all="ignore"):
        found = scaled_rows(values, 0.3, None)
    for row, given_row in zip(found, values, strict=True):
        readable = np.isfinite(given_row).all() and np.abs(given_row).max() < 2.0**1000
        square = exact_square(row)
        assert square <= 1
        assert (square > 1 - Fraction(1, 2**30)) == bool(readable)
        assert (row[-1] > 0) == bool(readable) or np.abs(given_row).max() > 1e300


def test_the_norm_is_at_most_one_where_rounding_is_worst() -> None:
    """Equal entries whose root and quotient round up; without the shrinking some exceed 1."""
    for width in (1, 2, 6, 10, 99, 511, 1000):
        for value in (0.1, 1 / 3, 0.7, 1.0):
            found = scaled_rows(np.full((1, width), value), value, None)
            assert exact_square(found[0]) <= 1
            bound = float(np.sqrt(width)) * value
            found = scaled_rows(np.full((1, width), value), value, bound)
            assert exact_square(found[0]) <= 1


def test_fold_adds_everything_once() -> None:
    for length in range(1, 70):
        values = np.arange(3.0 * length).reshape(length, 3)
        np.testing.assert_array_equal(fold(values), values.sum(axis=0))


def test_unit_keeps_zero_and_marks_what_cannot_be_read() -> None:
    with np.errstate(all="ignore"):
        found = unit(np.array([[0.0, 3.0, np.nan, 1e308], [0.0, 4.0, 1.0, 1.0]]))
    np.testing.assert_allclose(found[:, 1], [0.6, 0.8])
    np.testing.assert_array_equal(found[:, 0], 0)
    assert np.isnan(found[:, 2:]).all()


class Rude:
    """A cell that raises whatever is asked of it."""

    def __float__(self) -> float:
        raise ZeroDivisionError

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise OSError


HOSTILE: list[Any] = [
    *(None, float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 10**400, "", "text"),
    *("1e400", "nan", b"\xff\xfe", "\ud800", True, 2 + 3j, [1, 2], {}, object(), Rude(), 2**63),
]


def test_no_cell_fails_and_no_cell_changes_another_row(case: Case) -> None:
    features, rows = case
    X = rows(np.random.default_rng(2), 6).reshape(6, -1).astype(object)
    found = features.transform(X)
    assert features.transform(X[:0]).shape == (0, found.shape[1])
    for cell in HOSTILE:
        for column in {0, X.shape[1] // 2, X.shape[1] - 1}:
            odd = X.copy()
            odd[3, column] = cell
            changed = features.transform(odd)
            np.testing.assert_array_equal(np.delete(changed, 3, 0), np.delete(found, 3, 0))
            assert exact_square(changed[3]) <= 1
            assert changed[3, -1] > 0 or not changed[3].any()


def test_a_list_with_rows_of_other_lengths(case: Case) -> None:
    features, rows = case
    if features.columns is None:
        return
    X = rows(np.random.default_rng(3), 5)
    found = features.transform(X)
    for odd in ([], [1.0], None, "row", 7, [[[]]], [Rude()] * features.columns, {}):
        listed = list(X)
        listed[2] = odd
        changed = features.transform(listed)
        np.testing.assert_array_equal(np.delete(changed, 2, 0), np.delete(found, 2, 0))
        if features.kind not in ("columns", "hashed_text"):
            assert not changed[2].any()


def test_saved_features_are_the_same(case: Case) -> None:
    features, rows = case
    record = json.loads(json.dumps(features.as_dict()))
    again = features_from_dict(
        record, {record.get("function"): features.get_params().get("function")}
    )
    assert again == features
    assert hash(again) == hash(features)
    X = rows(np.random.default_rng(4), 9)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    assert features.describe() == again.describe()
    names = features.get_feature_names_out([f"c{index}" for index in range(X[0].size)])
    assert len(set(names)) == len(names) == features.width(X[0].size)


@pytest.mark.parametrize(
    "record",
    [
        {},
        None,
        5,
        {"features": "os:system"},
        {"features": "columns"},
        {"features": "columns", "x": 1},
    ],
)
def test_other_records_are_refused(record: Any) -> None:
    with pytest.raises(InvalidInput):
        features_from_dict(record)


def test_scikit_learn(case: Case) -> None:
    sklearn = pytest.importorskip("sklearn")
    from sklearn.pipeline import make_pipeline
    from sklearn.utils import get_tags

    features, rows = case
    copy = sklearn.clone(features)
    assert copy == features
    assert copy is not features
    X = rows(np.random.default_rng(6), 8)
    pipeline = make_pipeline(copy, "passthrough")
    np.testing.assert_array_equal(pipeline.fit_transform(X), features.transform(X))
    assert get_tags(copy).requires_fit is False
    assert copy.set_params(constant=0.5) is copy
    assert copy.get_params()["constant"] == 0.5
    assert copy != features


def test_parameters_are_checked_when_set() -> None:
    features = Columns({"x": (0, 1)}, bins=0)
    with pytest.raises(InvalidInput, match="bounds"):
        features.set_params(feature_bounds={"x": (1, 0)})
    with pytest.raises(InvalidInput, match="colour"):
        features.set_params(colour=1)
    assert features.set_params(feature_bounds={"x": (0, 2)}).transform([[1.0]])[0, 0] == 0
    for constant in (0, -1, float("nan"), True, "1"):
        with pytest.raises(InvalidInput, match="constant"):
            Columns({"x": (0, 1)}, constant=constant)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="norm"):
        Columns({"x": (0, 1)}, norm="l1")


def test_rows_of_another_width_are_refused_by_shape() -> None:
    features = Columns({"x": (0, 1), "y": (0, 1)})
    with pytest.raises(InvalidInput, match="3 values"):
        features.transform(np.zeros((4, 3)))
    with pytest.raises(InvalidInput):
        features.transform(np.zeros((4, 0)))
    with pytest.raises(InvalidInput, match="columns"):
        RandomFourier(8).width()


def test_a_pipeline_keeps_the_guarantee_of_its_last_step() -> None:
    pytest.importorskip("sklearn")
    from sklearn.pipeline import make_pipeline

    from expost.sklearn import DPLogisticRegression
    from expost.sklearn._rows import guarantee_of

    last = DPLogisticRegression(epsilon=1.0, feature_bounds=(-1, 1), classes=(0, 1))
    pipeline = make_pipeline(OrientedGradients("8x8"), RandomFourier(8, 1.5), last)
    assert guarantee_of(pipeline, 100) == guarantee_of(last, 100)
