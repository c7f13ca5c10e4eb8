"""``privacy.max_epsilon``: a job's worst case is never above it, and a refusal charges nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.tuning.job import plan_job
from tests.tuning.jobs import clouds, job

PATHS = {"search": dict.fromkeys(("epsilons", "learning_rates", "epochs", "batch_sizes", "clips"))}


def limited(most: float, **changes: dict[str, Any]) -> dict[str, Any]:
    tables = job(**changes)
    tables["privacy"]["max_epsilon"] = most
    if not tables["search"]:
        del tables["search"]
        tables["privacy"].pop("attempts")
    return tables


@pytest.mark.parametrize("most", [float(x) for x in np.random.default_rng(3).uniform(0.3, 9, 12)])
def test_paths_never_cost_more(most: float) -> None:
    """Catches parts of the limit that add up to a little more than it."""
    plan = plan_job(limited(most, model={"training": "progressive"}, **PATHS), *clouds(2000))
    assert plan.attempts == 2
    assert plan.worst_case.epsilon <= most


@pytest.mark.parametrize(
    ("training", "most", "levels"),
    [("dp-sgd", 3.7, {1}), ("dp-sgd", 60.0, {1, 4}), ("auto", 3.7, None), ("auto", 12.0, {1})],
)
def test_attempts_never_cost_more(training: str, most: float, levels: set[int] | None) -> None:
    """Catches a limit that holds for paths only: two levels, up to three attempts."""
    plan = plan_job(limited(most, model={"training": training}), *clouds())
    assert plan.worst_case.epsilon <= most
    if levels is None:
        assert plan.schedule is None
        return
    planned = [step.candidates for step in plan.steps if step.recipe is None]
    assert {each.params["epsilon"] for each in sum(planned, ())} == levels
    assert ("To cost at most privacy.max_epsilon" in plan.left_out) == (levels != {1, 4})


def test_the_best_model_never_costs_more() -> None:
    plan = plan_job(limited(3.0, goal={"at_least": None, "maximize": True}), *clouds())
    assert plan.worst_case.epsilon <= 3.0
    assert {each.params["epsilon"] for each in plan.candidates} == {1}


def test_a_limit_that_nothing_fits_is_refused_before_the_ledger(tmp_path) -> None:
    """Catches a charge for a job that cannot make one attempt."""
    ledger = expost.Ledger.create(tmp_path / "ledger", expost.ApproxDP(9.0, 1e-3, "zero-out"))
    with pytest.raises(InvalidInput, match=r"privacy\.max_epsilon = 0\.5 .* one attempt"):
        expost.tune(limited(0.5), *clouds(), ledger=ledger)
    assert ledger.remaining()["epsilon"] == 9.0
    plan = plan_job(limited(0.5, model={"training": "auto"}), *clouds(2000))
    assert plan.schedule is None  # a linear model is left to progressive training
    assert plan.worst_case.epsilon <= 0.5
