"""Rounded rows, and their compact form: exact products and sums, with and without kernels."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.training import lattice_rows
from expost.training.lattice_rows import BLOCK, CompactRows, rounded_rows, whole_rows
from expost.training.progressive import LinearTraining, TrainingRows, on_lattice


def some_rows(generator: Any, count: int, width: int, filled: float) -> Any:
    rows = generator.normal(size=(count, width)) * (generator.random((count, width)) < filled)
    rows /= np.maximum(np.sqrt(np.square(rows).sum(axis=1, keepdims=True)), 1e-9)
    rows[:, ::3] = np.where(generator.random(rows[:, ::3].shape) < 0.7, 0.0, rows[:, ::3])
    return rows


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_products_and_sums_are_exact(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count, width, outputs = (
        int(generator.integers(low, high)) for low, high in ((0, 20), (1, 9), (1, 4))
    )
    whole = whole_rows(some_rows(generator, count, width, generator.random()))
    weights = on_lattice(
        generator.normal(size=(width, outputs)) * 10.0 ** generator.integers(-9, 9)
    )
    residuals = np.trunc(generator.uniform(-1, 1, size=(count, outputs)) * 2**24)
    compact = CompactRows.of(whole)
    assert len(compact) == count
    assert np.array_equal(compact.whole(), whole)
    exact = [
        [
            sum(Fraction(x) * Fraction(w) for x, w in zip(row, column, strict=True))
            for column in weights.T.tolist()
        ]
        for row in whole.tolist()
    ]
    products, sums = compact.products(weights), compact.weighted_sum(residuals)
    assert [[Fraction(value) for value in row] for row in products.tolist()] == exact
    wanted = (
        whole.astype(object).T @ residuals.astype(object) if count else np.zeros((width, outputs))
    )
    assert np.array_equal(sums, wanted)
    with pytest.MonkeyPatch.context() as patch:  # without numba
        patch.setattr(lattice_rows, "_kernels", lambda: None)
        assert np.array_equal(compact.products(weights), products)
        assert np.array_equal(compact.weighted_sum(residuals), sums)


def test_the_largest_sum_of_a_block_is_exact() -> None:
    """A block of the largest rows with the largest residuals: just below 2^{53}."""
    whole = np.tile([2.0**15 - 1, 0.0], (BLOCK, 1))
    whole[: BLOCK // 4] = whole[0, ::-1]  # the second column is not filled
    compact = CompactRows.of(whole)
    assert list(compact.filled) == [0]
    residuals = np.full((BLOCK, 1), 2.0**24)
    wanted = [[(2**15 - 1) * 2**24 * BLOCK * 3 // 4], [(2**15 - 1) * 2**24 * BLOCK // 4]]
    assert compact.weighted_sum(residuals).tolist() == wanted
    assert (2**15 - 1) * 2**24 * BLOCK < 2**53


def test_rows_are_never_longer_and_hostile_ones_are_zero() -> None:
    rows = np.array(
        [
            [0.6, -0.8],
            [1.0, 0.0],
            [1.0, 1.0],
            [np.nan, 0.0],
            [-np.inf, np.inf],
            [3e-5, -3e-5],
            [-0.0, 5e-324],
        ]
    )
    rounded = rounded_rows(rows)
    assert np.array_equal(rounded, rounded_rows(rounded))  # training rounds rounded rows
    assert (np.abs(rounded[[0, 1, 5, 6]]) <= np.abs(rows[[0, 1, 5, 6]])).all()
    assert not rounded[[2, 3, 4, 5, 6]].any()
    assert np.array_equal(rounded[0], np.trunc(rows[0] * 2**15) / 2**15)


@pytest.mark.parametrize(("loss", "classes"), [("logistic", 2), ("softmax", 5), ("squared", 2)])
def test_any_division_into_compact_parts_has_the_same_gradient(loss: str, classes: int) -> None:
    generator = np.random.default_rng(3)
    training = LinearTraining(loss, 6, 50, classes)
    X = some_rows(generator, 2500, 6, 0.6)
    y = generator.random(2500) if loss == "squared" else generator.integers(0, classes, 2500)
    y = np.where(generator.random(2500) < 0.1, np.nan, y)
    weights = on_lattice(generator.normal(size=(6, training.outputs)) * 5)
    wanted = TrainingRows.of(X, y, training).gradient_sum(weights, training)
    for _ in range(5):
        cuts = [0, *sorted(generator.integers(0, 2501, 4)), 2500]
        total = sum(
            TrainingRows.of(X[a:b], y[a:b], training, compact=bool(generator.integers(2)))
            .gradient_sum(weights, training)
            .astype(object)
            for a, b in pairwise(cuts)
        )
        assert np.array_equal(total, wanted)
