"""A privacy audit: an attacker guesses from the released parameters whether one row is there.

The attacker knows everything else.

The bound: with (ε, δ)-DP, TPR ≤ e^ε·FPR + δ. A Clopper–Pearson interval (99.9 % on each side) of
both rates at a threshold fixed on other trainings gives a lower bound of ε, which must not exceed
what is promised; without noise it must, so the test can fail.
"""

import numpy as np
import pytest
from scipy import stats
from torch import nn

from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet

TRIALS, DELTA = 3000, 1e-5
FEWER = 1000  # of a module: the bound can still show ε up to 4.2, and 1.05 is promised
ROWS, COLUMNS = 40, 4


def pair(images=False):
    """Data without and with the canary: a row far out in a direction that nobody else uses, with a
    label of its own.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    X[:, -1] = 0
    y = rng.integers(0, 2, ROWS).astype(float)
    y[:2] = 0, 1
    canary = np.zeros(COLUMNS)
    canary[-1] = 10
    return (X, y), (np.vstack([X, canary]), np.append(y, 1.0))


def observed(model, noise, data, seed, n, trials):
    """The canary's direction in the released parameters, over many trainings at the rate of ``n``
    rows.
    """
    X, y = data
    batch = 10 * len(X) / n  # the same rate with and without the canary, as the guarantee takes it
    settings = Configuration(1.0, 2, batch, 1.0, noise_multiplier=noise)
    found = Fleet(model, [settings] * trials).train(
        X, y, randomness=SimulationRandomness(seed), simulation=True
    )
    scores = [
        np.ravel(next(iter(each.parameters.values())))[COLUMNS - 1] * (batch / 10) for each in found
    ]
    return np.array(scores), found[0].guarantee


def epsilon_lower_bound(without, with_canary):
    """From the second half of the trials, at the threshold and the side that look best on the first
    half.
    """
    half = len(without) // 2
    best, chosen = -np.inf, None
    for threshold in np.quantile(with_canary[:half], np.linspace(0.02, 0.98, 49)):
        for side in (1, -1):
            hits = (side * with_canary[:half] >= side * threshold).mean()
            false = (side * without[:half] >= side * threshold).mean()
            value = np.log(max(hits - DELTA, 1e-9) / (false + 3 / half))
            if value > best:
                best, chosen = value, (threshold, side)
    threshold, side = chosen
    hits = int((side * with_canary[half:] >= side * threshold).sum())
    false = int((side * without[half:] >= side * threshold).sum())
    count = len(without) - half
    hit_rate = stats.beta.ppf(1e-3, hits, count - hits + 1) if hits else 0.0
    false_rate = stats.beta.ppf(1 - 1e-3, false + 1, count - false) if false < count else 1.0
    return np.log(max(hit_rate - DELTA, 1e-9) / false_rate)


def audit(model, noise, trials=TRIALS):
    absent, present = pair()
    without, promise = observed(model, noise, absent, 1, ROWS, trials)
    with_canary, _ = observed(model, noise, present, 2, ROWS, trials)
    return epsilon_lower_bound(without, with_canary), promise


@pytest.mark.parametrize("noise", [3.0, 0.8])
def test_the_attack_does_not_beat_the_promise(noise):
    found, promise = audit("logistic", noise)
    assert found <= promise.to_approx(DELTA).epsilon


def test_without_noise_the_attack_wins():
    """The same attack finds far more than the ε that the noise above promises."""
    found, promise = audit("logistic", 0)
    assert promise is None
    small = (
        Configuration(1.0, 2, 10, 1.0, noise_multiplier=3.0)
        .guarantee(ROWS)
        .to_approx(DELTA)
        .epsilon
    )
    assert found > small + 1


def test_with_too_little_noise_the_attack_notices():
    """A tenth of the noise that was promised (σ = 0.3, not 3.0): the audit notices too little
    noise, not only none.
    """
    found, _ = audit("logistic", 0.3)
    assert (
        found
        > Configuration(1.0, 2, 10, 1.0, noise_multiplier=3.0)
        .guarantee(ROWS)
        .to_approx(DELTA)
        .epsilon
    )


def network():
    """Starts at zero, as the linear models do: a random start would hide the canary."""
    module = nn.Sequential(nn.Linear(COLUMNS, 2))
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


@pytest.mark.parametrize("trials", [FEWER, pytest.param(TRIALS, marks=pytest.mark.long)])
def test_a_network_keeps_its_promise_too(trials):
    found, promise = audit(network, 3.0, trials)
    assert found <= promise.to_approx(DELTA).epsilon


def test_fewer_trainings_of_a_network_show_too_little_noise():
    found, _ = audit(network, 0.3, FEWER)
    promise = Configuration(1.0, 2, 10, 1.0, noise_multiplier=3.0).guarantee(ROWS)
    assert found > promise.to_approx(DELTA).epsilon
