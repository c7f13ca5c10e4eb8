"""The scikit-learn estimators: quality, promises, bounds, and scikit-learn's own checks."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from expost.errors import InvalidInput, SimulationOnly
from expost.sklearn import DPLinearRegression, DPLogisticRegression
from expost.training import data

OTHER_LABELS = (
    "draws labels that are not in the public list, "
    "or too little data for noisy training to reach its accuracy"
)
CANNOT_PASS = {
    "check_classifiers_classes": "passes texts and numbers as labels; the public list has one kind",
    "check_dtype_object": OTHER_LABELS,
    "check_classifiers_train": OTHER_LABELS,
    "check_regressors_train": OTHER_LABELS,
    "check_supervised_y_no_nan": "wants a refusal that depends on values; such rows do not count",
    "check_classifiers_regression_target": "the same",
}
ROWS_MAY_BE_UNUSABLE = hasattr(data, "check_training_data")
if not ROWS_MAY_BE_UNUSABLE:
    CANNOT_PASS["check_estimators_pickle"] = "trains on rows with NaN"
unusable_rows = pytest.mark.skipif(
    not ROWS_MAY_BE_UNUSABLE, reason="the training refuses rows that it cannot use"
)


def failures(estimator):
    return {
        each["check_name"]
        for each in check_estimator(estimator, on_fail=None)
        if each["status"] == "failed"
    }


@pytest.mark.filterwarnings("ignore")
def test_check_estimator_passes_where_the_contract_allows():
    """The classifier's checks bring two or three classes; each check must pass with the list that
    fits it.
    """
    common = {"feature_bounds": (-5, 5), "simulation": True, "epsilon": 100.0}
    assert failures(DPLinearRegression(target_bounds=(-100, 100), **common)) <= set(CANNOT_PASS)
    both = failures(DPLogisticRegression(classes=[0, 1], **common)) & failures(
        DPLogisticRegression(classes=[0, 1, 2], **common)
    )
    assert both <= set(CANNOT_PASS)


def test_a_private_classifier_learns():
    X, y = load_breast_cancer(return_X_y=True)
    model = DPLogisticRegression(
        epsilon=2.0, delta=1e-5, classes=[0, 1], feature_bounds=(X.min(0), X.max(0)), batch_size=100
    )
    assert model.fit(X, y).score(X, y) > 0.8
    assert 1.99 < model.privacy_spent_.epsilon <= 2.0
    assert model.privacy_spent_.delta == pytest.approx(1e-5)
    assert np.allclose(model.predict_proba(X).sum(1), 1)
    assert cross_val_score(model, X, y, cv=3).mean() > 0.75


def test_three_named_classes():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = DPLogisticRegression(
        50.0,
        1e-5,
        classes=["virginica", "setosa", "versicolor"],
        feature_bounds=(0, 8),
        batch_size=75,
        epochs=60,
        learning_rate=1.0,
    )
    assert model.fit(X, names).score(X, names) > 0.7
    assert model.coef_.shape == (3, 4)
    assert set(model.predict(X)) <= set(names)


def test_a_private_regression_learns_and_its_coefficients_are_in_the_users_units():
    rng = np.random.default_rng(0)
    X = rng.uniform([0, 100], [10, 300], (5000, 2))
    y = 3 * X[:, 0] - 0.1 * X[:, 1] + 40
    model = DPLinearRegression(
        5.0, 1e-6, feature_bounds=([0, 100], [10, 300]), target_bounds=(0, 80), epochs=30
    ).fit(X, y)
    assert model.score(X, y) > 0.9
    assert np.allclose(model.coef_, [3, -0.1], rtol=0.25)
    assert np.allclose(model.predict(X), X @ model.coef_ + model.intercept_)


def test_values_beyond_the_bounds_are_clipped():
    X, y = np.array([[0.0], [1.0]] * 50), np.array([0.0, 1.0] * 50)
    settings = {"target_bounds": (0, 1), "simulation": True, "random_state": 1}
    inside = DPLinearRegression(feature_bounds=(0, 1), **settings).fit(X, y)
    outside = DPLinearRegression(feature_bounds=(0, 1), **settings).fit(X * 1000, y * 1e6)
    assert inside.coef_ == outside.coef_
    assert (outside.predict(X * 1000) == inside.predict(X)).all()


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (DPLogisticRegression(classes=[0, 1]), "feature_bounds"),
        (DPLogisticRegression(feature_bounds=(0, 1)), "classes"),
        (DPLinearRegression(target_bounds=(0, 1)), "feature_bounds"),
        (DPLinearRegression(feature_bounds=(0, 1)), "target_bounds"),
    ],
)
def test_missing_bounds_are_an_error_that_says_why(model, field):
    with pytest.raises(InvalidInput, match="reading them off the data") as error:
        model.fit(np.eye(4), [0, 1, 0, 1])
    assert error.value.field == field


@pytest.mark.parametrize("bounds", [(1, 0), (0, np.inf), 3, ([0, 0], [1, 1]), "ab"])
def test_bad_bounds(bounds):
    with pytest.raises(InvalidInput):
        DPLinearRegression(feature_bounds=bounds, target_bounds=(0, 1)).fit(np.eye(4), [0, 1, 0, 1])


def test_a_seed_only_in_a_simulation():
    with pytest.raises(SimulationOnly):
        DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 1), random_state=0).fit(
            np.eye(4), [0, 1, 0, 1]
        )


SECRET = "Jane Doe, diabetes"
CLASSIFIER = {"feature_bounds": (0, 1), "classes": [0, 1], "delta": 1e-9}
HOSTILE = {
    "a text among the features": ([[SECRET, 1.0], [0.5, 0.5]] * 4, [0, 1] * 4),
    "NaN": ([[np.nan, 1.0], [0.5, 0.5]] * 4, [0, 1] * 4),
    "infinity": ([[np.inf, 1.0], [0.5, -np.inf]] * 4, [0, 1] * 4),
    "a label outside": (np.eye(8), [0, 1, 2, 1] * 2),
    "a text label": (np.eye(8), np.array([0, 1, SECRET, 1] * 2, dtype=object)),
    "only text labels": (np.eye(8), [SECRET] * 8),
    "a list as a label": (np.eye(8), np.array([0, 1, None, 1] * 2, dtype=object)),
    "one class": (np.eye(8), [1] * 8),
    "labels that are not whole": (np.eye(8), [0.5] * 8),
    "NaN as a label": (np.eye(8), [0, np.nan] * 4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_error_quotes_a_value(name):
    """Catches a row's text in an error, e.g. scikit-learn's "could not convert string to float"."""
    X, y = HOSTILE[name]
    for model in (
        DPLogisticRegression(**CLASSIFIER),
        DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 1), delta=1e-9),
    ):
        try:
            model.fit(X, y)
        except InvalidInput as error:
            assert not ROWS_MAY_BE_UNUSABLE
            text = f"{error} {error.__context__ if not error.__suppress_context__ else None}"
            assert SECRET not in text


@unusable_rows
@pytest.mark.parametrize("name", HOSTILE)
def test_fit_never_refuses_values(name):
    """Catches a refusal that depends on one row: it would tell two neighbours apart."""
    X, y = HOSTILE[name]
    model = DPLogisticRegression(**CLASSIFIER).fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert set(model.predict(X)) <= {0, 1}
    linear = DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 1), delta=1e-9).fit(X, y)
    assert np.isfinite(linear.predict(X)).all()


def test_a_prediction_is_made_for_every_row():
    model = DPLogisticRegression(**CLASSIFIER).fit(np.eye(4), [0, 1, 0, 1])
    rows = np.array([[np.nan] * 4, [np.inf, -np.inf, 0, 0], [1e308] * 4])
    assert set(model.predict(rows)) <= {0, 1}
    assert np.isfinite(model.predict_proba(rows)).all()


def test_a_seeded_model_reports_no_privacy():
    """Catches a promise that the noise of a seed does not keep."""
    settings = {**CLASSIFIER, "simulation": True}
    seeded = DPLogisticRegression(random_state=1, **settings).fit(np.eye(4), [0, 1, 0, 1])
    assert seeded.privacy_spent_ is None
    assert seeded.promise_ is None
    assert seeded.simulated_
    fresh = DPLogisticRegression(**settings).fit(np.eye(4), [0, 1, 0, 1])
    assert fresh.privacy_spent_ is not None
    assert not fresh.simulated_


def test_weak_settings_warn():
    X, y = np.eye(4), [0, 1, 0, 1]
    with pytest.warns(UserWarning, match="at least 1/4"):
        DPLogisticRegression(**{**CLASSIFIER, "delta": 0.25}).fit(X, y)
    with pytest.warns(UserWarning, match="very large"):
        DPLogisticRegression(epsilon=21.0, **CLASSIFIER).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPLogisticRegression(**CLASSIFIER).fit(X, y)
