"""What the mechanisms of Table 3 are asked: candidates with the promises of their plans and outcomes from a bank, and a bar.

All attempts of a trial are charged at one Rényi order, fixed beforehand from public numbers; their sum is converted once, at that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.guarantees import RenyiDP, tight_epsilon
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import Configuration, plans, promises
from reproduction.table3.bank import Bank
from reproduction.table3.tasks import DELTA, GridSetting, TableTask

AFFORDABLE = 1.0


class Trial(NamedTuple):
    """What one trial cost in all, whether it passed the bar, and how often it asked."""

    epsilon: float
    passed: bool
    attempts: int


@dataclass(frozen=True, eq=False)
class TrialOutcome:
    """A mechanism's trials, how it was set up, and the theorem its charges rest on ("none" for a diagnostic)."""

    mechanism: str
    charge: str
    overhead: float | None
    note: str
    order: float | None
    guarantee: str
    trials: list[Trial]
    candidates: int
    worst_case: float


@dataclass(frozen=True)
class Lookup:
    """A training, looked up: one of the scores that its setting had at its level. More is better."""

    scores: tuple[float, ...]

    def __call__(self, data: Any, randomness: Randomness) -> float:
        return self.scores[randomness.below(len(self.scores))]


@dataclass(frozen=True, eq=False)
class TableProblem:
    """A task, a bank, one bar (as a score, more is better) and one set of levels; ``candidates`` level by level."""

    task: TableTask
    bank: Bank
    bar: float
    target: float
    levels: tuple[float, ...]
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, task: TableTask, bank: Bank, bar: float, levels: Sequence[float]) -> TableProblem:
        """The candidates: every setting at every level, with exactly the promise of the plan that was executed."""
        grid = [(epsilon, setting) for epsilon in levels for setting in bank.settings]
        curves = _curves(
            [_configuration(setting, epsilon, bank.delta) for epsilon, setting in grid], bank.n
        )
        cells = [cell for epsilon in levels for cell in bank.level(epsilon)]
        sign = 1.0 if task.metric == "accuracy" else -1.0
        candidates = tuple(
            Candidate(
                Lookup(tuple(sign * score for score in cell)),
                {"epsilon": epsilon, **setting._asdict()},
                guarantee=curve,
            )
            for (epsilon, setting), cell, curve in zip(grid, cells, curves, strict=True)
        )
        return cls(
            task,
            bank,
            bar,
            bar if task.metric == "accuracy" else -bar * variance_of(bank),
            tuple(levels),
            candidates,
        )

    def level(self, epsilon: float) -> tuple[Candidate, ...]:
        size, place = len(self.bank.settings), self.levels.index(epsilon)
        return self.candidates[place * size : (place + 1) * size]

    def best_order(self) -> float:
        """The Rényi order to charge at: the median setting of the first level should cost least, at about 2ε(α) + ln(copies/δ)/(α−1).

        Public numbers only. (A median: at large orders the divergence of trainings with few, small batches explodes.)
        """
        orders = np.array(_curve(self.candidates[0]).orders)
        losses = np.median([_curve(each).epsilons for each in self.level(self.levels[0])], axis=0)
        return float(
            orders[np.argmin(2 * losses + math.log(len(self.candidates) / DELTA) / (orders - 1))]
        )

    def rate(self, order: float) -> float:
        """The drop rate of the median setting of the first level: its divergence at the order."""
        return float(np.median([_curve(each).at(order) for each in self.level(self.levels[0])]))

    def affordable(self, order: float) -> list[Candidate]:
        """The candidates whose divergence at the order is at most ``AFFORDABLE``: the others would never be kept, nor worth their charge.

        A public choice, made before anything runs; it only shortens the list, and keeps the worst case within reason.
        """
        return [each for each in self.candidates if _curve(each).at(order) <= AFFORDABLE]


def converted(spent: float, order: float, charge: str = "sharp") -> float:
    """The ε of a sum of charges at an order, at the δ of the table."""
    return (
        spent - math.log(DELTA) / (order - 1)
        if charge == "paper"
        else tight_epsilon(order, spent, math.log(DELTA))
    )


def variance_of(bank: Bank) -> float:
    variance = bank.details.get("target_variance")
    if not isinstance(variance, (int, float)) or not variance > 0:
        raise InvalidInput(
            "bank",
            "target_variance",
            "a bank of a regression says the variance of its public targets",
        )
    return float(variance)


def _configuration(setting: GridSetting, epsilon: float, delta: float) -> Configuration:
    return Configuration(
        setting.learning_rate,
        setting.epochs,
        setting.batch_size,
        setting.clip,
        epsilon=epsilon,
        delta=delta,
    )


def _curves(configurations: Sequence[Configuration], n: int) -> list[RenyiDP]:
    """Promises on the orders that all of them list; equal ones are one object."""
    found = [curve for curve in promises(plans(configurations, n)) if curve is not None]
    orders = sorted(set.intersection(*(set(curve.orders) for curve in found)))
    cut = {id(curve): curve.on(orders) for curve in found}
    return [cut[id(curve)] for curve in found]


def _curve(candidate: Candidate) -> RenyiDP:
    assert isinstance(candidate.guarantee, RenyiDP)
    return candidate.guarantee
