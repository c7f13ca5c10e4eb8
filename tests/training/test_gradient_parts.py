"""Parts of gradients: norms and both ways to sum against gradients that are formed."""

import numpy as np
import pytest
import torch

from expost.training._torch.gradient_parts import Outer, Positions, Stored, Tokens
from expost.training.exact_noise import contribution_step

ROWS, CLIP = 11, 1.0


def made(kind: str, dtype: torch.dtype):
    """A part, and the gradient of every row: rows × size, float64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(1, ROWS, *shape, generator=generator, dtype=torch.float64).to(dtype)

    if kind == "stored":
        values = draw(37)
        return Stored("w", values), values[0].double()
    if kind == "outer":
        inputs, slopes = draw(5), draw(9)
        formed = slopes.double()[0, :, :, None] * inputs.double()[0, :, None]
        return Outer("w", inputs, slopes), formed.flatten(1)
    if kind == "positions":
        inputs, slopes = draw(3, 5), draw(3, 9)
        formed = torch.einsum("epo,epi->eoi", slopes.double()[0], inputs.double()[0])
        return Positions("w", inputs, slopes), formed.flatten(1)
    tokens = torch.randint(-1, 4, (1, ROWS, 6), generator=generator)
    slopes = draw(6, 3)
    formed = torch.zeros(ROWS, 4, 3, dtype=torch.float64)
    for row in range(ROWS):
        for place, token in enumerate(tokens[0, row].tolist()):
            if token >= 0:
                formed[row, token] += slopes.double()[0, row, place]
    return Tokens("w", tokens, slopes, 4), formed.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["stored", "outer", "positions", "tokens"])
def test_norms_and_sums(kind, dtype):
    if kind == "positions" and dtype == torch.float64:
        pytest.skip("Gram matrices are for float32 only")
    part, formed = made(kind, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    found, true = part.square()[0], formed.square().sum(1)
    if kind == "positions":  # contains the largest possible error of float32
        assert (found >= true).all()
        assert (found <= 1.0001 * true).all()
    else:
        assert torch.allclose(found, true, rtol=tolerance)
    factors = torch.linspace(0.0, 0.05, ROWS, dtype=torch.float64)[None]
    wanted = (formed * factors[0][:, None]).sum(0)
    assert torch.allclose(part.total(factors, None)[0], wanted, rtol=tolerance, atol=tolerance)
    if kind != "positions":
        grid, sums = contribution_step(CLIP, ROWS), np.zeros(part.size, dtype=np.int64)
        rows = np.arange(1, ROWS)  # row 0 has the factor 0
        part.add(rows, factors[0].numpy()[1:], 1.5 * 2.0**52 * grid, sums)
        assert np.allclose(sums * grid, wanted.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["stored", "outer", "tokens"])
def test_exact_sums_do_not_depend_on_the_order(kind):
    part, _ = made(kind, torch.float32)
    grid, factors = contribution_step(CLIP, ROWS), np.linspace(0.01, 0.05, ROWS)
    found = []
    for order in (np.arange(ROWS), np.arange(ROWS)[::-1].copy(), np.roll(np.arange(ROWS), 4)):
        sums = np.zeros(part.size, dtype=np.int64)
        for first in range(0, ROWS, 3):
            some = order[first : first + 3]
            part.add(some, factors[some], 1.5 * 2.0**52 * grid, sums)
        found.append(sums)
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@pytest.mark.parametrize("kind", ["stored", "outer", "positions", "tokens"])
def test_cleared_rows_add_nothing(kind):
    part, formed = made(kind, torch.float32)
    for name in ("values", "inputs", "slopes"):
        if hasattr(part, name):
            getattr(part, name)[0, 2] = torch.inf
    assert not torch.isfinite(part.square()[0, 2])
    good = torch.isfinite(part.square())
    part.clear(good)
    wanted = (formed * good[0][:, None]).sum(0)
    assert torch.allclose(part.total(good.double(), None)[0], wanted, rtol=1e-4, atol=1e-4)
