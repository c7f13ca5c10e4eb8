"""Many models a step (the CUDA engine, here on a CPU): equal to the native engine without noise,
same law with it.
"""

import numpy as np
import pytest
import torch

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._native.linear import clip_factor, clipped_residual
from expost.training._torch.clipped_sums import LinearSums
from expost.training._torch.device_keystream import DeviceStream
from expost.training._torch.model_group import train_batched
from expost.training._torch.modules import ModuleSums
from expost.training.configuration import plans
from expost.training.engines import Meter

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]


def test_what_is_not_finite_counts_for_nothing():
    """Rows are checked before, so only a call shows it: the kernels do not rely on that."""
    for norm in (np.inf, np.nan):
        assert clip_factor(norm, 0.5) == 0
    assert clip_factor(2.0, 0.5) == 0.25
    assert clip_factor(0.5, 0.5) == 1
    assert clipped_residual(np.nan, 1.0, 0.5) == 0
    assert clipped_residual(-np.inf, 2.0, 0.5) == -0.25
    assert clipped_residual(3.0, 1.0, 0.5) == 0.5


def data(rows=80, columns=5):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    return X, (X @ np.arange(columns) > 0).astype(float)


def batched(configurations, device="cpu", seed=1, memory=None):
    X, y = data()
    planned = plans(configurations, len(X))
    stream = DeviceStream([SimulationRandomness(seed)] * len(planned), device)
    sums, seeds = LinearSums(X, y, "logistic", 1, device), [0] * len(planned)
    return np.array(
        train_batched(sums, configurations, planned, stream, seeds, None, memory, Meter(None))
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
    expected = np.array(
        [np.append(each.parameters["weight"], each.parameters["bias"]) for each in native]
    )
    assert np.allclose(batched(settings, device), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_noise_and_samples_have_the_law_of_the_native_engine(device):
    """Means and covariances of the final parameters over 1,500 models of each engine."""
    settings = [Configuration(0.5, 1, 20, 0.5, noise_multiplier=0.8)] * 1500
    X, y = data()
    native = Fleet("logistic", settings).train(
        X, y, randomness=SimulationRandomness(2), simulation=True
    )
    one = np.array(
        [np.append(each.parameters["weight"], each.parameters["bias"]) for each in native]
    )
    other = batched(settings, device)
    spread = np.sqrt(one.var(0) / 1500 + other.var(0) / 1500)
    assert (np.abs(one.mean(0) - other.mean(0)) < 4.5 * spread).all()
    assert (np.abs(np.log(one.var(0) / other.var(0))) < 4.5 * np.sqrt(4 / 1500)).all()


def test_more_steps_than_the_keystream_counts_are_refused():
    with pytest.raises(InvalidInput) as error:
        batched([Configuration(0.5, 1 << 33, 80, 0.5, noise_multiplier=1.0)])
    assert error.value.field == "epochs"


def test_memory_changes_the_chunks_not_the_sums():
    settings = [Configuration(0.5, 2, 20, 0.5, noise_multiplier=0)] * 3
    assert np.allclose(
        batched(settings, memory=1 << 30), batched(settings, memory=6 * 64 * 3 * 2), rtol=1e-9
    )


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
    stream = DeviceStream([SimulationRandomness(0)] * 2, device)
    found = train_batched(
        sums, settings, plans(settings, len(X)), stream, [1, 2], None, None, Meter(None)
    )
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


def test_all_rows_at_once_give_the_sums_of_the_sampled_ones():
    """The two ways of :class:`LinearSums`, with softmax outputs and padding."""
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((50, 4)), rng.integers(0, 3, 50).astype(float)
    sums = LinearSums(X, y, "softmax", 3, "cpu")
    parameters = torch.from_numpy(rng.standard_normal((20, sums.width)))
    rows = torch.from_numpy(
        np.array([np.append(rng.permutation(50)[:9], [0, 0, 0]) for _ in range(20)])
    )
    taken = torch.arange(12).expand(20, -1) < torch.from_numpy(rng.integers(0, 10, (20, 1)))
    clips = torch.linspace(0.1, 5, 20, dtype=torch.float64)
    gathered = sums.chunk(parameters, rows, taken, clips)
    assert torch.allclose(
        sums.dense(parameters, rows, taken, clips), gathered, rtol=1e-12, atol=1e-13
    )
    assert torch.allclose(
        sums(parameters, rows, taken, clips, 1 << 30), gathered, rtol=1e-12, atol=1e-13
    )


def test_a_models_result_does_not_depend_on_its_company():
    """One source a configuration: the same model alone, and among others that train longer or
    shorter.
    """
    X, y = data()
    settings = [Configuration(0.4, epochs, 20, 0.5, noise_multiplier=0.8) for epochs in (1, 3, 2)]

    def train(places):
        sources = [SimulationRandomness(place) for place in places]
        stream = DeviceStream(sources, "cpu")
        chosen = [settings[place] for place in places]
        sums = LinearSums(X, y, "logistic", 1, "cpu")
        return train_batched(
            sums, chosen, plans(chosen, len(X)), stream, [0] * len(places), None, None, Meter(None)
        )

    assert np.allclose(train([0, 1, 2])[1], train([1])[0], rtol=1e-12)


def test_rounded_sizes_are_few_and_not_much_larger():
    from expost.training._torch.model_group import rounded

    assert all(
        size <= rounded(size) <= max(size * 17 / 16 + 1, size + 7) for size in range(1, 5000)
    )
    assert len({rounded(size) for size in range(240, 340)}) < 10


def test_the_users_generator_is_left_alone():
    X, y = data()
    before = torch.random.get_rng_state()
    for model in ("logistic", lambda: torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.Tanh())):
        Fleet(model, [Configuration(0.4, 1, 20, 0.5, noise_multiplier=0.8)]).train(X, y)
    batched([Configuration(0.4, 1, 20, 0.5, noise_multiplier=0.8)])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1e28, 1e37])
def test_a_huge_row_does_not_exceed_the_clipping_norm(device, size):
    """In float32, where its factor is near the smallest numbers there are; gathered and over all
    rows.
    """
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((40, 7)) * size).astype(np.float32)
    sums = LinearSums(X, rng.standard_normal(40) * 1e3, "squared", 1, device)
    parameters, clips = (
        torch.zeros(20, sums.width, dtype=torch.float64, device=device),
        torch.full((20,), 1e-6, device=device).double(),
    )
    rows = torch.arange(20, device=device)[:, None]
    taken = torch.ones_like(rows, dtype=torch.bool)
    for way in (sums.chunk, sums.dense):
        norms = way(parameters, rows, taken, clips).norm(dim=1)
        assert float(norms.max()) <= 1e-6 * (1 + 1e-5)
        assert (float(norms.min()) > 0.99e-6) == (size < 1e35), "moderate rows still count in full"
