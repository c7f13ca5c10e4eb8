"""Rows of Table 3 from the product itself: ``training = "noise-reduction"``, ``"progressive"``.

The requests are those of :mod:`expost.tuning.runs.path_training` and
:mod:`expost.tuning.plan.strategies`, with the default levels, the exact noise and the stopping
rules of a job. Two things differ from a job: randomness is seeded (a simulation), and the
statistic, which does not depend on coins, is computed once for all trials.

Names that end with ``-public`` score each level on the task's public rows, as the other mechanisms
of the table do. The others hold out every fifth training row and stop by noisy counts on those,
with the confidence of 0.9 that jobs have; a trial counts as passed if the released model reaches
the bar on the *public* rows.

Tests: ``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.features.columns import Column, TableSchema
from expost.privacy.guarantees import ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.selection.candidate import Candidate
from expost.selection.noise_path import NoisePath, PathLevel
from expost.tuning.model.released_model import Recipe
from expost.tuning.plan.strategies import list_strategies
from expost.tuning.request.settings import GoalSettings, ModelSettings
from expost.tuning.request.tune_request import MAX_EPSILON
from expost.tuning.rows.job_columns import features_for
from expost.tuning.rows.job_rows import held_out
from expost.tuning.runs.candidates import ScoredModel
from expost.tuning.runs.path_training import (
    MOMENTS,
    PROGRESSIVE,
    Places,
    PublicRows,
    Strategy,
    step_of,
    usable_levels,
)
from expost.tuning.runs.run_attempts import Step
from reproduction.table3.problem import TableProblem, Trial, TrialOutcome
from reproduction.table3.tasks import DELTA, task_named

CONFIDENCE = 0.9
MOST_TRIALS = 10
_HELD_OUT = 0.2
_WIDE = 1000  # there are too many second moments of more features


@dataclass(frozen=True)
class Known:
    """A statistic that is computed when it is needed first, once for all trials and bars."""

    statistic: Callable[[Any], Floats]
    key: str

    def __call__(self, data: Any) -> Floats:
        if self.key not in _statistics:
            _statistics[self.key] = self.statistic(data)
        return _statistics[self.key]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a task with features and regression targets in [0, 1]."""

    X: Array
    y: Array
    test_X: Array
    test_y: Array
    recipe: Recipe
    norm_bound: float | None


@lru_cache(maxsize=1)
def rows_of(name: str, data: Path) -> Rows:
    """Read a task's rows and scale them to [0, 1] by the bounds of its preparation."""
    task = task_named(name)
    split = task.load(data)

    def flat(table: Array) -> Array:
        wide = np.asarray(table, dtype=np.float32).reshape(len(table), -1)
        if name == "mnist":
            return np.asarray(wide * 0.3081 + 0.1307)
        return wide if name == "gisette" else np.asarray((wide + 1) / 2)

    X, test_X = flat(split.X), flat(split.test_X)
    columns = tuple(Column("number", 0.0, 1.0) for _ in range(X.shape[1]))
    if task.metric == "mse":
        schema = TableSchema(columns, None, (-1.0, 1.0))
        recipe = Recipe("linear", "squared", schema, features=features_for("auto", schema, None))
        return Rows(X, (split.y + 1) / 2, test_X, (split.test_y + 1) / 2, recipe, task.row_bound)
    classes = int(split.y.max()) + 1
    kind = "logistic" if classes == 2 else "softmax"
    schema = TableSchema(columns, classes, None)
    features = features_for("auto", schema, (28, 28) if name == "mnist" else None)
    recipe = Recipe(kind, kind, schema, features=features)
    return Rows(X, split.y, test_X, split.test_y, recipe, None)


def goal_of(problem: TableProblem) -> GoalSettings:
    """Return the bar as a job states it; the squared error of a row is clipped to 1."""
    if problem.task.metric == "accuracy":
        return GoalSettings("accuracy", problem.bar, None, CONFIDENCE)
    return GoalSettings("mse", -problem.target, 1.0, CONFIDENCE)


def strategies_to(
    rows: Rows, goal: GoalSettings, places: Places, training: str, private: bool
) -> tuple[Strategy, ...]:
    """Return the strategies of a job with this training."""
    recipe = rows.recipe
    assert recipe.features is not None

    def usable(levels: Sequence[float], confidence: float) -> tuple[float, ...]:
        return usable_levels(levels, goal, places, confidence) if private else tuple(levels)

    return list_strategies(
        ModelSettings(recipe.kind, recipe.loss, training=training, norm_bound=rows.norm_bound),
        places,
        usable,
        delta=DELTA,
        confidence=CONFIDENCE,
        classes=recipe.class_count,
        width=recipe.features.width(places.features),
        most=MAX_EPSILON,
    )


def product_rows(
    problem: TableProblem, data: Path, trials: int, seed: int
) -> Iterator[TrialOutcome]:
    """Yield the product's rows for one bar."""
    rows, goal = rows_of(problem.task.name, data), goal_of(problem)
    trials = min(trials, MOST_TRIALS)
    named = [
        (training + suffix, training, not suffix)
        for training in (MOMENTS, PROGRESSIVE)
        for suffix in ("-public", "")
        if training == PROGRESSIVE or (problem.task.metric == "mse" and rows.X.shape[1] < _WIDE)
    ]
    for mechanism, training, private in named:
        steps, given = steps_to(rows, goal, training, private)
        made = [one_trial(problem, rows, steps, given, [seed, trial]) for trial in range(trials)]
        note = (
            "product; noisy counts on every fifth training row"
            if private
            else "product; scored on the public rows"
        )
        first = steps[0]
        yield TrialOutcome(
            mechanism,
            "last level",
            None,
            note,
            None,
            first.selector._theorem(first.candidates),
            made,
            sum(len(step.candidates) for step in steps),
            float(sum(step.charges.worst_case.size for step in steps)),
        )


def steps_to(
    rows: Rows, goal: GoalSettings, training: str, private: bool
) -> tuple[list[Step], dict[str, Any]]:
    """Return the requests and the data that they receive."""
    out = held_out(len(rows.X), _HELD_OUT) if private else np.zeros(len(rows.X), dtype=bool)
    given = {
        "X": rows.X[~out],
        "y": rows.y[~out],
        "score_X": rows.X[out],
        "score_y": rows.y[out],
    }
    places = Places(
        int(np.count_nonzero(~out)), int(np.count_nonzero(out)), rows.X.shape[1], ZERO_OUT
    )
    shown = None if private else PublicRows(rows.test_X, rows.test_y)
    strategies = strategies_to(rows, goal, places, training, private)
    return [
        known_step(step_of(strategy, rows.recipe, goal, places, shown, None), given, private)
        for strategy in strategies
    ], given


_statistics: dict[str, Floats] = {}


def known_step(step: Step, given: dict[str, Any], private: bool) -> Step:
    """Return a request whose statistic is computed once for all trials and bars."""
    level = step.candidates[0].mechanism
    assert isinstance(level, PathLevel)
    path = level.path
    if not isinstance(path, NoisePath):
        return step
    key = json.dumps([repr(path.statistic), private, given["X"].shape])
    known = replace(path, statistic=Known(path.statistic, key))
    candidates = [
        Candidate(PathLevel(known, each.guarantee), each.params) for each in step.candidates
    ]
    return replace(step, candidates=tuple(candidates))


def one_trial(
    problem: TableProblem, rows: Rows, steps: list[Step], given: dict[str, Any], seed: list[int]
) -> Trial:
    """Make the requests in turn until one passes; all that were made are paid."""
    source = SimulationRandomness(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    spent = 0.0
    for number, step in enumerate(steps, 1):
        release = step.selector.select(
            step.candidates, given, randomness=source, simulation=True, data_fingerprint="known"
        )
        spent += float(release.spent.size)
        if isinstance(release.value, ScoredModel):
            recipe = step.recipe or rows.recipe
            return Trial(spent, reaches(problem, rows, recipe, release.value), number)
    return Trial(spent, False, len(steps))


def reaches(problem: TableProblem, rows: Rows, recipe: Recipe, fitted: ScoredModel) -> bool:
    """Return whether a model reaches the bar on the public rows, without noise."""
    decided = recipe.decide(fitted.parameters, rows.test_X)
    if problem.task.metric == "accuracy":
        return bool(np.mean(decided == rows.test_y) >= problem.bar)
    truth = 2 * rows.test_y - 1
    return bool(np.square(decided - truth).mean() <= -problem.target)
