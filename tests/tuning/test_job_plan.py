"""The forecast: public numbers, from a job's own candidates, before a private row is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.tuning.plan.job_plan import comparison
from tests.tuning.jobs import clouds, job


class Stop(Exception):
    pass


def forecast_of(config: Any, X: Any, y: Any) -> Any:
    seen: list[Any] = []

    def stop(job: Any) -> None:
        seen.append(job)
        raise Stop

    with pytest.raises(Stop):
        expost.tune(config, X, y, before=stop)
    return seen[0]


def test_it_does_not_depend_on_the_values() -> None:
    X, y = clouds()
    first, other = forecast_of(job(), X, y), forecast_of(job(), 1 - X, 1 - y)
    facts, others = first.as_dict(), other.as_dict()
    for each in (facts, others):
        each.pop("seconds"), each.pop("seconds_per_run")
    assert facts == others
    assert facts["candidates"] == 4
    assert facts["attempts"] == len(facts["schedule"]) == len(facts["price_of_a_miss"]) == 3
    assert {row["share"] for row in facts["reach"]} >= {0.5, 0.1, 0.02}
    for row in facts["reach"]:
        assert set(row) == {
            "level",
            "share",
            "p_pass",
            "epsilon_mean",
            "epsilon_p90",
            "runs_mean",
        }


def test_delta_is_shared_and_charged_once() -> None:
    made = forecast_of(job(), *clouds())
    shares = [attempt.delta_share for attempt in made.schedule.attempts]
    assert 0.999 < sum(shares) <= 1
    charged = [step.charges.nothing.delta for step in made.steps]
    assert charged == [1e-4, 0.0, 0.0]
    for step, share in zip(made.steps, shares, strict=True):
        assert step.selector.delta == pytest.approx(1e-4 * share)
    assert made.worst_case.delta == 1e-4
    worst = [step.charges.worst_case.epsilon for step in made.steps]
    misses = [step.charges.nothing.epsilon for step in made.steps]
    ends = [sum(misses[:number]) + worst[number] for number in range(3)]  # the last one passes
    assert made.worst_case.epsilon == pytest.approx(max(ends))
    assert max(ends) > max(worst)  # of all attempts, not of one


def test_the_overhead_is_a_fraction_of_the_first_drop_rate() -> None:
    best = {"at_least": None, "maximize": True}
    half, whole, automatic = (
        forecast_of(job(goal=best, privacy={"overhead": fraction}), *clouds()).steps[0]
        for fraction in (0.5, 1.0, "auto")
    )
    assert 2 * half.selector.overhead == pytest.approx(whole.selector.overhead)
    assert half.runs < whole.runs
    assert 0.01 <= automatic.selector.overhead / whole.selector.overhead <= 2
    with pytest.raises(InvalidInput, match="attempts are planned"):
        expost.tune(job(privacy={"overhead": 0.5}), *clouds())


def test_what_others_would_have_charged() -> None:
    made = forecast_of(job(search={"learning_rates": [1, 2, 4, 8]}), *clouds())
    cheap, dear = (comparison(made, made.candidates[place]) for place in (0, -1))
    assert (
        cheap["papernot_steinke_level"] < dear["papernot_steinke_level"] <= dear["papernot_steinke"]
    )
    assert cheap["papernot_steinke"] == dear["papernot_steinke"]
    assert cheap["naive_composition"] < dear["naive_composition"]


def test_batches_larger_than_the_training_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"search\.batch_sizes.*240 training rows"):
        forecast_of(job(search={"batch_sizes": [250]}), *clouds())


@pytest.mark.parametrize(("bar", "rows"), [(1.0, 300), (0.97, 60)])
def test_a_bar_that_no_score_can_clear_is_refused(tmp_path: Path, bar: float, rows: int) -> None:
    """The margin of the noise is above what a perfect model has; nothing is charged."""
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    with pytest.raises(InvalidInput, match="no model can pass") as error:
        expost.tune(job(goal={"at_least": bar}), *clouds(rows), ledger=ledger)
    assert error.value.field == "at_least"
    assert [entry.action for entry in ledger.entries()] == ["create"]
