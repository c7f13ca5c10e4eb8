"""Chains of features."""

from __future__ import annotations

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import Chain, OrientedGradients, RandomFourier


def test_a_chain_passes_rows_on() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, size=(4, 8, 8)).astype(float)
    pictures[1, 0, 0] = np.nan
    first, second = OrientedGradients("8x8"), RandomFourier(12, 2.0)
    chain = Chain([first, second])
    found = chain.transform(pictures)
    assert not found[1].any()
    rows = second.transform(first.transform(pictures))
    np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(rows, 1, 0))
    with pytest.raises(InvalidInput, match="64 values"):
        Chain([OrientedGradients("8x8"), OrientedGradients("8x8")])
    for steps in ([], [5], None):
        with pytest.raises(InvalidInput, match="steps"):
            Chain(steps)
