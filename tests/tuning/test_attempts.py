"""Attempts: each is a new request, each is charged, and the certificate adds them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.ledger import Ledger
from expost.certificates.document import composed
from expost.errors import BudgetRefused, InvalidInput
from expost.mechanisms import NOTHING
from expost.privacy.guarantees import ApproxDP, RenyiDP
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.runs import candidates
from tests.tuning.jobs import clouds, job

HOPELESS = job(
    goal={"at_least": 0.95}, search={"epsilons": [4]}, privacy={"attempts": 3}
)  # the clouds overlap


def ledger_of(folder: Path, budget: Any) -> Ledger:
    return Ledger.create(folder / "ledger.db", budget)


def far_clouds() -> tuple[Any, Any]:
    X, y = clouds(noise=20.0)
    return X, y


def test_every_attempt_is_charged(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, ApproxBudget(100, 0.01, "zero-out"))
    result = expost.tune(HOPELESS, *far_clouds(), ledger=ledger)
    assert result.passed is False
    assert len(result.attempts) == 3
    total = sum(each.spent.epsilon for each in result.attempts)
    assert result.spent.epsilon == pytest.approx(total)
    assert result.spent.delta == 1e-4
    settled = ledger.standing().as_dict()["settled"]
    assert settled["epsilon"] == pytest.approx(total)
    assert settled["delta"] == 1e-4  # certificate, ledger and screen show the same δ
    assert len([entry for entry in ledger.entries() if entry.action == "reserve"]) == 3
    assert result.release.value is NOTHING
    assert result.model is None
    assert [each.spent for each in result.attempts] == [
        step.charges.nothing for step in result.forecast.steps
    ]
    assert "3 of at most 3 attempts" in result.release.theorem
    assert ledger.verify() == []


def test_the_budget_may_refuse_another_attempt(tmp_path: Path) -> None:
    steps = expost.tune(HOPELESS, *far_clouds()).forecast.steps
    misses = [step.charges.nothing.epsilon for step in steps]
    room = misses[0] + misses[1] + steps[1].charges.worst_case.epsilon
    room = max(room, steps[0].charges.worst_case.epsilon) + 0.01
    assert room - misses[0] - misses[1] < steps[2].charges.worst_case.epsilon
    ledger = ledger_of(tmp_path, ApproxBudget(room, 0.01, "zero-out"))
    result = expost.tune(HOPELESS, *far_clouds(), ledger=ledger)
    assert len(result.attempts) == 2
    assert result.details["budget_refused_another_attempt"]
    assert result.passed is False
    assert result.spent.epsilon == pytest.approx(sum(misses[:2]))
    assert result.spent.delta == 1e-4


def test_a_refused_budget_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(tmp_path, ApproxBudget(0.01, 0.01, "zero-out"))
    started: list[int] = []
    monkeypatch.setattr("expost.tuning.job.rehearse", lambda *_: Pace(1.0, 1.0))
    monkeypatch.setattr(candidates.TrainAndScore, "run_together", lambda *_: started.append(1))
    with pytest.raises(BudgetRefused):
        expost.tune(job(), *clouds(), ledger=ledger, out=tmp_path / "out")
    assert started == []
    assert ledger.standing().as_dict()["settled"] == {"epsilon": 0.0, "delta": 0.0}
    assert not list((tmp_path / "out").glob("checkpoint*"))


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (PureBudget(10), r"a renyi budget, opened.*--delta D --neighbours zero-out"),
        (ZCDPBudget(10, "zero-out"), "DP-SGD samples rows and satisfies no zCDP"),
    ],
)
def test_other_kinds_of_budget_are_refused_clearly(tmp_path: Path, budget: Any, why: str) -> None:
    ledger = ledger_of(tmp_path, budget)
    with pytest.raises(InvalidInput, match=why):
        expost.tune(job(model={"training": "dp-sgd"}), *clouds(), ledger=ledger)
    assert ledger.standing().entries == 1  # the budget itself


def test_a_budget_at_fixed_orders(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, RenyiBudget((8.0,), (50.0,), "all", "zero-out"))
    result = expost.tune(job(), *clouds(), ledger=ledger)
    charge = result.release.spent
    assert isinstance(charge, RenyiDP)
    assert charge.orders == (8.0,)
    assert result.spent == charge.to_approx(1e-4)
    assert ledger.standing().as_dict()["settled"] == pytest.approx(charge.epsilons[0])
    with pytest.raises(InvalidInput, match="orders"):
        expost.tune(job(privacy={"order": [4]}), *clouds(), ledger=ledger)


def test_charges_at_several_orders_are_converted_at_one_that_no_outcome_chooses(
    tmp_path: Path,
) -> None:
    """Catches a conversion at the order that suits the outcome best: that holds for no δ."""
    ledger = ledger_of(tmp_path, RenyiBudget((2.0, 4.0, 8.0, 16.0), (1e4,) * 4, "all", "zero-out"))
    result = expost.tune(job(search={"epsilons": [0.5, 2, 8]}), *clouds(), ledger=ledger)
    plan = result.forecast
    charges = [plan.charges[index] for index in range(len(plan.candidates))]
    best = [
        min(each.orders, key=lambda order: each.on([order]).to_approx(1e-4).epsilon)
        for each in charges
    ]
    assert len(set(best)) > 1  # else this test could not fail
    assert plan.order == best[0]
    for charge in charges:
        assert plan.in_epsilon_delta(charge) == charge.on([best[0]]).to_approx(1e-4)
    assert result.spent == result.release.spent.on([best[0]]).to_approx(1e-4)
    assert result.spent.epsilon <= result.worst_case.epsilon


def test_an_order_does_not_fit_a_budget_in_epsilon_and_delta(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="leave the order out"):
        expost.tune(
            job(privacy={"order": [4]}),
            *clouds(),
            ledger=ledger_of(tmp_path, ApproxBudget(10, 0.01, "zero-out")),
        )


def test_composition() -> None:
    charges = [ApproxDP(0.5, 1e-6), ApproxDP(0.25, 0.0)]
    assert composed(charges) == ApproxDP(0.75, 1e-6)
    assert composed(charges[:1]) == charges[0]
    assert composed([RenyiDP((2.0,), (0.5,))] * 2) == RenyiDP((2.0,), (1.0,))


def test_attempts_need_a_bar() -> None:
    best = job(goal={"at_least": None, "maximize": True})
    best["privacy"]["attempts"] = 2
    with pytest.raises(InvalidInput, match=r"privacy\.attempts"):
        expost.tune(best, *clouds())
