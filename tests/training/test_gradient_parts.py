"""Parts of gradients: norms and both ways to sum against gradients that are formed."""

import numpy as np
import pytest
import torch
from torch import nn

from expost.training._torch import clipped_sums, modules
from expost.training._torch.clipped_sums import (
    Outer,
    Positions,
    Products,
    Stored,
    Tokens,
    Written,
)
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
    if kind == "written":  # two calls, the second with two images per row
        calls, formed = [], torch.zeros(ROWS, 9, 5, dtype=torch.float64)
        for times in (1, 2):
            inputs, slopes = draw(times, 3, 5), draw(times, 3, 9)
            shapes = (1, 3, 9), (1, 3, 5)
            padded = torch.cat([inputs.flatten(), inputs.new_full((64,), torch.nan)])
            flat = slopes.flatten().numpy(), padded.numpy()
            calls.append(Products(*flat, *shapes, (1, 1), (1, 1), times))
            formed += torch.einsum("etpo,etpi->eoi", slopes.double()[0], inputs.double()[0])
        return Written("w", calls, ROWS), formed.flatten(1)
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
@pytest.mark.parametrize("kind", ["stored", "written", "outer", "positions", "tokens"])
def test_norms_and_sums(kind, dtype, monkeypatch):
    if kind == "positions" and dtype == torch.float64:
        pytest.skip("Gram matrices are for float32 only")
    monkeypatch.setattr(clipped_sums, "_BLOCK", 100)  # two rows at a time
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
    if kind != "written":
        total = part.total(factors, None)[0]
        assert torch.allclose(total, wanted, rtol=tolerance, atol=tolerance)
    if kind != "positions":
        grid, sums = contribution_step(CLIP, ROWS), np.zeros(part.size, dtype=np.int64)
        rows = np.arange(1, ROWS)  # row 0 has the factor 0
        part.add(rows, factors[0].numpy()[1:], 1.5 * 2.0**52 * grid, sums)
        assert np.allclose(sums * grid, wanted.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_what_is_written_twice_is_the_same_bits(dtype, block, monkeypatch):
    """The norm is that of the numbers that are summed, in any company and in any order."""
    part, _ = made("written", dtype)
    stored = part.stored()
    monkeypatch.setattr(clipped_sums, "_BLOCK", block)
    assert torch.equal(part.square(), stored.square())
    for rows in (np.arange(ROWS), np.array([7, 2, 9]), np.array([3])):
        for some, values in part._blocks(rows):
            assert np.array_equal(values, stored.values[0].numpy()[rows[some]])
    grid, factors = contribution_step(CLIP, ROWS), np.linspace(0.01, 0.05, ROWS)
    sums = np.zeros((2, part.size), dtype=np.int64)
    for mine, one in zip(sums, (part, stored), strict=True):
        one.add(np.arange(ROWS), factors, 1.5 * 2.0**52 * grid, mine)
    assert (sums[0] == sums[1]).all()


@pytest.mark.parametrize("kind", ["stored", "written", "outer", "tokens"])
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


class Words(nn.Module):
    """Words, a convolution over them and a linear layer at every position, used twice."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(9, 6), nn.Conv1d(6, 7, 3, padding=1)
        self.turn, self.norm, self.head = nn.Linear(7, 7), nn.LayerNorm(7), nn.Linear(7, 3)

    def forward(self, x):
        x = self.mix(self.words(x.long()).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(torch.tanh(self.turn(torch.tanh(self.turn(x))))).mean(1))


def test_sums_are_the_same_bits_whatever_is_kept(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (21, 5)), rng.integers(0, 3, 21).astype(float)
    torch.manual_seed(0)
    module = Words()
    sums = modules.ModuleSums(module, Words, X, y, "softmax", "cpu")
    weights = torch.cat([value.detach().flatten() for value in module.parameters()]).double()
    totals, written = [], []
    square = Written.square
    monkeypatch.setattr(Written, "square", lambda part: written.append(part) or square(part))
    for kept in (0, 1 << 30):
        monkeypatch.setattr(modules, "_KEPT", kept)
        totals.append(np.empty(sums.width))
        sums.add_up(weights.numpy(), np.arange(21), 0.5, 1, totals[-1])
        assert (len(written) > 0) == (kept == 0)
        written.clear()
    assert np.array_equal(*totals)
    assert np.abs(totals[0]).max() > 0
