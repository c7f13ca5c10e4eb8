"""The fused CUDA kernels against plain torch: on a CUDA device, or in Triton's interpreter.

Triton comes with CUDA builds of torch. Where it is installed without a device the tests run in its
interpreter, in a process of their own: it is chosen when the kernels are first seen.
"""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

HERE = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
kernels_here = pytest.mark.skipif(
    not HERE, reason="no CUDA device here (see test_in_the_interpreter)"
)


@pytest.mark.skipif(HERE, reason="the tests run in this process")
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed; it comes with CUDA builds",
)
def test_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        __file__,
    ]
    subprocess.run(command, check=True, env=environment)


@kernels_here
def test_random_numbers():
    from expost.randomness.source import SimulationRandomness
    from expost.training._torch import noise_kernels
    from expost.training._torch.device_keystream import DeviceStream

    stream, step = DeviceStream([SimulationRandomness(1)] * 3, "cpu"), torch.tensor([5])
    wanted = stream._make(3, 21, step, 2, 1, 4)
    out = torch.full(wanted.shape, torch.nan, dtype=torch.float64, device=DEVICE)
    noise_kernels.fill(out, stream.keys.to(DEVICE), step.to(DEVICE), 3, 1, 4)
    assert torch.equal(out.cpu(), wanted)


@kernels_here
@pytest.mark.parametrize("width", [1, 8, 21, 3001])
def test_noise_on_the_lattice(width):
    """Equal to the last bit where both decide; a model without noise keeps its sums."""
    from expost.randomness.source import SimulationRandomness
    from expost.training._torch import noise_kernels
    from expost.training._torch.device_keystream import DeviceStream, lattices_of
    from expost.training.exact_noise import lattice_of

    stream, step = DeviceStream([SimulationRandomness(1)] * 3, "cpu"), torch.tensor([5])
    made = [lattice_of(1.0, 0.7), lattice_of(1.0, 0.0), lattice_of(0.3, 2.0)]
    lattices = lattices_of(made, "cpu")
    total = torch.from_numpy(np.random.default_rng(0).standard_normal((3, width)))
    wanted, open_ = stream.noisy(total, lattices, step)
    out, doubt = torch.empty_like(total, device=DEVICE), torch.empty_like(open_, device=DEVICE)
    given = (total.to(DEVICE), out, doubt, lattices.to(DEVICE), stream.keys.to(DEVICE))
    noise_kernels.add_noise(*given, step.to(DEVICE))
    both = ~open_ & ~doubt.cpu()
    assert torch.equal(out.cpu()[both], wanted[both])
    assert both.double().mean() > 0.999
    assert torch.equal(out.cpu()[1], total[1])


@kernels_here
def test_the_check_before_use_accepts_the_kernels():
    from expost.training._torch import device_keystream, noise_kernels

    assert device_keystream._checked_kernels(DEVICE) is noise_kernels


WINDOWS = [
    ((2, 7, 8, 3), (3, 2), (2, 1), (1, 0)),
    ((3, 28, 28, 1), (8, 8), (2, 2), (3, 3)),
    ((2, 9, 9, 4), (4, 4), (2, 2), (0, 0)),
]


@kernels_here
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), WINDOWS)
def test_patches_there_and_back(shape, kernel, stride, padding):
    """Against ``functional.unfold`` and ``functional.fold``."""
    from expost.training._torch import layer_kernels

    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).to(DEVICE)
    channels_first = x.permute(0, 3, 1, 2)
    found = layer_kernels.gather_patches(x, kernel, stride, padding)
    columns = functional.unfold(channels_first, kernel, padding=padding, stride=stride)
    assert torch.equal(found.permute(0, 5, 3, 4, 1, 2).reshape(columns.shape), columns)
    back = layer_kernels.scatter_patches(found, shape, stride, padding)
    folded = functional.fold(columns, shape[1:3], kernel, padding=padding, stride=stride)
    assert torch.allclose(back.permute(0, 3, 1, 2), folded)


@kernels_here
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [((3, 14, 14, 5), (2, 2), (1, 1)), ((2, 7, 8, 3), (2, 3), (1, 2))],
)
def test_pooling_there_and_back(shape, kernel, stride, rectify):
    """Against torch's own derivative, of the rectifier followed by the pooling."""
    from expost.training._torch import layer_kernels

    x = (
        torch.from_numpy(np.random.default_rng(0).standard_normal(shape) - 0.5)
        .to(DEVICE)
        .requires_grad_()
    )
    before = functional.relu(x) if rectify else x
    wanted = functional.max_pool2d(before.permute(0, 3, 1, 2), kernel, stride).permute(0, 2, 3, 1)
    out, codes = layer_kernels.pool(x.detach(), kernel, stride, rectify)
    assert torch.equal(out, wanted)
    slopes = torch.from_numpy(np.random.default_rng(1).standard_normal(tuple(out.shape))).to(DEVICE)
    wanted.backward(slopes)
    assert torch.allclose(layer_kernels.unpool(slopes, codes, shape, kernel, stride), x.grad)


@kernels_here
@pytest.mark.parametrize(("models", "examples", "width"), [(3, 37, 200), (2, 1, 5), (1, 16, 128)])
def test_weighted_sums(models, examples, width):
    from expost.training._torch import layer_kernels

    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.standard_normal((models, examples, width))).float().to(DEVICE)
    factors = torch.from_numpy(rng.random((models, examples))).to(DEVICE)
    wanted = (values.double() * factors[:, :, None]).sum(1)
    assert torch.allclose(
        layer_kernels.weighted_sums(values, factors), wanted, rtol=1e-13, atol=1e-14
    )


@kernels_here
@pytest.mark.parametrize("rectify_first", [True, False])
def test_a_chain_with_these_kernels_has_torchs_clipped_sums(monkeypatch, rectify_first):
    """Convolutions, pooling with and without a rectifier before it, stored gradients and their
    weighted sums, in float64.
    """
    from torch import nn

    from expost.training._torch import layer_chain, layer_kernels
    from expost.training._torch.modules import ModuleSums

    def factory():
        middle = (
            [nn.ReLU(), nn.MaxPool2d(2, 1)] if rectify_first else [nn.MaxPool2d(2, 1), nn.ReLU()]
        )
        layers = [
            nn.Conv2d(1, 3, 3, 2, padding=1),
            *middle,
            nn.Conv2d(3, 4, 2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ]
        return nn.Sequential(*layers).double()

    monkeypatch.setattr(layer_chain, "_kernels", lambda device: layer_kernels)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 1, 8, 8)), rng.integers(0, 3, 9).astype(float)
    module = factory()
    sums, reference = (
        kind(module, factory, X, y, "softmax", DEVICE)
        for kind in (layer_chain.ChainSums, ModuleSums)
    )
    rows = torch.from_numpy(rng.integers(0, 9, (2, 5))).to(DEVICE)
    taken = torch.from_numpy(rng.random((2, 5)) < 0.8).to(DEVICE)
    clips, parameters = (
        torch.tensor([0.3, 50.0], dtype=torch.float64, device=DEVICE),
        sums.start([1, 2]),
    )
    found, wanted = (each(parameters, rows, taken, clips, 1 << 30) for each in (sums, reference))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
