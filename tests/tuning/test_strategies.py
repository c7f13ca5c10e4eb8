"""Several strategies to one goal: order, shares of δ and confidence, composition, limits for
networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.features import OrientedGradients
from expost.features.columns import Column, TableSchema
from expost.privacy.guarantees import ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.selection.above_threshold import PlannedAttempt, PlannedPath
from expost.selection.noise_path import _total_delta
from expost.tuning import job as jobs
from expost.tuning.model.released_model import Recipe
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.plan.strategies import SHARE, linear_recipe, share_of, strategies_of
from expost.tuning.request.settings import read_settings
from expost.tuning.rows.job_columns import features_for
from expost.tuning.runs.path_training import MOMENTS, PROGRESSIVE, Places
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
    assert plan.reasons[0].startswith("Progressive training")


def test_a_miss_is_followed_by_attempts_and_all_is_paid() -> None:
    """Labels that nothing can learn: progressive training misses, then the attempts."""
    X, y = blobs()
    labels = np.random.default_rng(3).permutation(y)
    tables = auto(goal__at_least=0.8, model__levels=[0.55], privacy__attempts=3)
    result = expost.tune(tables, X, labels, randomness=SimulationRandomness(3), simulation=True)
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
    used = Fraction(_total_delta([each.guarantee for each in steps[0].candidates]))
    used += sum(Fraction(step.selector.delta) for step in steps[1:])
    assert used <= Fraction(1e-5)
    assert used > Fraction(0.99e-5)
    margins = plans[0].margins
    assert margins.confidence == pytest.approx(0.95)


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 3e-7, 0.1 + 0.2])
def test_parts_of_delta_never_add_up_to_more(delta: float) -> None:
    for part in (0.1, 0.5, 1.0):
        left = Fraction(share_of(delta, 1 - Fraction(part)))
        for first in (0.3, 0.8, 1.0):
            parts = [Fraction(part) * Fraction(first), Fraction(part) * (1 - Fraction(first))]
            assert left + sum(Fraction(share_of(delta, x)) for x in parts if x) <= Fraction(delta)


def network() -> Any:
    columns = tuple(Column() for _ in range(784))
    features = OrientedGradients("28x28")
    return Recipe("cnn", "softmax", TableSchema(columns, 10), (1, 28, 28), features=features)


@pytest.mark.parametrize("scoring", [20, 100, 500, 2_000, 12_000])
@pytest.mark.parametrize("expected", [0.05, 0.4, 3.0])
def test_a_network_pays_little_for_noise_reduction_in_vain(scoring: int, expected: float) -> None:
    """Catches a strategy whose first level costs more than a network should pay in vain."""
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
        reach=[SimpleNamespace(epsilon_mean=expected), SimpleNamespace(epsilon_mean=8.0)],
        worst_case=SimpleNamespace(epsilon=3.0),
    )
    places = Places(4 * scoring, scoring, 784, ZERO_OUT)
    plan = strategies_of(settings, network(), places, False, attempts)
    worst = sum(strategy.levels[-1] for strategy in plan.strategies)
    assert worst <= SHARE * expected  # of what the easiest goal is expected to cost
    assert bool(plan.strategies) == (
        scoring * SHARE * min(expected, 8.0) > 100
    )  # room for 5/ε rows
    assert plan.left == pytest.approx(0.9)
    flat = linear_recipe(network())
    assert (flat.kind, flat.loss, flat.input_shape) == ("softmax", "softmax", None)


@pytest.mark.slow
def test_a_plan_skips_noise_reduction_that_a_network_cannot_afford(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the door: 60 scoring rows cannot judge this bar at a low level. Nothing is timed."""
    monkeypatch.setattr(jobs, "rehearse", lambda *_: Pace(0.0, 0.0))
    X, y = np.zeros((300, 784)), np.zeros(300)
    tables = {
        "data": {"feature_bounds": [0, 1], "classes": 10, "holdout": 0.2},
        "model": {"kind": "cnn", "training": "auto"},
        "search": SEARCH | {"epsilons": [1.0], "learning_rates": [1.0], "epochs": [1]},
        "goal": {"metric": "accuracy", "at_least": 0.9},
        "privacy": {"delta": 1e-4, "attempts": 1},
    }
    plan = expost.plan_job(tables, X, y)
    paths = [step for step in plan.steps if isinstance(step.selector, PlannedPath)]
    assert [step.recipe.kind for step in paths] == ["cnn"] * len(paths)  # no linear model
    assert isinstance(plan.steps[-1].selector, PlannedAttempt)
    assert plan.worst_case.delta == 1e-4
    tables["data"]["rows"] = 300  # secret, so the network has attempts alone
    alone = expost.plan_job(tables, X, y)
    assert all(isinstance(step.selector, PlannedAttempt) for step in alone.steps)
    assert alone.steps[0].charges.worst_case.as_approx().delta == 1e-4


@pytest.mark.parametrize("most", [0.5, 4.0])
def test_two_paths_share_epsilon_delta_and_confidence(most: float) -> None:
    tables = job(model__training="auto", privacy__max_epsilon=most)
    settings = read_settings(tables, given_data=True)
    made = replace(network(), kind="softmax", input_shape=None)
    plan = strategies_of(settings, made, Places(48_000, 12_000, 784, ZERO_OUT), True, None)
    assert [strategy.kind for strategy in plan.strategies] == [PROGRESSIVE] * 2
    assert plan.strategies[1].scale > plan.strategies[0].scale
    assert sum(strategy.levels[-1] for strategy in plan.strategies) == pytest.approx(most)
    assert sum(Fraction(strategy.delta) for strategy in plan.strategies) <= Fraction(1e-5)
    assert np.isclose(sum(strategy.delta for strategy in plan.strategies), 1e-5)
    assert np.isclose(sum(1 - strategy.confidence for strategy in plan.strategies), 0.1)


@pytest.mark.parametrize(
    ("training", "columns", "kinds"),
    [
        ("auto", 5, [MOMENTS, PROGRESSIVE]),
        ("auto", 50, [PROGRESSIVE, MOMENTS]),
        ("auto", 200, [PROGRESSIVE, PROGRESSIVE]),
        ("progressive", 5, [PROGRESSIVE, PROGRESSIVE]),
        (MOMENTS, 5, [MOMENTS]),
    ],
)
def test_regressions_have_second_moments_as_the_other_path(
    training: str, columns: int, kinds: list[str]
) -> None:
    schema = TableSchema(tuple(Column() for _ in range(columns)), None, (0.0, 1.0))
    recipe = Recipe("linear", "squared", schema, features=features_for("auto", schema, None))
    tables = job(model__training=training, model__kind="linear")
    tables["goal"] = {"metric": "mse", "at_most": 0.1, "loss_bound": 1.0}
    tables["data"] = {"feature_bounds": [0, 1], "target_bounds": [0, 1], "holdout": 0.2}
    settings = read_settings(tables, given_data=True)
    plan = strategies_of(settings, recipe, Places(6_000, 1_000, columns, ZERO_OUT), True, None)
    assert [strategy.kind for strategy in plan.strategies] == kinds
    assert sum(Fraction(strategy.delta) for strategy in plan.strategies) <= Fraction(
        settings.privacy.delta
    )
    assert (
        sum(Fraction(strategy.levels[-1]) for strategy in plan.strategies)
        <= settings.privacy.max_epsilon
    )


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
    config["search"]["epsilons"] = [0.02]  # which held-out rows cannot judge
    assert set(levels_of(config, *blobs())) == {0.02}


def test_levels_of_a_job_without_a_file_are_kept_by_noise_reduction() -> None:
    X, y = blobs()
    facts = {"at_least": 0.6, "feature_bounds": [-10, 10], "classes": [0, 1]}
    facts |= {"training": "progressive"}
    found = levels_of(X, y, epsilons=[0.5, 0.8], **facts)
    assert max(found) <= 0.8
    with pytest.raises(InvalidInput, match="noise reduction has no such setting"):
        expost.tune(X, y, learning_rates=[1.0], **facts)
