"""Second moments: exact sums, sensitivity, hostile rows, and solving noisy normal equations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from expost.training.second_moments import SecondMoments, solve_noisy


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e300, 1e300])
def test_second_moments_sensitivity(bad: float) -> None:
    generator = np.random.default_rng(7)
    for bound in (None, 1.5):
        sums = SecondMoments(3, bound)
        X, y = generator.random((30, 3)), generator.random(30)
        base = sums.sums(X, y)
        worst = 0.0
        extremes = [(row, target) for row in product((0, 1, bad), repeat=3) for target in (0, 1)]
        for row, target in [*extremes, (np.array([0.1, 0.2, 0.3]), bad)]:
            more = sums.sums(np.vstack([X, row]), np.append(y, target))
            worst = max(worst, float(np.linalg.norm(more - base)))
        assert 0.99 * (sums.bound**2 + 1) < worst <= sums.sensitivity


def test_second_moments_solve_least_squares() -> None:
    generator = np.random.default_rng(8)
    X = generator.random((500, 3))
    y = X @ [0.2, 0.3, 0.1] + 0.15
    sums = SecondMoments(3)
    weight, bias = sums.solve(sums.sums(X, y), 0.0)
    assert weight[0] == pytest.approx([0.2, 0.3, 0.1], abs=1e-4)
    assert bias == pytest.approx([0.15], abs=1e-4)
    wild = generator.normal(size=sums.dimension) * 1e300
    assert all(np.isfinite(each).all() for each in sums.solve(wild, 1e300))


def test_negative_eigenvalues_count_as_zero() -> None:
    """With much noise a plain ridge would divide by eigenvalues near minus the ridge."""
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(400, 30)) * np.geomspace(1, 0.05, 30) / 3
    weights = generator.normal(size=(30, 1))
    exact, right = rows.T @ rows, rows.T @ (rows @ weights)
    noise = generator.normal(size=(30, 30)) * 2
    noisy = exact + (noise + noise.T) / 2
    found = solve_noisy(noisy, right, 2.0)
    assert np.linalg.eigvalsh(noisy).min() < 0
    ridge = 0.5 * 2.0 * np.sqrt(30 / 2)
    plain = np.linalg.solve(noisy + ridge * np.eye(30), right)
    errors = [np.linalg.norm(rows @ (solved - weights)) for solved in (found, plain)]
    assert errors[0] < 0.6 * errors[1]
    assert np.allclose(solve_noisy(exact, right, 0.0), weights, atol=1e-3)
    assert np.isfinite(solve_noisy(np.full((3, 3), np.nan), np.ones((3, 1)), 1.0)).all()
