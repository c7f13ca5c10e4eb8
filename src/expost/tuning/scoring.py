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
from expost.mechanisms.discrete_noise import DiscreteGaussian, Query
from expost.mechanisms.protocol import Estimate
from expost.privacy.conversions import gaussian_for
from expost.privacy.guarantees import ZCDP, RenyiDP
from expost.privacy.profiles import LargestProfile
from expost.randomness.source import Randomness
from expost.rationals import round_down
from expost.tuning.goal_settings import GoalSettings
from expost.tuning.metrics import STEPS, Metric


def free_rho(training: RenyiDP, delta: float | None = None) -> float:
    """Return the largest ρ with αρ ≤ ε(α) at every listed order ≥ 2, rounded down.

    Smaller orders convert large ε only; there the score may cost more than the training.

    Parameters
    ----------
    training : RenyiDP
        Guarantee of the training.
    delta : float, optional
        If the training has a profile, ρ-zCDP must also imply its ε at this δ.

    Returns
    -------
    float
        ρ of the score that adds no cost to the training.

    Raises
    ------
    InvalidInput
        If ε(α) is 0 at some order.
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
    """Return the guarantee of training on one part of the rows and scoring on the other part.

    Parameters
    ----------
    training : RenyiDP
        Guarantee of the training.
    rho : float
        ρ of the score.

    Returns
    -------
    RenyiDP
        The pointwise maximum of the two curves, and of the two profiles.
    """
    score = ZCDP(rho, training.neighbours)
    worst = training.at_worst(score.to_renyi(training.orders))
    if training.profile is None:
        return worst
    return replace(worst, profile=LargestProfile((training.profile, score.as_profile())))


@dataclass(frozen=True)
class Score:
    """Score of a model's predictions on the scoring rows. Larger is better.

    Parameters
    ----------
    goal : GoalSettings
        The metric and the bar.
    rho : float or None
        The score is ρ-zCDP with this ρ. None means that the rows are public and no noise is added.
    centred : bool
        Whether the actual number of rows is secret, so that the sum is centred at the bar.

    Raises
    ------
    InvalidInput
        If the metric is no mean over rows and the rows are not public.
    """

    goal: GoalSettings
    rho: float | None
    centred: bool = False

    def __post_init__(self) -> None:
        if not self.metric.by_rows and (self.rho is not None or self.centred):
            raise InvalidInput("goal.metric", self.goal.metric, "it needs public scoring rows")

    @cached_property
    def metric(self) -> Metric:
        """The metric."""
        return self.goal.measure

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
        if self.rho is None:
            return self.metric.steps
        low = self._bar is not None and self._bar < Fraction(1, 2)
        return STEPS if low else max(2, self.metric.steps)

    @cached_property
    def centre(self) -> int:
        """What each row's merit is compared with, in steps; 0 for exact sums over public places."""
        if self.centred:
            return self._steps // 2 if self._bar is None else ceil(self._bar * self._steps)
        if self.rho is None:
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
        return max(self.centre, self._steps - self.centre)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of the sum, in rows or in the metric's unit."""
        if self.rho is None:
            return 0.0
        return (
            self.sensitivity * self.unit * float((1 / (2 * Fraction(self.rho))) ** Fraction(1, 2))
        )

    @property
    def unit(self) -> float:
        """Smallest step of the noisy sum, in rows or in the metric's unit; 0 without noise."""
        return 0.0 if self.rho is None else self.step

    @property
    def step(self) -> float:
        """Step of the sum, in rows or in the metric's unit."""
        return self.metric.spread / self._steps

    def __call__(
        self, predicted: Array, truth: Array, randomness: Randomness, rows: int | None = None
    ) -> float:
        """Return the score of predictions.

        Parameters
        ----------
        predicted, truth : ndarray
            What the metric takes, and the class numbers or values. The truth is NaN (None for
            labels) at an empty place, or if the row cannot be used.
        randomness : Randomness
            Source of the noise.
        rows : int, optional
            Public number of rows, required if the sum is centred; by default that of ``truth``.

        Returns
        -------
        float
            The metric, or minus the metric if smaller values are better; noisy if ``rho`` is given.
        """
        if self.centred and rows is None:
            raise InvalidInput("rows", None, "give the public number of scoring rows")
        if self.rho is None and not self.centred:
            exact = self.metric.exact(predicted, truth)
            return exact if self.metric.larger_is_better else -exact
        merits = self.metric.merits(predicted, truth, self._steps)
        if not self.centred:
            merits = np.where(_empty(truth), self.centre, merits)
        total = int(merits.sum()) - self.centre * len(truth)
        if self.rho is not None:
            query = Query(lambda whole: whole, sensitivity=self.sensitivity)
            noisy = DiscreteGaussian(query, self.rho)(total, randomness)
            assert isinstance(noisy, Estimate)
            total = int(noisy.value)
        return self.of_sum(total, rows or len(truth))

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

    def total(self, predicted: Array, truth: Array) -> int:
        """Return the sum of the merits."""
        return int(self.metric.merits(predicted, truth, self._steps).sum())


def _empty(truth: Array) -> Array:
    """Return which places are empty: NaN, or None among labels."""
    if truth.dtype == object:
        return np.array([each is None or each != each for each in truth], dtype=bool)
    return np.isnan(truth) if truth.dtype.kind == "f" else np.zeros(len(truth), dtype=bool)
