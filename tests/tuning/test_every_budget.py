"""Trainings that stop when they pass are charged in the unit of the budget, at every door."""

from __future__ import annotations

import copy
import json
import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.budget.budgets import ApproxBudget, Budget, RenyiBudget, ZCDPBudget
from expost.budget.ledger import Ledger
from expost.budget.limits import amount_of
from expost.certificates.verify import verify_certificate
from expost.cli.main import main
from expost.errors import InvalidInput
from expost.privacy.guarantees import ZCDP, ApproxDP, RenyiDP
from expost.randomness.source import SimulationRandomness
from expost.selection.noise_path import path_levels
from expost.training.progressive import ProgressivePath, step_squares
from tests.tuning.test_noise_reduction import blobs, job
from tests.tuning.test_strategies import SEARCH

DELTA = 1e-5
ORDERS = (4.0, 16.0)
BUDGETS: dict[str, Budget] = {
    "approx": ApproxBudget(10, 1e-4, "zero-out"),
    "zcdp": ZCDPBudget.for_approx(10, 1e-6, "zero-out"),
    "renyi all": RenyiBudget.for_approx(20, 1e-6, ORDERS, "all", "zero-out"),
    "renyi any": RenyiBudget.for_approx(20, 1e-6, ORDERS, "any", "zero-out"),
}


def ledger_of(folder: Path, budget: Budget) -> Ledger:
    return Ledger.create(folder / "ledger.db", budget)


@pytest.mark.parametrize("training", ["progressive", "auto"])
@pytest.mark.parametrize("kind", BUDGETS)
def test_a_pass_costs_its_level_in_the_unit_of_the_budget(
    tmp_path: Path, kind: str, training: str
) -> None:
    ledger = ledger_of(tmp_path, BUDGETS[kind])
    result = expost.tune(
        job(model__training=training), *blobs(), ledger=ledger, out=tmp_path / "out"
    )
    assert result.passed
    charge, spent = result.release.spent, ledger.standing().filter.settled
    document = json.loads((tmp_path / "out" / "release.json").read_text())
    if kind == "approx":
        assert isinstance(charge, ApproxDP)
        assert result.spent == charge
        assert spent == (amount_of(charge.epsilon), amount_of(DELTA))
    else:
        assert isinstance(charge, ZCDP)
        assert charge.rho == result.params["rho"]  # one way was tried: its level is all it costs
        factors = (1,) if kind == "zcdp" else ORDERS
        assert spent == tuple(amount_of(charge.rho) * Fraction(factor) for factor in factors)
        # Alone, each look has its share of δ and an order of its own.
        looks = sum(len(step.candidates) for step in result.forecast.steps)
        alone = charge.to_approx(DELTA / looks)
        assert result.spent.epsilon == pytest.approx(alone.epsilon, rel=1e-9)
        assert result.spent.delta == DELTA
        assert "Gaussian noise on held-out counts" in result.release.theorem
    assert result.worst_case.epsilon <= 4
    assert verify_certificate(document) == []
    assert verify_certificate(document, ledger=ledger) == []
    assert ledger.verify() == []


def test_rho_is_half_the_squared_mu_of_the_steps_made(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, BUDGETS["zcdp"])
    result = expost.tune(job(model__training="progressive"), *blobs(), ledger=ledger)
    levels = path_levels(result.forecast.steps[0].candidates)
    path = levels[0].path
    assert isinstance(path, ProgressivePath)
    squares = step_squares(
        [level.square() for level in levels], path.training.first_square, path.steps_per_doubling
    )
    made = sum(sum(some) for some in squares[: (result.release.index or 0) + 1])
    assert made <= 2 * Fraction(result.params["rho"])
    assert float(made) == pytest.approx(2 * result.params["rho"], rel=1e-9)


@pytest.mark.parametrize("change", ["epsilon", "rho", "delta", "looks", "law"])
def test_a_forged_charge_in_rho_is_noticed(tmp_path: Path, change: str) -> None:
    ledger = ledger_of(tmp_path, BUDGETS["zcdp"])
    expost.tune(job(), *blobs(), ledger=ledger, out=tmp_path / "out")
    forged = copy.deepcopy(json.loads((tmp_path / "out" / "release.json").read_text()))
    details, made = forged["tuning"], forged["requests"]["made"]
    if change == "epsilon":
        details["spent"]["epsilon"] *= 0.9
    elif change == "delta":
        details["spent"]["delta"] *= 0.1
    elif change == "rho":
        for record in (forged["spent"], made[0]["spent"], details["attempts"][0]["spent"]):
            record["rho"] *= 0.9
    elif change == "looks":  # fewer looks would share δ
        grid = forged["requests"]["grids"][0]
        grid["candidates"] = grid["candidates"][:-1]
    else:  # counts with the noise of another kind of level
        held_out = forged["requests"]["grids"][0]["selector"]["held_out"]
        held_out |= {"law": "HeldOut", "monotone": True}
    assert verify_certificate(forged) != []


def simulated(tables: dict[str, Any], *rows: Any, **more: Any) -> Any:
    source = {"randomness": SimulationRandomness(3), "simulation": True}
    return expost.tune(tables, *(rows or blobs()), **source, **more)


@pytest.mark.parametrize("order", ["all", [8, 32]])
@pytest.mark.parametrize("relation", ["zero-out", "add-remove"])
def test_without_a_ledger_the_order_of_the_job_decides(order: Any, relation: str) -> None:
    tables = job(model__training="auto", privacy__order=order)
    if relation == "add-remove":
        tables["data"]["rows"] = 1500
    result = simulated(tables)
    assert result.passed
    charge = result.release.spent
    assert isinstance(charge, ZCDP)
    assert charge.neighbours == relation
    assert verify_certificate(json.loads(result.certificate())) == []


def test_public_rows_are_looked_at_more_often_in_rho(tmp_path: Path) -> None:
    X, y = blobs(seed=2)
    np.savez(tmp_path / "public.npz", X=X, y=y)
    looks = {}
    for scoring in ("private", "public"):
        tables = job(model__training="progressive", privacy__order="all")
        if scoring == "public":
            tables["privacy"]["scoring"] = "public"
            tables["data"] |= {"public_test": str(tmp_path / "public.npz")}
            del tables["data"]["holdout"]
        result = simulated(tables)
        assert result.passed
        assert isinstance(result.release.spent, ZCDP)
        looks[scoring] = len(result.forecast.candidates)
    assert looks["public"] > 2 * looks["private"]


def test_misses_add_up_and_stay_within_the_limit(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.uniform(0, 10, (1500, 5)), generator.integers(0, 3, 1500)
    ledger = ledger_of(tmp_path, BUDGETS["zcdp"])
    tables = job(model__training="progressive", goal__at_least=0.6, privacy__max_epsilon=1.0)
    result = expost.tune(tables, X, y, ledger=ledger)
    assert not result.passed
    assert len(result.attempts) == 2
    tops = [step.candidates[-1].params["rho"] for step in result.forecast.steps]
    assert ledger.standing().filter.settled == (sum(map(amount_of, tops)),)
    assert 0.9 < result.spent.epsilon <= 1.0
    assert result.spent == result.worst_case
    assert result.model is not None  # missed, and paid


def test_a_score_of_a_miss_adds_half_its_square_to_rho(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.uniform(0, 10, (1500, 5)), generator.integers(0, 3, 1500)
    tables = job(model__training="progressive", goal__at_least=0.6, privacy__tell=0.02)
    ledger = ledger_of(tmp_path, BUDGETS["zcdp"])
    result = expost.tune(tables, X, y, ledger=ledger, out=tmp_path / "out")
    assert result.told is not None
    tops = [step.candidates[-1].params["rho"] for step in result.forecast.steps]
    (settled,) = ledger.standing().filter.settled
    assert float(settled) == pytest.approx(sum(tops) + 0.02**2 / 2, rel=1e-9)
    assert result.spent.epsilon <= 4
    document = json.loads((tmp_path / "out" / "release.json").read_text())
    assert verify_certificate(document) == []
    assert verify_certificate(document, ledger=ledger) == []


def test_attempts_with_dp_sgd_are_charged_at_the_same_orders(tmp_path: Path) -> None:
    """A Rényi budget: a path in αρ, then attempts, all within the limit at one order."""
    tables = job(model__training="auto", privacy__max_epsilon=3.0)
    tables["search"] = SEARCH | {"epsilons": [0.5], "learning_rates": [1.0]}
    tables["privacy"]["attempts"] = 1
    plans: list[Any] = []
    ledger = ledger_of(tmp_path, BUDGETS["renyi all"])
    result = expost.tune(tables, *blobs(), ledger=ledger, before=plans.append, out=tmp_path / "out")
    assert result.passed
    (plan,) = plans
    assert len(plan.steps) > 1
    for step in plan.steps:
        for level in (*step.charges.levels, step.charges.nothing):
            assert isinstance(level, RenyiDP)
            assert level.orders == ORDERS
    first = plan.steps[0]
    assert first.charges[0] == first.candidates[0].guarantee.to_renyi(ORDERS)
    assert plan.worst_case.epsilon <= 3.0
    assert verify_certificate(json.loads((tmp_path / "out" / "release.json").read_text())) == []


def test_a_zcdp_budget_leaves_attempts_out_and_refuses_networks(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, BUDGETS["zcdp"])
    tables = job(model__training="auto")
    tables["search"] = dict(SEARCH)
    result = expost.tune(tables, *blobs(), ledger=ledger)
    assert all(isinstance(step.charges[0], ZCDP) for step in result.forecast.steps)
    with pytest.raises(InvalidInput, match="zCDP"):
        expost.tune({**tables, "model": {"kind": "cnn"}}, *blobs(), ledger=ledger)
    tokens = job(model__kind="logistic", model__training="auto", data__integers=True)
    tokens["data"]["classes"] = 2
    with pytest.raises(InvalidInput):  # token ids have no features, so nothing is left to try
        expost.tune(tokens, np.ones((300, 4)), np.arange(300) % 2, ledger=ledger)
    with pytest.raises(InvalidInput, match="leave the order out"):
        expost.tune(job(privacy__order=[8]), *blobs(), ledger=ledger)


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_from_the_command_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    X, y = blobs()
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "rows.csv", table, "%.4g", ",", header="a,b,c,d,e,kind", comments="")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["expost", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capfd.readouterr().out

    orders = ["--orders", "8,16"] if kind == "renyi" else []
    made = ["ledger", "create", "book.db", "--name", "people", "--kind", kind, *orders]
    made += ["--epsilon", "15", "--delta", "1e-6", "--neighbours", "zero-out"]
    assert call(*made)[0] == 0
    facts = ["--target", "kind", "--classes", "3", "--feature-bounds", "0:10", "--delta", "1e-5"]
    code, text = call(
        *("tune", "rows.csv", *facts, "--at-least", "0.8", "--ledger", "book.db"),
        *("--budget", "people", "--out", "out", *(["--json"] if kind == "renyi" else [])),
    )
    assert code == 0, text
    if kind == "renyi":
        assert json.loads(text)["passed"]
    else:  # the screen tells what it means in ε
        assert re.search(r"charge +ε = 0\.\d+, δ = 1e-05", text)
    assert call("certificate", "verify", "out/release.json", "--ledger", "book.db")[0] == 0
    code, text = call("ledger", "show", "book.db", "--name", "people", "--json")
    assert code == 0
    document = json.loads((tmp_path / "out" / "release.json").read_text())
    rho = document["spent"]["rho"]
    settled = json.loads(text)["settled"]
    if kind == "zcdp":
        assert settled == pytest.approx(rho)
    else:
        assert settled["epsilons"] == pytest.approx([8 * rho, 16 * rho])


@pytest.mark.parametrize("kind", ["zcdp", "renyi all"])
@pytest.mark.parametrize("settings", [{}, {"training": "progressive", "n_rows": 1500}])
def test_in_a_search_of_scikit_learn(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    from expost.sklearn import DPLogisticRegression, ExPostSearch

    budget = BUDGETS[kind]
    if settings:
        budget = replace(budget, neighbours="add-remove")
    ledger = ledger_of(tmp_path, budget)
    X, y = blobs()
    model = DPLogisticRegression(classes=[0, 1, 2], feature_bounds=(0, 10), delta=DELTA)
    options = {"training": "progressive"} | settings
    search = ExPostSearch(model, at_least=0.8, ledger=ledger, **options).fit(X, y)
    assert search.passed_
    assert isinstance(search.privacy_spent_, ZCDP)
    assert ledger.standing().filter.settled[0] == amount_of(search.privacy_spent_.rho) * (
        1 if kind == "zcdp" else 4
    )
    document = json.loads(search.certificate())
    assert document["tuning"]["spent"]["epsilon"] > 0
    assert verify_certificate(document) == []


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_at_the_server(kind: str, tmp_path: Path) -> None:
    from tests.server.running_server import open_server

    with open_server(tmp_path, threads=1) as server:
        owner = server.person("olga")
        server.service.open_budget(owner, "rho", kind, 30.0, 1e-4, neighbours="zero-out")
        facts = {"name": "digits", "feature_bounds": [0, 16], "classes": 10}
        server.service.register(
            owner,
            {"name": "figures", "kind": "rows", "budget": "rho", "delta": 1e-5, "data": facts},
        )
        question = {
            "dataset": "figures",
            "kind": "tune",
            "model": {"kind": "softmax", "training": "progressive"},
            "goal": {"metric": "accuracy", "at_least": 0.5, "confidence": 0.9},
        }
        asked = server.ask("ann", question, "in rho").json()
        assert "id" in asked, asked
        view = server.wait(asked["id"], seconds=60)
        assert view["status"] == "done", view
        found = server.service.release(server.person("ann"), view["id"])
        rho = found["certificate"]["spent"]["rho"]
        standing = server.service.budget(server.person("ada"), "rho")["settled"]
        if kind == "zcdp":
            assert standing == pytest.approx(rho)
        else:
            wanted = [order * rho for order in standing["orders"]]
            assert standing["epsilons"] == pytest.approx(wanted)
        assert server.service.verify(server.person("ada"))["valid"]
        answer = server.call("ann", "GET", f"/requests/{view['id']}")  # the page of the job
        assert answer.status_code == 200
