"""Facts about Adult: how often names, kinds and bounds are right, and what tuning with them costs.

A run is one ``describe`` of the whole table (the mechanism on its counts, which are made once), or
one ``expost.tune(adult.csv, target="income", at_least=…, learn_facts=0.05)``.
Tests: ``tests/reproduction/test_facts.py``.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import expost
from expost.errors import InvalidInput
from expost.facts.column_facts import learn
from expost.facts.describe import QUANTILES, open_columns, price_of
from expost.facts.readings import table_counts
from expost.randomness.source import Randomness

NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
GOALS = {0.05: (0.08, 0.05), 0.2: (0.022, 0.02)}
"""ε: the share of rows from which a category must be found, and the innermost quantile."""
OUTERMOST = 0.001
DELTA = 1e-7


def adult(data: Path | None) -> Path:
    """Return the file of Adult."""
    folder = Path(__file__).parent.parent.parent / "shared" / "data" if data is None else data
    path = folder / "adult.csv" if folder.is_dir() else folder
    if not path.is_file():
        raise InvalidInput("data", str(path), "there is no such file; give the folder of adult.csv")
    return path


def facts_table(
    path: Path, epsilon: float, runs: int, randomness: Randomness | None = None
) -> dict[str, Any]:
    """Return how often the facts at a price are right; ``randomness`` may be a simulated one."""
    start = time.perf_counter()
    expost.describe(path, epsilon=epsilon, delta=DELTA)
    seconds = time.perf_counter() - start
    randomness = Randomness() if randomness is None else randomness
    table, columns = open_columns(path, None, None)
    counts = table_counts(table, columns, None, randomness)
    share, inner = GOALS[epsilon]
    rows = sum(next(iter(counts.columns.values())).counts.tolist())
    price = price_of(epsilon, DELTA, len(columns))
    names = {
        name: [label for label, n in counts.columns[name].names().items() if n >= share * rows]
        for name in columns
        if name not in NUMBERS
    }
    windows = {name: _windows(counts.columns[name].numbers((2, 3)), inner) for name in NUMBERS}
    found, kinds = 0, 0
    inside = {f"{name} {end}": 0 for name in NUMBERS for end in ("low", "high")}
    for _ in range(runs):
        learned = learn(counts, price, QUANTILES, randomness).columns
        found += sum(label in learned[name].categories for name in names for label in names[name])
        kinds += sum(learned[name].kind == "whole number" for name in NUMBERS)
        kinds += sum(learned[name].kind == "category" for name in names)
        for name in NUMBERS:
            for end, bound, (low, high) in zip(
                ("low", "high"), learned[name].bounds or (np.nan,) * 2, windows[name], strict=True
            ):
                inside[f"{name} {end}"] += bool(low <= bound <= high)
    wanted = sum(map(len, names.values()))
    return {
        "epsilon": epsilon,
        "delta": DELTA,
        "runs": runs,
        "categories_from": share,
        "categories_found": found / (runs * wanted),
        "kinds_right": kinds / (runs * len(columns)),
        "bounds_inside": sum(inside.values()) / (runs * len(inside)),
        "bounds_inside_by_end": {name: number / runs for name, number in inside.items()},
        "describe_seconds": seconds,
    }


def _windows(numbers: tuple[Any, Any], inner: float) -> list[tuple[float, float]]:
    """Return between which values the lower and the upper bound should be."""
    values = np.repeat(numbers[0], numbers[1].astype(int))
    shares = (OUTERMOST, inner, 1 - inner, 1 - OUTERMOST)
    ends = [float(values[min(len(values) - 1, int(share * len(values)))]) for share in shares]
    return [(ends[0], ends[1]), (ends[2], ends[3])]


def tune_table(path: Path, at_least: float, runs: int, epsilon: float = 0.05) -> dict[str, Any]:
    """Return how often a tuning that buys its facts passes, and what it costs in all."""
    passed, spent, seconds = [], [], []
    for _ in range(runs):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = expost.tune(path, target="income", at_least=at_least, learn_facts=epsilon)
        seconds.append(time.perf_counter() - start)
        passed.append(result.passed)
        spent.append(result.spent.epsilon)
    return {
        "at_least": at_least,
        "learn_facts": epsilon,
        "runs": runs,
        "passed": float(np.mean(passed)),
        "epsilon_mean": float(np.mean(spent)),
        "epsilon_largest": float(np.max(spent)),
        "seconds_mean": float(np.mean(seconds)),
    }
