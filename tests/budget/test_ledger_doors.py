"""Every public parameter ``ledger`` takes a Ledger, a file name, a Path or a URL."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("sqlalchemy")
pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution

import expost
from expost import (
    Account,
    ApproxDP,
    Candidate,
    DiscreteLaplace,
    Ledger,
    PureDP,
    Query,
    RandomDropping,
)
from expost.budget import charging
from expost.errors import InvalidInput, LedgerError
from expost.integrations.optuna import PrivateStudy
from expost.privacy.charges import Charges
from expost.sklearn import ExPostSearch
from tests.test_public_names import MODULES, module
from tests.tuning.jobs import clouds, job
from tests.tuning.private_estimators import NearestNoisyMean, pure

GROUPS = {"a": 900, "b": 400}
CANDIDATES = [Candidate(DiscreteLaplace(Query(len), 0.5), {"epsilon": 0.5})]


def ask_account(ledger: Any) -> None:
    with Account(ledger).reserve(Charges.from_list([PureDP(1)], PureDP(0))) as reserved:
        reserved.settle(0)


def ask_select(ledger: Any) -> None:
    RandomDropping(overhead=0.05).select(CANDIDATES, ["ana", "ben"], ledger=ledger)


def ask_count(ledger: Any) -> None:
    expost.count(GROUPS, epsilon=1, keys=list(GROUPS), ledger=ledger)


def ask_valued(function: Any) -> Callable[[Any], None]:
    def ask(ledger: Any) -> None:
        pandas = pytest.importorskip("pandas")
        table = pandas.DataFrame({"who": range(50), "ink": [1.0] * 50})
        function(table, "ink", user="who", bounds=(0, 1), epsilon=1, ledger=ledger)

    return ask


def ask_tune(ledger: Any) -> None:
    X, y = clouds()
    expost.tune(job(goal={"at_least": 0.05}), X, y, ledger=ledger)


def ask_plan(ledger: Any) -> None:
    X, y = clouds()
    expost.plan_job(job(goal={"at_least": 0.05}), X, y, ledger=ledger)


def ask_search(ledger: Any) -> None:
    X, y = clouds()
    found = ExPostSearch(NearestNoisyMean(), {}, epsilons=[1.0], guarantee=pure, ledger=ledger)
    found.fit(X, y)


def ask_study(ledger: Any) -> None:
    study = PrivateStudy({"epsilon": CategoricalDistribution([0.5])})
    study.search(
        lambda params: CANDIDATES[0].mechanism,
        RandomDropping(0.05),
        ["ana"],
        score=float,
        ledger=ledger,
    )


def ask_describe(ledger: Any) -> None:
    pandas = pytest.importorskip("pandas")
    expost.describe(pandas.DataFrame({"ink": [1.0] * 50}), epsilon=0.5, ledger=ledger)


DOORS: dict[str, tuple[Callable[[Any], None], Any]] = {
    "Account": (ask_account, PureDP(100)),
    "RandomDropping.select": (ask_select, PureDP(100)),
    "count": (ask_count, PureDP(100)),
    "sum": (ask_valued(expost.sum), PureDP(100)),
    "mean": (ask_valued(expost.mean), PureDP(100)),
    "tune": (ask_tune, ApproxDP(1000, 0.1, "zero-out")),
    "plan_job": (ask_plan, ApproxDP(1000, 0.1, "zero-out")),
    "ExPostSearch": (ask_search, PureDP(100, "zero-out")),
    "PrivateStudy.search": (ask_study, PureDP(100)),
    "describe": (ask_describe, ApproxDP(100, 0.1)),
}
RECORDS = {"Release", "Facts", "verify_certificate"}
"""What has a ``ledger`` that is not charged: certificates say where their entry is."""
FORMS: dict[str, Callable[[Path], Any]] = {
    "ledger": Ledger.open,
    "text": str,
    "path": Path,
    "url": lambda path: f"sqlite:///{path}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", DOORS)
def test_every_form_is_charged_once(door: str, form: str, tmp_path: Path) -> None:
    ask, budget = DOORS[door]
    path = tmp_path / "people.db"
    ledger = Ledger.create(path, budget)
    ask(FORMS[form](path))
    assert ledger.verify() == []
    actions = [entry.action for entry in ledger.entries()]
    assert actions == ["create", *["reserve", "settle"] * (len(actions) // 2)]
    assert (len(actions) > 1) == (door != "plan_job")  # which charges nothing


@pytest.mark.parametrize("door", DOORS)
def test_a_place_is_opened_once(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, budget = DOORS[door]
    path = tmp_path / "people.db"
    Ledger.create(path, budget)
    opened = []

    class Counting(Ledger):
        @classmethod
        def open(cls, *args: Any, **named: Any) -> Ledger:
            opened.append(args)
            return Ledger.open(*args, **named)

    monkeypatch.setattr(charging, "Ledger", Counting)
    ask(str(path))
    assert opened == [(str(path),)]


@pytest.mark.parametrize("door", DOORS)
def test_a_missing_ledger_and_other_objects_are_refused(door: str, tmp_path: Path) -> None:
    ask, _ = DOORS[door]
    with pytest.raises(LedgerError, match="there is no ledger"):
        ask(str(tmp_path / "missing.db"))
    assert not (tmp_path / "missing.db").exists()
    for other in (5, {"a": 1}, Ledger, np.zeros(2)):
        with pytest.raises(InvalidInput, match="pass a Ledger, a file name or a database URL"):
            ask(other)


def methods(name: str, found: Any) -> list[tuple[str, Any]]:
    """A name and, for a class, its public methods."""
    if not inspect.isclass(found):
        return [(name, found)]
    public = [each for each in dir(found) if not each.startswith("_")]
    return [(name, found.__init__), *((f"{name}.{each}", getattr(found, each)) for each in public)]


@pytest.mark.parametrize("place", MODULES)
def test_no_public_door_is_missing_here(place: str) -> None:
    owner = module(place)
    listed = [
        name
        for public in getattr(owner, "__all__", [])
        for name, found in methods(public, getattr(owner, public))
        if callable(found) and "ledger" in _parameters(found)
        if found is not RandomDropping.select  # one method of all selectors
    ]
    assert set(listed) - set(DOORS) - RECORDS == set()


def _parameters(found: Any) -> list[str]:
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []


@pytest.mark.parametrize("place", ["people.db", Path("people.db"), "postgresql://a:hush@b/c", None])
def test_a_ledger_is_not_made_from_a_name(place: Any) -> None:
    with pytest.raises(InvalidInput, match=r"use Ledger\.open\(…\).* or Ledger\.create") as error:
        Ledger(place)
    assert "hush" not in str(error.value)
