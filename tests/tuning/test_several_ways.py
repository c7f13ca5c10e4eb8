"""Several ways to one bar: order, shares of δ and confidence, composition, limits for networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import expost
from expost.budget.budgets import RenyiBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.privacy.guarantees import ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.tuning import job as jobs
from expost.tuning.model import Recipe
from expost.tuning.noise_reduction import LEVELS, Places, PlannedPath, overhead_for
from expost.tuning.pace import Pace
from expost.tuning.run_attempts import PlannedAttempt
from expost.tuning.settings import read_settings
from expost.tuning.several_ways import SHARE, linear_recipe, share_of, ways_of
from expost.tuning.table_schema import Column, TableSchema
from tests.tuning.test_noise_reduction import blobs, job

SEARCH = {
    "epsilons": [0.5, 1.0],
    "learning_rates": [1.0, 2.0],
    "epochs": [3],
    "batch_sizes": [128],
    "clips": [1.0],
}


def auto(**changes: Any) -> dict[str, Any]:
    tables = job(model__training="auto", **changes)
    tables["search"] = dict(SEARCH)
    return tables


def run(tables: dict[str, Any], seed: int = 1, **more: Any) -> Any:
    X, y = blobs()
    return expost.tune(tables, X, y, randomness=SimulationRandomness(seed), simulation=True, **more)


def test_noise_reduction_comes_first_and_pays_alone() -> None:
    plans: list[Any] = []
    result = run(auto(), before=plans.append)
    assert result.passed
    assert len(result.attempts) == 1
    assert result.spent.epsilon == result.params["epsilon"]
    plan = plans[0]
    assert isinstance(plan.steps[0].selector, PlannedPath)
    assert all(isinstance(step.selector, PlannedAttempt) for step in plan.steps[1:])
    assert len(plan.steps) > 2
    assert any("DP-SGD" in text for text in plan.reasons)
    assert "first, because a miss costs least" in plan.reasons[0]


def test_a_miss_is_followed_by_attempts_and_all_is_paid() -> None:
    """A bar of 1 cannot be cleared by a margin: noise reduction misses at its only level."""
    result = run(auto(goal__at_least=1.0, model__levels=[0.55], privacy__attempts=3), seed=3)
    assert len(result.attempts) > 1
    first = result.attempts[0]
    assert not first.release.passed
    total = sum(Fraction(each.spent.epsilon) for each in result.attempts)
    assert result.spent.epsilon == pytest.approx(float(total))
    assert result.attempts[0].spent.epsilon == 0.55
    assert result.spent.delta == 1e-5
    assert all(each.spent.delta == 0 for each in result.attempts[1:])
    if result.passed:
        assert "learning_rate" in result.params
        assert result.bounds is not None


def test_delta_and_confidence_are_shared() -> None:
    plans: list[Any] = []
    run(auto(), before=plans.append)
    steps = plans[0].steps
    used = sum(Fraction(each.guarantee.delta) for step in steps[:1] for each in step.candidates)
    used += sum(Fraction(step.selector.delta) for step in steps[1:])
    assert used <= Fraction(1e-5)
    assert used > Fraction(0.99e-5)
    margins = plans[0].margins
    assert margins.confidence == pytest.approx(0.95)


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 3e-7, 0.1 + 0.2])
def test_parts_of_delta_never_add_up_to_more(delta: float) -> None:
    for part in (0.1, 0.5, 1.0):
        left = Fraction(share_of(delta, 1 - Fraction(part)))
        for ways in (1, 2, 3, 7):
            assert left + ways * Fraction(share_of(delta, part, ways)) <= Fraction(delta)


def network() -> Any:
    columns = tuple(Column() for _ in range(784))
    return Recipe("cnn", "softmax", TableSchema(columns, 10), (1, 28, 28))


@pytest.mark.parametrize("scoring", [20, 100, 500, 2_000, 12_000])
@pytest.mark.parametrize("expected", [0.05, 0.4, 3.0])
def test_a_network_pays_little_for_noise_reduction_in_vain(scoring: int, expected: float) -> None:
    """Catches a way whose first level costs more than a network should pay in vain."""
    settings = read_settings(
        {
            "data": {"feature_bounds": [0, 1], "classes": 10, "holdout": 0.2},
            "model": {"kind": "cnn", "training": "auto"},
            "search": SEARCH,
            "goal": {"metric": "accuracy", "at_least": 0.95},
            "privacy": {"delta": 1e-6},
        },
        given_data=True,
    )
    attempts: Any = SimpleNamespace(
        reach=[SimpleNamespace(epsilon_mean=expected), SimpleNamespace(epsilon_mean=8.0)]
    )
    places = Places(4 * scoring, scoring, 784, ZERO_OUT)
    plan = ways_of(settings, network(), places, False, attempts)
    worst = sum(way.epsilons[-1] for way in plan.ways)
    assert worst <= SHARE * expected  # of what the easiest bar is expected to cost
    assert bool(plan.ways) == (SHARE * expected > max(2 * overhead_for(scoring), LEVELS[0]))
    assert plan.left == pytest.approx(0.9)
    flat = linear_recipe(network())
    assert (flat.kind, flat.loss, flat.input_shape) == ("softmax", "softmax", None)


@pytest.mark.slow
def test_a_plan_skips_noise_reduction_that_a_network_cannot_afford(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the door: 60 scoring rows can judge no level below 0.5. Nothing is timed."""
    monkeypatch.setattr(jobs, "rehearse", lambda *_: Pace(0.0, 0.0))
    X, y = np.zeros((300, 784)), np.zeros(300)
    tables = {
        "data": {"feature_bounds": [0, 1], "classes": 10, "holdout": 0.2},
        "model": {"kind": "cnn", "training": "auto"},
        "search": SEARCH | {"epsilons": [1.0], "learning_rates": [1.0], "epochs": [1]},
        "goal": {"metric": "accuracy", "at_least": 0.2},
        "privacy": {"delta": 1e-4, "attempts": 1},
    }
    plan = expost.plan_job(tables, X, y)
    assert all(isinstance(step.selector, PlannedAttempt) for step in plan.steps)
    assert plan.steps[0].charges.worst_case.as_approx().delta == 1e-4


def test_a_ladder_without_search_ends_each_way_but_the_last() -> None:
    settings = read_settings(job(model__training="auto"), given_data=True)
    made = replace(network(), kind="softmax", input_shape=None)
    plan = ways_of(settings, made, Places(48_000, 12_000, 784, ZERO_OUT), True, None)
    lasts = [way.epsilons[-1] for way in plan.ways]
    assert len(lasts) == 3
    assert lasts == sorted(lasts)
    assert lasts[-1] == 4.0
    assert np.isclose(sum(way.delta for way in plan.ways), 1e-5)
    assert np.isclose(sum(1 - way.confidence for way in plan.ways), 0.1)


def test_wide_tables_are_not_trained_on_second_moments() -> None:
    """With 5,000 features there are 12.5 million of them."""
    wide = Places(6_000, 1_000, 5_000, ZERO_OUT)
    made = replace(network(), kind="softmax", input_shape=None)
    for training, expected in (("noise-reduction", [0.003]), ("auto", [0.003, 0.0005])):
        settings = read_settings(job(model__training=training), given_data=True)
        plan = ways_of(settings, made, wide, True, None)
        assert [way.regularisation for way in plan.ways] == expected
        assert plan.ways[0].epsilons[-1] > 1  # it goes as far as after second moments


def test_a_renyi_budget_is_refused_before_anything_is_charged(tmp_path: Any) -> None:
    book = Ledger.create(
        str(tmp_path / "book.db"), RenyiBudget((16.0,), (1.0,), neighbours=ZERO_OUT)
    )
    X, y = blobs()
    with pytest.raises(InvalidInput, match="dp-sgd"):
        expost.tune(job(), X, y, ledger=book)
    assert book.standing().entries == 1  # the budget itself


def levels_of(tables: Any, *rows: Any, **settings: Any) -> list[float]:
    seen: list[float] = []

    def look(planned: Any) -> None:
        seen.extend(each.params["epsilon"] for step in planned.steps for each in step.candidates)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        expost.tune(tables, *rows, before=look, **settings)
    return seen


def test_no_level_is_above_the_highest_of_the_search() -> None:
    """So ``--epsilons`` limits what a job may cost, whatever trains."""
    config = auto()
    config["search"]["epsilons"] = [0.5, 0.8]
    found = levels_of(config, *blobs())
    assert max(found) == 0.8
    assert len(set(found)) > 3  # the levels of noise reduction are close together
    config["search"]["epsilons"] = [0.25]  # which noise reduction cannot judge
    assert set(levels_of(config, *blobs())) == {0.25}


def test_levels_of_a_job_without_a_file_are_kept_by_noise_reduction() -> None:
    X, y = blobs()
    facts = {"at_least": 0.6, "feature_bounds": [-10, 10], "classes": [0, 1]}
    facts |= {"training": "noise-reduction"}
    found = levels_of(X, y, epsilons=[0.5, 0.8], **facts)
    assert max(found) <= 0.8
    with pytest.raises(InvalidInput, match="noise reduction has no such setting"):
        expost.tune(X, y, learning_rates=[1.0], **facts)
