"""scikit-learn's own checks for all three estimators; each that cannot pass is named, with why.

An expected failure that passes is an error, too (``xfail_strict``).
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import (
    check_decision_proba_consistency,
    parametrize_with_checks,
)

from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch

NO_NUMBER = "wants a TypeError for a cell that is no number; it is an InvalidInput, a ValueError"
LABELS = "brings labels of other kinds than the public list has"
FROM_LABELS = (
    "counts the classes in the labels; the shape of decision_function comes from the public list"
)
EMPTY_PLACE = "wants an error that depends on a value; the row counts as an empty place"
THREE = "with three listed classes the probability of one is not ranked as its logit"

COMMON: dict[str, Any] = {"feature_bounds": (-4, 4), "simulation": True, "epsilon": 1000.0}
QUICK: dict[str, Any] = {"learning_rate": 8.0, "epochs": 40, "batch_size": 60, **COMMON}
LINEAR = DPLinearRegression(target_bounds=(-4, 4), **{**QUICK, "learning_rate": 0.5})
LOGISTIC = DPLogisticRegression(classes=[0, 1, 2, 3], **QUICK)
SEARCH = ExPostSearch(LOGISTIC, {"clip": [1.0]}, epsilons=[1000.0], repeats=20, simulation=True)

CLASSIFIER = {
    "check_dtype_object": NO_NUMBER,
    "check_classifiers_classes": LABELS,
    "check_classifiers_train": FROM_LABELS,
    "check_decision_proba_consistency": THREE,
}
CANNOT_PASS: dict[type, dict[str, str]] = {
    DPLinearRegression: {"check_dtype_object": NO_NUMBER},
    DPLogisticRegression: CLASSIFIER,
    ExPostSearch: CLASSIFIER
    | dict.fromkeys(
        (
            "check_estimators_nan_inf",
            "check_supervised_y_no_nan",
            "check_classifiers_regression_target",
        ),
        EMPTY_PLACE,
    ),
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [LINEAR, LOGISTIC, SEARCH],
    expected_failed_checks=lambda estimator: CANNOT_PASS[type(estimator)],
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore")
def test_two_listed_classes_are_ranked_alike() -> None:
    two = DPLogisticRegression(classes=[0, 1], **QUICK)
    check_decision_proba_consistency("two", two)
    search = ExPostSearch(two, {}, epsilons=[1000.0], repeats=20, simulation=True)
    check_decision_proba_consistency("search", search)
