"""The Opacus adapter, and the fleet's loss against that of Opacus at equal settings, real data."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from expost.errors import InvalidInput
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training import Configuration, Fleet

pytest.importorskip("opacus", reason="compares with Opacus: pip install 'expost[opacus]'")

from expost.integrations.opacus import train_with_opacus

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def zero_linear(inputs, outputs):
    module = nn.Linear(inputs, outputs)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def losses(found, X, y):
    """Mean cross-entropy of each trained model."""
    logits = [X @ each.parameters["weight"].T + each.parameters["bias"] for each in found]
    logits = [
        np.column_stack([np.zeros(len(X)), each]) if each.shape[1] == 1 else each for each in logits
    ]
    return np.array(
        [
            nn.functional.cross_entropy(torch.tensor(each), torch.tensor(y).long()).item()
            for each in logits
        ]
    )


@pytest.mark.parametrize(
    ("data", "optimiser"),
    [
        *(("breast cancer", optimiser) for optimiser in ("sgd", "momentum", "adam")),
        ("digits", "sgd"),
        pytest.param("digits", "momentum", marks=pytest.mark.long),
        pytest.param("digits", "adam", marks=pytest.mark.long),
    ],
)
def test_losses_are_comparable_with_opacus(data, optimiser):
    """Many trainings each; Welch's t within ±4.5 (a factor of two in the noise moves it far beyond:
    see the next test).
    """
    fleet, peer = _both(data, optimiser, noise=1.5)
    spread = np.sqrt(fleet.var(ddof=1) / len(fleet) + peer.var(ddof=1) / len(peer))
    assert abs(fleet.mean() - peer.mean()) < 4.5 * spread + 1e-3


def test_the_comparison_would_notice_twice_the_noise():
    fleet, _ = _both("digits", "sgd", noise=3.0, runs=0)
    _, peer = _both("digits", "sgd", noise=1.5)
    spread = np.sqrt(fleet.var(ddof=1) / len(fleet) + peer.var(ddof=1) / len(peer))
    assert abs(fleet.mean() - peer.mean()) > 4.5 * spread + 1e-3


@cache
def _both(data, optimiser, noise, runs=30):
    X, y = (
        load_breast_cancer(return_X_y=True)
        if data == "breast cancer"
        else load_digits(return_X_y=True)
    )
    X = ((X - X.mean(0)) / (X.std(0) + 1e-9)).astype(np.float32)
    two = data == "breast cancer"
    rate = {"sgd": 0.5, "momentum": 0.1, "adam": 0.05}[optimiser]
    settings = Configuration(rate, 2, 50, 1.0, noise_multiplier=noise, optimiser=optimiser)
    model = Fleet("logistic" if two else "softmax", [settings] * 100, classes=None if two else 10)
    fleet = losses(model.train(X, y, randomness=SimulationRandomness(1), simulation=True), X, y)
    peers = [
        train_with_opacus(
            lambda: zero_linear(X.shape[1], 1 if two else 10),
            settings,
            X,
            y,
            loss="logistic" if two else "softmax",
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        for seed in range(runs)
    ]
    assert all(peer.guarantee == settings.guarantee(len(X)) for peer in peers)
    return fleet, losses(peers, X, y)


def test_empty_batches_and_refusals():
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    settings = Configuration(0.1, 5, 0.5, 1.0, noise_multiplier=1.0)
    found = train_with_opacus(lambda: zero_linear(4, 2), settings, X, y)
    assert all(np.isfinite(value).all() for value in found.parameters.values())
    with pytest.raises(InvalidInput, match="refuses"):
        train_with_opacus(lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), settings, X, y)
    with pytest.raises(InvalidInput, match="simulation=True"):
        train_with_opacus(
            lambda: zero_linear(4, 2), Configuration(0.1, 1, 1, 1.0, noise_multiplier=0), X, y
        )
    with pytest.raises(InvalidInput, match="loss"):
        train_with_opacus(lambda: zero_linear(4, 2), settings, X, y, loss="hinge")


def test_noise_and_samples_of_opacus_need_more_than_a_seed_of_32_bits(monkeypatch):
    """torch reads 32 bits of a seed, which can all be tried. Here every seed is the same."""
    monkeypatch.setattr(Randomness, "bits", lambda self, count: 7)
    settings = Configuration(0.1, 1, 4, 1.0, noise_multiplier=1.0)
    found = [
        train_with_opacus(lambda: zero_linear(4, 2), settings, np.eye(4), np.array([0, 1, 0, 1]))
        for _ in range(2)
    ]
    assert not np.allclose(found[0].parameters["weight"], found[1].parameters["weight"])
