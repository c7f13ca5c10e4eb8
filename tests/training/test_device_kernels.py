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


# channels, outputs, height and width, kernel, stride, padding
CONVOLUTIONS = [
    (2, 3, (7, 8), (3, 2), (2, 1), (1, 0)),
    (1, 16, (28, 28), (8, 8), (2, 2), (3, 3)),
    (16, 32, (13, 13), (4, 4), (2, 2), (0, 0)),
    (17, 5, (6, 9), (3, 3), (1, 1), (1, 1)),
    (3, 70, (6, 7), (1, 1), (2, 1), (0, 0)),
    (2, 3, (11, 9), (2, 3), (3, 2), (0, 1)),
    (2, 2, (6, 6), (3, 3), (1, 1), (2, 2)),
    (2, 2, (5, 4), (2, 2), (1, 1), (2, 2)),
]


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float().to(DEVICE)


def close(found, wanted):
    """Equal up to the rounding of float32, relative to the largest number."""
    return bool((found.double() - wanted).abs().max() <= 2e-6 * wanted.abs().max())


@kernels_here
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_convolutions_of_many_models(case, biased):
    """Outputs, slopes and gradients against torch in float64."""
    from expost.training._torch import layer_kernels as kernels

    channels, outputs, size, kernel, stride, padding = case
    x, weight = normal(0, 2, 3, channels, *size), normal(1, 2, outputs, channels, *kernel)
    bias = normal(2, 2, outputs) if biased else None
    exact = x.double().requires_grad_()
    wanted = torch.stack(
        [
            functional.conv2d(
                exact[model],
                weight[model].double(),
                None if bias is None else bias[model].double(),
                stride,
                padding,
            )
            for model in range(2)
        ]
    )
    assert close(kernels.convolve(x, weight, bias, stride, padding), wanted)
    slopes = normal(3, *wanted.shape)
    (before,) = torch.autograd.grad(wanted, exact, slopes.double())
    assert close(kernels.convolution_slopes(slopes, weight, size, stride, padding), before)
    columns = functional.unfold(x.flatten(0, 1).double(), kernel, padding=padding, stride=stride)
    each = torch.bmm(slopes.flatten(3).flatten(0, 1).double(), columns.transpose(1, 2))
    found = kernels.convolution_gradients(x, slopes, kernel, stride, padding)
    assert close(found, each.view(2, 3, -1))


@kernels_here
def test_an_image_does_not_reach_another():
    """A tile may hold pixels of several images: what is not finite stays in its image."""
    from expost.training._torch import layer_kernels as kernels

    x, weight = normal(0, 1, 4, 16, 5, 5), normal(1, 1, 16, 16, 3, 3)
    x[0, 1] = torch.inf
    made = kernels.convolve(x, weight, None, (1, 1), (1, 1))
    back = kernels.convolution_slopes(x, weight, (5, 5), (1, 1), (1, 1))
    wide = kernels.convolution_slopes(x, weight, (10, 10), (2, 2), (1, 1))
    gradients = kernels.convolution_gradients(x, x, (3, 3), (1, 1), (1, 1))
    normed = kernels.group_norm(x.flatten(3), *[torch.ones(1, 16, device=DEVICE)] * 2, 4, 1e-5)[0]
    for found in (made, back, wide, gradients, normed):
        good = torch.isfinite(found[0].flatten(1)).all(1)
        assert good.tolist() == [True, False, True, True]


@kernels_here
@pytest.mark.parametrize(
    ("channels", "pixels", "groups"), [(16, 1024, 4), (6, 49, 3), (4, 1500, 2)]
)
def test_group_norm(channels, pixels, groups):
    from expost.training._torch import layer_kernels as kernels

    x, weight, bias = (
        normal(0, 2, 3, channels, pixels) + 2,
        normal(1, 2, channels),
        normal(2, 2, channels),
    )
    out, mean, scale = kernels.group_norm(x, weight, bias, groups, 1e-5)
    exact, own_weight, own_bias = (
        each.double().clone().requires_grad_()
        for each in (x, weight[:, None].expand(2, 3, -1), bias[:, None].expand(2, 3, -1))
    )
    plain = functional.group_norm(exact.flatten(0, 1), groups, eps=1e-5).view(x.shape)
    wanted = plain * own_weight[..., None] + own_bias[..., None]
    assert close(out, wanted)
    slopes = normal(3, *x.shape)
    leaves = (exact, own_weight, own_bias)
    for found, gradient in zip(
        kernels.group_norm_slopes(slopes, x, mean, scale, weight, groups),
        torch.autograd.grad(wanted, leaves, slopes.double()),
        strict=True,
    ):
        assert close(found, gradient)


@kernels_here
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_patches(case):
    from expost.training._torch import layer_kernels

    channels, _, size, kernel, stride, padding = case
    x = normal(0, 3, channels, *size)
    found = layer_kernels.gather_patches(x, kernel, stride, padding)
    assert torch.equal(found, functional.unfold(x, kernel, padding=padding, stride=stride))


@kernels_here
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [((3, 5, 14, 14), (2, 2), (1, 1)), ((2, 3, 7, 8), (2, 3), (1, 2))],
)
def test_pooling_there_and_back(shape, kernel, stride, rectify):
    """Against torch's own derivative, of the rectifier followed by the pooling."""
    from expost.training._torch import layer_kernels

    x = (normal(0, *shape) - 0.5).requires_grad_()
    wanted = functional.max_pool2d(functional.relu(x) if rectify else x, kernel, stride)
    out, codes = layer_kernels.pool(x.detach(), kernel, stride, rectify)
    assert torch.equal(out, wanted)
    slopes = normal(1, *out.shape)
    wanted.backward(slopes)
    assert torch.allclose(layer_kernels.unpool(slopes, codes, shape, kernel, stride), x.grad)


@kernels_here
@pytest.mark.parametrize("width", [1, 10, 1024, 3001])
def test_squares_do_not_underflow(width):
    from expost.training._torch import layer_kernels

    values = normal(0, 2, 3, width) * torch.tensor([1.0, 1e-30, 1e30], device=DEVICE)[:, None]
    wanted = values.double().square().sum(2)
    assert torch.allclose(layer_kernels.squares(values), wanted, rtol=1e-13, atol=0.0)


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


def small_chain(rectify_first):
    from torch import nn

    middle = [nn.ReLU(), nn.MaxPool2d(2, 1)] if rectify_first else [nn.MaxPool2d(2, 1), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, padding=1),
        *middle,
        nn.Conv2d(3, 40, 2),  # few positions: its norm comes from Gram matrices
        nn.Flatten(),
        nn.Linear(160, 3),
    )


def small_module():
    """Convolutions with GroupNorm, one of them called twice, and one with few positions."""
    from torch import nn

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16)
            self.again, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 40, 3, 3)
            self.head = nn.Linear(40, 3)

        def forward(self, x):
            x = torch.relu(self.norm(self.first(x)))
            x = torch.relu(self.again(torch.relu(self.again(x)))) + x
            return self.head(self.last(x).mean((2, 3)))

    return Module()


@kernels_here
@pytest.mark.parametrize("kind", ["chain", "chain, pooled first", "module"])
def test_clipped_sums_with_these_kernels(monkeypatch, kind):
    """Against exact sums in fixed point on a CPU; both compute gradients in float32."""
    from expost.training._torch import convolutions, layer_chain, layer_kernels, modules

    for room in (layer_chain, modules, convolutions):
        monkeypatch.setattr(room, "kernels_of", lambda device: layer_kernels)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9, 1, 8, 8)).astype(np.float32)
    y = rng.integers(0, 3, 9).astype(float)
    factory = small_module if kind == "module" else lambda: small_chain(kind == "chain")
    exact = modules.ModuleSums(factory(), factory, X, y, "softmax", "cpu", exact=True)
    sums = (
        modules.ModuleSums(factory(), factory, X, y, "softmax", DEVICE, exact=False)
        if kind == "module"
        else layer_chain.ChainSums(factory(), factory, X, y, "softmax", DEVICE)
    )
    rows, taken = rng.integers(0, 9, (2, 5)), rng.random((2, 5)) < 0.8
    clips, start = torch.tensor([0.3, 50.0], dtype=torch.float64), exact.start([1, 2])
    given = (start, torch.from_numpy(rows), torch.from_numpy(taken), clips)
    wanted = exact(*given, 1 << 30)
    found = sums(*(each.to(DEVICE) for each in given), 1 << 30).cpu()
    assert close(found.to(DEVICE), wanted.to(DEVICE))
