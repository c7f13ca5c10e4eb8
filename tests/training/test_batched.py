"""Many models a step (the CUDA engine, here on a CPU): equal to the native engine without noise, same law with it."""

import numpy as np
import pytest
import torch

from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training.batched import LinearSums, train_batched
from expost.training.configuration import plans
from expost.training.device_stream import DeviceStream
from expost.training.meter import Meter
from expost.training.modules import ModuleSums

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
]


def data(rows=80, columns=5):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    return X, (X @ np.arange(columns) > 0).astype(float)


def batched(configurations, device="cpu", seed=1, memory=None):
    X, y = data()
    planned = plans(configurations, len(X))
    stream, meter = DeviceStream(SimulationRandomness(seed), device), Meter(None)
    return np.array(
        train_batched(LinearSums(X, y, "logistic", 1, device), configurations, planned, stream, None, memory, meter)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_full_batches_without_noise_equal_the_native_engine(device, optimiser):
    """Different lengths in one group, clipping at work."""
    X, y = data()
    settings = [
        Configuration(rate, epochs, len(X), clip, noise_multiplier=0, optimiser=optimiser)
        for rate in (0.1, 1.0)
        for epochs in (3, 7)
        for clip in (0.2, 5.0)
    ]
    native = Fleet("logistic", settings).train(X, y, simulation=True)
    expected = np.array([np.append(each.parameters["weight"], each.parameters["bias"]) for each in native])
    assert np.allclose(batched(settings, device), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_noise_and_samples_have_the_law_of_the_native_engine(device):
    """Means and covariances of the final parameters over 1,500 models of each engine."""
    settings = [Configuration(0.5, 1, 20, 0.5, noise_multiplier=0.8)] * 1500
    X, y = data()
    native = Fleet("logistic", settings).train(X, y, randomness=SimulationRandomness(2), simulation=True)
    one = np.array([np.append(each.parameters["weight"], each.parameters["bias"]) for each in native])
    other = batched(settings, device)
    spread = np.sqrt(one.var(0) / 1500 + other.var(0) / 1500)
    assert (np.abs(one.mean(0) - other.mean(0)) < 4.5 * spread).all()
    assert (np.abs(np.log(one.var(0) / other.var(0))) < 4.5 * np.sqrt(4 / 1500)).all()


def test_memory_changes_the_chunks_not_the_sums():
    settings = [Configuration(0.5, 2, 20, 0.5, noise_multiplier=0)] * 3
    assert np.allclose(batched(settings, memory=1 << 30), batched(settings, memory=6 * 48 * 3 * 2), rtol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_modules_on_a_device_equal_the_native_engine(device):
    from torch import nn

    def factory():
        return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()

    X, y = data()
    settings = [Configuration(0.3, epochs, len(X), 0.3, noise_multiplier=0) for epochs in (2, 5)]
    torch.manual_seed(3)
    module = factory()
    sums = ModuleSums(module, lambda: module, X, y, "softmax", device)
    stream = DeviceStream(SimulationRandomness(0), device)
    found = train_batched(sums, settings, plans(settings, len(X)), stream, None, None, Meter(None))
    module.cpu()
    start = {name: value.detach().clone() for name, value in module.named_parameters()}

    def same():
        fresh = factory()
        fresh.load_state_dict(start)
        return fresh

    expected = Fleet(same, settings).train(X, y, simulation=True)
    for flat, trained in zip(found, expected, strict=True):
        for name, value in sums.arrays(flat).items():
            assert np.allclose(value, trained.parameters[name], rtol=1e-9, atol=1e-12)
