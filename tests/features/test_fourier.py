"""Random Fourier features: exact products, the kernel, a stream that never changes."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import RandomFourier
from expost.features.functions import _cosine, _directions


def test_cosines() -> None:
    turns = np.linspace(-3, 3, 10_001)
    np.testing.assert_allclose(_cosine(turns), np.cos(2 * np.pi * turns), atol=2e-9)


@pytest.mark.parametrize("columns", [1, 40, 5000])
def test_products_are_exact(columns: int) -> None:
    """Whatever order a library adds in: the sum of all absolute products is exact."""
    directions = _directions(columns, 3, 1.7, 5)
    row = np.rint(np.random.default_rng(0).uniform(-1, 1, columns) * 2.0**24) * 2.0**-24
    row[0] = 1.0
    for signs in (1, np.sign(directions[:, 0]) * np.sign(row + 1e-300)):
        product = sum(
            Fraction(float(x)) * Fraction(float(w))
            for x, w in zip(row * signs, directions[:, 0], strict=True)
        )
        assert Fraction(float((row * signs) @ directions[:, 0])) == product
    # the bound of the docstring, for every row
    bits = min(int(np.log2(float(Fraction(float(w)).denominator))) for w in directions[:, 0][:1])
    assert np.abs(directions).sum(axis=0).max() * 2.0 ** (24 + bits) <= 2.0**53


def test_directions_are_normal_and_never_change() -> None:
    directions = _directions(200, 300, 2 * np.pi, 0)
    assert abs(directions.mean()) < 0.02
    assert abs(directions.std() - 1) < 0.01
    assert abs((np.abs(directions) < 1).mean() - 0.6827) < 0.01
    digest = sha256(_directions(3, 4, 1.5, 7).tobytes()).hexdigest()
    assert digest[:16] == "0b88c35dffa30a9b"  # a saved model would predict something else


def test_inner_products_are_those_of_the_kernel() -> None:
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(6, 4)) * 0.3
    values = RandomFourier(20_000, 1.5, seed=1)._values(rows)
    distances = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(
        values @ values.T / 10_000, np.exp(-(1.5**2) * distances / 2), atol=0.03
    )


def test_seeds_differ_and_numbers_are_clipped() -> None:
    rows = np.array([[0.5, -0.2], [1.0, -1.0]])
    one, other = (RandomFourier(10, 1.0, seed).transform(rows) for seed in (1, 2))
    assert not np.allclose(one, other)
    wild = RandomFourier(10, 1.0, 1).transform(np.array([[1e300, -7.0]]))
    np.testing.assert_array_equal(wild[0], one[1])


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ((7, 1.0, 0), "dimension"),
        ((0, 1.0, 0), "dimension"),
        ((8, 0.0, 0), "scale"),
        ((8, float("inf"), 0), "scale"),
        ((8, 1.0, -1), "seed"),
        ((8, 1.0, True), "seed"),
    ],
)
def test_other_parameters_are_refused(parameters: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        RandomFourier(*parameters)


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="fewer columns"):
        RandomFourier(1000, 1.0, 0).transform(np.zeros((1, 10**6)))
