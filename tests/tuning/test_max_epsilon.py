"""``privacy.max_epsilon``: a job's worst case is never above it, and a refusal charges nothing."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.tuning.job import plan_job
from expost.tuning.runs.run_attempts import make_attempts
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
    [("dp-sgd", 3.7, {1}), ("dp-sgd", 60.0, {1, 4}), ("auto", 3.0, None), ("auto", 12.0, {1})],
)
def test_attempts_never_cost_more(training: str, most: float, levels: set[int] | None) -> None:
    """Catches a limit that holds for paths only: two levels, up to three attempts."""
    plan = plan_job(limited(most, model={"training": training}), *clouds())
    assert plan.worst_case.epsilon <= most
    if levels is None:
        assert plan.schedule is None
        assert plan.left_out.startswith("To cost at most privacy.max_epsilon = 3: no attempts")
        assert plan.as_dict()["left_out"] == plan.left_out
        return
    planned = [step.candidates for step in plan.steps if step.recipe is None]
    assert {each.params["epsilon"] for each in sum(planned, ())} == levels
    assert ("To cost at most privacy.max_epsilon" in plan.left_out) == (levels != {1, 4})


@pytest.mark.parametrize(
    "asked",
    [{"epsilons": [1, 4], "training": "dp-sgd"}, {"training": "dp-sgd"}, {"maximize": True}],
)
def test_every_job_costs_at_most_four_unless_it_says_more(asked: dict[str, Any]) -> None:
    """Catches a default that holds for some trainings, or not for levels that the user states."""
    given = {"classes": 2, "feature_bounds": [0, 1], "delta": 1e-4, **asked}
    plan = plan_job(*clouds(), **given, **({} if "maximize" in asked else {"at_least": 0.6}))
    assert plan.worst_case.epsilon <= 4.0
    if "epsilons" in asked:
        assert "privacy.max_epsilon = 4" in plan.left_out
        more = plan_job(*clouds(), **given, at_least=0.6, max_epsilon=40.0)
        assert 4 < more.worst_case.epsilon <= 40
        assert not more.left_out


def test_a_lost_attempt_leaves_no_way_above_the_limit() -> None:
    """An attempt whose outcome a crash lost is charged at its worst case: no further one fits."""
    plan = plan_job(limited(3.7), *clouds())
    worst = plan.steps[0].charges.worst_case.epsilon
    assert plan.attempts > 1

    class Lost:
        attempts: ClassVar[list[None]] = [None]

    totals = []

    def allowed(total: Any) -> bool:
        totals.append(plan.epsilon(total))
        return totals[-1] <= 1.1 * worst

    journal: Any = Lost()
    made = make_attempts(plan.steps, {}, journal, plan.margins, allowed=allowed)
    assert made == ([None], True)
    assert totals == [pytest.approx(worst + plan.steps[1].charges.worst_case.epsilon)]


def test_paths_before_attempts_have_what_these_leave() -> None:
    plan = plan_job(limited(5.0, model={"training": "auto"}), *clouds(2000))
    assert any(step.recipe is None for step in plan.steps)
    assert any(step.recipe is not None for step in plan.steps)
    assert plan.worst_case.epsilon <= 5.0


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
    assert "max_epsilon = 0.5: no attempts with DP-SGD, which have ε = 0.25 of it" in plan.left_out
    assert plan.worst_case.epsilon <= 0.5
