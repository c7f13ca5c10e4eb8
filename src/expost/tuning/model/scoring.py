"""Scores of models, and how sure they are: by how much a noisy score must clear the goal.

**Confidence.** A model is released as passed only if its noisy score, less a margin, reaches the
goal. Statement, proof, the bound for the population and what a secret number of rows changes:
docs/theory.md, "A goal with confidence". In its symbols :class:`Margins` holds R_t (``runs``) and
the shares of Σ β_t = 1 − confidence; :meth:`Margins.deviations` is z_t, :meth:`Margins.sampling`
is h, and :func:`population_bound` takes L, c and h. Comparing is post-processing of a private
score: margins cost no privacy.

**Private scoring.** The query is a sum over the held-out rows. A row adds its merit minus C, where
the merit is a whole number of steps from 0 to S that depends on this row alone
(:mod:`expost.tuning.request.metrics`), and C is a public number. An empty place adds 0, so one row
moves the sum by at most max(C, S − C). It is an integer, so there is no further rounding. Discrete
Gaussian noise makes the query ρ-zCDP.

Public number of places. C is the middle of the range, S/2, which halves the noise, or the goal if
that is lower. The score is C plus sum / places: an empty place, and a row that cannot be used,
counts as C. As C is not above the goal, a score above the goal means that the mean over the rows
that can be used is above it. S is 2 for the accuracy (2^16 if the goal is below 1/2), otherwise
2^16.

Secret number of rows. With add-remove neighbours the sum must not be divided by the actual number
of rows. C is the goal in steps, rounded up (the middle of the range if there is no goal), and the
score is the goal plus sum / rows with the public number of rows. A row that cannot be used has
merit 0, a row that is not there adds 0. If the public number is wrong, the distance of the score
from the goal is wrong by a factor, but a score above the goal still means that the mean over the
actual rows is above the goal. S is 2^16.

The model was trained on other rows. If a person's row is in the training part, the score is
post-processing for this person. If the row is held out, the model does not depend on it. So
training and scoring together satisfy the pointwise maximum of the two Rényi curves (parallel
composition, adaptively; joint convexity is not needed since the split is public).

ρ is the largest value, rounded down, for which the curve αρ is nowhere above the curve of the
training from order 2 on, and for which ρ-zCDP implies the ε of the training's privacy profile at
the job's δ. Then scoring adds no cost.

Tests: ``tests/tuning/test_scoring.py``, ``tests/tuning/test_confidence.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.mechanisms import (
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
from expost.selection.attempts import Schedule
from expost.tuning.model.released_model import PART, Recipe
from expost.tuning.request.metrics import (
    LABELS,
    OUTPUTS,
    PROBABILITIES,
    STEPS,
    Metric,
    OwnMetric,
)
from expost.tuning.request.settings import GoalSettings
from expost.tuning.request.tune_request import LINEAR


@dataclass(frozen=True)
class Margins:
    """Margins of a job, attempt by attempt."""

    confidence: float
    runs: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, confidence: float, schedule: Schedule, runs: Sequence[float]) -> Margins:
        """Share the allowed error among the attempts as δ is shared."""
        return cls(
            confidence, tuple(runs), tuple(attempt.delta_share for attempt in schedule.attempts)
        )

    def deviations(self, attempt: int, *, part: float = 1.0) -> float:
        """Return z_t: how many standard deviations of its noise a score must clear the goal by."""
        return max(0.0, NormalDist().inv_cdf(1 - min(self._allowed(attempt, part), 0.5)))

    def margin(
        self,
        attempt: int,
        deviation: float,
        unit: float,
        *,
        part: float = 1.0,
        law: str = "gaussian",
    ) -> float:
        """Return the margin of a score whose smallest step is ``unit``.

        ``deviation`` is the standard deviation of Gaussian noise, or the scale b of discrete
        Laplace noise (``law="laplace"``), whose upper tail at m is at most e^{−m/b}. Without noise
        (public scoring) the margin is 0.
        """
        if deviation == 0:
            return 0.0
        if law == "laplace":
            return -math.log(min(self._allowed(attempt, part), 1.0)) * deviation
        # One unit more: the discrete tail at m is at most the continuous one at m − 1.
        return self.deviations(attempt, part=part) * deviation + unit

    def _allowed(self, attempt: int, part: float) -> float:
        """Return β_t/R_t: the probability of a wrong pass that one scored run may have."""
        return part * (1 - self.confidence) * self.shares[attempt] / max(self.runs[attempt], 1.0)

    def sampling(self, attempt: int, rows: int, spread: float) -> float:
        """Return h: how far a mean over ``rows`` rows may lie above its expectation.

        ``spread`` is the range of one row's value
        (:attr:`expost.tuning.request.metrics.Metric.spread`). Half of the allowed error is used.
        """
        return spread * math.sqrt(-math.log(self._allowed(attempt, 0.5)) / (2 * rows))


SECRET_ROWS = "the actual number of scoring rows is secret"
NOT_A_MEAN = "the metric is not an average over rows"
TOO_FEW = "too few scoring rows for a bound that holds however many of them can be used"


def population_bound(
    certain: float, empty: float, sampled: float, worst: float
) -> tuple[float | None, str | None]:
    """Bound the expected score of a usable row from below, or return None and why not."""
    lead = certain - empty
    if lead > 0:
        # The least of c + lead·x² − h·x over all x ≥ 1: how many rows are usable is not known.
        bound = certain - sampled if 2 * lead >= sampled else empty - sampled**2 / (4 * lead)
        if bound > worst:
            return bound, None
    return None, TOO_FEW


@dataclass(frozen=True)
class Bounds:
    """What is certified about a released model's score, in the direction where more is better."""

    confidence: float
    noisy: float
    on_scoring_rows: float
    on_population: float | None
    why_none: str | None = None

    def as_dict(self, *, larger_is_better: bool) -> dict[str, Any]:
        """Return the bounds in the metric's own direction (a squared error has upper bounds)."""
        sign = 1.0 if larger_is_better else -1.0
        return {
            "confidence": self.confidence,
            "noisy_score": sign * self.noisy,
            "bound_on_scoring_rows": sign * self.on_scoring_rows,
            "bound_on_population": (
                None if self.on_population is None else sign * self.on_population
            ),
            "why_no_bound_on_population": self.why_none,
        }


def confidence_bounds(
    margins: Margins,
    attempt: int,
    noisy: float,
    deviation: float,
    unit: float,
    rows: int | str,
    spread: float,
    *,
    law: str = "gaussian",
    empty: float,
    worst: float,
    most: float = math.inf,
) -> Bounds:
    """Return the bounds of a model that attempt ``attempt`` released as passed."""
    population, why = None, rows if isinstance(rows, str) else None
    if not isinstance(rows, str):
        certain = noisy - margins.margin(attempt, deviation, unit, part=0.5, law=law)
        sampled = margins.sampling(attempt, rows, spread)
        population, why = population_bound(certain, empty, sampled, worst)
    return Bounds(
        margins.confidence,
        noisy,
        min(most, noisy - margins.margin(attempt, deviation, unit, law=law)),
        population,
        why,
    )


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
    # Parallel composition: a person trains or scores, so the larger curve holds, not the sum.
    worst = training.at_worst(score.to_renyi(training.orders))
    if training.profile is None:
        return worst
    return replace(worst, profile=LargestProfile((training.profile, score.as_profile())))


@dataclass(frozen=True)
class Score:
    """Score of a model's predictions on the scoring rows. Larger is better.

    ``rho`` or ``epsilon``: of its noise, Gaussian or Laplace; exact without both. ``replaced``: a
    neighbour has another row at the same place, which moves the sum by up to the whole range.
    ``shares``: a person's rows have shares that add up to this
    (:mod:`expost.tuning.rows.job_columns`); 1 if a person is a row.
    """

    goal: GoalSettings
    rho: float | None
    centred: bool = False
    epsilon: float | None = None
    replaced: bool = False
    shares: int = 1

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
    def _goal_share(self) -> Fraction | None:
        """The goal as a share of the range from the worst to the best value, or None."""
        if self.goal.least_score is None:
            return None
        low, high = Fraction(self.metric.low), Fraction(self.metric.high)
        worst = low if self.metric.larger_is_better else -high
        return (Fraction(self.goal.least_score) - worst) / (high - low)

    @cached_property
    def _steps(self) -> int:
        """Steps of a merit."""
        if self.centred:
            return STEPS
        if not self._noisy:
            return self.metric.steps
        low = self._goal_share is not None and self._goal_share < Fraction(1, 2)
        return STEPS if low else max(2, self.metric.steps)

    @cached_property
    def centre(self) -> int:
        """What each row's merit is compared with, in steps; 0 for exact sums over public places."""
        if self.centred:
            # Rounded up: a sum above 0 means a mean above the goal, however many rows there are.
            share = Fraction(1, 2) if self._goal_share is None else self._goal_share
            return ceil(share * self._steps)
        if not self._noisy:
            return 0
        return min(
            self._steps // 2,
            self._steps if self._goal_share is None else floor(self._goal_share * self._steps),
        )

    @property
    def worst(self) -> float:
        """The worst score."""
        return self.metric.low if self.metric.larger_is_better else -self.metric.high

    @property
    def empty(self) -> float:
        """The score of a sum of 0, which is what an empty place counts for."""
        if self.centred and self.goal.least_score is not None:
            return self.goal.least_score
        return self.worst + self.centre * self.shares * self.step

    @property
    def sensitivity(self) -> int:
        """The most by which one row, or one person, moves the sum, in units of :attr:`unit`."""
        most = self._steps if self.replaced else max(self.centre, self._steps - self.centre)
        return most * self.shares

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
        return self.metric.spread / (self._steps * self.shares)

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

    def sum_of(self, predicted: Array, truth: Array, shares: Array | None = None) -> int:
        """Return the sum of the merits less C; an empty place, if places are public, adds 0.

        Rows of persons count with their shares.
        """
        merits = self.metric.merits(predicted, truth, self._steps) - self.centre
        # An empty place adds 0 and not −C: so a row moves the sum by at most max(C, S − C).
        if not self.centred:
            merits = np.where(_empty(truth), 0, merits)
        return int(merits.sum() if shares is None else (merits * shares).sum())

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

    def least_sum(self, rows: int) -> int:
        """Return the least exact sum over ``rows`` places that reaches the goal."""
        if self.centred:
            return 0
        assert self.goal.least_score is not None
        low, high = Fraction(str(self.metric.low)), Fraction(str(self.metric.high))
        worst = low if self.metric.larger_is_better else -high
        # By the decimals that were written: the double 0.1 would ask for two rows of ten.
        share = (Fraction(str(self.goal.least_score)) - worst) / (high - low)
        return ceil(share * self._steps * self.shares * rows)

    def best_sum(self, rows: int) -> int:
        """Return the largest sum that ``rows`` places can have."""
        return (self._steps - self.centre) * self.shares * rows


def _empty(truth: Array) -> Array:
    """Return which places are empty: NaN, or None among labels."""
    if truth.dtype == object:
        return np.array([label is None or label != label for label in truth], dtype=bool)
    return np.isnan(truth) if truth.dtype.kind == "f" else np.zeros(len(truth), dtype=bool)


def predictions(metric: Metric, recipe: Recipe, parameters: Mapping[str, Array], X: Array) -> Array:
    """Return the predictions that a metric takes, one per row."""
    rows = len(X)
    if recipe.kind not in LINEAR and rows % PART:
        # Parts of one shape: a product may round in an order that depends on the number of rows.
        X = np.concatenate([X, np.zeros((PART - rows % PART, *X.shape[1:]), dtype=X.dtype)])
    if metric.takes == OUTPUTS:
        return recipe.outputs(parameters, X)[:rows]
    if metric.takes == PROBABILITIES:
        return recipe.probabilities(parameters, X)[:rows]
    decided = recipe.decide(parameters, X)[:rows]
    return recipe.schema.labels(decided) if metric.takes == LABELS else decided


def truth_of_rows(metric: Metric, recipe: Recipe, y: Array) -> Array:
    """Return the truth that a metric takes: class numbers, values, or labels.

    An empty place is NaN; None among labels.
    """
    if recipe.target_bounds is not None:
        low, high = recipe.target_bounds
        y = low + y * (high - low)
    if metric.takes != LABELS:
        return y
    empty = np.isnan(y)
    labels = np.empty(len(y), dtype=object)
    if recipe.target_bounds is not None:
        labels[:] = y.tolist()
    else:
        labels[:] = recipe.schema.labels(np.where(empty, 0, y).astype(np.int64)).tolist()
    labels[empty] = None
    return labels


def check_metric(metric: Metric, recipe: Recipe) -> None:
    """Refuse a metric that does not fit the model, by public facts alone."""
    metric.check_classes(recipe.class_count)
    if isinstance(metric, OwnMetric):
        ends = np.array([0.0, 1.0])
        first, last = truth_of_rows(metric, recipe, ends).tolist()
        for prediction in (first, last):
            metric.function.check(prediction, last)
