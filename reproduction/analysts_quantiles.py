"""Quantiles of many groups, against the exponential mechanism at a fixed ε: tasks of ``analysts``.

``quantiles-1000``: five quantiles of skewed amounts in 1,000 groups, rank error 0.02. Baselines are
one quantile by the exponential mechanism (OpenDP's and Tumult's method, here in floating point, on
the same grid): at the ε that its theorem needs to state the error with 90 % confidence (the mean
over the five ranks, and the median alone, its cheapest one), and at the least ε at which it is
right in 90 % of the draws, which an oracle must know. ``medians-40``: the mean rank error of
medians of 40 groups at the same ε, against the two published forms of the exponential mechanism,
both written here in floating point: from 1,001 candidates (OpenDP) and from the gaps between values
(Tumult, which is not installed). In its rows ``right`` is the mean rank error.
Tests: ``tests/reproduction/test_analysts_quantiles.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

import expost
from expost import SimulationRandomness

Row = dict[str, Any]
RANKS = (0.1, 0.25, 0.5, 0.75, 0.9)
HIGH, STEP = 10_000, 0.2
_CELLS = int(HIGH / STEP) + 1
_ERROR, _MISS = 0.02, 0.1
_MOST_RUNS = 2  # a run answers 5,000 questions
_MORE_RUNS = 3  # of medians: methods differ by some percent


def amounts(groups: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups and skewed amounts, one row per person; sizes vary as draws of groups do."""
    generator = np.random.default_rng(seed)
    group = generator.integers(0, groups, rows)
    level = generator.normal(4, 0.5, groups)
    values = np.exp(level[group] + generator.normal(0, 1, rows))
    return group, np.minimum(np.round(values / STEP) * STEP, HIGH)


def rank_error(values: np.ndarray, answer: float, rank: float) -> float:
    """How far the ranks of a value are from the wanted one; ``values`` are sorted."""
    below, upto = np.searchsorted(values, (answer - STEP / 4, answer + STEP / 4)) / len(values)
    return float(max(0.0, below - rank, rank - upto))


def exponential(
    values: np.ndarray,
    rank: float,
    epsilon: float,
    generator: np.random.Generator,
    candidates: np.ndarray | None = None,
) -> float:
    """One quantile by the exponential mechanism: from the gaps between values, or candidates."""
    rate = epsilon / (2 * max(rank, 1 - rank))
    if candidates is not None:
        below = np.searchsorted(values, candidates)
        above = len(values) - np.searchsorted(values, candidates, side="right")
        weights = np.exp(-rate * _above_least(np.abs((1 - rank) * below - rank * above)))
        return float(generator.choice(candidates, p=weights / weights.sum()))
    edges = np.concatenate([[0.0], values, [float(HIGH)]])
    distances = np.abs(np.arange(len(values) + 1) - rank * len(values))
    weights = np.diff(edges) * np.exp(-rate * _above_least(distances))
    gap = generator.choice(len(weights), p=weights / weights.sum())
    return float(generator.uniform(edges[gap], edges[gap + 1]))


def _above_least(distances: np.ndarray) -> np.ndarray:
    return np.asarray(distances - distances.min())


def stated_epsilon(rank: float, size: float) -> float:
    """The ε at which the theorem of the exponential mechanism states the error on this grid."""
    return 2 * max(rank, 1 - rank) * math.log(_CELLS / _MISS) / (_ERROR * size)


def oracle_epsilon(columns: list[np.ndarray], rank: float) -> float:
    """The least ε (in steps of 5 %) at which nine of ten draws are right; needs the data."""
    generator, epsilon = np.random.default_rng(3), 0.02
    while True:
        right = [
            rank_error(values, exponential(values, rank, epsilon, generator), rank) <= _ERROR
            for values in columns
        ]
        if np.mean(right) >= 1 - _MISS:
            return epsilon
        epsilon *= 1.05


def five_quantiles(runs: int, groups: int = 1000, rows: int = 10**6) -> list[Row]:
    """Five quantiles of every group, and what one quantile costs otherwise."""
    task = f"quantiles-{groups}"
    group, values = amounts(groups, rows, 5)
    columns = [np.sort(values[group == index]) for index in range(groups)]
    size = rows / groups
    stated = [stated_epsilon(rank, size) for rank in RANKS]
    oracle = [oracle_epsilon(columns[:300], rank) for rank in RANKS]
    told: list[tuple[str, float]] = [
        ("one quantile, exponential mechanism, stated by its theorem (mean of 5)", _mean(stated)),
        ("one median, exponential mechanism, stated by its theorem", stated[2]),
        ("one quantile, exponential mechanism, oracle (mean of 5)", _mean(oracle)),
        ("one median, exponential mechanism, oracle", oracle[2]),
    ]
    compared = [_row(task, method, epsilon, epsilon) for method, epsilon in told]
    table = pa.table({"user": np.arange(rows), "group": group.astype(str), "amount": values})
    for factor in (1.0, 1.2):
        limit = factor * _mean(stated)
        for run in range(min(runs, _MOST_RUNS)):
            compared.append(_ours(task, table, columns, limit, run))
    return compared


def _ours(task: str, table: Any, columns: list[np.ndarray], epsilon: float, seed: int) -> Row:
    result = expost.quantile(
        table,
        "amount",
        at=RANKS,
        by="group",
        user="user",
        keys=[str(index) for index in range(len(columns))],
        max_groups_per_user=1,
        bounds=(0, HIGH),
        grid=STEP,
        within_rank=_ERROR,
        epsilon=epsilon,
        randomness=SimulationRandomness(seed),
        simulation=True,
    )
    answers = [*result.answers, *result.unanswered]
    errors = [rank_error(columns[int(a.group)], a.estimate, a.at) for a in answers]
    covered = []
    for answer in answers:
        own = columns[int(answer.group)]
        edges = (answer.estimate - STEP / 4, answer.estimate + STEP / 4)
        below, upto = np.searchsorted(own, edges) / len(own)
        covered.append(upto >= answer.rank_low and below <= answer.rank_high)
    return _row(
        task,
        "expost quantile, all five",
        epsilon,
        result.spent,
        answered=len(result.answers) / len(answers),
        right=float(np.mean(np.array(errors) <= _ERROR)),
        coverage=float(np.mean(covered)),
    )


def _mean(numbers: list[float]) -> float:
    return float(np.mean(numbers))


def _row(task: str, method: str, epsilon: float, spent: float, **more: float) -> Row:
    blank: Row = {"answered": None, "right": None, "coverage": None}
    return {"task": task, "method": method, "epsilon": epsilon, "spent": spent, **blank, **more}


def medians(runs: int, groups: int = 40, rows: int = 40_000) -> list[Row]:
    """The mean rank error of medians at the same ε; sizes of groups fall like 1/rank."""
    generator = np.random.default_rng(8)
    weights = 1 / np.arange(1, groups + 1)
    group = generator.choice(groups, rows, p=weights / weights.sum())
    values = np.round(np.exp(generator.normal(4, 1, rows)) / STEP) * STEP
    columns = [np.sort(np.minimum(values[group == index], HIGH)) for index in range(groups)]
    table = pa.table({"user": np.arange(rows), "group": group.astype(str), "amount": values})
    candidates = np.linspace(0, HIGH, 1001)
    compared = []
    for epsilon in (0.1, 0.2, 0.5, 1.0, 2.0):
        errors: dict[str, list[float]] = {"expost": [], "gaps (Tumult)": [], "candidates": []}
        for run in range(runs):
            for own in columns:
                drawn = exponential(own, 0.5, epsilon, generator)
                errors["gaps (Tumult)"].append(rank_error(own, drawn, 0.5))
                drawn = exponential(own, 0.5, epsilon, generator, candidates)
                errors["candidates"].append(rank_error(own, drawn, 0.5))
            result = expost.quantile(
                table,
                "amount",
                at=0.5,
                by="group",
                user="user",
                keys=[str(index) for index in range(groups)],
                max_groups_per_user=1,
                bounds=(0, HIGH),
                grid=STEP,
                within_rank=0,
                epsilon=epsilon,
                randomness=SimulationRandomness(run),
                simulation=True,
            )
            for answer in result.unanswered:
                own = columns[int(answer.group)]
                errors["expost"].append(rank_error(own, answer.estimate, 0.5))
        for method, missed in errors.items():
            compared.append(
                _row(f"medians-{groups}", method, epsilon, epsilon, right=float(np.mean(missed)))
            )
    return compared


QUANTILE_TASKS = {
    "quantiles-1000": five_quantiles,
    "medians-40": lambda runs: medians(_MORE_RUNS * runs),
}
