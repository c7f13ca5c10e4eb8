"""The keystream on a torch device: equal to the native one, its law, and independence of what
trains beside a model.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from expost.randomness.source import Randomness, SimulationRandomness
from expost.training._native.noise import LANES, chacha20_blocks
from expost.training._torch import device_keystream
from expost.training._torch.device_keystream import DeviceStream, lattices_of
from expost.training.exact_noise import lattice_of
from tests.training.test_keystream import check_inclusions, some_stream

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]
STEP = torch.tensor([1])


def gaussians(stream: DeviceStream, models: int, count: int, step: torch.Tensor) -> torch.Tensor:
    """Noise of standard deviation 1, on its lattice."""
    zero = torch.zeros(models, count, dtype=torch.float64, device=stream.device)
    lattices = lattices_of([lattice_of(1.0, 1.0)] * models, stream.device)
    found, doubt = stream.noisy(zero, lattices, step)
    assert not bool(doubt.any())
    return found


@pytest.mark.parametrize("purpose", [device_keystream.SAMPLE, device_keystream.NOISE])
def test_words_are_those_of_the_native_keystream(purpose):
    """The purpose is the native stream's number, the step the upper half of its counter."""
    state = some_stream(True, number=purpose, seed=3).state
    state[13] = 5
    lanes = np.zeros((16, LANES), dtype=np.uint32)
    chacha20_blocks(state, lanes)
    found = DeviceStream([SimulationRandomness(3)], "cpu").blocks(
        1, LANES, torch.tensor([5]), 1, purpose
    )
    assert (found[:, 0, 0].numpy().view(np.uint32) == lanes).all()


@pytest.mark.parametrize("device", DEVICES)
def test_fused_kernels_make_the_same_numbers(device):
    """Triton's kernel against tensor operations (on a CPU: the latter against themselves, in other
    groups of steps).
    """
    stream, plain = (DeviceStream([SimulationRandomness(1)] * 3, each) for each in (device, "cpu"))
    given = stream.uniforms(3, 50, STEP.to(device), 2).cpu()
    assert torch.equal(
        given, torch.cat([plain.uniforms(3, 50, STEP), plain.uniforms(3, 50, STEP + 1)])
    )
    noise = gaussians(stream, 3, 1001, STEP.to(device)).cpu()
    assert torch.equal(noise, gaussians(plain, 3, 1001, STEP))


@pytest.mark.parametrize("device", DEVICES)
def test_a_models_numbers_do_not_depend_on_its_company(device):
    many = DeviceStream([SimulationRandomness(seed) for seed in range(4)], device)
    alone = many.of([2])
    step = STEP.to(device)
    assert torch.equal(gaussians(many, 4, 21, step)[2], gaussians(alone, 1, 21, step)[0])
    rows, counts = many.poisson_samples(0.2, 100, 4, 7, 3)
    own, own_counts = alone.poisson_samples(0.2, 100, 1, 7, 3)
    assert torch.equal(counts[:, 2], own_counts[:, 0])
    for step in range(3):
        taken = int(counts[step, 2])
        assert torch.equal(rows[step, 2, :taken], own[step, 0, :taken])


def test_no_number_appears_twice():
    """Over models, steps, purposes and continuations."""
    stream = DeviceStream([SimulationRandomness(6)] * 3, "cpu")
    drawn = [
        stream._make(3, 64, STEP, 4, purpose, again) for purpose in (0, 1, 2) for again in (0, 1)
    ]
    values = torch.cat([each.flatten() for each in drawn])
    assert len(torch.unique(values)) == len(values)


@pytest.mark.parametrize("device", DEVICES)
def test_gaussians(device):
    drawn = (
        gaussians(DeviceStream([SimulationRandomness(2)], device), 1, 100_001, STEP.to(device))
        .cpu()
        .numpy()
    )
    assert stats.kstest(drawn[0], "norm").pvalue > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.97])
def test_each_row_is_taken_with_the_rate_independently(device, rate):
    rows, models, steps = 40, 100, 200
    stream = DeviceStream([SimulationRandomness(4)] * models, device)
    chosen, counts = (
        each.flatten(0, 1).cpu() for each in stream.poisson_samples(rate, rows, models, 1, steps)
    )
    taken = np.zeros((models * steps, rows), dtype=bool)
    for sample, (places, count) in enumerate(zip(chosen, counts, strict=True)):
        taken[sample, places[:count].numpy()] = True
    assert (taken.sum(1) == counts.numpy()).all()
    check_inclusions(taken, rate)


def test_rate_one_takes_every_row():
    rows, counts = DeviceStream([Randomness()] * 3, "cpu").poisson_samples(1.0, 5, 3, 1, 2)
    assert torch.equal(rows, torch.arange(5).expand(2, 3, 5))
    assert bool((counts == 5).all())


def test_a_sample_is_never_cut_short(monkeypatch):
    """A first draw that is too short is continued; with few gaps at a time the law is the same."""
    monkeypatch.setattr(device_keystream, "_SPARE", -6)
    stream = DeviceStream([SimulationRandomness(5)] * 200, "cpu")
    _, counts = stream.poisson_samples(0.5, 100, 200, 1)
    assert abs(counts.double().mean() - 50) < 5 * 5 / np.sqrt(200)
