"""Progressive training: exact sums, what one row can change, the steps that a level allows."""

from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.training.lattice_rows import CompactRows
from expost.training.progressive import (
    PART,
    RESIDUAL_BITS,
    ROW_BITS,
    Descent,
    LinearTraining,
    ProgressivePath,
    TrainingRows,
    deviation_for,
    exponential,
    on_lattice,
    step_squares,
)

UNIT = 2.0 ** -(ROW_BITS + RESIDUAL_BITS)
LOSSES = [("logistic", 2), ("softmax", 4), ("squared", 2)]


def rows_of(count: int, width: int, classes: int, loss: str, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(count, width))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-9)
    y = generator.random(count) if loss == "squared" else generator.integers(0, classes, count)
    return X, np.asarray(y, dtype=np.float64)


def total(X: Any, y: Any, weights: Any, training: LinearTraining) -> Any:
    return TrainingRows.of(X, y, training).gradient_sum(weights, training)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("weights_given", [False, True])
def test_a_sum_is_the_sum_of_single_rows_in_any_order(
    loss: str, classes: int, weights_given: bool
) -> None:
    weights = (0.25,) * (classes - 1) + (1.0,) if weights_given and loss != "squared" else None
    training = LinearTraining(loss, 6, 3000, classes, class_weights=weights)
    X, y = rows_of(PART + 700, 6, classes, loss)
    w = on_lattice(np.random.default_rng(1).normal(size=(6, training.outputs)) * 20)
    whole = total(X, y, w, training)
    assert whole.dtype == np.int64
    order = np.random.default_rng(2).permutation(len(X))
    assert np.array_equal(total(X[order], y[order], w, training), whole)
    single = sum(total(X[i : i + 1], y[i : i + 1], w, training) for i in range(len(X)))
    assert np.array_equal(single, whole)
    cuts = [0, 1, 500, PART + 3, len(X)]
    parts = [total(X[a:b], y[a:b], w, training) for a, b in itertools.pairwise(cuts)]
    assert np.array_equal(sum(parts), whole)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_the_sum_is_the_clipped_gradient(loss: str, classes: int) -> None:
    """Against numerical derivatives of the mean loss, without clipping."""
    training = LinearTraining(loss, 5, 400, classes, clip=1.0)
    X, y = rows_of(400, 5, classes, loss, seed=3)
    X = np.trunc(X * 2**ROW_BITS) / 2**ROW_BITS
    w = on_lattice(np.random.default_rng(4).normal(size=(5, training.outputs)) * 0.1)

    def objective(weights: Any) -> float:
        z = X @ weights
        if loss == "squared":
            return float(0.5 * np.square(z[:, 0] - (y - 0.5)).sum())
        if loss == "logistic":
            return float((np.logaddexp(0, z[:, 0]) - y * z[:, 0]).sum())
        top = z.max(axis=1)
        chosen = z[np.arange(len(z)), y.astype(int)]
        return float((np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - chosen).sum())

    found = total(X, y, w, training) * UNIT
    for place in np.ndindex(*w.shape):
        moved = np.zeros_like(w)
        moved[place] = 1e-5
        slope = (objective(w + moved) - objective(w - moved)) / 2e-5
        assert found[place] == pytest.approx(slope, abs=1e-3)


HOSTILE = [
    ([1.0, 0, 0], 1.0),
    ([1.0, 0, 0], 0.0),
    ([-1.0, 0, 0], 1.0),
    ([0.6, -0.8, 0.0], 1.0),
    ([0.0, 0, 0], 1.0),
    ([1.0, 0, 0], math.nan),
    ([1.0, 0, 0], math.inf),
    ([1.0, 0, 0], -1.0),
    ([1.0, 0, 0], 0.5),
    ([1.0, 0, 0], 1e300),
]


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e12])
def test_no_row_moves_the_sum_by_more_than_the_clip(loss: str, classes: int, scale: float) -> None:
    """Added or removed, at the end or in between; the norm is computed exactly."""
    training = LinearTraining(loss, 3, 50, classes)
    X, y = rows_of(40, 3, classes, loss, seed=5)
    w = on_lattice(np.random.default_rng(6).normal(size=(3, training.outputs)) * scale)
    base, largest = total(X, y, w, training), 0.0
    for row, target in HOSTILE:
        for place in (0, 17, 40):
            more = total(np.insert(X, place, row, axis=0), np.insert(y, place, target), w, training)
            square = sum(int(entry) ** 2 for entry in (more - base).ravel())
            assert Fraction(square) * Fraction(UNIT) ** 2 <= Fraction(training.clip) ** 2
            largest = max(largest, math.sqrt(square) * UNIT)
    assert training.sensitivity >= training.clip
    assert training.sensitivity < training.clip * 1.001
    if scale == 1e3:
        assert largest > 0.99 * training.clip  # the bound is reached


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("target", [math.nan, math.inf, -1.0, 1e300, 4.5])
def test_a_row_without_a_valid_target_adds_nothing(loss: str, classes: int, target: float) -> None:
    training = LinearTraining(loss, 3, 50, classes)
    X, y = rows_of(40, 3, classes, loss, seed=5)
    w = on_lattice(np.random.default_rng(6).normal(size=(3, training.outputs)))
    more = total(np.vstack([X, [1.0, 0, 0]]), np.append(y, target), w, training)
    assert np.array_equal(more, total(X, y, w, training))


@pytest.mark.parametrize("row", [[1.0, 1.0], [np.nan, 0.5], [np.inf, -np.inf], [1e308, 0.9]])
def test_a_row_that_is_too_long_moves_the_sum_by_no_more(row: list[float]) -> None:
    """Features are never so; a path with rows of its own might be."""
    training = LinearTraining("logistic", 2, 50, clip=1.0)
    X, y = rows_of(40, 2, 2, "logistic", seed=5)
    weights = on_lattice(np.array([[-30.0], [-40.0]]))
    base = total(X, y, weights, training)
    with_row = total(np.vstack([X, row]), np.append(y, 1.0), weights, training)
    square = sum(int(entry) ** 2 for entry in (with_row - base).ravel())
    assert Fraction(square) * Fraction(UNIT) ** 2 <= 1


def test_sums_of_many_rows_do_not_wrap_around() -> None:
    """2^{24} rows with the largest gradient need more than 64 bits; the claim is for 2^{30}."""
    training = LinearTraining("squared", 1, 50, clip=1.0)
    one = TrainingRows.of(np.ones((PART, 1)), np.zeros(PART), training)
    weights = on_lattice(np.array([[4.0]]))
    single = int(one.gradient_sum(weights, training)[0, 0])
    parts = 2**14 + 2
    assert single * parts > 2**63
    summed = TrainingRows(one.parts * parts).gradient_sum(weights, training)
    assert int(summed[0, 0]) == single * parts
    assert summed.ravel().astype(np.float64)[0] == float(single * parts)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_compact_rows_give_the_same_sum(
    loss: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = LinearTraining(loss, 3, 50, classes)
    X, y = rows_of(PART + 9, 3, classes, loss)
    X[:4] = [[1, 0, 0], [-1, 0, 0], [0, -1.0, 0], [0, 0, 1.0]]  # 2^{15} does not fit in 16 bits
    weights = on_lattice(np.random.default_rng(1).normal(size=(3, training.outputs)) * 5)
    wide = total(X, y, weights, training)
    monkeypatch.setattr("expost.training.progressive._KEPT_BYTES", 0)
    kept = TrainingRows.of(X, y, training)
    assert isinstance(kept.parts[0][0], CompactRows)
    assert np.array_equal(kept.gradient_sum(weights, training), wide)


def test_neighbours_with_a_replaced_row_are_refused() -> None:
    """The sum would move by twice the clip."""
    with pytest.raises(InvalidInput, match="neighbours"):
        ProgressivePath(LinearTraining("logistic", 2, 10), as_rows, as_weights, "replace")


@given(
    st.lists(st.floats(1e-8, 4.0), min_size=1, max_size=8, unique=True),
    st.floats(1e-12, 10.0),
    st.integers(1, 40),
)
@settings(max_examples=200, deadline=None)
def test_steps_add_up_to_at_most_the_level(
    values: list[float], first: float, per_doubling: int
) -> None:
    levels = [Fraction(value) ** 2 for value in sorted(values)]
    steps = step_squares(levels, first, per_doubling)
    assert len(steps) == len(levels)
    made = Fraction(0)
    for level, squares in zip(levels, steps, strict=True):
        assert all(square > 0 for square in squares)
        made += sum(squares)
        assert made <= level
        assert made >= level * (1 - Fraction(1, 10**9))
    for square in (squares[0] for squares in steps if squares):
        deviation = deviation_for(0.25, square)
        assert (Fraction(0.25) / Fraction(deviation)) ** 2 <= square


def test_exponentials_are_right_and_total() -> None:
    x = -np.geomspace(1e-18, 690, 4000)
    assert np.allclose(exponential(x), np.exp(x), rtol=2.0**-49, atol=0)
    odd = exponential(np.array([0.0, -1e308, -np.inf, np.nan]))
    assert odd[0] == 1
    assert np.isfinite(odd).all()
    assert (odd[1:] < 1e-300).all()


@given(st.floats(-1e150, 1e150), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_products_of_rows_and_weights_are_exact(scale: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    w = on_lattice(generator.normal(size=(7, 2)) * scale)
    row = generator.normal(size=7)
    row = np.trunc(row / np.linalg.norm(row) * (1 - 1e-9) * 2**ROW_BITS)
    computed = row @ w
    for output in range(2):
        exact = sum(
            Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, w[:, output], strict=True)
        )
        assert Fraction(float(computed[output])) == exact


class Level:
    """A level of a path that allows μ."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def square(self) -> Fraction:
        return Fraction(self.mu) ** 2


def as_rows(data: Any) -> Any:
    return data


def as_weights(weights: Any) -> Any:
    return weights


def walk_of(seed: bytes = b"s" * 32) -> tuple[Any, Any, Any]:
    X, y = rows_of(500, 4, 3, "softmax", seed=7)
    X[:, :3] += 2 * np.eye(3)[y.astype(int)]
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-9)
    training = LinearTraining("softmax", 4, 500, 3)
    path = ProgressivePath(training, as_rows, as_weights, "zero-out")
    levels = [Level(mu) for mu in (0.05, 0.2, 0.8)]
    return path.walk(levels, seed, True), (X, y), levels  # type: ignore[arg-type]


def test_a_walk_is_repeatable_and_learns() -> None:
    walk, data, _ = walk_of()
    outputs = [walk.output(index, data) for index in range(3)]
    again, _, _ = walk_of()
    assert np.array_equal(again.output(2, data), outputs[2])
    assert np.array_equal(again.output(0, data), outputs[0])  # an earlier level starts anew
    right = [np.mean((data[0] @ w).argmax(axis=1) == data[1]) for w in outputs]
    assert right[-1] > 0.9
    other, _, _ = walk_of(b"t" * 32)
    assert not np.array_equal(other.output(0, data), outputs[0])


def test_what_is_sent_to_a_worker_holds_no_rows() -> None:
    walk, data, _ = walk_of()
    walk.output(1, data)
    sent = pickle.dumps(walk)
    assert len(sent) < 2000
    assert np.array_equal(pickle.loads(sent).output(1, data), walk.output(1, data))


def test_weights_follow_what_was_released_and_nothing_else() -> None:
    training = LinearTraining("logistic", 3, 100)
    one, two = Descent(training), Descent(training)
    generator = np.random.default_rng(0)
    for noise in (1.0, 0.5, 0.1):
        gradient = generator.normal(size=(3, 1))
        for descent in (one, two):
            descent.move(gradient, noise)
    assert np.array_equal(one.weights, two.weights)
    assert np.isfinite(one.weights).all()
    assert np.array_equal(on_lattice(one.weights), one.weights)
    assert one.weights.any()


def test_every_step_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rows a released gradient is noise alone; its size is that of the step."""
    released: list[tuple[Any, float]] = []
    moved = Descent.move

    def seen(self: Descent, gradient: Any, noise: float) -> None:
        released.append((gradient / noise, noise))
        moved(self, gradient, noise)

    monkeypatch.setattr(Descent, "move", seen)
    training = LinearTraining("softmax", 40, 500, 5)
    path = ProgressivePath(training, as_rows, as_weights, "zero-out")
    walk = path.walk([Level(0.05), Level(0.2)], b"s" * 32, True)  # type: ignore[arg-type,list-item]
    walk.output(1, (np.zeros((3, 40)), np.full(3, np.nan)))
    noises = [noise for _, noise in released]
    assert noises[-1] < noises[1]
    drawn = np.array([gradient.ravel() for gradient, _ in released])
    assert len(drawn) > 10
    assert np.abs(np.corrcoef(drawn) - np.eye(len(drawn))).max() < 0.5
    assert 0.9 < drawn.std() < 1.1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"loss": "hinge"}, "loss"),
        ({"width": 0}, "width"),
        ({"places": 0}, "places"),
        ({"classes": 1}, "classes"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"class_weights": (1.0,)}, "class_weights"),
        ({"class_weights": (1.0, 2.0, 1.0)}, "class_weights"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {"loss": "softmax", "width": 3, "places": 10, "classes": 3}
    with pytest.raises(InvalidInput, match=field):
        LinearTraining(**{**good, **changes})
