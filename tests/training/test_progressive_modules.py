"""Progressive training of modules: exact sums, one row's share, the law of the walk."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch
from torch import nn

from expost.privacy.guarantees import ZCDP
from expost.randomness.source import RunKey
from expost.selection.noise_path import PathLevel
from expost.training.progressive import ProgressivePath
from expost.training.progressive_modules import (
    FEW_STEPS,
    FINE_TUNING,
    MANY_STEPS,
    ModuleTraining,
)

KEY = RunKey(bytes(range(32)), simulated=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2))


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    )


def rows(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(count, *shape))
    return X, (X.reshape(count, -1)[:, 0] > 0).astype(float)


def only(X: np.ndarray, y: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """All places empty but one."""
    others = np.arange(len(X)) != row
    X, y = X.copy(), y.copy()
    X[others], y[others] = 3.0, np.nan
    return X, y


@pytest.mark.parametrize(("factory", "shape"), [(network, (3,)), (pictures, (1, 5, 5))])
def test_the_sum_over_all_rows_is_the_sum_over_single_rows(factory, shape):
    """Exactly, for hostile rows too: they add nothing, and no row moves the sum by more than c."""
    X, y = rows(37, shape)
    X[3], y[5], X[7] = np.nan, np.nan, 1e300
    training = ModuleTraining(factory, "softmax", 37, clip=0.1)
    descent = training.start(KEY)
    whole = training.exact_sum(training.rows_of(X, y, "cpu"), descent, 0)
    single = np.zeros_like(whole)
    for row in range(len(X)):
        alone = training.exact_sum(training.rows_of(*only(X, y, row), "cpu"), descent, 0)
        assert math.sqrt(sum(Fraction(value) ** 2 for value in alone)) <= training.sensitivity
        assert (not alone.any()) == (row in (3, 5, 7))
        single += alone
    assert np.array_equal(whole, single)
    assert np.sqrt(np.square(whole).sum()) > 0.1


def level(mu: float, path: ProgressivePath) -> PathLevel:
    return PathLevel(path, ZCDP(mu**2 / 2, path.neighbours))


def walk_of(training: ModuleTraining, mus: list[float], key: bytes = KEY.key):
    path = ProgressivePath(training, lambda data: data, lambda weights: weights, "zero-out", 4)
    return path.walk([level(mu, path) for mu in mus], key, True)


def test_a_walk_is_a_function_of_its_key_and_learns():
    """Levels asked one by one or at once give the same weights; a precise one separates classes."""
    data = rows(400, (3,))
    training = ModuleTraining(network, "softmax", 400)
    step_by_step = walk_of(training, [0.5, 20.0])
    first, last = step_by_step.output(0, data), step_by_step.output(1, data)
    assert np.array_equal(walk_of(training, [0.5, 20.0]).output(1, data), last)
    assert np.array_equal(step_by_step.output(0, data), first)  # starts anew
    assert not np.array_equal(walk_of(training, [0.5, 20.0], bytes(32)).output(1, data), last)
    named = {name: torch.from_numpy(value) for name, value in training.arrays(last).items()}
    model = network()
    model.load_state_dict(named)
    with torch.no_grad():
        predicted = model(torch.from_numpy(data[0]).float()).argmax(1).numpy()
    assert (predicted == data[1]).mean() > 0.9


def test_one_row_moves_a_release_by_its_own_gradient_only():
    """The same key with and without a row: the first step differs by at most c, then divided."""
    X, y = rows(50, (3,))
    without = y.copy()
    without[9] = np.nan
    training = ModuleTraining(network, "softmax", 50)
    descent = training.start(KEY)
    here = training.exact_sum(training.rows_of(X, y, "cpu"), descent, 0)
    there = training.exact_sum(training.rows_of(X, without, "cpu"), descent, 0)
    moved = np.sqrt(np.square(here - there).sum())
    assert 0 < moved <= training.sensitivity


def test_the_seed_of_draws_is_as_long_as_a_key():
    assert ModuleTraining(network, "softmax", 30).start(KEY).seed.bit_length() > 128


def test_dropout_draws_by_key_and_step():
    """A step repeats its draws; another step, or another key, has others."""
    data = rows(30, (3,))
    training = ModuleTraining(with_dropout, "softmax", 30)
    prepared, descent = training.rows_of(*data, "cpu"), training.start(KEY)
    first = training.exact_sum(prepared, descent, 0)
    assert np.array_equal(training.exact_sum(prepared, descent, 0), first)
    assert not np.array_equal(training.exact_sum(prepared, descent, 1), first)


def test_weights_follow_released_gradients_by_public_lengths():
    """Steps have the rule's length, whatever the scale; entries with signal move more."""
    moved = []
    for scale in (1e-9, 1.0, 1e9):  # of gradients and noise
        descent = ModuleTraining(network, "softmax", 100, rule=MANY_STEPS).start(KEY)
        first, coins = descent.weights, np.random.default_rng(2)
        signal = np.zeros(len(first))
        signal[:5] = 1.0
        for _ in range(50):
            before = descent.weights
            descent.move(scale * (signal + coins.normal(0, 0.2, len(first))), scale * 0.2)
            length = np.linalg.norm(descent.weights - before)
            assert length == pytest.approx(MANY_STEPS.length, rel=1e-9)
        moved.append(descent.weights - first)
    assert np.allclose(moved[0], moved[1], rtol=0, atol=1e-6)
    assert np.allclose(moved[2], moved[1], rtol=0, atol=1e-6)
    assert (moved[1][:5] < -5 * np.abs(moved[1][5:]).mean()).all()


def test_few_steps_follow_the_average_and_end_at_one_over_the_root_of_mu():
    generator = np.random.default_rng(1)
    training = ModuleTraining(network, "softmax", 100, rule=FEW_STEPS)
    descent, lengths = training.start(KEY), []
    total, weight = np.zeros(len(descent.weights)), 0.0
    for step in range(400):
        before, noise = descent.weights, training.clip / training.places / 2.0 ** (step / 40 - 4)
        gradient = generator.normal(size=len(before))
        descent.move(gradient, noise)
        total = 0.8 * total + gradient / noise**2  # entries are not scaled
        weight = 0.8 * weight + 1 / noise**2
        lengths.append(float(np.linalg.norm(descent.weights - before)))
        along = (before - descent.weights) @ (total / weight) / np.linalg.norm(total / weight)
        assert along == pytest.approx(lengths[-1], rel=1e-9)
    assert max(lengths) == pytest.approx(FEW_STEPS.length)
    assert lengths[-1] / lengths[-41] == pytest.approx(2**-0.5, rel=0.02)


def test_the_released_weights_are_an_average_weighted_by_precision():
    """Of the weights after each step; before the first step they are the first ones."""
    descent = ModuleTraining(network, "softmax", 100).start(KEY)
    assert np.array_equal(descent.released, descent.weights)
    coins, total, weight = np.random.default_rng(1), 0.0, 0.0
    for step in range(60):
        noise = 2.0 ** (-step / 20)
        descent.move(coins.normal(size=len(descent.weights)), noise)
        total = MANY_STEPS.average * total + descent.weights / noise**2
        weight = MANY_STEPS.average * weight + 1 / noise**2
        assert np.allclose(descent.released, total / weight, rtol=0, atol=1e-9)
    assert not np.allclose(descent.released, descent.weights)


def test_the_walk_returns_the_released_weights_and_sums_at_the_others():
    data = rows(200, (3,))
    training = ModuleTraining(network, "softmax", 200)
    walk = walk_of(training, [1.0])
    output, descent = walk.output(0, data), walk._descent
    assert np.array_equal(output, descent.released)
    assert not np.array_equal(output, descent.weights)


def test_steps_are_fewer_where_one_takes_long():
    """From public numbers: places, parameters (frozen ones, too) and the rule."""

    def wide() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 4000), nn.ReLU(), nn.Linear(4000, 2))
        module[0].requires_grad_(False)
        return module

    assert ModuleTraining(network, "softmax", 100).steps == MANY_STEPS.most
    assert ModuleTraining(network, "softmax", 100, rule=FEW_STEPS).steps == FEW_STEPS.most
    trained = ModuleTraining(wide, "softmax", 8000)
    assert trained.width == 8002
    assert trained.steps == int(4e9 / (24002 * 8000)) == 20
    assert ModuleTraining(wide, "softmax", 10_000, together=3).steps == 8


def test_what_cannot_be_a_direction_moves_nothing():
    descent = ModuleTraining(network, "softmax", 100).start(KEY)
    same = descent.weights
    for odd in (np.full(len(same), np.inf), np.full(len(same), np.nan), np.zeros(len(same))):
        descent.move(odd, 1.0)
        assert np.array_equal(descent.weights, same)
    assert np.isfinite(descent.released).all()
    descent.move(np.ones(len(same)), 1.0)
    assert np.isfinite(descent.weights).all()


def test_steps_of_a_fine_tuned_module_are_short_where_the_average_is_noise():
    """The length is the rule's times a power of the signal's share, which is measured."""
    rule = replace(FINE_TUNING, fall=0.0)
    descent = ModuleTraining(network, "softmax", 100, rule=rule).start(KEY)
    generator = np.random.default_rng(2)
    gradient, lengths = generator.normal(size=len(descent.weights)), []
    for noise in (100.0, 100.0, 0.1, 0.01, 0.001, 0.0001):
        before = descent.weights
        descent.move(gradient + noise * generator.normal(size=len(before)), noise)
        lengths.append(float(np.linalg.norm(descent.weights - before)))
    assert max(lengths[:2]) < 0.4 * rule.length
    assert lengths[-1] == pytest.approx(rule.length, rel=0.01)
    assert max(lengths) <= rule.length * (1 + 1e-9)
