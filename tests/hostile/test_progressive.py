"""Hostile neighbours of progressive training, at the doors of ``expost.tune`` and ``ExPostSearch``.

The rows from which every step's sum is made, and the count of every look, are caught where they
enter the mechanism. One row changes the sum at any weights by at most the stated sensitivity, and
the count of any output by at most ``steps`` (in one direction if counts are said to be monotone).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import expost
from expost.randomness.source import SimulationRandomness
from expost.selection.held_out import HeldOut
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.training.progressive import (
    RESIDUAL_BITS,
    ROW_BITS,
    LinearTraining,
    TrainingRows,
    on_lattice,
    step_squares,
)

N = 300
LEVELS = [1.0, 2.0]
SEED = 5  # whose coins put some of the rows N, N + 1 and N + 2 into each part
Tables = dict[str, Any]


def table(classes: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(classes)
    y = generator.integers(0, max(classes, 2), N).astype(float)
    return generator.random((N, 2)) * 0.4 + 0.3 * y[:, None], y


def tune(**more: Any) -> Callable[[Any, Any], Any]:
    """``expost.tune`` with three classes, two of them, weights, or a regression."""

    def call(X: Any, y: Any) -> Any:
        kind = more.get("kind", "softmax")
        data: Tables = {"feature_bounds": [0, 1], "holdout": 0.4, **more.get("data", {})}
        if kind == "linear":
            data["target_bounds"] = [0, 1]
        else:
            data["classes"] = 2 if kind == "logistic" else 3
        tables = {
            "data": data,
            "model": {"kind": kind, "training": "progressive", "levels": LEVELS},
            "goal": more.get("goal", {"metric": "accuracy", "at_least": 0.2}),
            "privacy": {"delta": 1e-4},
        }
        return expost.tune(tables, X, y, randomness=SimulationRandomness(SEED), simulation=True)

    return call


def search(n_rows: int | None, regression: bool = False) -> Callable[[Any, Any], Any]:
    """``ExPostSearch`` with two classes or a regression."""

    def call(X: Any, y: Any) -> Any:
        facts: Any = {"feature_bounds": (0, 1), "delta": 1e-4}
        model = (
            DPLinearRegression(target_bounds=(0, 1), **facts)
            if regression
            else DPLogisticRegression(classes=[0, 1], **facts)
        )
        made = ExPostSearch(
            model,
            training="progressive",
            at_least=-0.9 if regression else 0.2,
            levels=LEVELS,
            holdout=0.4,
            n_rows=n_rows,
            random_state=SEED,
            simulation=True,
        )
        return made.fit(X, y)

    return call


BALANCED = {"metric": "balanced_accuracy", "at_least": 0.2, "class_shares": [0.1, 0.3, 0.6]}
LOSS = {"metric": "mse", "at_most": 0.9, "loss_bound": 1.0}
DOORS: dict[str, tuple[Callable[[Any, Any], Any], int, bool]] = {
    "tune": (tune(), 3, False),
    "tune, two classes": (tune(kind="logistic"), 2, False),
    "tune, weights": (tune(goal=BALANCED), 3, False),
    "tune, regression": (tune(kind="linear", goal=LOSS), 1, False),
    "tune, secret number": (tune(data={"rows": N}), 3, True),
    "tune, secret number, regression": (tune(kind="linear", goal=LOSS, data={"rows": N}), 1, True),
    "search": (search(None), 2, False),
    "search, regression": (search(None, True), 1, False),
    "search, secret number": (search(N), 2, True),
    "search, secret number, regression": (search(N, True), 1, True),
}
EMPTY = (math.nan, math.nan, math.nan)
ROWS = [
    (1.0, 1.0, 1.0),
    (0.0, 1.0, 0.0),
    (1e308, -1e308, 1.0),
    (5e-324, -0.0, 0.0),
    (math.nan, 0.5, 1.0),
    (math.inf, -math.inf, 0.0),
    (0.5, 0.5, 7.0),
    (0.5, 0.5, -1.0),
    (0.5, 0.5, 0.5),
    (0.5, 0.5, math.inf),
]


def few_steps(levels: Any, first: float, steps_per_doubling: int) -> Any:
    """A short training: what one row changes is judged at other weights, too."""
    return step_squares(levels, first, 1)


class Caught:
    """What enters the mechanism in one call of a door."""

    def __init__(self, door: Callable[[Any, Any], Any], X: Any, y: Any) -> None:
        self.rows: list[tuple[TrainingRows, LinearTraining]] = []
        self.looks: list[tuple[HeldOut, Any, Any]] = []
        of, look = TrainingRows.of.__func__, HeldOut.look  # type: ignore[attr-defined]

        def catch_rows(cls: Any, rows: Any, targets: Any, training: Any, **form: Any) -> Any:
            self.rows.append((of(cls, rows, targets, training, **form), training))
            return self.rows[-1][0]

        def catch_look(rule: HeldOut, index: int, output: Any, data: Any, *rest: Any) -> Any:
            self.looks.append((rule, output, data))
            return look(rule, index, output, data, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingRows, "of", classmethod(catch_rows))
            patch.setattr(HeldOut, "look", catch_look)
            patch.setattr("expost.training.progressive.step_squares", few_steps)
            self.released = door(X, y)


@pytest.mark.parametrize("name", DOORS)
def test_one_row_moves_sums_and_counts_by_at_most_what_is_stated(name: str) -> None:
    door, classes, secret = DOORS[name]
    X, y = table(classes)
    plain = name.startswith("search")  # its own door refuses gaps and labels outside
    # The coins of a secret split follow the order of the rows, so there a row comes last.
    largest: list[Any] = [0, 0]
    for place in (N, N + 1, N + 2) if secret else (0, 2):
        base = Caught(door, *with_row(X, y, place, (0.5, 0.5, 0.0) if plain else EMPTY, secret))
        if secret:
            base = Caught(door, X[:place], y[:place])
        assert base.rows
        assert base.looks
        for row in ROWS[:4] if plain else ROWS:
            other = Caught(door, *with_row(X, y, place, row, secret))
            moved = [
                _sum_moves(base, other, replaced=plain and not secret),
                _count_moves(base, other, replaced=plain and not secret),
            ]
            assert min(moved) == 0  # a row is in one part only
            largest = [max(pair) for pair in zip(largest, moved, strict=True)]
        X, y = (np.vstack([X, X[0]]), np.append(y, y[0])) if secret else (X, y)
    assert min(largest) > 0  # there were rows in both parts, and they had influence


def with_row(X: Any, y: Any, place: int, row: Any, added: bool) -> tuple[Any, Any]:
    """The table with another row at a place, or with a row more."""
    if added:
        return np.vstack([X, row[:2]]), np.append(y, row[2])
    X, y = X.copy(), y.copy()
    X[place], y[place] = row[:2], row[2]
    return X, y


def _sum_moves(base: Caught, other: Caught, replaced: bool) -> Fraction:
    """The squared distance of the sums at several weights, each within the sensitivity."""
    (kept, training), (changed, same) = base.rows[0], other.rows[0]
    assert training == same
    largest = Fraction(0)
    for scale in (0.0, 3.0, 1e6):
        shape = (training.width, training.outputs)
        weights = on_lattice(np.random.default_rng(1).normal(size=shape) * scale)
        moved = changed.gradient_sum(weights, training) - kept.gradient_sum(weights, training)
        square = Fraction(sum(int(entry) ** 2 for entry in moved.ravel()))
        square *= Fraction(2) ** (-2 * (ROW_BITS + RESIDUAL_BITS))
        assert square <= (Fraction(training.clip) * (2 if replaced else 1)) ** 2
        largest = max(largest, square)
    assert training.sensitivity > training.clip
    return largest


def _count_moves(base: Caught, other: Caught, replaced: bool) -> int:
    """How far counts of the same outputs move, at most ``steps``."""
    largest = 0
    for rule, output, _ in base.looks + other.looks:
        moved = rule.count(output, other.looks[0][2]) - rule.count(output, base.looks[0][2])
        assert (0 if rule.monotone and not replaced else -rule.steps) <= moved <= rule.steps
        largest = max(largest, abs(moved))
    return largest


def test_rows_that_cannot_be_used_count_as_an_empty_place() -> None:
    door, classes, _ = DOORS["tune"]
    X, y = table(classes)
    for place in (0, 2):
        found = []
        for row in (EMPTY, (math.nan, 0.5, 1.0), (0.5, 0.5, math.nan), (0.5, 0.5, math.inf)):
            made = Caught(door, *with_row(X, y, place, row, False))
            kept, training = made.rows[0]
            weights = on_lattice(np.ones((training.width, training.outputs)))
            counts = [rule.count(output, data) for rule, output, data in made.looks]
            found.append((kept.gradient_sum(weights, training).tolist(), counts))
        assert all(each == found[0] for each in found)
