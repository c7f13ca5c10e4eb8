"""Everyday questions of analysts, against one capped Laplace histogram: ``analysts``.

Each task is a function of the number of runs that returns rows {task, method, epsilon, spent,
answered, right, coverage}; ``TASKS`` names them. *Right* is within the wanted error of the uncapped
truth, *coverage* the share of answered groups whose interval holds that truth. The oracle knows the
truth: it finds the least ε at which a histogram does what is asked in 95 % of the runs.
Tests: ``tests/reproduction/test_analysts.py``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

import expost
from expost import SimulationRandomness
from expost.errors import InvalidInput
from reproduction.analysts_quantiles import QUANTILE_TASKS

Row = dict[str, Any]
_SURE = 0.95
_WIDTH = math.log(10)  # half of a 90 % interval of Laplace noise, in scales
_QUICK = 10  # a run of the web areas is quick: so many times the runs, for a known 95 % of ε


class Pairs:
    """Who is in which group: distinct (user, group) pairs, groups as numbers from 0."""

    def __init__(self, users: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> None:
        self.users, self.groups, self.names = users, groups, list(names)
        self.truth = np.bincount(groups, minlength=len(self.names))

    def table(self) -> Any:
        """The pairs as a table of users and names."""
        return pa.table({"user": self.users, "group": np.array(self.names)[self.groups]})

    def capped(self, most: int, generator: np.random.Generator) -> np.ndarray:
        """Counts after a random choice of at most ``most`` groups per user."""
        order = np.lexsort((generator.random(len(self.users)), self.users))
        first = np.searchsorted(self.users[order], self.users[order])
        kept = np.arange(len(order)) - first < most
        return np.bincount(self.groups[order][kept], minlength=len(self.names))

    def truth_of(self) -> dict[str, int]:
        """The uncapped count of each name."""
        return dict(zip(self.names, map(int, self.truth), strict=True))


def msweb() -> Pairs:
    """The Microsoft web data: 285 areas."""
    folder = Path(os.environ.get("EXPOST_SHARED", Path(__file__).parents[2] / "shared"))
    path = folder / "data" / "msweb_user_area.npz"
    if not path.is_file():
        raise InvalidInput("tasks", str(path), "the file of the Microsoft web data is not there")
    data = np.load(path)
    seen, groups = np.unique(data["group"], return_inverse=True)
    return Pairs(data["user"], groups, [str(area) for area in seen])


def orders(count: int = 10**6, months: int = 12, products: int = 40, seed: int = 7) -> Pairs:
    """Orders of products by month, five per customer on average; popular products sell more."""
    generator = np.random.default_rng(seed)
    weights = 1 / (np.arange(products) + 5.0)
    product = generator.choice(products, count, p=weights / weights.sum())
    month, user = generator.integers(0, months, count), generator.integers(0, count // 5, count)
    pairs = np.unique(user * (products * months) + product * months + month)
    names = [f"p{index // months}/{index % months + 1}" for index in range(products * months)]
    return Pairs(pairs // (products * months), pairs % (products * months), names)


def histogram_row(
    task: str, pairs: Pairs, most: int, epsilon: float, within: float, runs: int
) -> Row:
    """One capped Laplace histogram: groups whose 90 % interval is within the error."""
    generator, rows = np.random.default_rng(5), []
    for _ in range(runs):
        scale = most / epsilon
        noisy = pairs.capped(most, generator) + generator.laplace(0, scale, len(pairs.names))
        answered = _WIDTH * scale <= within * noisy
        off = np.abs(noisy - pairs.truth)[answered]
        rows.append(
            (answered.sum(), (off <= within * pairs.truth[answered]).sum(), off <= _WIDTH * scale)
        )
    return _row(task, f"capped Laplace, m = {most}", epsilon, [epsilon] * runs, rows)


def expost_row(
    task: str, pairs: Pairs, epsilon: float, within: float, runs: int, **how: Any
) -> Row:
    """``expost.count`` with a cap, in simulation."""
    table, truth, spent, rows = pairs.table(), pairs.truth_of(), [], []
    for seed in range(runs):
        result = expost.count(
            table,
            by="group",
            user="user",
            keys=pairs.names,
            epsilon=epsilon,
            within=within,
            randomness=SimulationRandomness(seed),
            simulation=True,
            **how,
        )
        numbers = [(answer, truth[answer.group]) for answer in result.answers]
        right = sum(abs(answer.estimate - true) <= within * true for answer, true in numbers)
        covered = np.array([answer.low <= true <= answer.high for answer, true in numbers])
        spent.append(result.spent)
        rows.append((len(numbers), right, covered))
    return _row(task, f"expost, m = {how['max_groups_per_user']}", epsilon, spent, rows)


def _row(task: str, method: str, epsilon: float, spent: Sequence[float], rows: Any) -> Row:
    """The means of some runs; ``spent_95`` is what 95 % of the runs do not exceed."""
    covered = np.concatenate([row[2] for row in rows]) if rows else np.zeros(0)
    return {
        "task": task,
        "method": method,
        "epsilon": epsilon,
        "spent": float(np.mean(spent)),
        "spent_95": float(np.quantile(spent, _SURE)),
        "answered": float(np.mean([row[0] for row in rows])) if rows else 0.0,
        "right": float(np.mean([row[1] for row in rows])) if rows else 0.0,
        "coverage": float(covered.mean()) if len(covered) else None,
    }


def least_epsilon_of(does: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least ε, to 1 %, at which something is done; by bisection of logarithms."""
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if does(middle) else (middle, high)
    return high


def areas(runs: int) -> list[Row]:
    """Msweb at ε = 2, within 10 %, at most ten areas per person."""
    pairs = msweb()
    return [
        histogram_row("msweb", pairs, 10, 2.0, 0.1, _QUICK * runs),
        expost_row("msweb", pairs, 2.0, 0.1, _QUICK * runs, max_groups_per_user=10),
    ]


def eighty_areas(runs: int) -> list[Row]:
    """The same, stopped when 80 areas are within 10 %."""
    pairs, task, generator = msweb(), "msweb, --answered 80", np.random.default_rng(3)
    counts = [pairs.capped(10, generator) for _ in range(20)]

    def does(epsilon: float) -> bool:
        scale, enough = 10 / epsilon, []
        for number in range(400):
            noisy = counts[number % 20] + generator.laplace(0, scale, len(pairs.names))
            enough.append((_WIDTH * scale <= 0.1 * noisy).sum() >= 80)
        return bool(np.mean(enough) >= _SURE)

    oracle = histogram_row(task, pairs, 10, least_epsilon_of(does, 0.5, 4.0), 0.1, _QUICK * runs)
    asked = expost_row(task, pairs, 2.0, 0.1, _QUICK * runs, max_groups_per_user=10, answered=80)
    return [oracle | {"method": "histogram at the oracle's ε"}, asked]


def products_by_month(runs: int) -> list[Row]:
    """40 products in 12 months, 10⁶ orders, within 5 % at ε = 2; the best m of the histogram."""
    pairs, task = orders(), "40 products x 12 months"
    tried = [histogram_row(task, pairs, most, 2.0, 0.05, 3) for most in (3, 5, 7, 9, 12, 15)]
    best = max(tried, key=lambda row: row["right"])
    most = int(best["method"].rsplit(" ", 1)[1])
    rows = [best, expost_row(task, pairs, 2.0, 0.05, runs, max_groups_per_user=most)]
    surer = expost_row(task, pairs, 2.0, 0.05, runs, max_groups_per_user=most, confidence=0.99)
    return [*rows, surer | {"method": f"{surer['method']}, 99 % confidence"}]


def top_products(runs: int) -> list[Row]:
    """The top 10 of 40 products with 95 % confidence, at most twelve products per person."""
    pairs, task, generator = orders(months=1), "top 10 products", np.random.default_rng(2)
    most = 12
    counts = [pairs.capped(most, generator) for _ in range(5)]
    best = set(np.argsort(-pairs.truth)[:10].tolist())

    def share_right(epsilon: float) -> float:
        right = 0
        for number in range(1000):
            noise = generator.laplace(0, most / epsilon, len(pairs.names))
            right += set(np.argsort(-(counts[number % 5] + noise))[:10].tolist()) == best
        return right / 1000

    epsilon = least_epsilon_of(lambda e: share_right(e) >= _SURE, 1e-4, 4.0)
    oracle = _row(task, "sorted noisy counts at the oracle's ε", epsilon, [epsilon], [])
    oracle |= {"answered": 10.0, "right": share_right(epsilon)}
    compared, table = [oracle], pairs.table()
    for name, cap in (("", {"max_groups_per_user": most}), (", no cap", {})):
        compared.append(_top_row(task, f"expost, --top 10{name}", table, pairs, epsilon, runs, cap))
    return compared


def _top_row(
    task: str, method: str, table: Any, pairs: Pairs, epsilon: float, runs: int, cap: Row
) -> Row:
    """Lists of the top 10 for at most ten times the oracle's ε; right: of those stated."""
    best = set(np.argsort(-pairs.truth)[:10].tolist())
    spent, right, stated = [], 0, 0
    for seed in range(runs):
        result = expost.count(
            table,
            by="group",
            user="user",
            keys=pairs.names,
            epsilon=10 * epsilon,
            top=10,
            confidence=_SURE,
            randomness=SimulationRandomness(seed),
            simulation=True,
            **cap,
        )
        listed = {pairs.names.index(answer.group) for answer in result.answers}
        stated, right = stated + bool(listed), right + (listed == best)
        spent.append(result.spent)
    asked = _row(task, method, 10 * epsilon, spent, [])
    return asked | {"answered": 10.0 * stated / runs, "right": right / max(1, stated)}


TASKS: Mapping[str, Callable[[int], list[Row]]] = {
    "msweb": areas,
    "answered": eighty_areas,
    "products": products_by_month,
    "top": top_products,
    **QUANTILE_TASKS,
}


def analyst_rows(tasks: Sequence[str], runs: int) -> list[Row]:
    """Return the rows of some tasks."""
    unknown = sorted(set(tasks) - set(TASKS))
    if unknown:
        raise InvalidInput("tasks", unknown[0], "give some of " + ", ".join(TASKS))
    return [row for task in tasks for row in TASKS[task](runs)]
