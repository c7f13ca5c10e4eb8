"""The problem that the mechanisms of Table 3 solve: candidates, outcomes from a bank, and a bar.

The candidates have the promises of the training plans that were executed. All attempts of a trial
are charged at one Rényi order, fixed beforehand from public numbers; their sum is converted once,
at that order. Tests: ``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.dpsgd import RENYI, calibrate_noise
from expost.privacy.guarantees import RenyiDP
from expost.privacy.profiles import tight_epsilon
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import Configuration, guarantees_of, plans
from reproduction.table3.bank import Bank
from reproduction.table3.tasks import DELTA, GridSetting, TableTask

AFFORDABLE = 1.0


class Trial(NamedTuple):
    """The total cost of a trial, whether it passed the bar, and its number of attempts."""

    epsilon: float
    passed: bool
    attempts: int


@dataclass(frozen=True, eq=False)
class TrialOutcome:
    """The trials of a mechanism, its settings, and the theorem on which its charges rest.

    The theorem is "none" for a diagnostic.
    """

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
    """A training, looked up in the bank: one of the scores of its setting and level.

    A larger score is better.
    """

    scores: tuple[float, ...]

    def __call__(self, data: Any, randomness: Randomness) -> float:
        return self.scores[randomness.below(len(self.scores))]


@dataclass(frozen=True, eq=False)
class TableProblem:
    """A task, a bank, one bar and one set of levels; ``candidates`` are ordered by level.

    ``target`` is the bar as a score, where larger is better.
    """

    task: TableTask
    bank: Bank
    bar: float
    target: float
    levels: tuple[float, ...]
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, task: TableTask, bank: Bank, bar: float, levels: Sequence[float]) -> TableProblem:
        """Make the candidates: every setting at every level.

        Each has exactly the promise of the plan that was executed.
        """
        grid = [(epsilon, setting) for epsilon in levels for setting in bank.settings]
        curves = _curves(grid, bank)
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
        """Return the candidates of a level."""
        size, place = len(self.bank.settings), self.levels.index(epsilon)
        return self.candidates[place * size : (place + 1) * size]

    def best_order(self) -> float:
        """Return the Rényi order to charge at.

        It minimises the cost of the median setting of the first level, which is about
        2ε(α) + ln(copies/δ)/(α−1). Only public numbers are used. The median is used because the
        divergence of trainings with few, small batches explodes at large orders.
        """
        orders = np.array(_curve(self.candidates[0]).orders)
        losses = np.median([_curve(each).epsilons for each in self.level(self.levels[0])], axis=0)
        return float(
            orders[np.argmin(2 * losses + math.log(len(self.candidates) / DELTA) / (orders - 1))]
        )

    def rate(self, order: float) -> float:
        """Return the median drop rate of the first level: the divergence at the order."""
        return float(np.median([_curve(each).at(order) for each in self.level(self.levels[0])]))

    def affordable(self, order: float) -> list[Candidate]:
        """Return the candidates whose divergence at the order is at most ``AFFORDABLE``.

        The others would almost never be kept, and would not be worth their charge. This is a public
        choice, made before anything runs. It shortens the list and limits the worst case.
        """
        return [each for each in self.candidates if _curve(each).at(order) <= AFFORDABLE]


def converted(spent: float, order: float, charge: str = "sharp") -> float:
    """Convert a sum of charges at an order to ε, at the δ of the table."""
    return (
        spent - math.log(DELTA) / (order - 1)
        if charge == "paper"
        else tight_epsilon(order, spent, math.log(DELTA))
    )


def variance_of(bank: Bank) -> float:
    """Return the variance of the public targets of a regression."""
    variance = bank.details.get("target_variance")
    if not isinstance(variance, (int, float)) or not variance > 0:
        raise InvalidInput(
            "bank",
            "target_variance",
            "a bank of a regression must state the variance of its public targets",
        )
    return float(variance)


def _curves(grid: Sequence[tuple[float, GridSetting]], bank: Bank) -> list[RenyiDP]:
    """Return the promises on their common orders; equal promises are one object.

    The noise is the one that was trained with: a bank that names no accountant was calibrated by
    Rényi curves.
    """
    planned = plans(
        [
            Configuration(
                setting.learning_rate,
                setting.epochs,
                setting.batch_size,
                setting.clip,
                noise_multiplier=1.0,
            )
            for _, setting in grid
        ],
        bank.n,
    )
    noises = calibrate_noise(
        sampling_rates=[plan.sampling_rate for plan in planned],
        steps=[plan.steps for plan in planned],
        epsilons=[epsilon for epsilon, _ in grid],
        delta=bank.delta,
        accountant=str(bank.details.get("accountant", RENYI)),
    )
    noisy = [
        plan._replace(noise_multiplier=noise)
        for plan, noise in zip(planned, noises.tolist(), strict=True)
    ]
    found = [curve for curve in guarantees_of(noisy) if curve is not None]
    orders = sorted(set.intersection(*(set(curve.orders) for curve in found)))
    cut = {id(curve): curve.on(orders) for curve in found}
    return [cut[id(curve)] for curve in found]


def _curve(candidate: Candidate) -> RenyiDP:
    """Return the Rényi promise of a candidate."""
    curve = candidate.guarantee.as_renyi()
    assert curve is not None
    return curve
