"""What an estimator must be told: everything that is missing is asked for at once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import pandas as pd

from expost.errors import InvalidInput
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch

FRAME = pd.DataFrame(
    {"age": [30.0, np.nan, 50.0, 60.0], "income": [1.0, 2.0, 3.0, 4.0], "city": list("abcd")}
)
NUMBERS = FRAME[["age", "income"]]
LABELS = ["no", "yes", "no", "yes"]


def fits(estimator: Any) -> list[Any]:
    """The estimator alone, and in a search."""
    return [estimator, ExPostSearch(estimator, {}, epsilons=[1.0], at_least=0.6)]


@pytest.mark.parametrize("place", [0, 1])
def test_one_message_names_all_that_is_missing(place: int) -> None:
    with pytest.raises(InvalidInput) as error:
        fits(DPLogisticRegression())[place].fit(FRAME, LABELS)
    text = str(error.value)
    assert text.startswith("3 settings are missing or not valid: (1) X")
    assert "encode 'city' as numbers" in text
    assert "(2) feature_bounds is required" in text
    assert "(3) classes is required" in text
    assert text.count("reading them off the data") == 1
    assert error.value.field == "X, feature_bounds, classes"
    assert str(pickle.loads(pickle.dumps(error.value))) == text


@pytest.mark.parametrize("place", [0, 1])
def test_gaps_do_not_hide_missing_facts(place: int) -> None:
    """The gap in 'age' is a value, and is looked at last."""
    with pytest.raises(InvalidInput, match=r"2 settings .*feature_bounds.*target_bounds") as error:
        fits(DPLinearRegression())[place].fit(NUMBERS, [1, 2, 3, 4])
    assert "NaN" not in str(error.value)
    with pytest.raises(InvalidInput, match=r"^classes is required"):
        fits(DPLogisticRegression(feature_bounds=(0, 9)))[place].fit(NUMBERS, LABELS)
    told = DPLogisticRegression(feature_bounds=(0, 9), classes=["no", "yes"])
    if place == 0:  # a search takes the row as an empty place
        with pytest.raises(InvalidInput, match="values that are NaN"):
            told.fit(NUMBERS, LABELS)


def test_every_column_without_a_pair_is_named() -> None:
    made = DPLogisticRegression(feature_bounds={"agee": (0, 9)}, classes=["no", "yes"])
    with pytest.raises(
        InvalidInput, match=r"no column 'agee', did you mean 'age'.*a pair for 'age', 'income', too"
    ):
        made.fit(NUMBERS, LABELS)


def test_what_the_grid_sets_is_not_missing() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.random((200, 2)), rng.integers(0, 2, 200)
    made = DPLogisticRegression(classes=[0, 1], epochs=2, batch_size=50, delta=1e-4)
    grid = {"feature_bounds": [(0, 1)]}
    search = ExPostSearch(made, grid, epsilons=[4.0], at_least=0.01, max_epsilon=50.0)
    found = search.fit(X, y)
    assert '"bounds": null' in found.certificate()


def test_the_message_about_labels_is_whole() -> None:
    made = DPLogisticRegression(feature_bounds=(0, 9), classes=["no", "maybe"])
    with pytest.raises(InvalidInput) as error:
        made.fit(NUMBERS.fillna(1.0), LABELS)
    text = str(error.value)
    assert "…" not in text
    assert "List every label that may occur in `classes`" in text
    assert "yes" not in text  # no message quotes a value
