"""Convex models: sensitivity by brute force, certificates, hostile rows, second moments."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.training.convex import (
    ClassMoments,
    ConvexProblem,
    Preprocessing,
    SecondMoments,
    minimise,
)
from expost.training.convex import solver as solver_module
from expost.training.convex.solver import accelerated, certified, counted, enough_steps

ANGLES = [np.array([math.cos(t), math.sin(t)]) for t in np.linspace(0, 2 * math.pi, 7)[:-1]]


def true_minimiser(problem: ConvexProblem, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Newton's method with a numerical Hessian of the gradient, to full precision."""
    size = problem.width * problem.outputs
    w = np.zeros(size)

    def gradient(at: np.ndarray) -> np.ndarray:
        return problem.gradient(at.reshape(problem.width, problem.outputs), X, y).ravel()

    for _ in range(60):
        g = gradient(w)
        if np.linalg.norm(g) < 1e-13:
            break
        step = 1e-6
        hessian = np.array(
            [(gradient(w + step * e) - gradient(w - step * e)) / (2 * step) for e in np.eye(size)]
        )
        direction = np.linalg.solve((hessian + hessian.T) / 2, -g)
        w = w + direction * min(1.0, 1.0 / max(np.linalg.norm(direction), 1e-300))
    return w.reshape(problem.width, problem.outputs)


def cases() -> list[Any]:
    return [
        ("logistic", 2, [0.0, 1.0]),
        ("softmax", 3, [0.0, 1.0, 2.0]),
        ("squared", 2, [0.0, 0.5, 1.0]),
    ]


@pytest.mark.parametrize(("loss", "classes", "targets"), cases())
@pytest.mark.parametrize("regularisation", [0.05, 1.0])
def test_sensitivity_against_brute_force(
    loss: str, classes: int, targets: list[float], regularisation: float
) -> None:
    """Every removable row of many tiny data sets: the true and the computed minimiser move by at
    most the bound, and the bound is not far above what happens."""
    problem = ConvexProblem(loss, 3, 2, regularisation, classes)
    generator = np.random.default_rng(0)
    worst = 0.0
    for _ in range(12):
        X = np.array([ANGLES[place] for place in generator.integers(0, 6, 2)])
        y = generator.choice(targets, 2)
        base = minimise(problem, X, y)
        true_base = true_minimiser(problem, X, y)
        assert np.linalg.norm(base - true_base) <= problem.tolerance
        assert np.linalg.norm(true_base) <= problem.radius
        for angle, target in product(ANGLES, targets):
            more, labels = np.vstack([X, angle]), np.append(y, target)
            moved = true_minimiser(problem, more, labels)
            distance = float(np.linalg.norm(moved - true_base))
            assert distance <= problem.exact_sensitivity
            computed = float(np.linalg.norm(minimise(problem, more, labels) - base))
            assert computed <= problem.sensitivity
            worst = max(worst, distance / problem.exact_sensitivity)
    assert worst > (0.03 if loss == "squared" else 0.15)


@pytest.mark.parametrize(("loss", "classes", "targets"), cases())
def test_worst_row_reaches_the_bound_at_strong_regularisation(
    loss: str, classes: int, targets: list[float]
) -> None:
    """λ → ∞: the minimiser is the mean gradient at 0 over λ, and the bound is nearly tight."""
    problem = ConvexProblem(loss, 1, 2, 1000.0, classes)
    moved = max(
        float(np.linalg.norm(minimise(problem, np.array([[1.0, 0.0]]), np.array([target]))))
        for target in targets
    )
    assert 0.98 * problem.exact_sensitivity < moved <= problem.sensitivity


@pytest.mark.parametrize(("loss", "classes", "targets"), cases())
def test_gradient_bound_holds_at_every_point_of_the_ball(
    loss: str, classes: int, targets: list[float]
) -> None:
    generator = np.random.default_rng(1)
    for regularisation in (0.01, 0.3, 3.0):
        problem = ConvexProblem(loss, 1, 2, regularisation, classes)
        free = ConvexProblem(loss, 1, 2, 1e-6, classes)
        for _ in range(200):
            w = generator.normal(size=(2, problem.outputs))
            w *= problem.radius * generator.random() ** 0.1 / np.linalg.norm(w)
            x, target = ANGLES[generator.integers(6)], generator.choice(targets)
            one = free.gradient(w, x[None], np.array([target])) - 1e-6 * w
            assert np.linalg.norm(one) <= problem.row_gradient


@pytest.mark.parametrize(("loss", "classes", "targets"), cases())
def test_both_ways_of_solving_are_within_the_tolerance(
    loss: str, classes: int, targets: list[float]
) -> None:
    generator = np.random.default_rng(2)
    problem = ConvexProblem(loss, 50, 2, 0.05, classes)
    X = np.array([ANGLES[place] for place in generator.integers(0, 6, 50)])
    y = generator.choice(targets, 50)
    true = true_minimiser(problem, X, y)
    fast, slow = accelerated(problem, X, y), counted(problem, X, y)
    assert fast is not None
    assert np.linalg.norm(fast - true) <= problem.tolerance
    assert np.linalg.norm(slow - true) <= problem.tolerance
    assert certified(problem, fast, problem.gradient(fast, X, y))
    far = true + problem.tolerance * 30
    assert not certified(problem, far, problem.gradient(far, X, y))
    assert enough_steps(problem) > 50


def test_slow_way_is_taken_where_the_fast_one_does_not_certify(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solver_module, "many_steps", lambda problem, rows: 1)
    problem = ConvexProblem("softmax", 4, 2, 0.1, 3)
    X, y = np.array(ANGLES[:4]), np.array([0.0, 1.0, 2.0, 1.0])
    assert accelerated(problem, X, y) is None
    found = minimise(problem, X, y)
    assert np.linalg.norm(found - true_minimiser(problem, X, y)) <= problem.tolerance


@pytest.mark.parametrize("rows", [4, 60, 600])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_more_rows_than_stated_move_the_minimiser_no_further(loss: str, rows: int) -> None:
    """With a secret number of rows the bound holds also far above the public number of places."""
    generator = np.random.default_rng(rows)
    problem = ConvexProblem(loss, 3, 2, 0.01, 2 if loss == "logistic" else 3, crowd=16)
    X = np.array([ANGLES[place] for place in generator.integers(0, 6, rows)])
    y = (X[:, 0] + 0.3 * generator.normal(size=rows) > 0).astype(float)
    base = minimise(problem, X, y)
    assert np.linalg.norm(base - true_minimiser(problem, X, y)) <= problem.tolerance
    for angle, label in ((ANGLES[0], 0.0), (ANGLES[3], 1.0)):
        other = minimise(problem, np.vstack([X, angle]), np.append(y, label))
        assert np.linalg.norm(other - base) <= problem.sensitivity


def test_little_regularisation_is_solved_by_the_fast_way() -> None:
    """Plain gradient steps would take millions here."""
    generator = np.random.default_rng(8)
    X = Preprocessing().rows(generator.random((300, 10)))
    y = (X[:, 0] > X[:, 1]).astype(float)
    problem = ConvexProblem("softmax", 300, 11, 1e-6, 3)
    assert enough_steps(problem) > 10**6
    assert accelerated(problem, X, y) is not None


def test_class_moments_are_exact_sums_and_move_by_at_most_the_sensitivity() -> None:
    generator = np.random.default_rng(9)
    X, y = generator.random((9000, 5)), generator.integers(0, 3, 9000).astype(float)
    moments = ClassMoments(5, 3, 3, Preprocessing())
    base = moments.sums(X, y)
    order = generator.permutation(9000)
    assert np.array_equal(moments.sums(X[order], y[order]), base)
    for row in ([1.0, 0, 0, 0, 0], [1e308, -1, 0, 1, 1], [0.2] * 5):
        for label in (0.0, 2.0):
            moved = moments.sums(np.vstack([X, row]), np.append(y, label)) - base
            alone = moments.sums(np.array([row]), np.array([label]))
            assert np.linalg.norm(moved) <= moments.sensitivity
            assert np.allclose(moved, alone, atol=1e-9)
            assert np.linalg.norm(alone) > 0.99 * moments.sensitivity


@pytest.mark.parametrize("row", [[np.nan, 0.2], [np.inf, 0.1], [-np.inf, 0.0], [1e300, np.nan]])
@pytest.mark.parametrize("label", [0.0, np.nan, -1.0, 7.0, 0.5, np.inf])
def test_bad_rows_count_as_absent(row: list[float], label: float) -> None:
    """A row that is not usable gives the same point, bit for bit, as a data set without it."""
    generator = np.random.default_rng(3)
    X, y = generator.random((20, 2)), generator.integers(0, 3, 20).astype(float)
    scaled = Preprocessing()
    problem = ConvexProblem("softmax", 25, 3, 0.01, 3)
    alone = minimise(problem, np.vstack([scaled.rows(X), np.zeros((1, 3))]), np.append(y, 0.0))
    bad_value = minimise(problem, scaled.rows(np.vstack([X, row])), np.append(y, 1.0))
    bad_label = minimise(problem, scaled.rows(np.vstack([X, [0.3, 0.4]])), np.append(y, label))
    assert np.array_equal(alone, bad_value)
    if label != 0:
        assert np.array_equal(alone, bad_label)


def test_only_row_of_a_class_and_huge_values_move_little() -> None:
    generator = np.random.default_rng(4)
    X, y = generator.random((40, 3)), np.zeros(40)
    problem = ConvexProblem("softmax", 41, 4, 0.01, 3)
    scaled = Preprocessing()
    base = minimise(problem, scaled.rows(X), y)
    for row, label in (([0.5, 0.5, 0.5], 2.0), ([1e308, -1e308, 0.0], 1.0), ([1, 1, 1], 0.0)):
        other = minimise(problem, scaled.rows(np.vstack([X, row])), np.append(y, label))
        assert 0 < np.linalg.norm(other - base) <= problem.sensitivity
    empty = minimise(problem, np.zeros((0, 4)), np.zeros(0))
    assert np.array_equal(empty, np.zeros((4, 3)))


@pytest.mark.parametrize(("loss", "classes"), [("logistic", 2), ("softmax", 3)])
@pytest.mark.parametrize("times", [2, 16, 400])
def test_sensitivity_with_any_secret_number_of_rows(loss: str, classes: int, times: int) -> None:
    """The sensitivity is public, the number of rows is not. With 400 times as many rows as places,
    steps for 16 times as many would diverge."""
    places = 5
    problem = ConvexProblem(loss, places, 2, 0.01, classes, crowd=16)
    generator = np.random.default_rng(0)
    X = np.array([ANGLES[place] for place in generator.integers(0, 6, times * places)])
    y = generator.integers(0, classes, len(X)).astype(float)
    whole = minimise(problem, X, y)
    assert np.isfinite(whole).all()
    for place in (0, 1, 2):
        less = np.delete(np.arange(len(X)), place)
        moved = np.linalg.norm(whole - minimise(problem, X[less], y[less]))
        assert moved <= problem.sensitivity
    assert np.linalg.norm(problem.gradient(whole, X, y)) < 1e-2


def test_preprocessing_has_norm_at_most_one_and_keeps_decisions() -> None:
    generator = np.random.default_rng(5)
    X = generator.normal(0.5, 2, (300, 6))
    for scaled in (Preprocessing(), Preprocessing(bias=0.1, offset=0.5)):
        rows = scaled.rows(X).astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        assert norms.max() <= 1
        assert norms.min() > 1 - 1e-5
        weights = generator.normal(size=(7, 4))
        weight, bias = scaled.unfold(weights)
        plain = np.clip(X, 0, 1) @ weight.T + bias
        margins = np.sort(plain, axis=1)
        clear = margins[:, -1] - margins[:, -2] > 1e-5
        assert np.array_equal((rows @ weights).argmax(1)[clear], plain.argmax(1)[clear])
        valid = np.arange(300) % 2 == 0
        assert not scaled.rows(X, valid)[1::2].any()


def test_rounding_bound_covers_the_computed_gradient() -> None:
    """Against longdouble arithmetic, at points up to the norm that the bound is for."""
    generator = np.random.default_rng(6)
    for loss, classes in (("logistic", 2), ("softmax", 4), ("squared", 2)):
        problem = ConvexProblem(loss, 300, 40, 0.001, classes)
        X = Preprocessing().rows(generator.random((300, 39)))
        y = generator.integers(0, 2, 300).astype(float)
        w = generator.normal(size=(40, problem.outputs))
        w *= (2 * problem.radius + 1) / np.linalg.norm(w)
        long = X.astype(np.longdouble)
        logits = long @ w.astype(np.longdouble)
        if loss == "squared":
            residuals = logits - y[:, None]
        elif loss == "logistic":
            residuals = 1 / (1 + np.exp(-logits)) - y[:, None]
        else:
            residuals = np.exp(logits - logits.max(axis=1, keepdims=True))
            residuals /= residuals.sum(axis=1, keepdims=True)
            residuals[np.arange(300), y.astype(int)] -= 1
        exact = long.T @ residuals / 300 + np.longdouble(0.001) * w
        error = float(np.sqrt(np.square(problem.gradient(w, X, y) - exact).sum()))
        assert error <= problem.rounding
        assert problem.rounding <= problem.regularisation * problem.tolerance / 4


def test_tolerance_costs_little() -> None:
    for places in (100, 60_000, 10_000_000):
        problem = ConvexProblem("softmax", places, 785, 0.003, 10)
        assert problem.sensitivity <= 1.05 * problem.exact_sensitivity


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


@pytest.mark.parametrize(
    "arguments",
    [
        {"loss": "hinge"},
        {"places": 0},
        {"regularisation": 0.0},
        {"regularisation": float("nan")},
        {"classes": 1},
    ],
)
def test_bad_settings(arguments: dict[str, Any]) -> None:
    good: dict[str, Any] = {"loss": "softmax", "places": 5, "width": 2, "regularisation": 0.1}
    with pytest.raises(InvalidInput):
        ConvexProblem(**{**good, **arguments})


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> ConvexProblem:
    """A problem whose rounding just allows 16 times the public number of rows."""
    problem = ConvexProblem("logistic", 5, 2, 0.1, crowd=16)
    share = problem.tolerance * problem.regularisation / (4.1 * problem.rounding)
    real = ConvexProblem.rounding_of

    def rounding_of(self: ConvexProblem, rows: int, length: float, *unit: float) -> float:
        return share * real(self, rows, length, *unit)

    monkeypatch.setattr(ConvexProblem, "rounding_of", rounding_of)
    return problem


def test_the_tolerance_is_public_for_any_number_of_rows(
    coarse: ConvexProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a tolerance that grows with the secret number of rows, and a way 2 without digits."""
    generator = np.random.default_rng(3)
    X = np.array([ANGLES[place] for place in generator.integers(0, 6, 64 * coarse.places)])
    y = generator.integers(0, 2, len(X)).astype(float)
    used = set()

    def certified(problem: ConvexProblem, *rest: Any) -> bool:
        used.add(problem.tolerance)
        return False

    monkeypatch.setattr(solver_module, "certified", certified)
    found = minimise(coarse, X, y)
    assert used == {coarse.tolerance}
    assert found.dtype == np.float64
    assert np.linalg.norm(found - true_minimiser(coarse, X, y)) <= coarse.tolerance


def test_many_rows_take_wider_numbers(
    coarse: ConvexProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches steps in float64 where its rounding exceeds a quarter of the tolerance."""
    kinds = []
    real = ConvexProblem.gradient

    def gradient(self: ConvexProblem, weights: Any, *rest: Any) -> Any:
        kinds.append(weights.dtype)
        return real(self, weights, *rest)

    monkeypatch.setattr(ConvexProblem, "gradient", gradient)
    for times, kind in ((16, np.float64), (64, np.longdouble)):
        kinds.clear()
        X = np.tile(ANGLES[:5], (times, 1))
        counted(coarse, X, np.arange(len(X)) % 2.0)
        assert set(kinds) == {np.dtype(kind)}
    narrow = solver_module.most_rows(coarse, 2.0**-53)
    assert 16 * coarse.places <= 2 * narrow < 64 * coarse.places
    assert solver_module.most_rows(coarse, 2.0**-64) >= 64 * narrow


@given(
    st.sampled_from(["logistic", "softmax"]),
    st.integers(1, 10**7),
    st.integers(1, 10**4),
    st.floats(-6, 6).map(lambda power: 10**power),
    st.integers(2, 1000),
)
def test_for_how_many_rows_the_second_way_is_proved(
    loss: str, places: int, width: int, regularisation: float, classes: int
) -> None:
    """The tolerance is proved for the rows that the documentation states, for every problem."""
    problem = ConvexProblem(loss, places, width, regularisation, classes, crowd=16)
    assert 2 * solver_module.most_rows(problem, 2.0**-53) >= 16 * places
    assert 2 * solver_module.most_rows(problem, 2.0**-64) >= min(2500 * places, 2**24)
    for unit in (2.0**-53, 2.0**-64):
        rows = solver_module.most_rows(problem, unit)
        visited = 2 * solver_module.actual(problem, rows).radius + problem.tolerance / 4
        error = problem.rounding_of(rows, visited, unit)
        assert error <= regularisation * problem.tolerance / 4
    there = solver_module.actual(problem, 2**24)
    assert (there.radius + problem.tolerance) * 2.0**-53 <= problem.tolerance / 4


def test_least_squares_need_a_public_number_of_rows() -> None:
    """Catches a sensitivity that holds for some secret numbers of rows only."""
    with pytest.raises(InvalidInput, match="crowd"):
        ConvexProblem("squared", 5, 2, 0.1, crowd=16)
