"""Gradients of any module: against autograd row by row, independence of rows, odd modules."""

import numpy as np
import pytest
import torch
from torch import nn

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._torch.modules import ModuleSums
from tests.training.networks import CLASSES, clipped_gradients, random_network


def sums_of(module, X, y, *, exact=True, clip=0.7, models=1, rows=None):
    """The clipped sums of models with the module's parameters: models × parameters."""
    sums = ModuleSums(module, lambda: module, X, y, "softmax", "cpu", exact=exact)
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    chosen = torch.arange(len(X)) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
    places = chosen.expand(models, -1)
    clips = torch.full((models,), clip, dtype=torch.float64)
    return sums(
        flat.double().expand(models, -1).clone(),
        places,
        torch.ones_like(places, dtype=torch.bool),
        clips,
        1 << 30,
    ).numpy()


@pytest.mark.parametrize("block", range(10))
def test_clipped_sums_equal_autograd_row_by_row(block):
    """Thirty random networks each: exact sums and matrix products of two models."""
    for seed in range(30 * block, 30 * block + 30):
        module, X, y = random_network(seed)
        for clip in (0.3, 1e3):
            wanted = clipped_gradients(module, X, y, clip).sum(0)
            size = max(1.0, np.abs(wanted).max())
            for exact in (True, False):
                found = sums_of(module, X, y, exact=exact, clip=clip, models=1 if exact else 2)
                assert np.abs(found - wanted).max() <= 1e-9 * size, (seed, exact)
