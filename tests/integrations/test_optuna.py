"""The Optuna door: a study holds releases only, and refuses trials in the clear."""

from __future__ import annotations

import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Ledger,
    PureDP,
    Query,
    RandomDropping,
)
from expost.errors import BudgetRefused, InvalidInput
from expost.integrations.optuna import PrivateStudy, public_settings

optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = {"epsilon": FloatDistribution(0.5, 2.0), "depth": IntDistribution(1, 9)}
DATA = list(range(1000))


def mechanism(params: dict[str, Any]) -> Any:
    return DiscreteLaplace(Query(lambda data: len(data) + params["depth"]), params["epsilon"])


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: Any, tmp_path: Path) -> Any:
    if request.param == "memory":
        return optuna.storages.InMemoryStorage()
    return f"sqlite:///{tmp_path / 'study.db'}"


def test_one_trial_per_release_with_its_charge(storage: Any) -> None:
    study = PrivateStudy(SPACE, storage=storage, study_name="s")
    releases = [
        study.search(mechanism, RandomDropping(0.01), DATA, n=30, score=float) for _ in range(3)
    ]
    trials = study.study.trials
    assert [trial.params for trial in trials] == [dict(each.params) for each in releases]
    assert [trial.value for trial in trials] == [each.score for each in releases]
    for trial, release in zip(trials, releases, strict=True):
        assert trial.user_attrs["spent"] == release.spent.as_dict()
        assert trial.user_attrs["worst_case"] == release.worst_case.as_dict()
        assert trial.user_attrs["theorem"] == release.theorem
        assert trial.datetime_start == trial.datetime_complete == datetime(1970, 1, 1)
    assert study.study.best_value == max(each.score or 0 for each in releases)
    again = PrivateStudy(SPACE, storage=storage, study_name="s")
    assert len(again.study.trials) == 3


def test_the_file_holds_no_losing_parameter(tmp_path: Path) -> None:
    # Every setting has the same guarantee: the grid of guarantees is public and in the file.
    space = {"shift": FloatDistribution(0.5, 2.0), "depth": IntDistribution(1, 9)}

    def shifted(params: dict[str, Any]) -> Any:
        return DiscreteLaplace(Query(lambda data: len(data) + round(params["shift"])), 1.0)

    study = PrivateStudy(space, storage=f"sqlite:///{tmp_path / 'study.db'}")
    release = study.search(shifted, RandomDropping(0.01), DATA, n=40, seed=3, score=float)
    listed = public_settings(space, 40, seed=3)
    losers = [each["shift"] for each in listed if each != dict(release.params)]
    assert len(losers) >= 39
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir())

    def found(value: float) -> bool:
        forms = (struct.pack(">d", value), struct.pack("<d", value), repr(value)[:11].encode())
        return any(form in content for form in forms)

    assert found(release.params["shift"])  # test of the test
    assert not any(found(each) for each in losers)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_no_file_holds_a_time(tmp_path: Path, kind: str) -> None:
    """Times of trials tell how long the searches between them took, and so how many runs."""
    path = tmp_path / "study"
    storage: Any = f"sqlite:///{path}"
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        storage = optuna.storages.JournalStorage(backend)
    study = PrivateStudy(SPACE, storage=storage)
    before = time.time()
    missed = AboveThreshold(overhead=0.5, at_least=1e9)
    for selector in (RandomDropping(0.01), missed):
        study.search(mechanism, selector, DATA, n=5, score=float)
    today = datetime.fromtimestamp(before)
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"1970-01-01" in content  # test of the test: times are stored as text
    for form in (f"{today:%Y-%m-%d}", f"{datetime.fromtimestamp(before, UTC):%Y-%m-%d}"):
        assert form.encode() not in content
    assert str(int(before))[:7].encode() not in content
    assert {each.duration for each in study.study.trials} == {timedelta(0)}
    columns = study.study.trials_dataframe()  # what people export
    assert columns["datetime_start"].nunique() == columns["datetime_complete"].nunique() == 1


def test_a_miss_and_a_failure_have_no_value(storage: Any) -> None:
    study = PrivateStudy(SPACE, storage=storage)

    def fails(data: Any, randomness: Any) -> Any:
        raise ValueError("Jane Doe")

    fails.guarantee = PureDP(1)  # type: ignore[attr-defined]
    missed = AboveThreshold(overhead=0.5, at_least=1e9)
    study.search(lambda params: Candidate(fails, params), missed, DATA, n=3, score=float)
    (trial,) = study.study.trials
    assert trial.value is None
    assert trial.params == {}
    assert trial.state == optuna.trial.TrialState.FAIL
    assert "Jane" not in str(trial)


def test_trials_in_the_clear_are_refused(storage: Any, tmp_path: Path) -> None:
    study = PrivateStudy(SPACE, storage=storage)
    shown = study.study
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    for write in (
        lambda: shown.ask(),
        lambda: shown.tell(0, 1.0),
        lambda: shown.optimize(lambda trial: 1.0, n_trials=1),
        lambda: shown.enqueue_trial({"depth": 3}),
        lambda: shown.add_trial(optuna.trial.create_trial(value=1.0)),
        lambda: shown.add_trials([]),
    ):
        with pytest.raises(InvalidInput, match="in the clear"):
            write()
    assert shown.trials == []
    open_ = optuna.load_study(study_name="expost", storage=shown._storage)
    open_.optimize(lambda trial: trial.suggest_float("epsilon", 0.5, 2.0), n_trials=1)
    for use in (
        lambda: PrivateStudy(SPACE, storage=storage),
        lambda: study.study,
        lambda: study.search(
            mechanism, RandomDropping(0.01), DATA, n=3, score=float, ledger=ledger
        ),
    ):
        with pytest.raises(InvalidInput, match="trials in the clear"):
            use()
    assert [entry.action for entry in ledger.entries()] == ["create"]


def test_a_ledger_is_charged_once_and_a_refusal_stores_nothing(tmp_path: Path) -> None:
    study = PrivateStudy(SPACE)
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(6))
    release = study.search(mechanism, RandomDropping(0.01), DATA, n=5, score=float, ledger=ledger)
    assert ledger.standing().as_dict()["settled"] == release.spent.epsilon
    small = Ledger.create(tmp_path / "small.db", PureDP(0.1))
    with pytest.raises(BudgetRefused):
        study.search(mechanism, RandomDropping(0.01), DATA, n=5, score=float, ledger=small)
    assert len(study.study.trials) == 1


def test_a_release_is_not_lost_with_its_storage() -> None:
    """The selection is paid for: a storage that fails must not swallow what it released."""
    study = PrivateStudy(SPACE)

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("disk full")

    study._storage.create_new_trial = broken
    with pytest.warns(UserWarning, match="OSError"):
        release = study.search(mechanism, RandomDropping(0.01), DATA, n=5, score=float)
    assert release.score is not None


def test_parameters_outside_the_space_are_attributes() -> None:
    study = PrivateStudy(SPACE)

    def other(params: dict[str, Any]) -> Candidate:
        return Candidate(mechanism(params), {"depth": 99, "colour": "red"})

    study.search(other, RandomDropping(0.01), DATA, n=2, score=float)
    (trial,) = study.study.trials
    assert trial.params == {}
    assert trial.user_attrs["params"] == {"depth": 99, "colour": "red"}


def test_public_settings() -> None:
    grid = {
        "kind": CategoricalDistribution(["a", "b"]),
        "depth": IntDistribution(1, 5, step=2),
        "rate": FloatDistribution(0.1, 0.3, step=0.1),
    }
    listed = public_settings(grid)
    assert len(listed) == 2 * 3 * 3
    assert listed[-1] == {"kind": "b", "depth": 5, "rate": pytest.approx(0.3)}
    assert public_settings(SPACE, 10, seed=1) == public_settings(SPACE, 10, seed=1)
    assert public_settings(SPACE, 10, seed=1) != public_settings(SPACE, 10, seed=2)
    assert len(public_settings({"k": CategoricalDistribution([1, 2])}, 50)) == 2


@pytest.mark.parametrize(
    ("space", "n", "match"),
    [
        ({}, None, "space"),
        ({"a": [1, 2]}, None, "distribution"),
        (SPACE, None, "step"),
        (SPACE, 0, "n"),
        ({"a": IntDistribution(1, 10**6)}, None, "larger step"),
    ],
)
def test_bad_spaces(space: Any, n: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        public_settings(space, n)
    with pytest.raises(InvalidInput):
        PrivateStudy(SPACE).search(mechanism, "random", DATA)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        PrivateStudy(SPACE).add("a release")  # type: ignore[arg-type]
