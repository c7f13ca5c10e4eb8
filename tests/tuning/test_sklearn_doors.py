"""ExPostSearch over the package's own estimators: frames, refusals, relations, pipelines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import pandas as pd
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from expost import ApproxDP, PureDP, SimulationRandomness
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.sklearn._rows import inside_selection
from tests.tuning.jobs import clouds, line
from tests.tuning.private_estimators import NearestNoisyMean, SelfDescribing, pure

BY_FIT = {"training": "dp-sgd", "max_epsilon": 100.0}
FAST = {"epochs": 4, "batch_size": 60, "delta": 1e-4}


def classifier(**changes: Any) -> Any:
    return DPLogisticRegression(**{"classes": [0, 1], "feature_bounds": (0, 1), **FAST, **changes})


def search(estimator: Any = None, grid: Any = None, **changes: Any) -> Any:
    settings = {"epsilons": [1, 4], "at_least": 0.6, "attempts": 3, "repeats": 2} | BY_FIT | changes
    chosen = classifier() if estimator is None else estimator
    return ExPostSearch(chosen, {"learning_rate": [1.0, 4.0]} if grid is None else grid, **settings)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", ApproxDP(1000, 0.1, "zero-out"))


def charged(ledger: Ledger) -> list[str]:
    return [entry.action for entry in ledger.entries() if entry.action != "create"]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_five_lines_with_a_frame() -> None:
    X, y = clouds()
    frame = pd.DataFrame(X, columns=["age", "income"])
    bounds = {"income": (0, 1), "age": (0, 1)}
    found = search(classifier(feature_bounds=bounds)).fit(frame, pd.Series(y, name="sick"))
    assert found.passed_
    assert found.n_features_in_ == 2
    assert found.feature_names_in_.tolist() == ["age", "income"]
    assert found.best_estimator_.feature_names_in_.tolist() == ["age", "income"]
    assert found.privacy_spent_.neighbours == found.neighbours_ == "zero-out"
    assert found.privacy_spent_.delta == 1e-4  # the estimator's
    assert found.release_.as_dict(encode=str)["spent"]["neighbours"] == "zero-out"
    assert found.predict_proba(frame).shape == (300, 2)
    assert found.decision_function(frame).shape == (300,)
    assert found.score(frame, y) > 0.6
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[["income", "age"]])
    copied = pickle.loads(pickle.dumps(found))
    assert np.array_equal(copied.predict(frame), found.predict(frame))
    assert not hasattr(clone(found), "release_")


def test_a_polars_frame() -> None:
    pl = pytest.importorskip("polars")
    X, y = clouds()
    frame = pl.DataFrame({"age": X[:, 0], "income": X[:, 1]})
    found = search(classifier(feature_bounds={"age": (0, 1), "income": (0, 1)}))
    found.fit(frame, pl.Series("sick", y))
    assert found.feature_names_in_.tolist() == ["age", "income"]
    assert len(found.predict(frame)) == 300


X0, Y0 = clouds()
GAP = X0.copy()
GAP[7, 1] = np.nan
ENDLESS = X0.copy()
ENDLESS[7, 1] = np.inf
BY_VALUE: dict[str, tuple[Any, Any]] = {
    "NaN": (GAP, Y0),
    "infinity": (ENDLESS, Y0),
    "a missing cell of a frame": (pd.DataFrame(GAP), Y0),
    "NaN as a target": (X0, np.where(np.arange(300) == 3, np.nan, Y0)),
    "a label outside": (X0, Y0 + 1),
    "labels of another kind": (X0, np.where(Y0 == 1, "Jane Doe", "no")),
}
REFUSED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a column of text": (pd.DataFrame({"a": X0[:, 0], "b": ["Jane Doe"] * 300}), Y0, {}),
    "sparse": (csr_matrix(X0), Y0, {}),
    "empty": (X0[:0], Y0[:0], {}),
    "no columns": (X0[:, :0], Y0, {}),
    "flat": (X0[:, 0], Y0, {}),
    "no y": (X0, None, {}),
    "no X": (None, Y0, {}),
    "another number of targets": (X0, Y0[1:], {}),
    "too many columns": (np.hstack([X0, X0]), Y0, {"feature_bounds": [(0, 1), (0, 1)]}),
    "no bounds": (X0, Y0, {"feature_bounds": None}),
    "no classes": (X0, Y0, {"classes": None}),
    "an unknown column": (pd.DataFrame(X0, columns=["a", "b"]), Y0, {"feature_bounds": {"c": 1}}),
    "bounds by name without names": (X0, Y0, {"feature_bounds": {"a": (0, 1)}}),
    "a setting that is not valid": (X0, Y0, {"clip": -1.0}),
    "a setting of another type": (X0, Y0, {"batch_size": None}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_charged(name: str, ledger: Ledger) -> None:
    X, y, changes = REFUSED[name]
    for door in (search(classifier(**changes), ledger=ledger), classifier(**changes)):
        with pytest.raises((ValueError, TypeError)) as error:
            door.fit(X, y)
        assert "Jane" not in str(error.value)
        assert not hasattr(door, "coef_")
    assert charged(ledger) == []


@pytest.mark.parametrize("name", BY_VALUE)
def test_values_are_refused_by_an_estimator_and_by_no_search(name: str) -> None:
    X, y = BY_VALUE[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        classifier().fit(X, y)
    assert "Jane" not in str(error.value)
    assert search(attempts=1).fit(X, y).n_attempts_ == 1


def test_inside_a_selection_nothing_is_refused_because_of_a_value() -> None:
    """Catches a candidate that fails because of one row: its failure is released without noise."""
    for X, y in [(GAP, Y0), (ENDLESS, Y0), (X0, Y0 + 1), (X0[:0], Y0[:0])]:
        with inside_selection():
            fitted = classifier(n_rows=300).fit(X, y)
            assert len(fitted.predict(GAP)) == 300
        assert np.isfinite(fitted.coef_).all()
        with pytest.raises(InvalidInput, match="NaN"):
            fitted.predict(GAP)


def test_a_regressor_is_searched_by_its_error() -> None:
    X, y = line(3000)
    settings: Any = {"learning_rate": 0.5, "batch_size": 200, "delta": 1e-5, "epochs": 4}
    model = DPLinearRegression(feature_bounds=(0, 1), target_bounds=(0, 10), **settings)
    found = search(model, {"clip": [1.0]}, at_least=-8.0).fit(X, y)
    assert found.passed_
    assert -8 <= found.score_bound_ < found.best_score_ < 2
    assert abs(found.best_score_ + np.mean((found.predict(X) - y) ** 2)) < 2
    for scoring, match in [("accuracy", "scoring"), ("r2", "target_variance")]:
        with pytest.raises(InvalidInput, match=match):
            search(model, {"clip": [1.0]}, scoring=scoring).fit(X, y)
    absolute = search(model, {"clip": [1.0]}, at_least=-3.0, scoring="neg_mean_absolute_error")
    assert absolute.fit(X, y).best_score_ is None or absolute.score_bound_ >= -3


def test_a_pipeline_keeps_the_promise_of_its_last_step() -> None:
    X, y = clouds()
    steps = make_pipeline(FunctionTransformer(np.sqrt), "passthrough", classifier())
    found = search(steps, {"dplogisticregression__learning_rate": [1.0, 4.0]}).fit(np.abs(X), y)
    assert found.passed_
    assert set(found.best_params_) == {
        "dplogisticregression__epsilon",
        "dplogisticregression__learning_rate",
    }
    public = FrozenEstimator(StandardScaler().fit(np.random.default_rng(1).random((20, 2))))
    frozen = make_pipeline(public, classifier(feature_bounds=(-4, 4)))
    assert search(frozen, {}).fit(X, y).release_ is not None
    with pytest.raises(InvalidInput, match="fitted on the rows"):
        search(make_pipeline(StandardScaler(), classifier()), {}).fit(X, y)
    with np.errstate(all="ignore"):  # NaN in every row
        search(make_pipeline(FunctionTransformer(np.log), classifier()), {}).fit(X - 5, y)


def test_a_pipeline_may_start_from_text_and_gaps(ledger: Ledger) -> None:
    X, y = clouds()
    raw = pd.DataFrame({"age": X[:, 0], "city": np.where(X[:, 1] > 0.5, "Bern", "Zug")})
    raw.loc[7, "age"], raw.loc[8, "city"] = np.nan, None

    def numbers(frame: pd.DataFrame) -> pd.DataFrame:
        bern = (frame["city"] == "Bern").astype(float)
        return pd.DataFrame({"age": frame["age"].fillna(0.5), "bern": bern})

    steps = make_pipeline(FunctionTransformer(numbers), classifier())
    found = search(steps, {}, at_least=None).fit(raw, y)
    assert len(found.predict(raw)) == 300
    gaps = make_pipeline(FunctionTransformer(lambda frame: frame[["age"]]), SelfDescribing())
    with pytest.raises(InvalidInput, match="NaN"):
        search(gaps, {}, ledger=ledger, delta=1e-5).fit(raw, y)
    with pytest.raises(InvalidInput, match="encode 'city' as numbers"):
        search(ledger=ledger).fit(raw, y)
    assert charged(ledger) == []


@pytest.mark.parametrize("notebook", [False, True])
def test_progress_is_for_the_curator(
    notebook: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A goal on standard error, or tqdm's in a notebook; by default nothing."""
    monkeypatch.setattr("expost.training.engines._in_notebook", lambda: notebook)
    settings: Any = {"guarantee": pure, "repeats": 20, "at_least": None, "attempts": None}
    search(NearestNoisyMean(), {}, **settings).fit(*clouds())
    assert capsys.readouterr() == ("", "")
    search(NearestNoisyMean(), {}, verbose=True, **settings).fit(*clouds())
    out, err = capsys.readouterr()
    assert out == ""
    assert "fits" in err
    assert "examples" not in err  # fits are counted, not examples


class TestRelation:
    """The split is by position, or by coins with a public number of rows."""

    class Places(BaseEstimator):  # type: ignore[misc]
        """Releases, without noise, which rows it was fitted on: shows the split."""

        def __init__(self, epsilon: float = 1.0) -> None:
            self.epsilon = epsilon

        def fit(self, X: Any, y: Any) -> Any:
            self.rows_ = sorted(np.asarray(X)[:, 0].tolist())
            return self

        def predict(self, X: Any) -> Any:
            return np.zeros(len(X))

    def trained_on(self, rows: list[int], **changes: Any) -> list[int]:
        X = np.array(rows, dtype=float)[:, None]
        seeded: dict[str, Any] = {"random_state": SimulationRandomness(7), "simulation": True}
        found = ExPostSearch(
            self.Places(),
            {},
            guarantee=pure,
            epsilons=[40.0],
            holdout=0.5,
            repeats=8,
            **seeded,
            **changes,
        )
        return [int(each) for each in found.fit(X, np.zeros(len(X))).best_estimator_.rows_]

    @pytest.mark.filterwarnings("ignore:epsilon")
    def test_row_0_removed(self) -> None:
        """Row 0 removed moves many other rows; row 0 empty moves nobody.

        So a split by position keeps no promise for add-remove neighbours, and claims none.
        """
        everybody = list(range(40))
        parts = self.trained_on(everybody), self.trained_on(everybody[1:])
        moved = set(parts[0]) ^ set(parts[1])
        assert len(moved) > 10  # not only row 0
        emptied = self.trained_on([-1, *everybody[1:]])
        assert set(parts[0]) ^ set(emptied) <= {0, -1}

    @pytest.mark.filterwarnings("ignore:epsilon")
    def test_with_a_public_number_of_rows_nobody_moves(self) -> None:
        """The last row is removed: the coins of the others, here from a seed, are the same."""
        everybody = list(range(40))
        one, other = (self.trained_on(each, n_rows=40) for each in (everybody, everybody[:-1]))
        assert set(one) ^ set(other) <= {39}
        assert 5 < len(one) < 35

    def test_the_relation_is_stated(self, tmp_path: Path) -> None:
        X, y = clouds()
        assert classifier().privacy_guarantee(300).neighbours == "zero-out"
        assert classifier(n_rows=300).privacy_guarantee().neighbours == "add-remove"
        assert classifier().fit(X, y).privacy_spent_.neighbours == "zero-out"
        assert classifier(n_rows=280).fit(X, y).privacy_spent_.neighbours == "add-remove"
        coins = search(n_rows=300).fit(X, y)
        assert coins.neighbours_ == coins.privacy_spent_.neighbours == "add-remove"
        assert coins.best_estimator_ is None or coins.best_estimator_.n_rows == 240
        public = search(NearestNoisyMean(), {}, guarantee=pure, scoring=lambda fitted: 1.0)
        assert public.fit(X, y).neighbours_ == "add-remove"  # nothing is split
        with pytest.raises(InvalidInput, match="depends on the number of rows"):
            search(
                classifier(),
                n_rows=300,
                guarantee=lambda each: each.privacy_guarantee().as_zero_out(),
            ).fit(X, y)

    def test_an_add_remove_budget_does_not_pay_for_zero_out(self, tmp_path: Path) -> None:
        strict = Ledger.create(tmp_path / "strict.db", PureDP(1000))
        mean = search(NearestNoisyMean(), {}, guarantee=pure, ledger=strict)
        with pytest.raises(InvalidInput, match="zero-out"):
            mean.fit(*clouds())
        assert charged(strict) == []
        mean.set_params(n_rows=300).fit(*clouds())
        assert charged(strict)[:2] == ["reserve", "settle"]

    def test_rates_use_the_public_number(self) -> None:
        """Catches a sampling rate or a batch that follows the actual number of rows."""
        X, y = clouds()
        promises = [
            classifier(n_rows=300, batch_size=1e9).fit(X[:k], y[:k]).guarantee_ for k in (50, 300)
        ]
        assert promises[0] == promises[1]
