"""Jobs that train a network with all rows in each step, and stop at the first look that passes."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch
from torch import nn

import expost
from expost import SimulationRandomness
from expost.certificates.verify import run_checks
from expost.errors import InvalidInput
from expost.features import Encoder
from expost.selection.above_threshold import PlannedAttempt, PlannedPath
from expost.selection.noise_path import _total_delta
from expost.tuning.plan.strategies import PATH_SHARE

ROWS = 2400


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def ring(count: int = ROWS, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Points inside and outside a circle: no linear model of the columns tells them apart."""
    X = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2))
    return X, (np.square(X).sum(axis=1) < 0.64).astype(int)


def job(**more: object) -> dict[str, object]:
    return {
        "model": network,
        "at_least": 0.8,
        "feature_bounds": [-1, 1],
        "classes": 2,
        "training": "progressive",
        "delta": 1e-6,
        "max_epsilon": 20,
        **more,
    }


def tuned(X: np.ndarray, y: np.ndarray, seed: int = 5, **more: object):
    return expost.tune(X, y, simulation=True, randomness=SimulationRandomness(seed), **job(**more))


def test_a_network_stops_when_it_passes():
    """A ring is learned; the charge is that of a look; the certificate is priced again."""
    X, y = ring()
    result = tuned(X, y)
    assert result.passed
    assert 0 < result.spent.epsilon < 15
    other_X, other_y = ring(4000, seed=8)
    assert (result.model.predict(other_X) == other_y).mean() > 0.75
    assert run_checks(json.loads(result.certificate())) == {"charge": []}


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_other_first_weights_reach_the_goal_too(seed):
    result = tuned(*ring(), seed=seed, at_least=0.85)
    assert result.passed
    assert result.spent.epsilon < 8


def test_a_frozen_encoder_is_a_feature_map_for_a_linear_model():
    """One line; the ring, which no line tells apart, is learned from a public encoder's output."""
    X, y = ring()
    torch.manual_seed(0)  # stands for public weights
    encoder = nn.Sequential(nn.Linear(2, 64), nn.ReLU())
    facts = {"feature_bounds": [-1, 1], "classes": 2, "at_least": 0.7, "delta": 1e-6}
    random = SimulationRandomness(1)
    features = Encoder(encoder, 64, (2,))
    result = expost.tune(X, y, features=features, simulation=True, randomness=random, **facts)
    assert result.passed
    assert result.spent.epsilon < 2
    assert "public encoder" in result.certificate()


def test_the_plan_says_what_is_tried():
    """By default a linear model on public features comes first, then the network twice."""
    X, y = ring()
    reasons = expost.plan_job(X, y, **job(training="auto")).reasons
    assert ["of the network" in text for text in reasons[:2]] == [False, True]
    assert "other steps" in reasons[2]
    alone = expost.plan_job(X, y, **job())
    assert "of the network" in alone.reasons[0]
    assert alone.worst_case.epsilon <= 20


def test_what_cannot_be_trained_is_refused_before_rows_are_used():
    X, y = ring(40)
    with pytest.raises(InvalidInput, match="GroupNorm"):
        expost.plan_job(X, y, **job(model=with_batch_norm))


def test_a_secret_number_of_rows_is_refused_with_what_to_use():
    X, y = ring(40)
    with pytest.raises(InvalidInput, match=r"data\.rows.*dp-sgd"):
        expost.plan_job(X, y, **job(rows=50))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_an_odd_row_changes_no_failure(value):
    """One row that cannot be used: the same shape of everything that leaves."""
    X, y = ring(600)
    odd = X.copy()
    odd[17] = value
    here, there = (tuned(rows, y, at_least=0.6, max_epsilon=8) for rows in (X, odd))
    assert sorted(json.loads(here.certificate())) == sorted(json.loads(there.certificate()))


GRID = {
    "epsilons": [0.5, 1.0],
    "learning_rates": [0.5],
    "epochs": [2],
    "batch_sizes": [200],
    "clips": [1.0],
}


def test_with_a_grid_attempts_come_after_two_trainings_of_the_network():
    """The price is said before; δ, ε and 1 − confidence are shared among all of them."""
    X, y = ring(600)
    plan = expost.plan_job(X, y, **job(training="auto", max_epsilon=8, **GRID))
    kinds = ["of the network" in text or "other steps" in text for text in plan.reasons[:3]]
    assert kinds == [False, True, True]
    assert "attempts with DP-SGD" in plan.reasons[3]
    assert 4 < plan.worst_case.epsilon <= 8
    paths = [step for step in plan.steps if isinstance(step.selector, PlannedPath)]
    attempts = plan.steps[len(paths) :]
    assert len(paths) == 3
    assert all(isinstance(step.selector, PlannedAttempt) for step in attempts)
    used = sum(Fraction(total_delta(step)) for step in paths)
    used += sum(Fraction(step.selector.delta) for step in attempts)
    assert Fraction(0.99e-6) < used <= Fraction(1e-6)
    assert plan.margins.confidence == pytest.approx(1 - 0.1 * (1 - PATH_SHARE))
    tops = [step.charges.nothing.as_approx().epsilon for step in paths]
    assert plan.worst_case.epsilon >= sum(tops)


def total_delta(step):
    return _total_delta([level.guarantee for level in step.candidates])


def test_misses_of_a_network_and_attempts_are_paid_together():
    """Labels that nothing can learn: every request is made, and what they cost adds up."""
    X, y = ring(600)
    labels = np.random.default_rng(1).permutation(y)
    more = {"training": "auto", "max_epsilon": 4, "attempts": 2, "levels": [0.3], **GRID}
    result = tuned(X, labels, at_least=0.9, holdout=0.5, **more)
    assert not result.passed
    trainings = ["training" in each.release.params for each in result.attempts if each.release]
    assert trainings.count(True) == 2
    assert len(result.attempts) == 4
    total = sum(Fraction(each.spent.epsilon) for each in result.attempts)
    assert result.spent.epsilon == pytest.approx(float(total))
    assert 0.6 < result.spent.epsilon <= 4
    assert run_checks(json.loads(result.certificate())) == {"charge": []}
