"""What a candidate promises: the pointwise larger of training and scoring, and scoring is free."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from expost.features.columns import TableSchema
from expost.mechanisms import Estimate
from expost.privacy.guarantees import ZCDP, RenyiDP
from expost.randomness.source import SimulationRandomness
from expost.training.configuration import guarantees_of
from expost.tuning.model import scoring
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import Score, free_rho, with_scoring
from expost.tuning.request.settings import GoalSettings, read_settings
from expost.tuning.runs.candidates import Hooks, TrainAndScore, make_candidates
from tests.tuning.jobs import job


def test_a_candidate_promises_the_pointwise_larger_curve() -> None:
    curve = RenyiDP((2, 4, 8), (0.3, 0.4, 2.0))
    for rho in (0.01, 0.1, 0.5):
        both, score = with_scoring(curve, rho), ZCDP(rho).to_renyi(curve.orders)
        assert both.epsilons == tuple(
            max(a, b) for a, b in zip(curve.epsilons, score.epsilons, strict=True)
        )


def test_scoring_is_free_and_a_little_more_would_not_be() -> None:
    settings = read_settings(job(search={"epochs": [1, 7]}), given_data=True)
    recipe = Recipe.of(settings, TableSchema.plain(((0.0, 1.0),), 2, 2))
    for candidate in make_candidates(settings, recipe, 240, Hooks()):
        mechanism = candidate.mechanism
        assert isinstance(mechanism, TrainAndScore)
        rho = mechanism.score.rho
        assert rho is not None
        training = guarantees_of([mechanism.configuration.plan(240)])[0]
        assert training is not None
        assert isinstance(mechanism.guarantee, RenyiDP)
        from_two = [order for order in mechanism.guarantee.orders if order >= 2]
        assert mechanism.guarantee.on(from_two) <= training.on(from_two)
        assert all(
            Fraction(rho) * Fraction(a) <= Fraction(e)
            for a, e in zip(training.orders, training.epsilons, strict=True)
            if a >= 2
        )
        level = training.to_approx(1e-4).epsilon
        assert level <= candidate.params["epsilon"]
        assert mechanism.guarantee.to_approx(1e-4).epsilon <= candidate.params["epsilon"]
        more = with_scoring(training, rho * 1.003)
        assert not more.on(from_two) <= training.on(from_two) or (
            ZCDP(rho * 1.003).to_approx(1e-4).epsilon > level
        )


def test_what_is_trained_is_what_was_promised() -> None:
    """The noise is in the configuration: calibrating again in a smaller fleet could differ."""
    settings = read_settings(job(), given_data=True)
    for candidate in make_candidates(
        settings, Recipe.of(settings, TableSchema.plain(((0.0, 1.0),), 2, 2)), 240, Hooks()
    ):
        assert isinstance(candidate.mechanism, TrainAndScore)
        assert candidate.mechanism.configuration.noise_multiplier is not None
        assert candidate.mechanism.configuration.epsilon is None


def test_public_scoring_is_exact_and_promises_the_training_alone() -> None:
    score = Score(GoalSettings("accuracy", 0.8), None)
    assert score(np.array([1, 1, 0, 0]), np.array([1, 1, 1, 0]), SimulationRandomness(1)) == 0.75


def test_noise_has_the_promised_size() -> None:
    score, source = Score(GoalSettings("accuracy", 0.8), 0.005), SimulationRandomness(2)
    truth = np.ones(100)
    scores = [score(truth, truth, source) for _ in range(2000)]
    assert np.std(scores) == pytest.approx(0.05, rel=0.08)
    assert np.mean(scores) == pytest.approx(1.0, abs=0.005)
    assert score.deviation == pytest.approx(5)


GOALS = [
    GoalSettings("accuracy", 0.8),
    GoalSettings("accuracy", 0.5),
    GoalSettings("accuracy", 0.3),
    GoalSettings("accuracy", None),
    GoalSettings("mse", 1.0, loss_bound=4.0),
    GoalSettings("mse", 3.5, loss_bound=4.0),
    GoalSettings("balanced_accuracy", 0.7, class_shares=(0.2, 0.3, 0.5)),
]


@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("centred", [False, True])
def test_one_row_moves_the_sum_by_at_most_the_sensitivity(
    monkeypatch: pytest.MonkeyPatch, goal: GoalSettings, centred: bool
) -> None:
    """All predictions and truths of one row against an empty place, or against no row."""
    score, seen = Score(goal, 0.01, centred), []
    monkeypatch.setattr(
        scoring.DiscreteGaussian,
        "__call__",
        lambda self, total, randomness: (
            seen.append((total, self.query.sensitivity)) or Estimate(0, 1.0, "gaussian")
        ),
    )
    others = np.array([0.0, 1.0, 2.0, 1.0]), np.array([0.0, 2.0, 2.0, 1.0])

    def total(*row: float) -> int:
        predicted, truth = (
            np.append(values, each) for values, each in zip(others, row or ([], []), strict=True)
        )
        score(predicted, truth, SimulationRandomness(1), 5)
        return int(seen[-1][0])

    odd = (0.0, 1.0, 2.0, -5.0, 1e300, np.inf, np.nan)
    absent = total() if centred else total(1.0, np.nan)
    truths = (0.0, 1.0, 2.0, np.nan) if goal.class_shares else odd  # class numbers
    moves = [abs(total(guess, truth) - absent) for guess in odd for truth in truths]
    assert max(moves) <= score.sensitivity
    assert {sensitivity for _, sensitivity in seen} == {score.sensitivity}
    if goal.metric == "accuracy":
        assert max(moves) == score.sensitivity  # and no more noise than needed


def test_an_empty_place_does_not_lift_a_score_over_the_bar() -> None:
    """A mean over all places that is above the goal means one over the used rows that is."""
    for bar in (0.1, 0.3, 0.5, 0.9):
        score = Score(GoalSettings("accuracy", bar), 0.01)
        assert score.empty <= bar
    assert Score(GoalSettings("accuracy", 0.9), 0.01).empty == 0.5


def test_a_metric_has_no_say_at_an_empty_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value there would add to what one row moves."""
    score = Score(GoalSettings("accuracy", 0.8), 1e12)
    monkeypatch.setattr(
        type(score.metric), "merits", lambda self, predicted, truth, steps: 2 * (predicted > 0)
    )
    truth = np.array([np.nan] * 9 + [1.0])
    assert score(np.ones(10), truth, SimulationRandomness(1)) == pytest.approx(0.55)


@pytest.mark.parametrize("prediction", [float("nan"), float("inf"), 1e300])
def test_one_row_moves_the_squared_error_by_at_most_its_bound(prediction: float) -> None:
    goal = GoalSettings("mse", 1.0, loss_bound=4.0)
    exact = Score(goal, None)
    truth = np.zeros(10)
    worst = np.array([prediction] + [0.0] * 9)
    assert exact(worst, truth, SimulationRandomness(3)) == pytest.approx(-0.4)
    assert exact(truth, truth, SimulationRandomness(3)) == 0.0


def test_the_largest_rho_is_rounded_down() -> None:
    curve = RenyiDP((3.0,), (0.1,))
    assert Fraction(free_rho(curve)) * 3 <= Fraction(0.1)
    assert Fraction(np.nextafter(free_rho(curve), 1)) * 3 > Fraction(0.1)
