"""Scores of models: noisy on held-out rows, or exact on rows declared public.

Private scoring. The query is a sum over the held-out rows. A row adds its merit minus C, where the
merit is a whole number of steps from 0 to S that depends on this row alone
(:mod:`expost.tuning.metrics`), and C is a public number. An empty place adds 0, so one row moves
the sum by at most max(C, S − C). It is an integer, so there is no further rounding. Discrete
Gaussian noise makes the query ρ-zCDP.

Public number of places. C is the middle of the range, S/2, which halves the noise, or the bar if
that is lower. The score is C plus sum / places: an empty place, and a row that cannot be used,
counts as C. As C is not above the bar, a score above the bar means that the mean over the rows that
can be used is above it. S is 2 for the accuracy (2^16 if the bar is below 1/2), otherwise 2^16.

Secret number of rows. With add-remove neighbours the sum must not be divided by the actual number
of rows. C is the bar in steps, rounded up (the middle of the range if there is no bar), and the
score is the bar plus sum / rows with the public number of rows. A row that cannot be used has merit
0, a row that is not there adds 0. If the public number is wrong, the distance of the score from the
bar is wrong by a factor, but a score above the bar still means that the mean over the actual rows
is above the bar. S is 2^16.

The model was trained on other rows. If a person's row is in the training part, the score is
post-processing for this person. If the row is held out, the model does not depend on it. So
training and scoring together satisfy the pointwise maximum of the two Rényi curves (parallel
composition, adaptively; joint convexity is not needed since the split is public).

ρ is the largest value, rounded down, for which the curve αρ is nowhere above the curve of the
training from order 2 on, and for which ρ-zCDP implies the ε of the training's privacy profile at
the job's δ. Then scoring adds no cost.

Tests: ``tests/tuning/test_scoring.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, floor

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.mechanisms.discrete_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteNoise,
    Estimate,
    Query,
)
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ZCDP, RenyiDP
from expost.privacy.profiles import LargestProfile
from expost.randomness.source import Randomness
from expost.rationals import round_down
from expost.tuning.metrics import STEPS, Metric
from expost.tuning.settings import GoalSettings


def free_rho(training: RenyiDP, delta: float | None = None) -> float:
    """Return the largest ρ with αρ ≤ ε(α) at every listed order ≥ 2, rounded down.

    Smaller orders convert large ε only; there the score may cost more than the training.
    """
    rho = round_down(
        min(
            Fraction(e) / Fraction(a)
            for a, e in zip(training.orders, training.epsilons, strict=True)
            if a >= 2 or training.orders[-1] < 2
        )
    )
    if delta is not None and training.profile is not None:
        epsilon = training.to_approx(delta).epsilon
        if epsilon > 0:
            # a little less than for all orders, as the curve has some only
            rho = min(rho, 0.998 * gaussian_for(epsilon, delta).rho)
    if rho <= 0:
        raise InvalidInput(
            "guarantee",
            "a curve with ε = 0",
            "private scoring needs a training with ε > 0 at every order",
        )
    return rho


def with_scoring(training: RenyiDP, rho: float) -> RenyiDP:
    """Return the guarantee of training on one part of the rows and scoring on the other part."""
    score = ZCDP(rho, training.neighbours)
    worst = training.at_worst(score.to_renyi(training.orders))
    if training.profile is None:
        return worst
    return replace(worst, profile=LargestProfile((training.profile, score.as_profile())))


@dataclass(frozen=True)
class Score:
    """Score of a model's predictions on the scoring rows. Larger is better.

    ``rho`` or ``epsilon``: of its noise, Gaussian or Laplace; exact without both. ``replaced``: a
    neighbour has another row at the same place, which moves the sum by up to the whole range.
    """

    goal: GoalSettings
    rho: float | None
    centred: bool = False
    epsilon: float | None = None
    replaced: bool = False

    def __post_init__(self) -> None:
        if not self.metric.by_rows and (self._noisy or self.centred):
            raise InvalidInput("goal.metric", self.goal.metric, "it needs public scoring rows")

    @cached_property
    def metric(self) -> Metric:
        """The metric."""
        return self.goal.measure

    @property
    def _noisy(self) -> bool:
        """Whether the sum has noise."""
        return self.rho is not None or self.epsilon is not None

    @cached_property
    def _bar(self) -> Fraction | None:
        """The bar as a share of the range from the worst to the best value; None without a bar."""
        if self.goal.target is None:
            return None
        low, high = Fraction(self.metric.low), Fraction(self.metric.high)
        worst = low if self.metric.larger_is_better else -high
        return (Fraction(self.goal.target) - worst) / (high - low)

    @cached_property
    def _steps(self) -> int:
        """Steps of a merit."""
        if self.centred:
            return STEPS
        if not self._noisy:
            return self.metric.steps
        low = self._bar is not None and self._bar < Fraction(1, 2)
        return STEPS if low else max(2, self.metric.steps)

    @cached_property
    def centre(self) -> int:
        """What each row's merit is compared with, in steps; 0 for exact sums over public places."""
        if self.centred:
            return self._steps // 2 if self._bar is None else ceil(self._bar * self._steps)
        if not self._noisy:
            return 0
        return min(
            self._steps // 2, self._steps if self._bar is None else floor(self._bar * self._steps)
        )

    @property
    def worst(self) -> float:
        """The worst score."""
        return self.metric.low if self.metric.larger_is_better else -self.metric.high

    @property
    def empty(self) -> float:
        """The score of a sum of 0, which is what an empty place counts for."""
        if self.centred and self.goal.target is not None:
            return self.goal.target
        return self.worst + self.centre * self.step

    @property
    def sensitivity(self) -> int:
        """The most by which one row moves the sum, in units of :attr:`unit`."""
        return self._steps if self.replaced else max(self.centre, self._steps - self.centre)

    @property
    def noise(self) -> DiscreteNoise | None:
        """The noise of the sum; None for an exact score."""
        query = Query(lambda whole: whole, sensitivity=self.sensitivity)
        if self.epsilon is not None:
            return DiscreteLaplace(query, self.epsilon)
        return None if self.rho is None else DiscreteGaussian(query, self.rho)

    @property
    def law(self) -> str:
        """The law of the noise."""
        return "gaussian" if self.noise is None else self.noise.law

    @property
    def deviation(self) -> float:
        """Standard deviation (of Laplace noise: the scale) of the sum, in the metric's unit."""
        return 0.0 if self.noise is None else self.noise.output_scale * self.unit

    @property
    def unit(self) -> float:
        """Smallest step of the noisy sum, in rows or in the metric's unit; 0 without noise."""
        return self.step if self._noisy else 0.0

    @property
    def step(self) -> float:
        """Step of the sum, in rows or in the metric's unit."""
        return self.metric.spread / self._steps

    def __call__(
        self, predicted: Array, truth: Array, randomness: Randomness, rows: int | None = None
    ) -> float:
        """Return the score of predictions."""
        if self.centred and rows is None:
            raise InvalidInput("rows", None, "give the public number of scoring rows")
        if not (self._noisy or self.centred):
            exact = self.metric.exact(predicted, truth)
            return exact if self.metric.larger_is_better else -exact
        return self.noisy(self.sum_of(predicted, truth), rows or len(truth), randomness)

    def sum_of(self, predicted: Array, truth: Array) -> int:
        """Return the sum of the merits less C; an empty place, if places are public, adds 0."""
        merits = self.metric.merits(predicted, truth, self._steps) - self.centre
        if not self.centred:
            merits = np.where(_empty(truth), 0, merits)
        return int(merits.sum())

    def noisy(self, total: int, rows: int, randomness: Randomness) -> float:
        """Return the score that a sum stands for, after noise."""
        if self.noise is not None:
            estimate = self.noise(total, randomness)
            assert isinstance(estimate, Estimate)
            total = int(estimate.value)
        return self.of_sum(total, rows)

    def of_sum(self, total: int, rows: int) -> float:
        """Return the score that a sum over ``rows`` places stands for."""
        return self.empty + total * self.step / rows

    def bar_sum(self, rows: int) -> int:
        """Return the least exact sum over ``rows`` places that reaches the bar."""
        if self.centred:
            return 0
        assert self.goal.target is not None
        low, high = Fraction(str(self.metric.low)), Fraction(str(self.metric.high))
        worst = low if self.metric.larger_is_better else -high
        share = (Fraction(str(self.goal.target)) - worst) / (high - low)
        return ceil(share * self._steps * rows)

    def best_sum(self, rows: int) -> int:
        """Return the largest sum that ``rows`` places can have."""
        return (self._steps - self.centre) * rows


def _empty(truth: Array) -> Array:
    """Return which places are empty: NaN, or None among labels."""
    if truth.dtype == object:
        return np.array([label is None or label != label for label in truth], dtype=bool)
    return np.isnan(truth) if truth.dtype.kind == "f" else np.zeros(len(truth), dtype=bool)
