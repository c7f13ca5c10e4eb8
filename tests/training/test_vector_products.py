"""Products in registers against numpy: every height, every length of an end, and nothing outside of
what they own.
"""

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from expost.training._native import fixed_point, linear, vector_products
from expost.training._native.vector_products import product
from expost.training.exact_noise import clip_bound

TYPES = [pytest.param(np.float32, id="single"), pytest.param(np.float64, id="double")]


def close(found, expected, dtype):
    return np.abs(found - expected).max() <= (1e-5 if dtype == np.float32 else 1e-13) * max(
        1.0, np.abs(expected).max()
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13])
@pytest.mark.parametrize("columns", [1, 7, 8, 16, 19, 40])
def test_a_product_in_tiles_is_the_product(dtype, rows, columns):
    """A plain matrix product (one run) and the sum over two runs with strides of their own, on top
    of what was there.
    """
    rng = np.random.default_rng(rows)
    inner, outer, lanes = 5, 3, vector_products.VECTOR // np.dtype(dtype).itemsize
    a, b = rng.standard_normal((rows, outer, inner)), rng.standard_normal((outer, inner, columns))
    first = rng.standard_normal((rows, columns))
    flat = [each.astype(dtype).ravel() for each in (a, b, first)]
    padded, out = (
        np.append(flat[1], np.full(lanes, np.nan, dtype=dtype)),
        np.full((rows, columns + 2), 7, dtype=dtype),
    )
    product(rows, columns, flat[0], 0, outer * inner, inner, 1, padded, 0, inner * columns, columns,
            outer, inner, flat[2], columns, 1, out.reshape(-1), 0, columns + 2)  # fmt: skip
    assert close(out[:, :columns], first + np.einsum("rij,ijc->rc", a, b), dtype)
    assert (out[:, columns:] == 7).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("height", [1, 4, 8])
@pytest.mark.parametrize("columns", [1, 5, 8, 16, 31, 77])
def test_products_with_rows_and_sums_of_rows(dtype, height, columns):
    rng = np.random.default_rng(columns)
    X, rows = rng.standard_normal((20, columns)).astype(dtype), rng.permutation(20)
    weights, factors = rng.standard_normal(columns), rng.standard_normal(8)
    out, sums = np.full(8, 7.0), np.append(np.full(columns, 3), 7)
    bound = clip_bound(2.0**20, columns, 20)
    multiply, add = vector_products.row_products, fixed_point.add_rows

    @njit
    def run(height, X, rows, weights, out, sums, factors, anchor):
        multiply(height, X, rows, 2, 3, weights, out)
        add(height, X, rows, 2, 3, sums, factors, anchor)

    run(height, X, rows, np.append(weights, np.nan).astype(dtype), out, sums, factors, bound.anchor)
    chosen = X[rows[2 : 2 + height]].astype(float)
    assert close(out[:height], chosen @ weights, dtype)
    assert (out[height:] == 7).all()
    sums[:-1] += fixed_point.without_anchors(height, bound.anchor)
    steps = np.rint(factors[:height, None] * chosen / bound.grid).astype(np.int64)
    # a fused product may round a tie, or what is close to it, to the other side
    assert np.abs(sums[:-1] - 3 - steps.sum(0)).max() <= height
    assert (sums[:-1] - 3 == steps.sum(0)).mean() > 0.9
    assert sums[-1] == 7


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13])
@pytest.mark.parametrize("columns", [1, 7, 8, 19])
def test_sums_of_outer_products_are_whole_numbers_of_steps(rows, columns):
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((4, rows)), rng.standard_normal((4, columns))
    bound, sums = clip_bound(16.0, rows * columns, 4), np.full(rows * columns + 1, 5)
    flat = np.append(b.ravel(), np.full(8, np.nan))
    fixed_point.add_outer_products(rows, columns, a.ravel(), 0, flat, 4, bound.anchor, sums)
    each = [
        np.rint(np.outer(x, y) / bound.grid).astype(np.int64) for x, y in zip(a, b, strict=True)
    ]
    assert np.abs(sums[:-1].reshape(rows, columns) - 5 - sum(each)).max() <= 4
    assert sums[-1] == 5


def test_arrays_with_gaps_or_of_another_precision_are_refused():
    """Nobody checks strides at run time, so the compiler has to."""
    X, y, rows, total = np.zeros((4, 4)), np.zeros(4), np.arange(3), np.zeros(5)
    norms, bound = linear.row_norms(X), clip_bound(1.0, 5, 4)
    linear.clipped_sum_single(X, y, norms, rows, np.zeros(5), bound, 0, total, linear.NO_WEIGHTS)
    for wrong in (X.T, X[:, ::2], X.astype(np.int64)):
        with pytest.raises(TypingError):
            linear.clipped_sum_single(
                wrong, y, norms, rows, np.zeros(5), bound, 0, total, linear.NO_WEIGHTS
            )
    with pytest.raises(TypingError):
        linear.clipped_sum_single(
            X, y, norms, np.arange(6)[::2], np.zeros(5), bound, 0, total, linear.NO_WEIGHTS
        )
