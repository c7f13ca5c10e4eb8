"""Columns of tables: numbers, logarithms, bins, categories, dates, texts, and their facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import Columns, EncodedColumns, Features
from expost.features.columns import Column, TableSchema, signed_logarithm
from expost.tuning.rows.job_columns import features_for


def values(features: Features, X: Any) -> Any:
    """Return the features before rows are scaled."""
    return features.values(features._read(X))


def test_numbers_are_clipped_and_scaled() -> None:
    plain = Columns({"x": (0, 10)}, bins=0)
    found = values(plain, np.array([[-5.0], [0], [5], [10], [99]]))
    np.testing.assert_array_equal(found[:, 0], [-1, -1, 0, 1, 1])
    found = values(Columns({"x": (0, 1), "y": (0, 4)}, bins=0), np.array([[1.0, 1.0]]))
    np.testing.assert_array_equal(found, [[1, -0.5]])
    marked = Columns({"x": (0, 10)}, missing={"x": "indicator"}, bins=0)
    np.testing.assert_array_equal(values(marked, np.array([[np.nan], [10]])), [[1, 0], [0, 1]])
    filled = Columns({"x": (0, 10)}, missing={"x": 10}, bins=0)
    np.testing.assert_array_equal(values(filled, np.array([[np.nan], [0]])), [[1], [-1]])
    assert not plain.transform([[None], ["x"]]).any()


def test_rows_are_scaled_with_their_constant() -> None:
    """The angle of (value, constant) keeps the value, also if there is one column."""
    rows, constant = np.array([[1.0], [0.5], [-1.0]]), 0.3 * np.sqrt(1.25)
    found = Columns({"x": (-1, 1)}, bins=0).transform(rows)
    np.testing.assert_allclose(found[:, 0] / found[:, 1], rows[:, 0] / constant)
    linear = Columns({"x": (-1, 1)}, bins=0, norm="bound").transform(rows)
    np.testing.assert_allclose(linear[:, 0], rows[:, 0] / np.sqrt(1.25 * 1.09))
    np.testing.assert_allclose(linear[:, 1], 0.3 / np.sqrt(1.09))


def test_logarithms() -> None:
    x = np.concatenate([-np.logspace(-9, 12, 500), [0], np.logspace(-9, 12, 500)])
    np.testing.assert_allclose(signed_logarithm(x), np.sign(x) * np.log1p(np.abs(x)), atol=1e-13)
    rows = np.array([[0.0], [9], [99], [999], [9999], [50000], [-3]])
    found = values(Columns({"x": (0, 9999)}, bins=0), rows)
    np.testing.assert_allclose(found[:, 0], [-1, -0.5, 0, 0.5, 1, 1, -1], atol=1e-12)
    found = values(Columns({"x": (0, 9999)}, bins=0, logarithm=False), rows[:1])
    np.testing.assert_array_equal(found, [[-1]])


def test_bins() -> None:
    rows = np.array([[-1.0], [0], [2], [9.9], [10], [11]])
    found = values(Columns({"x": (0, 10)}, bins=5), rows)[:, 1:]
    np.testing.assert_array_equal(found.argmax(axis=1), [0, 0, 1, 4, 4, 4])
    np.testing.assert_array_equal(found.sum(axis=1), 0.5)


def test_categories_truths_dates_and_texts() -> None:
    labels = Columns(categories={"x": ["a", 1]})
    found = values(labels, np.array([["a"], ["1.0"], [None], ["z"]], dtype=object))
    np.testing.assert_array_equal(found, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    truths = Columns(booleans=["x"])
    found = values(truths, np.array([["yes"], [False], ["?"]], dtype=object))
    np.testing.assert_array_equal(found[:, 0], [1, 0, np.nan])
    days = {"x": ("2020-01-01", "2020-01-03")}
    dates = Columns(dates=days, missing={"x": "indicator"}, bins=0)
    found = values(dates, [["2020-01-02"], ["2021-01-01"], [None]])
    np.testing.assert_array_equal(found, [[0, 0], [0, 1], [1, 0]])
    filled = Columns(dates=days, missing={"x": "2020-01-03"}, bins=0)
    np.testing.assert_array_equal(values(filled, [[None]]), [[1]])
    text = values(Columns(texts=["x"]), [["red wine"], [None]])
    assert text[0].min() == 0 < text[0].max()
    assert not text[1].any()


def test_a_data_frame_is_read_by_names() -> None:
    pandas = pytest.importorskip("pandas")
    features = Columns({"age": (0, 100)}, {"colour": ["red"]}, bins=2)
    frame = pandas.DataFrame({"colour": ["red", None], "more": [1, 2], "age": [50, 0]})
    found = values(features, frame)
    np.testing.assert_array_equal(found, [[1, 0, 0, 0, 0.5], [0, 1, -1, 0.5, 0]])
    listed = frame[["age", "colour"]].to_numpy(dtype=object)
    np.testing.assert_array_equal(values(features, listed), found)
    wide = Columns({"age": (0, 100)}, {"colour": ["red"]}, bins=2, names=list(frame.columns))
    np.testing.assert_array_equal(values(wide, frame.to_numpy(dtype=object)), found)
    assert list(features.get_feature_names_out()) == [
        *("colour=red", "colour=other", "age", "age_bin0", "age_bin1", "constant")
    ]
    with pytest.raises(InvalidInput, match="colour"):
        features.transform(frame.drop(columns="colour"))


def test_a_table_becomes_what_a_job_makes_of_it() -> None:
    columns = (
        Column("number", 0, 100, name="age"),
        Column("number", 0, 99999, indicator=True, name="gain"),
        Column("category", categories=("a", "b"), name="class"),
        Column("boolean", fill=1.0, name="member"),
    )
    features = Columns(
        {"age": (0, 100), "gain": (0, 99999)},
        {"class": ["a", "b"]},
        ["member"],
        missing={"gain": "indicator", "member": True},
    )
    cells: list[Any] = [
        np.array([10, None, "x", 30.0], dtype=object),
        np.array([1, None, 3, "4"], dtype=object),
        np.array(["a", "b", None, "a"], dtype=object),
        np.array([None, "no", True, 1], dtype=object),
    ]
    schema = TableSchema(columns, classes=2)
    of_job = features_for("auto", schema, None)
    assert isinstance(of_job, EncodedColumns)
    own, jobs = features.values(cells), of_job.values(schema.encode(cells))
    for rows in (own, jobs):
        rows[np.isnan(rows).any(axis=1)] = np.nan  # a row that cannot be read
    np.testing.assert_array_equal(own, jobs)
    assert np.isnan(own[:, 0]).tolist() == [False, True, True, False]


def test_a_regression_stays_linear_and_a_date_spoils_no_logarithm() -> None:
    columns = (
        Column("number", 0, 99999, name="gain"),
        Column("date", 730000, 740000, name="since"),
    )
    line = features_for("auto", TableSchema(columns, target_bounds=(0, 1)), None)
    assert isinstance(line, EncodedColumns)
    assert (line.norm, line.bins, line.logarithm) == ("bound", 0, False)
    bent = features_for("auto", TableSchema(columns, classes=2), None)
    assert isinstance(bent, EncodedColumns)
    assert (bent.norm, bent.logarithm) == ("row", True)
    found = bent.values(np.array([[0.01, 0.5]]))[0]
    assert found[0] > 0.1  # 1,000 of 100,000, by its logarithm
    assert found[1] == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"feature_bounds": {"x": (1, 1)}},
        {"feature_bounds": {"x": (0, float("inf"))}},
        {"feature_bounds": {"x": (-1e308, 1e308)}},
        {"feature_bounds": {"x": "ab"}},
        {"feature_bounds": {"x": (0, 1, 2)}},
        {"feature_bounds": {1: (0, 1)}},
        {"feature_bounds": "ab"},
        {"feature_bounds": {"x": (0, 1)}, "missing": {"x": "mean"}},
        {"feature_bounds": {"x": (0, 1)}, "missing": {"x": float("nan")}},
        {"feature_bounds": {"x": (0, 1)}, "missing": {"y": 0}},
        {"feature_bounds": {"x": (0, 1)}, "categories": {"x": ["a"]}},
        {"feature_bounds": {"x": (0, 1)}, "bins": 1},
        {"feature_bounds": {"x": (0, 1)}, "names": ["y"]},
        {"feature_bounds": {"x": (0, 1)}, "names": ["x", "x"]},
        {"categories": {"x": []}},
        {"categories": {"x": [1, "1"]}},
        {"categories": {"x": [None]}},
        {"dates": {"x": ("2020", "2021")}},
        {"dates": {"x": 5}},
        {"booleans": ["x"], "missing": {"x": "perhaps"}},
        {},
    ],
)
def test_facts_that_are_not_valid_are_refused(facts: Any) -> None:
    with pytest.raises(InvalidInput):
        Columns(**facts)
