"""The scikit-learn estimators: quality, promises, bounds, and scikit-learn's own checks."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.model_selection import cross_val_score

from expost.errors import InvalidInput, SimulationOnly
from expost.sklearn import (
    DPLinearRegression,
    DPLogisticRegression,
    ExPostSearch,
    public_baseline,
)
from expost.sklearn._rows import inside_selection


def test_a_private_classifier_learns():
    X, y = load_breast_cancer(return_X_y=True)
    bounds = np.column_stack([X.min(0), X.max(0)])
    model = DPLogisticRegression(
        epsilon=2.0, delta=1e-5, classes=[0, 1], feature_bounds=bounds, batch_size=100
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
        5.0, 1e-6, feature_bounds=[(0, 10), (100, 300)], target_bounds=(0, 80), epochs=30
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


@pytest.mark.parametrize("bounds", [(1, 0), (0, np.inf), 3, ([0, 0], [1, 1]), "ab", [(0, 1)] * 3])
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
def test_refused_at_the_door_without_quoting_a_value(name):
    """Catches a row's text in an error, e.g. scikit-learn's "could not convert string to float"."""
    X, y = HOSTILE[name]
    for model, fine in (
        (DPLogisticRegression(**CLASSIFIER), name == "one class"),
        (
            DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 1), delta=1e-9),
            name in ("one class", "a label outside", "labels that are not whole"),
        ),
    ):
        if fine:
            model.fit(X, y)
            continue
        with pytest.raises(InvalidInput, match=r"NaN|public classes") as refused:
            model.fit(X, y)
        error = refused.value
        text = f"{error} {error.__context__ if not error.__suppress_context__ else None}"
        assert SECRET not in text
        assert not hasattr(model, "privacy_spent_")


def test_complex_numbers_are_refused_by_their_type():
    """scikit-learn's own message would print the rows."""
    pandas = pytest.importorskip("pandas")
    X = np.full((8, 2), 0.123456 + 1j)
    for rows in (X, pandas.DataFrame(X, columns=["a", "b"])):
        with pytest.raises(InvalidInput) as refused:
            DPLogisticRegression(**CLASSIFIER).fit(rows, [0, 1] * 4)
        assert "0.123456" not in str(refused.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_inside_a_selection_no_value_is_refused(name):
    """Catches a refusal that depends on one row: it would tell two neighbours apart."""
    X, y = HOSTILE[name]
    with inside_selection():
        model = DPLogisticRegression(**CLASSIFIER).fit(X, y)
        assert np.isfinite(model.coef_).all()
        assert set(model.predict(X)) <= {0, 1}
        linear = DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 1), delta=1e-9)
        assert np.isfinite(linear.fit(X, y).predict(X)).all()


def test_a_prediction_is_made_for_every_row_of_numbers():
    model = DPLogisticRegression(**CLASSIFIER).fit(np.eye(4), [0, 1, 0, 1])
    assert set(model.predict(np.array([[1e308] * 4, [-1e308] * 4]))) <= {0, 1}
    rows = np.array([[np.nan] * 4, [np.inf, -np.inf, 0, 0]])
    with pytest.raises(InvalidInput, match="NaN"):
        model.predict(rows)
    with inside_selection():
        assert np.isfinite(model.predict_proba(rows)).all()


def test_a_prediction_does_not_depend_on_the_other_rows():
    """Catches a matrix product, whose rounding may depend on the number of rows."""
    generator = np.random.default_rng(2)
    X, y = generator.random((300, 37)), generator.integers(0, 3, 300)
    model = DPLogisticRegression(feature_bounds=(0, 1), classes=[0, 1, 2]).fit(X, y)
    whole = model.decision_function(X)
    for start, stop in [(0, 1), (7, 8), (3, 20), (1, 300)]:
        assert np.array_equal(model.decision_function(X[start:stop]), whole[start:stop])


def test_what_a_fit_promises_is_known_before():
    X, y = np.eye(8), [0, 1] * 4
    model = DPLogisticRegression(**CLASSIFIER)
    promise = model.privacy_guarantee(8)
    assert promise == model.fit(X, y).guarantee_
    assert promise.to_approx(1e-9) == model.privacy_spent_
    with pytest.raises(InvalidInput, match="n"):
        model.privacy_guarantee()
    counted = DPLogisticRegression(**CLASSIFIER, n_rows=20)
    assert (
        counted.privacy_guarantee() == counted.privacy_guarantee(8) == counted.fit(X, y).guarantee_
    )
    assert counted.guarantee_.neighbours == "add-remove"


def test_columns_by_name():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [20.0, 60.0] * 50, "member": [True, False] * 50})
    bounds = {"member": (0, 1), "age": (0, 120)}
    settings = {"classes": ["no", "yes"], "simulation": True, "random_state": 1}
    labels = pd.Series(["no", "yes"] * 50)
    model = DPLogisticRegression(feature_bounds=bounds, **settings).fit(frame, labels)
    pairs = DPLogisticRegression(feature_bounds=[(0, 120), (0, 1)], **settings)
    assert np.array_equal(model.coef_, pairs.fit(frame.to_numpy(dtype=float), labels).coef_)
    assert set(model.predict(frame)) <= {"no", "yes"}
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["member", "age"]])
    with pytest.raises(InvalidInput, match="did you mean 'age'"):
        DPLogisticRegression(feature_bounds={"agee": (0, 1)}, **settings).fit(frame, labels)
    with pytest.raises(InvalidInput, match="a pair for 'member'"):
        DPLogisticRegression(feature_bounds={"age": (0, 1)}, **settings).fit(frame, labels)


def test_a_seeded_model_reports_no_privacy():
    """Catches a guarantee that the noise of a seed does not keep."""
    settings = {**CLASSIFIER, "simulation": True}
    seeded = DPLogisticRegression(random_state=1, **settings).fit(np.eye(4), [0, 1, 0, 1])
    assert seeded.privacy_spent_ is None
    assert seeded.guarantee_ is None
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


def test_a_baseline_on_public_rows():
    X, y = load_breast_cancer(return_X_y=True)
    bounds = np.column_stack([X.min(0), X.max(0)])
    model = DPLogisticRegression(classes=[0, 1], feature_bounds=bounds)
    assert public_baseline(model, X, y) > 0.93
    assert not hasattr(model, "coef_")
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 10, (500, 2))
    linear = DPLinearRegression(feature_bounds=(0, 10), target_bounds=(0, 60))
    assert -0.1 < public_baseline(linear, rows, rows @ [3, 2] + rng.normal(0, 0.1, 500)) <= 0
    with pytest.raises(InvalidInput, match="estimator"):
        public_baseline(ExPostSearch(model, {}), X, y)


def test_class_weights_decay_and_schedule_reach_the_training():
    """A heavy class is predicted more often; a dict and a list say the same."""
    X, y = load_iris(return_X_y=True)
    X, names = X[y > 0], np.array(["b", "a"])[y[y > 0] - 1]

    def fitted(**more):
        model = DPLogisticRegression(
            *(8.0, 1e-5),
            classes=["b", "a"],
            feature_bounds=(0, 8),
            batch_size=50,
            random_state=1,
            simulation=True,
            **more,
        )
        return model.fit(X, names)

    plain, heavy = fitted(), fitted(class_weight={"a": 20})
    assert (heavy.predict(X) == "a").sum() > (plain.predict(X) == "a").sum() + 5
    assert (heavy.coef_ == fitted(class_weight=[1, 20]).coef_).all()
    assert heavy.privacy_guarantee(100) == plain.privacy_guarantee(100)
    decayed = fitted(weight_decay=1.5)
    assert np.linalg.norm(decayed.coef_) < np.linalg.norm(plain.coef_)
    assert (fitted(schedule="cosine").coef_ != plain.coef_).any()
    small = DPLinearRegression(
        *(8.0, 1e-5),
        feature_bounds=(0, 8),
        target_bounds=(0, 8),
        batch_size=50,
        weight_decay=5.0,
        schedule="linear",
        random_state=1,
        simulation=True,
    )
    assert np.linalg.norm(small.fit(X, X[:, 0]).coef_) < 0.5


@pytest.mark.parametrize(
    "wrong", ["balanced", [1], [1, 2, 3], {"c": 2}, {"a": 0}, {"a": "b"}, [1, -1], 3]
)
def test_wrong_class_weights_are_refused_before_anything_is_spent(wrong):
    X, y = load_iris(return_X_y=True)
    X, names = X[y > 0], np.array(["b", "a"])[y[y > 0] - 1]
    model = DPLogisticRegression(classes=["b", "a"], feature_bounds=(0, 8), class_weight=wrong)
    with pytest.raises(InvalidInput, match="class_weight"):
        model.check_fit(X, names)
