"""The sharp bound of a competitor: never below the true maximum, and close to it.

The reference is written independently of the code: a search for the maximum in 60 digits.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from expost.selection import renyi_charges
from expost.selection.renyi_charges import Competitors, highest


def true_maximum(order: float, beta: float, divergence: float, gap: float, kept: float) -> float:
    """The maximum over b in [0, 1] of α·ln(1−A·b^p) − (α−1)·ln(1−C·b), and 0."""
    with mpmath.workdps(60):
        alpha, beta_ = mpmath.mpf(order), mpmath.mpf(beta)
        power = beta_ / (beta_ - 1)
        a = mpmath.mpf(kept) * mpmath.exp(-mpmath.mpf(divergence))
        c = mpmath.mpf(kept) * mpmath.exp(-mpmath.mpf(gap))

        def f(t):
            inside = a * mpmath.exp(power * t)
            if inside >= 1:
                return -mpmath.inf
            return alpha * mpmath.log1p(-inside) - (alpha - 1) * mpmath.log1p(-c * mpmath.exp(t))

        # f rises, falls and rises again: look at a grid in ln b, then close in on its best point.
        centre = (beta_ - 1) * (mpmath.log((alpha - 1) * c / (alpha * a * power)))
        grid = [min(mpmath.mpf(0), centre + mpmath.mpf(k) / 8) for k in range(-24, 25)]
        grid += [-mpmath.mpf(k) / 4 for k in range(40)]
        best = max(grid, key=f)
        low, high = best - mpmath.mpf(1) / 4, min(mpmath.mpf(0), best + mpmath.mpf(1) / 4)
        for _ in range(120):
            one, two = (2 * low + high) / 3, (low + 2 * high) / 3
            low, high = (one, high) if f(one) < f(two) else (low, two)
        return float(max(0, f(low), f(best), f(mpmath.mpf(0))))


def random_points(count: int, seed: int) -> list[tuple[float, float, float, float, float]]:
    generator = np.random.default_rng(seed)
    points = []
    for _ in range(count):
        order = 1 + 10 ** generator.uniform(-2, 2.5)
        beta = 1 + 10 ** generator.uniform(-2, 2.5)
        rho = 10 ** generator.uniform(-4, 0.5)
        gap = beta * rho * 10 ** generator.uniform(-1, 1)
        kept = min(1.0, 10 ** generator.uniform(-6, 0.1))
        points.append((order, beta, beta * rho, gap, kept))
    return points


EDGES = [
    (2.0, 2.0, 0.0, 0.1, 1.0),  # A = 1: f is −∞ at b = 1
    (2.0, 2.0, 0.5, 0.5, 1.0),
    (8.0, 1.01, 0.1, 0.1, 1.0),
    (8.0, 1024.0, 10.0, 10.0, 1.0),
    (300.0, 300.0, 1.0, 3.0, 0.999999),
    (1.01, 1.01, 1e-6, 1e-6, 1e-12),
    (4.0, 4.0, 800.0, 1.0, 0.5),  # A underflows
    (4.0, 4.0, 1.0, 700.0, 0.5),
    (4.0, 4.0, 1.0, 1.0, 5e-324),
]


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_never_below_the_maximum_and_close_to_it(seed):
    """Catches a bracket that misses the root, a wrong end, and a bound that is needlessly large."""
    for point in random_points(25, seed):
        bound = float(highest(point[0], *(np.array([each]) for each in point[1:]))[0])
        exactly = true_maximum(*point)
        assert bound >= exactly * (1 - 1e-15), point
        beta = point[1]
        assert bound <= exactly * (1 + 4 * beta * 2.0**-30) + 1e-12 * point[0], point


@pytest.mark.parametrize("point", EDGES)
def test_edges(point):
    bound = float(highest(point[0], *(np.array([each]) for each in point[1:]))[0])
    exactly = true_maximum(*point)
    assert bound >= exactly * (1 - 1e-15)
    assert bound <= exactly * (1 + 1e-5) + 1e-9 * point[0]


def test_nothing_kept_adds_nothing():
    assert highest(4.0, *(np.array([each]) for each in (4.0, 1.0, 1.0, 0.0)))[0] == 0


@pytest.mark.parametrize("halvings", [0, 1, 5])
def test_the_bound_does_not_depend_on_the_bisection(monkeypatch, halvings):
    """With a bracket that is hardly halved the bound is larger, and still valid."""
    points = random_points(40, 9)
    fine = [highest(p[0], *(np.array([each]) for each in p[1:]))[0] for p in points]
    monkeypatch.setattr(renyi_charges, "_HALVINGS", halvings)
    coarse = [highest(p[0], *(np.array([each]) for each in p[1:]))[0] for p in points]
    assert all(c >= f * (1 - 1e-12) for c, f in zip(coarse, fine, strict=True))
    assert all(
        c >= true_maximum(*p) * (1 - 1e-15) for c, p in zip(coarse[:10], points[:10], strict=True)
    )


def test_an_end_with_the_wrong_sign_is_replaced(monkeypatch):
    """Catches a certificate that trusts the bisection: here every step goes the wrong way."""
    points = random_points(20, 11)
    fine = [highest(p[0], *(np.array([each]) for each in p[1:]))[0] for p in points]

    def wrong(condition, yes, no):
        return np_where(condition if np.shape(yes) == () else ~np.asarray(condition), yes, no)

    np_where = np.where
    calls = iter(range(10**9))

    def where(condition, yes, no):
        return (wrong if next(calls) % (3 * renyi_charges._HALVINGS + 4) < 90 else np_where)(
            condition, yes, no
        )

    monkeypatch.setattr(np, "where", where)
    broken = [highest(p[0], *(np.array([each]) for each in p[1:]))[0] for p in points]
    monkeypatch.undo()
    assert all(b >= f * (1 - 1e-12) for b, f in zip(broken, fine, strict=True))


def test_bounds_that_are_computed_together_are_those_of_each_alone(monkeypatch):
    """The same bits; catches rows that take the order, the gap or the group of another row."""
    orders = np.array([1.5, 2.0, 2.1, 3.0, 4.0, 8.0])
    curves = np.outer([0.1, 0.4, 1.0], orders)
    rates = np.array([0.5, 1.0, 3.0])
    keeping = np.exp(-np.outer(rates, np.arange(0.0, 60.0, 4.0)))
    points = [(order, shift) for order in orders for shift in (0.5, 2.0)]
    found = []
    for together in (1, 100, 1 << 14):  # rows × cells
        monkeypatch.setattr(renyi_charges, "_TOGETHER", together)
        monkeypatch.setattr(renyi_charges, "_factor_rows", {})
        competitors = Competitors(orders, curves, rates, keeping)
        competitors.remember(points)
        rows = [
            competitors.factors("sharp", index, shift)
            for index in range(len(orders))
            for shift in (0.5, 2.0)
        ]
        found.append(np.array(rows))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    for (order, shift), row in zip(points, found[0], strict=True):
        own = curves[:, orders == order][:, 0]
        alone = [
            highest(order, np.array([order]), *(np.array([x]) for x in (divergence, gap, kept)))[0]
            for divergence, gap, kept in zip(own, rates * shift, keeping[:, 0], strict=True)
        ]
        assert (row[:, 0] <= np.array(alone) * (1 + 1e-12)).all()  # β = α is one of those tried


def test_bounds_do_not_depend_on_other_groups(monkeypatch):
    """The same bits where other groups, which are kept for longer, were priced before."""
    orders = np.geomspace(1.05, 200, 40)
    rates, levels = np.array([0.5, 0.01]), np.arange(400.0)
    curves, keeping = np.outer(np.square(rates) / 2, orders), np.exp(-np.outer(rates, levels))
    both = Competitors(orders, curves, rates, keeping)
    alone = Competitors(orders, curves[:1], rates[:1], keeping[:1])
    for index in (3, 10, 30):
        monkeypatch.setattr(renyi_charges, "_factor_rows", {})
        first = alone.factors("sharp", index, 1.2)
        monkeypatch.setattr(renyi_charges, "_factor_rows", {})
        both.factors("sharp", index, 1.2)
        assert first is not None
        np.testing.assert_array_equal(alone.factors("sharp", index, 1.2), first)
