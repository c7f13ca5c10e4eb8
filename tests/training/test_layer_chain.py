"""Chains of layers, many models at once: equal to torch's per-example gradients, clipped and
summed.
"""

import numpy as np
import pytest
import torch
from torch import nn

from expost.randomness.source import SimulationRandomness
from expost.training import Configuration
from expost.training._torch.convolutions import ghost_square
from expost.training._torch.device_keystream import DeviceStream
from expost.training._torch.layer_chain import ChainSums
from expost.training._torch.model_group import ModelGroup, train_batched
from expost.training._torch.modules import ModuleSums, mnist_cnn
from expost.training._torch.plain_chain import UnsupportedChain
from expost.training.configuration import plans
from expost.training.engines import Meter

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]


def odd_cnn() -> nn.Module:
    """Strides that leave a rest, kernels that are no squares, padding, two channels, pooling before
    the rectifier.
    """
    return nn.Sequential(
        nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), (2, 1), padding=(1, 0)), nn.MaxPool2d((2, 3), (1, 2)), nn.ReLU()
        ),
        nn.Conv2d(3, 40, 2, padding=1),
        nn.ReLU(),
        nn.Identity(),
        nn.Flatten(),
        nn.Linear(40 * 4 * 4, 3),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


CASES = [
    pytest.param((mnist_cnn, (1, 28, 28), 10, "softmax"), id="mnist"),
    pytest.param((odd_cnn, (2, 7, 8), 3, "softmax"), id="odd"),
    pytest.param((perceptron, (6,), 2, "logistic"), id="logistic"),
    pytest.param((perceptron, (6,), 2, "squared"), id="squared"),
]


def pair(factory, shape, classes, loss, device, rows=30):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((rows, *shape)), rng.integers(0, classes, rows).astype(float)
    double = lambda: factory().double()  # noqa: E731
    module = double()
    return [kind(module, double, X, y, loss, device) for kind in (ChainSums, ModuleSums)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_clipped_sums_are_those_of_per_example_gradients(case, device):
    chain, reference = pair(*case, device)
    rng = np.random.default_rng(1)
    parameters = chain.start([1, 2, 3])
    assert torch.equal(parameters, reference.start([1, 2, 3]))
    rows = torch.from_numpy(rng.integers(0, 30, (3, 11))).to(device)
    taken = torch.from_numpy(rng.random((3, 11)) < 0.8).to(device)
    clips = torch.tensor([0.3, 2.0, 100.0], dtype=torch.float64, device=device)
    found, wanted = (sums(parameters, rows, taken, clips, 1 << 30) for sums in (chain, reference))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-11)  # the grid at a clip of 100
    assert torch.allclose(
        found, chain(parameters, rows, taken, clips, 1), rtol=1e-10, atol=1e-12
    ), "in chunks of one"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factory", [mnist_cnn, odd_cnn])
def test_an_example_without_a_finite_norm_adds_nothing(device, factory):
    """With care the sums are those of the other examples; without, ``sound`` tells."""
    shape, classes = ((1, 28, 28), 10) if factory is mnist_cnn else ((2, 7, 8), 3)
    chain, _ = pair(factory, shape, classes, "softmax", device)
    chain.X[4] = 1e200
    rows = torch.tensor([[1, 4, 7]], device=device)
    clips, parameters = torch.ones(1, dtype=torch.float64, device=device), chain.start([1]) * 1e150
    taken = torch.ones_like(rows, dtype=torch.bool)
    chain.careful = False
    chain(parameters, rows, taken, clips, 1 << 30)
    assert not bool(chain.sound)
    chain.careful = True
    found = chain(parameters, rows, taken, clips, 1 << 30)
    assert bool(torch.isfinite(found).all())
    good = torch.tensor([[True, False, True]], device=device)
    assert torch.allclose(found, chain(parameters, rows, good, clips, 1 << 30))


@pytest.mark.parametrize("device", DEVICES)
def test_a_stretch_with_such_an_example_is_made_again(device):
    """Training goes on as if the example were not there, with the same samples and noise."""
    ends = []
    for huge in (True, False):
        chain, _ = pair(perceptron, (6,), 2, "logistic", device)
        chain.X[4] = 1e300 if huge else 0.0
        if not huge:
            inside = chain.chunk
            chain.chunk = lambda parameters, rows, taken, clips, inside=inside: inside(
                parameters, rows, taken & (rows != 4), clips
            )
        settings = [Configuration(0.5, 40, 10, 0.7, noise_multiplier=0.5, optimiser="momentum")] * 2
        stream = DeviceStream([SimulationRandomness(seed) for seed in (1, 2)], device)
        ends.append(
            train_batched(
                chain, settings, plans(settings, 30), stream, [5, 6], None, None, Meter(None)
            )
        )
    assert np.isfinite(ends[0]).all()
    assert np.allclose(*ends, rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 5, 1000])
def test_steps_that_need_the_host_are_made_again(monkeypatch, steps):
    """However often it is looked whether one did, the result is that of deciding at once."""
    plain, ends = DeviceStream.noisy, []

    def doubtful(stream, total, lattices, step):
        noisy, doubt = plain(stream, total, lattices, step)
        if int(step) in (1, 3, 4, 17, 40):
            doubt[0, 2] = True
            noisy[0, 2] += 1000.0  # the host writes the right number
        return noisy, doubt

    monkeypatch.setattr(DeviceStream, "noisy", doubtful)
    monkeypatch.setattr(ModelGroup, "_steps_of_a_look", lambda group, active: steps)
    for later in (True, False):
        chain, _ = pair(perceptron, (6,), 2, "logistic", "cpu")
        settings = [Configuration(0.5, 14, 10, 0.7, noise_multiplier=0.5, optimiser="momentum")] * 2
        stream = DeviceStream([SimulationRandomness(seed) for seed in (1, 2)], "cpu")
        group = ModelGroup(
            settings, plans(settings, 30), [5, 6], chain, stream.of([0, 1]), scratch=1 << 30
        )
        group.exact = not later
        ends.append(group.train(Meter(None)))
    assert np.array_equal(*ends)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 1),
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 1)),
    ],
)
def test_other_layers_are_left_to_torch(module):
    with pytest.raises(UnsupportedChain):
        ChainSums(module, lambda: module, np.zeros((3, 6)), np.zeros(3), "logistic", "cpu")


def test_norms_from_gram_matrices_are_never_too_small():
    """Slopes that cancel over nearly equal patches: what float32 leaves of the sum is often below
    the norm, what is used never.
    """
    generator = torch.Generator().manual_seed(0)
    patches = 3 + 1e-4 * torch.randn(200, 25, 256, generator=generator)
    slopes = torch.randn(200, 25, 32, generator=generator)
    slopes -= slopes.mean(1, keepdim=True)
    true = torch.bmm(slopes.double().transpose(1, 2), patches.double()).square().sum((1, 2))
    grams = torch.bmm(patches, patches.transpose(1, 2)), torch.bmm(slopes, slopes.transpose(1, 2))
    bare = (grams[0] * grams[1]).sum((1, 2))
    assert (bare < true / 2).any()
    assert (ghost_square(*grams, 256, 32) >= true).all()
