"""One example moves a clipped sum by at most the clipping norm, also where rounding is worst."""

import numpy as np
import pytest
import torch
from torch import nn

from expost.training._native import linear
from expost.training._native import network as native
from expost.training._native.network import Network
from expost.training._torch.clipped_sums import ClippedSums, LinearSums, full_precision
from expost.training._torch.convolutions import ghost_square
from expost.training._torch.layer_chain import ChainSums
from expost.training._torch.modules import ModuleSums
from expost.training.exact_noise import clip_bound


def sums_of(kind: str, X: np.ndarray, y: np.ndarray, loss: str, module: nn.Module) -> ClippedSums:
    if kind in ("linear", "dense"):
        return LinearSums(X, y, loss, 1, "cpu")
    return {"chain": ChainSums, "module": ModuleSums}[kind](
        module, lambda: module, X, y, loss, "cpu"
    )


def clipped(
    kind: str, X: np.ndarray, y: np.ndarray, loss: str, module: nn.Module, clip: float = 1.0
) -> torch.Tensor:
    """The clipped sum over all rows at the module's parameters."""
    sums = sums_of(kind, X, y, loss, module)
    sums.careful = True
    flat = torch.cat([value.detach().flatten() for value in module.parameters()]).to(torch.float64)[
        None
    ]
    rows, clips = torch.arange(len(X))[None], torch.tensor([clip], dtype=torch.float64)
    given = flat, rows, torch.ones_like(rows, dtype=torch.bool), clips
    if kind == "dense":
        return sums.dense(*given)[0]  # type: ignore[attr-defined]
    return sums(*given, 1 << 34)[0]


@pytest.mark.parametrize("kind", ["linear", "dense", "chain", "module"])
def test_single_precision_rows_do_not_drift(kind):
    """Contributions of 1 up to a power of two, then many that a float32 sum rounds away above it
    and doubles below it.
    """
    module = nn.Sequential(nn.Linear(1, 1))
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    step, found = 0.255 * 2.0**-8, []
    for large in (2**15 - 1, 2**15 + 3):
        wanted = np.concatenate([np.ones(large), np.full(20_000, -step)])
        X, y = np.full((len(wanted), 1), 1e3, dtype=np.float32), -wanted / 2e3 * (1 - 1e-6)
        found.append(clipped(kind, X, y, "squared", module))
    assert torch.linalg.vector_norm(found[1] - found[0]) <= 4 * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["linear", "chain", "module"])
@pytest.mark.parametrize("clip", [1e-3, 1e-4, 1e-6])
def test_slopes_whose_squares_vanish_in_float32_are_clipped(kind, clip):
    module = nn.Sequential(nn.Linear(4, 1))
    nn.init.zeros_(module[0].weight)
    nn.init.constant_(module[0].bias, -53.0)  # the slope is e^−53, its square below float32's end
    X = np.full((1, 4), 9e18, dtype=np.float32)
    found = clipped(kind, X, np.zeros(1), "logistic", module, clip)
    assert float(torch.linalg.vector_norm(found)) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("scales", [(1e17, 1e-24), (1e-24, 1e17), (1e-24, 1e-24), (1.0, 1.0)])
def test_norms_from_gram_matrices_that_vanish_are_not_too_small(scales):
    generator = torch.Generator().manual_seed(0)
    patches = scales[0] * torch.randn(50, 25, 256, generator=generator)
    slopes = scales[1] * torch.randn(50, 25, 32, generator=generator)
    true = torch.bmm(slopes.double().transpose(1, 2), patches.double()).square().sum((1, 2))
    grams = (torch.bmm(each, each.transpose(1, 2)) for each in (patches, slopes))
    found = ghost_square(*grams, 256, 32)
    assert (found >= true).all()
    if scales == (1.0, 1.0):
        assert (found <= 1.01 * true).all()


@pytest.mark.parametrize("kind", ["linear", "network"])
def test_in_the_native_engines_a_row_counts_the_same_in_any_company(kind):
    """Features that cancel, so another order of additions would reverse the gradient of a row."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((40, 32))
    X, y = (
        (1e9 * np.concatenate([half, -half], axis=1)).astype(np.float32),
        rng.integers(0, 2, 40).astype(float),
    )
    if kind == "linear":
        parameters, norms = np.append(np.tile(rng.standard_normal(32), 2), 0.0), linear.row_norms(X)
        bound = clip_bound(1.0, 65, 40)

        def add(rows: np.ndarray) -> np.ndarray:
            total = np.zeros(65)
            linear.clipped_sum_single(
                X, y, norms, rows, parameters, bound, linear.LOGISTIC, total, linear.NO_WEIGHTS
            )
            return total
    else:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 2))
        with torch.no_grad():
            module[0].weight[:, 32:] = module[0].weight[:, :32]
        network = Network(module, (64,))
        scratch, bound = network.scratch(np.float32), clip_bound(1.0, network.width, 40)
        native.load_parameters(network.table, network.flat(module), scratch)

        def add(rows: np.ndarray) -> np.ndarray:
            total = np.zeros(network.width)
            native.clipped_sum(
                network.table, X, y, rows, linear.SOFTMAX, bound, scratch, total, linear.NO_WEIGHTS
            )
            return total

    alone = np.array([add(np.array([row])) for row in range(40)])
    assert np.linalg.norm(alone, axis=1).max() > 0.99
    for count in range(1, 41):
        assert (add(np.arange(count)) == alone[:count].sum(0)).all()
        assert (add(np.arange(count)[::-1].copy()) == alone[:count].sum(0)).all()


def test_tf32_is_off_during_training_and_back_afterwards():
    backend = torch.backends.cuda.matmul
    name, loose, plain = (
        ("fp32_precision", "tf32", "ieee")
        if hasattr(backend, "fp32_precision")
        else ("allow_tf32", True, False)
    )
    before = getattr(backend, name)
    try:
        setattr(backend, name, loose)
        with full_precision():
            assert getattr(backend, name) == plain
        assert getattr(backend, name) == loose
    finally:
        setattr(backend, name, before)
