"""Outputs of linear models: exactly rounded, and the same whatever rows they are computed with."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from expost.tuning.model.released_model import linear_outputs


@pytest.mark.parametrize(("features", "outputs"), [(30, 1), (64, 10), (8, 3), (300, 2)])
def test_outputs_of_a_row_do_not_depend_on_the_other_rows(features: int, outputs: int) -> None:
    generator = np.random.default_rng(features)
    X = generator.random((1500, features))
    weight, bias = generator.normal(size=(outputs, features)), generator.normal(size=outputs)
    whole = linear_outputs(X, weight, bias)
    for rows in (1, 2, 3, 5, 7, 100, 999, 1499):
        assert np.array_equal(linear_outputs(X[:rows], weight, bias), whole[:rows])
    for place in (0, 3, 700):
        assert np.array_equal(
            linear_outputs(np.delete(X, place, axis=0), weight, bias),
            np.delete(whole, place, axis=0),
        )


def test_outputs_are_exact_values_rounded_to_the_nearest_step() -> None:
    generator = np.random.default_rng(1)
    X, weight, bias = generator.random((40, 6)), generator.normal(size=(2, 6)), np.array([0.5, -2])
    found = linear_outputs(X, weight, bias)
    for row, output in np.ndindex(found.shape):
        exact = Fraction(float(bias[output])) + sum(
            Fraction(x) * Fraction(w) for x, w in zip(X[row], weight[output], strict=True)
        )
        largest = float(np.abs(weight[output]).sum() + abs(bias[output]))
        step = Fraction(2) ** int(np.frexp(largest)[1] - 26)
        assert abs(Fraction(found[row, output]) - exact) <= step / 2


def test_ties_are_decided_exactly() -> None:
    """Rows on the boundary of the rounding, where floating point cannot decide."""
    weight, bias = np.array([[1.0, 2.0**-27, 2.0**-60]]), np.array([0.0])
    X = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, -1.0]])
    step = 2.0**-25
    assert linear_outputs(X, weight, bias).tolist() == [[0], [0], [0]]
    weight = np.array([[1.0, 2.0**-26, 2.0**-90]])
    above, tie, below = linear_outputs(X, weight, bias)[:, 0] / step
    assert (above, tie, below) == (1, 1, 0)


def test_parameters_that_are_not_usable_give_nan() -> None:
    X = np.ones((3, 2))
    for bad in (np.nan, np.inf, 1e300):
        assert np.isnan(linear_outputs(X, np.array([[bad, 1.0]]), np.zeros(1))).all()
        assert np.isnan(linear_outputs(X, np.ones((1, 2)), np.array([bad]))).all()
    assert linear_outputs(X, np.zeros((1, 2)), np.zeros(1)).tolist() == [[0], [0], [0]]
