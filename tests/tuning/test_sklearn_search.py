"""ExPostSearch: a private search in scikit-learn's shape whose charge cannot be copied away."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from expost import ApproxDP, PureDP, SimulationRandomness
from expost.budget.ledger import Ledger
from expost.errors import BudgetRefused, InvalidInput, WorkersLost
from expost.mechanisms import FAILED, NOTHING
from expost.sklearn import ExPostSearch
from tests.tuning.jobs import clouds
from tests.tuning.private_estimators import (
    Accountant,
    Accounted,
    Failing,
    NearestNoisyMean,
    SelfDescribing,
    concentrated,
    pure,
)

GRID = {"shrink": [0.0, 1.0, 5.0]}


def search(estimator: Any = None, **changes: Any) -> Any:
    settings = {
        "epsilons": [0.5, 2.0],
        "at_least": 0.7,
        "guarantee": pure,
        "attempts": 4,
        "repeats": 2,
    } | changes
    return ExPostSearch(NearestNoisyMean() if estimator is None else estimator, GRID, **settings)


def reservations(ledger: Ledger) -> list[str]:
    return [entry.action for entry in ledger.entries() if entry.action != "create"]


def test_it_finds_a_model_and_says_what_it_cost() -> None:
    X, y = clouds()
    found = search().fit(X, y)
    assert set(found.best_params_) == {"epsilon", "shrink"}
    assert found.passed_
    assert found.privacy_spent_ == PureDP(found.privacy_spent_.epsilon, "zero-out")
    assert found.neighbours_ == "zero-out"
    overhead = found.release_.selector["overhead"]
    last = 2 * found.best_params_["epsilon"] + overhead
    assert found.privacy_spent_.epsilon >= last * (1 - 1e-12)
    assert (found.n_attempts_ == 1) == (found.privacy_spent_.epsilon == pytest.approx(last))
    assert found.release_.spent == found.privacy_spent_
    assert 0.7 <= found.score_bound_ < found.best_score_
    assert np.mean(found.predict(X) == y) > 0.6
    assert found.best_estimator_.epsilon == found.best_params_["epsilon"]
    assert not hasattr(found, "cv_results_")
    assert "cv_results_" in (ExPostSearch.__doc__ or "")
    assert found.classes_.tolist() == [0, 1]
    assert not hasattr(found, "predict_proba")


def test_any_estimator_with_a_function_and_estimators_that_promise_themselves() -> None:
    X, y = clouds()
    assert search(SelfDescribing(), guarantee=None).fit(X, y).privacy_spent_.kind == "pure"
    found = search(guarantee=concentrated, delta=1e-5).fit(X, y)
    assert isinstance(found.privacy_spent_, ApproxDP)
    assert found.privacy_spent_.delta == 1e-5


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"guarantee": None}, "guarantee is required"),
        ({"guarantee": lambda _: 0.5}, "guarantee"),
        ({"guarantee": lambda _: ApproxDP(1, 1e-5)}, "guarantee"),
        ({"holdout": 1.5}, "holdout"),
        ({"scoring": "roc_auc"}, "scoring"),
        ({"overhead": 0.2}, "overhead"),
        ({"overhead": 0, "at_least": None}, "overhead"),
        ({"epsilons": []}, "epsilons"),
        ({"epsilons": ["much"]}, "epsilons"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"n_jobs": "all"}, "n_jobs"),
        ({"n_rows": 1}, "n_rows"),
        ({"n_rows": 2.5}, "n_rows"),
        ({"epsilon_param": "privacy"}, "epsilon_param"),
    ],
)
def test_bad_input(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        search(**changes).fit(*clouds())


def test_an_epsilon_attribute_alone_is_no_promise_and_a_seed_is_no_noise() -> None:
    with pytest.raises(InvalidInput, match="guarantee"):
        search(guarantee=None).fit(*clouds())
    with pytest.raises(InvalidInput, match="random_state"):
        search(NearestNoisyMean(random_state=3)).fit(*clouds())
    found = search(
        NearestNoisyMean(random_state=3), random_state=SimulationRandomness(1), simulation=True
    ).fit(*clouds())
    assert found.release_.simulated


def test_a_public_score_uses_every_row_for_training() -> None:
    X, y = clouds()
    sizes: list[int] = []

    class Counting(NearestNoisyMean):
        def fit(self, X: Any, y: Any) -> Any:
            sizes.append(len(y))
            return super().fit(X, y)

    search(Counting(), scoring=lambda fitted: float(np.mean(fitted.predict(X[:50]) == y[:50]))).fit(
        X[50:], y[50:]
    )
    assert set(sizes) == {250}


def test_a_row_that_cannot_be_predicted_counts_as_one_row() -> None:
    X, y = clouds()
    X[4] = 13  # held out

    class Superstitious(NearestNoisyMean):
        def predict(self, X: Any) -> Any:
            if (X == 13).any():
                raise ValueError("13")
            return super().predict(X)

    found = search(Superstitious(), at_least=None, epsilons=[50.0]).fit(X, y)
    assert found.best_score_ > 0.7


def test_no_row_is_counted_more_than_once() -> None:
    """Catches columns compared with flat arrays.

    The number correct would be out of n², and one row would change 2n − 1 of them.
    """
    X, y = clouds()

    class Column(NearestNoisyMean):
        def predict(self, X: Any) -> Any:
            return super().predict(X)[:, None]

    found = search(Column(), at_least=None, epsilons=[50.0]).fit(X, y)
    assert 0.7 < found.best_score_ < 1.2
    with pytest.raises(InvalidInput, match="2 dimensions"):
        search().fit(X, np.column_stack([y, y]))
    with pytest.raises(InvalidInput, match="one target per row"):
        search().fit(X[1:], y)


@pytest.mark.slow
def test_a_fit_that_brings_its_process_down_does_not_fail_the_others(tmp_path: Path) -> None:
    """Catches neighbours that are marked as failed.

    Their outcome, at their price, would reveal something about another candidate.
    """

    class Deadly(NearestNoisyMean):
        def fit(self, X: Any, y: Any) -> Any:
            os._exit(1)

    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1000, "zero-out"))
    with pytest.raises(WorkersLost):
        search(Deadly(), ledger=ledger, n_jobs=2, repeats=50).fit(*clouds())
    made = reservations(ledger)  # attempts that kept nothing may have come before
    assert made[-1] == "reserve"
    assert made.count("reserve") == made.count("settle") + 1


def test_an_estimator_that_cannot_travel_is_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    class Heavy(NearestNoisyMean):
        def __getstate__(self) -> Any:
            raise TypeError

    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1000, "zero-out"))
    with pytest.raises(InvalidInput, match="cannot take the candidates"):
        search(Heavy(), ledger=ledger, n_jobs=2).fit(*clouds())
    assert reservations(ledger) == []


def test_without_scikit_learn_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\ntry:\n    import expost.sklearn\n"
        "except ImportError as error:\n    print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "scikit-learn is not installed" in said
    assert "expost[sklearn]" in said


def test_failures_are_an_outcome_that_is_charged() -> None:
    found = search(Failing(), guarantee=None).fit(*clouds())
    assert found.release_.value is NOTHING  # with a target, a failure is a miss
    assert (found.passed_, found.best_estimator_, found.best_score_) == (False, None, None)
    assert found.n_attempts_ == 4
    assert found.privacy_spent_.epsilon > 0
    with pytest.raises(InvalidInput, match="no estimator"):
        found.predict([[0.0, 0.0]])
    best = search(Failing(), guarantee=None, at_least=None, attempts=None).fit(*clouds())
    assert best.release_.value is FAILED
    assert best.best_estimator_ is None


class TestCopiesNeitherLoseNorDoubleACharge:
    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return Ledger.create(tmp_path / "ledger.db", PureDP(100, "zero-out"))

    @pytest.mark.parametrize("n_jobs", [None, 2])
    def test_fit(self, ledger: Ledger, n_jobs: int | None) -> None:
        found = search(ledger=ledger, n_jobs=n_jobs).fit(*clouds())
        assert reservations(ledger) == ["reserve", "settle"] * found.n_attempts_
        settled = ledger.standing().as_dict()["settled"]
        assert settled == pytest.approx(found.privacy_spent_.epsilon)

    def test_clone_is_unfitted_and_on_the_same_ledger(self, ledger: Ledger) -> None:
        original = search(ledger=ledger).fit(*clouds())
        copied = clone(original)
        assert copied.ledger is ledger
        assert not hasattr(copied, "release_")
        assert reservations(ledger) == ["reserve", "settle"] * original.n_attempts_
        copied.fit(*clouds())
        made = original.n_attempts_ + copied.n_attempts_
        assert reservations(ledger) == ["reserve", "settle"] * made

    @pytest.mark.parametrize(
        "copying", [lambda found: pickle.loads(pickle.dumps(found)), copy.deepcopy]
    )
    def test_a_copy_predicts_and_does_not_fit_uncharged(self, ledger: Ledger, copying: Any) -> None:
        X, y = clouds()
        original = search(ledger=ledger).fit(X, y)
        copied = copying(original)
        assert copied.privacy_spent_ == original.privacy_spent_
        assert np.array_equal(copied.predict(X), original.predict(X))
        assert reservations(ledger) == ["reserve", "settle"] * original.n_attempts_
        with pytest.raises(InvalidInput, match="reconnect"):
            copied.fit(X, y)
        with pytest.raises(InvalidInput, match="reconnect"):
            clone(copied).fit(X, y)
        copied.set_params(ledger=ledger).fit(X, y)
        made = original.n_attempts_ + copied.n_attempts_
        assert reservations(ledger) == ["reserve", "settle"] * made

    def test_a_url_travels(self, ledger: Ledger, tmp_path: Path) -> None:
        found = pickle.loads(pickle.dumps(search(ledger=str(tmp_path / "ledger.db"))))
        found.fit(*clouds())
        assert reservations(ledger) == ["reserve", "settle"] * found.n_attempts_

    def test_a_search_inside_a_search_charges_every_fit(self, ledger: Ledger) -> None:
        X, y = clouds()
        outer = GridSearchCV(
            search(ledger=ledger, at_least=None, attempts=None),
            {"overhead": [0.2, 0.4]},
            cv=2,
            scoring="accuracy",
            refit=False,
        )
        outer.fit(X, y)
        assert reservations(ledger) == ["reserve", "settle"] * 4

    def test_a_refusal_fits_nothing(self, tmp_path: Path) -> None:
        ledger = Ledger.create(tmp_path / "small.db", PureDP(0.1, "zero-out"))
        with pytest.raises(BudgetRefused):
            search(Failing(), ledger=ledger, guarantee=pure).fit(*clouds())
        assert reservations(ledger) == []

    def test_the_contrast_an_accountant_inside_the_estimator_loses_every_charge(self) -> None:
        """What GridSearchCV does to an accountant inside the object (diffprivlib's).

        Copies are charged and then discarded.
        """
        accountant = Accountant()
        naive = GridSearchCV(
            Accounted(accountant=accountant), {"epsilon": [0.5, 2.0], **GRID}, cv=3, refit=False
        )
        naive.fit(*clouds())
        assert accountant.spent == []  # eighteen private fits, and their scores, for nothing


def test_a_simulated_search_reports_no_privacy():
    """Catches a charge that seeded coins do not keep."""
    X, y = clouds()
    found = search(random_state=SimulationRandomness(1), simulation=True).fit(X, y)
    assert found.privacy_spent_ is None
    assert found.release_.simulated


def test_weak_settings_of_a_search_warn():
    X, y = clouds()
    with pytest.warns(UserWarning, match="very large"):
        search(epsilons=[50.0]).fit(X, y)
