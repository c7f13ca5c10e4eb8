"""How long the runs of a job take, measured on made-up rows of the same shape.

A training of s steps takes a fixed time plus s times the time of a step. The time of a step is
measured by the difference of two lengths, at the smallest and the largest batch size of the grid,
for one model and for as many as train at once. It is interpolated for the batch sizes between. If
the job has more rows than are made up here, two numbers of rows are measured and continued in a
straight line. Scoring is measured in the same way.

Tests: ``tests/tuning/test_rehearsal.py``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.privacy.guarantees import ADD_REMOVE
from expost.randomness.source import SimulationRandomness
from expost.training.configuration import Configuration
from expost.tuning.candidates import TrainAndScore
from expost.tuning.model import Recipe
from expost.tuning.table_schema import Column

_VALUES = 1 << 24  # numbers in the made-up rows, at most
_SECONDS = 0.05  # length of a measurement, at least
_TOGETHER = 32  # models that are measured together on a device
# steps of the shorter measurement, and further steps of the longer one (if the shorter one takes
# long, if not); on a device, the first steps are recorded as graphs
_LENGTHS = {"cpu": (2, 1, 8), "cuda": (64, 128, 128)}
_ENDS = ("low", "high")
_known: dict[Any, Pace] = {}


@dataclass(frozen=True)
class Pace:
    """How long runs take."""

    run: float
    share: float
    fixed: float = 0.0
    workers: int = 1

    def seconds(self, runs: float) -> float:
        """Return the time of a number of runs, in seconds."""
        batch = runs / min(self.workers, max(runs, 1.0))
        return self.fixed + max(min(batch, 1.0) * self.run, batch * self.share)


def measure(mechanisms: Sequence[TrainAndScore], rows: int, scoring_rows: int, copies: int) -> Pace:
    """Return the pace of a job's trainings and scores."""
    groups: dict[int, list[TrainAndScore]] = {}
    for mechanism in mechanisms:
        groups.setdefault(id(mechanism.recipe), []).append(mechanism)
    paces = [_pace(group, rows, scoring_rows, copies) for group in groups.values()]
    parts = [len(group) / len(mechanisms) for group in groups.values()]
    return Pace(
        sum(part * pace.run for part, pace in zip(parts, paces, strict=True)),
        sum(part * pace.share for part, pace in zip(parts, paces, strict=True)),
        max(pace.fixed for pace in paces),
    )


def _pace(group: Sequence[TrainAndScore], rows: int, scoring_rows: int, copies: int) -> Pace:
    """Return the pace of candidates with one recipe; the time of public features is left out."""
    first = group[0]
    if first.recipe.features is not None:
        schema = first.recipe.schema
        numbers = (Column(),) * first.recipe.features.width(schema.width)
        plain = replace(first.recipe, features=None, schema=replace(schema, columns=numbers))
        first = replace(first, recipe=plain, rows=None)
    grid = [
        (float(mechanism.configuration.batch_size), float(mechanism.configuration.epochs))
        for mechanism in group
    ]
    recipe = first.recipe
    columns = recipe.schema.width
    key: Any = None
    if recipe.factory is None:  # built-in models always take as long
        how = (recipe.kind, recipe.class_count, first.configuration.optimiser, first.device)
        key = (
            *how,
            first.hooks.threads,
            rows,
            scoring_rows,
            columns,
            tuple(grid),
            min(copies, _TOGETHER),
        )
        if key in _known:
            return _known[key]
    measured = _measure(first, grid, rows, scoring_rows, columns, copies)
    if key is not None:
        _known[key] = measured
    return measured


def _measure(
    first: TrainAndScore,
    grid: Sequence[tuple[float, float]],
    rows: int,
    scoring_rows: int,
    columns: int,
    copies: int,
) -> Pace:
    batches = sorted({batch for batch, _ in grid})
    ends = [batches[0], batches[-1]] if batches[-1] > 1.5 * batches[0] else [batches[-1]]
    size = min(rows, max(math.ceil(batches[-1]), _VALUES // columns))
    together = max(1, min(copies, _TOGETHER if first.device != "cpu" else _threads(first)))
    alone, shared = [], []
    fixed = 0.0
    for batch in ends:
        fixed, step = _step(first, size, rows, columns, batch, 1)
        alone.append(step)
        both = step if together == 1 else _step(first, size, rows, columns, batch, together)[1]
        shared.append(both / together)
    score = _score(first, scoring_rows, columns)

    def mean(steps: Sequence[float]) -> float:
        total = 0.0
        for batch, epochs in grid:
            total += np.interp(batch, ends, steps) * max(1.0, epochs * rows / batch)
        return float(total / len(grid))

    return Pace(mean(alone) + score, mean(shared) + score, fixed)


def _step(
    first: TrainAndScore, size: int, rows: int, columns: int, batch: float, models: int
) -> tuple[float, float]:
    """Return the fixed time and the time of a step, for models that train together."""
    least = _LENGTHS["cpu" if first.device == "cpu" else "cuda"]
    fixed, step = _line(lambda steps: _train(first, size, columns, batch, models, steps), *least)
    small = max(math.ceil(batch), size // 4)
    if size == rows or small >= size:
        return fixed, step
    less_fixed, less = _line(
        lambda steps: _train(first, small, columns, batch, models, steps), *least
    )
    more = (rows - size) / (size - small)
    return (
        max(fixed + more * (fixed - less_fixed), fixed),
        max(step + more * (step - less), step),
    )


def _line(timed: Callable[[int], float], first: int, few: int, many: int) -> tuple[float, float]:
    """Return intercept and slope of a time that grows with a number of steps."""
    timed(first)  # compiles
    short = timed(first)
    more = few if short > _SECONDS else many
    while True:
        longer = timed(first + more)
        if longer - short >= _SECONDS or more >= 1 << 16 or longer > 20 * _SECONDS:
            break
        more *= 4
    slope = max(longer - short, longer / 100) / more
    return max(0.0, short - first * slope), slope


def _train(
    first: TrainAndScore, size: int, columns: int, batch: float, models: int, steps: int
) -> float:
    """Return the seconds of a training of some steps on made-up rows."""
    data = rehearsal_data(first, size, 1)
    probe = probe_of(first.configuration, min(batch, size), steps * min(batch, size) / size)
    calls = [replace(first, configuration=probe, hooks=replace(first.hooks, progress=None))]
    sources = [SimulationRandomness(number) for number in range(models)]
    started = time.perf_counter()
    calls[0].train(calls * models, data, sources)
    return time.perf_counter() - started


def _score(first: TrainAndScore, scoring_rows: int, columns: int) -> float:
    """Return the seconds of scoring one model."""
    size = min(scoring_rows, max(1, _VALUES // (16 * columns)))
    probe = replace(first, configuration=probe_of(first.configuration, 1.0, 1.0))
    (trained,) = probe.train([probe], rehearsal_data(first, 1, 1), [SimulationRandomness(0)])

    def timed(rows: int) -> float:
        data = rehearsal_data(first, 1, rows)
        started = time.perf_counter()
        probe.rate(trained.parameters, data, SimulationRandomness(0))
        return time.perf_counter() - started

    timed(size)
    whole = timed(size)
    if size == scoring_rows:
        return whole
    part = timed(max(1, size // 4))
    return whole + max(0.0, whole - part) / (size - size // 4) * (scoring_rows - size)


def _threads(first: TrainAndScore) -> int:
    """Return how many models train at the same time on a CPU."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return (
        first.hooks.threads
        or (int(said) if said.isdecimal() and int(said) else 0)
        or (os.cpu_count() or 1)
    )


def rehearsal_data(mechanism: TrainAndScore, rows: int, scored: int) -> dict[str, Any]:
    """Return made-up data of a candidate, with public numbers of rows if its relation has them."""
    X, y = made_up(mechanism.recipe, rows)
    score_X, score_y = made_up(mechanism.recipe, scored)
    secret = mechanism.guarantee.neighbours == ADD_REMOVE
    return {
        "X": X,
        "y": y,
        "score_X": score_X,
        "score_y": score_y,
        "rows": rows if secret else None,
        "score_rows": scored if secret else None,
        "job": "rehearsal",
    }


def made_up(recipe: Recipe, rows: int) -> tuple[Array, Array]:
    """Return random rows and targets of the public shape."""
    generator = np.random.default_rng(0)
    X = generator.random((rows, recipe.schema.width))
    if recipe.schema.integers:
        low, high = (
            np.array([vars(column)[end] for column in recipe.schema.columns]) for end in _ENDS
        )
        X = np.clip(np.round(low + X * (high - low)), np.ceil(low), np.floor(high)).astype(np.int64)
    return X, np.arange(rows) % float(recipe.class_count or 2)


def probe_of(configuration: Configuration, batch: float, epochs: float) -> Configuration:
    """Return a short training with the optimiser of a configuration."""
    return replace(
        configuration,
        batch_size=batch,
        epochs=epochs,
        noise_multiplier=1.0,
        epsilon=None,
        delta=None,
    )
