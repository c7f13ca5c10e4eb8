"""One training that stops when it passes: a request of a tuning job.

A :class:`Way` is either *progressive training* (:mod:`expost.training.progressive`): steps with all
rows and noise that falls; or *second moments* for least squares with noise along a Brownian path
(:mod:`expost.selection.noise_path`). Both are looked at from coarse to fine. The first level that
passes is released and paid; a miss costs the last level.

Scoring. On public rows each level is scored exactly. On held-out rows the levels are compared with
noisy counts (:mod:`expost.selection.held_out`): the training rows and the held-out rows are
disjoint, so a level costs the larger of its training and its comparison, and both cost the same. So
scoring adds no cost. Only levels at which a look can pass are looked at.

Charges. In (ε, δ) a level is ε_i. For a budget in ρ (:class:`Concentrated`: zCDP, Rényi orders) it
is ρ_i = μ²/2 of the steps made, and held-out rows are counted with Gaussian noise of the same ρ_i.

Tests: ``tests/tuning/test_noise_reduction.py``, ``tests/tuning/test_progressive_jobs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ADD_REMOVE
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.selection.held_out import GaussianCounts, HeldOut, useful_levels, useful_rhos
from expost.selection.job_selectors import PlannedPath
from expost.selection.noise_path import NoisePath, Path, levels_of_path
from expost.training.progressive import LinearTraining, ProgressivePath, Rule
from expost.training.second_moments import SecondMoments
from expost.tuning.candidates import ScoredModel
from expost.tuning.confidence import NOT_A_MEAN, SECRET_ROWS, Bounds, population_bound
from expost.tuning.feature_choice import FeatureRows
from expost.tuning.model import Recipe
from expost.tuning.predictions import predictions, truth_of_rows
from expost.tuning.run_attempts import Step
from expost.tuning.scoring import Score
from expost.tuning.settings import GoalSettings

PROGRESSIVE, MOMENTS = "progressive", "noise-reduction"
"""The kinds of a way: training step by step, and least squares from noisy second moments."""

GROWTH = 1.12
"""Looks are made where ε has grown by this factor."""

GROWTH_OF_RHO = 1.8
"""The same factor for levels in ρ with held-out rows: a look at them costs what ρ has grown by."""

LEAST_OF_MOMENTS = 0.004
"""The first level of second moments."""

_LEAST_LEVEL = 1e-4
_FIRST = 6.0  # the first level, in units of μ of the first step


@dataclass(frozen=True)
class Concentrated:
    """A job that is charged in ρ: under zCDP, or at Rényi orders."""

    delta: float
    growth: float
    orders: tuple[float, ...] | None = None
    order: float | None = None
    looks: int = 1000

    @classmethod
    def of(cls, delta: float, public: bool, *orders: Any) -> Concentrated:
        """Return charges in ρ; looks at public rows are free and may be closer together."""
        return cls(delta, GROWTH**2 if public else GROWTH_OF_RHO, *orders)

    def rho(self, epsilon: float) -> float:
        """Return the ρ that adds at most ε to the job."""
        if self.order is not None:
            return epsilon / self.order
        return gaussian_for(epsilon, self.delta / self.looks).rho


@dataclass(frozen=True)
class Way:
    """One request by a path; everything in it is public."""

    kind: str
    levels: tuple[float, ...]
    delta: float
    confidence: float
    scale: float = 1.0
    norm_bound: float | None = None
    charged: Concentrated | None = None

    def cost(self, look: int) -> str:
        """Return what stopping at a look costs, in words."""
        level = self.levels[look]
        return f"ε = {level:.3g}" if self.charged is None else f"ρ = {level:.3g}"

    def request(self, path: Path, **settings: Any) -> Step:
        """Return the search along a path, priced, with settings of :class:`PlannedPath`."""
        params = {} if self.kind == MOMENTS else {"training": self.kind, "scale": self.scale}
        if self.charged is None:
            orders, listed = None, levels_of_path(path, self.levels, delta=self.delta)
        else:
            orders, listed = self.charged.orders, levels_of_path(path, rhos=self.levels)
        selector = PlannedPath(training=self.kind, orders=orders, **settings)
        levels = tuple(Candidate(level.mechanism, {**level.params, **params}) for level in listed)
        return Step(selector, levels, selector.charges(levels), float(len(levels)))

    def stop_by(self, count: Any, *, monotone: bool, **rule: Any) -> HeldOut | GaussianCounts:
        """Return the rule by which counts of held-out rows stop this way."""
        rule["confidence"] = self.confidence
        if self.charged is None:
            return HeldOut.for_levels(count, self.levels, monotone=monotone, **rule)
        return GaussianCounts.for_levels(count, self.levels, **rule)


@dataclass(frozen=True)
class Places:
    """Public numbers of a job's rows, and its neighbouring relation."""

    training: int
    scoring: int
    features: int
    relation: str


@dataclass(frozen=True)
class Sums:
    """The statistic of least squares: second moments."""

    moments: SecondMoments

    def __call__(self, data: Any) -> Floats:
        parts = getattr(data, "parts", None)
        if parts is not None:
            return parts.moments(self.moments)  # type: ignore[no-any-return]
        return self.moments.sums(np.asarray(data["X"]), np.asarray(data["y"], dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Finish:
    """Turn released numbers into a model and, with public rows, score it.

    ``recipe`` takes the rows that ``rows`` makes of encoded ones.
    """

    recipe: Recipe
    goal: GoalSettings
    moments: SecondMoments | None
    rows: FeatureRows | None
    public: PublicScore | None
    looks: int
    confidence: float

    def __call__(self, values: Floats, scale: float = 0.0) -> ScoredModel:
        if self.moments is not None:
            weight, bias = self.moments.solve(values, scale)
        else:
            middle = 0.5 if self.recipe.loss == "squared" else 0.0  # targets are centred
            weight, bias = np.ascontiguousarray(values.T), np.full(values.shape[1], middle)
        parameters = {"weight": weight, "bias": bias}
        if self.public is None:
            return ScoredModel(parameters, math.nan)
        score, population, why = self.public(self, parameters)
        bounds = Bounds(self.confidence, score, score, population, why)
        return ScoredModel(parameters, score, bounds=bounds)


class PublicScore(Protocol):
    """A score that reads public data only."""

    def __call__(
        self, finish: Finish, parameters: Mapping[str, Array]
    ) -> tuple[float, float | None, str | None]:
        """Return the score, its bound for the population, and why there is none."""


@dataclass(frozen=True, eq=False)
class PublicRows:
    """The metric of a goal on rows that are declared public."""

    X: Array
    y: Array

    def __call__(
        self, finish: Finish, parameters: Mapping[str, Array]
    ) -> tuple[float, float | None, str | None]:
        metric, exact = finish.goal.measure, Score(finish.goal, None)
        truth = truth_of_rows(metric, finish.recipe, self.y)
        X = self.X if finish.rows is None else finish.rows.of(self.X)
        predicted = predictions(metric, feature_recipe(finish.recipe), parameters, X)
        score = exact(predicted, truth, Randomness())
        if not metric.by_rows:
            return score, None, NOT_A_MEAN
        sampled = sampling(finish.confidence, finish.looks, len(truth), metric.spread)
        return score, *population_bound(score, exact.worst, sampled, exact.worst)


@dataclass(frozen=True, eq=False)
class HeldOutCount:
    """The sum of the held-out rows' merits (:mod:`expost.tuning.metrics`).

    With public places an absent row counts 0 and a present one between 0 and ``steps``, so one
    person changes all counts in the same direction. With a secret number of rows each row counts
    its merit less the bar, which may have either sign.
    """

    recipe: Recipe
    score: Score
    rows: FeatureRows | None = None

    def __call__(self, fitted: ScoredModel, data: Any) -> int:
        parts = getattr(data, "parts", None)
        if parts is not None:
            features = None if self.rows is None else self.rows.features
            function = replace(self, rows=None).of_rows
            return parts.count(features, function, fitted.parameters)  # type: ignore[no-any-return]
        X = data["score_X"] if self.rows is None else self.rows.of(data["score_X"])
        return self.of_rows(X, data["score_y"], fitted.parameters)

    def of_rows(self, X: Any, y: Array, parameters: Mapping[str, Array]) -> int:
        """Return the sum over rows that are features already."""
        metric = self.score.metric
        truth = truth_of_rows(metric, self.recipe, np.asarray(y, dtype=np.float64))
        predicted = predictions(metric, feature_recipe(self.recipe), parameters, X)
        return self.score.sum_of(predicted, truth)


@dataclass(frozen=True)
class Report:
    """What is released of the level at which a search on held-out rows ends."""

    score: Score
    rows: int
    bar: int
    confidence: float
    looks: int

    def __call__(self, fitted: ScoredModel, count: int, threshold: int, wider: int) -> ScoredModel:
        margin = threshold - self.bar
        longer = margin + wider  # the margin at half of the allowed error
        noisy = self.score.of_sum(count, self.rows)
        certain: float = self.score.of_sum(count - margin, self.rows)
        population: float | None = None
        why: str | None = SECRET_ROWS
        if self.score.centred:  # the number of rows is secret: only the bar is certified, if passed
            reached = count >= threshold
            certain = min(certain, self.score.of_sum(0, self.rows)) if reached else self.score.worst
        else:
            spread = self.score.metric.spread
            sampled = sampling(self.confidence, self.looks, self.rows, spread, part=0.5)
            population, why = population_bound(
                self.score.of_sum(count - longer, self.rows),
                self.score.empty,
                sampled,
                self.score.worst,
            )
        bounds = Bounds(self.confidence, noisy, certain, population, why)
        return replace(fitted, score=noisy, lead=float(count - threshold), bounds=bounds)


def sampling(
    confidence: float, looks: int, rows: int, spread: float, *, part: float = 1.0
) -> float:
    """Return how far a score on ``rows`` random rows may lie above its expectation (Hoeffding).

    The models of all looks are made of other rows, so the bound is for each of ``looks`` models.
    """
    return spread * math.sqrt(math.log(looks / (part * (1 - confidence))) / (2 * rows))


def levels_up_to(
    top: float, least: float = LEAST_OF_MOMENTS, growth: float = GROWTH
) -> tuple[float, ...]:
    """Return levels from ``least`` to ``top``, each ``growth`` times the last; at least one."""
    count = math.floor(math.log(top / least) / math.log(growth) + 1e-9) if top > least else 0
    return tuple(top / growth**step for step in range(count, -1, -1))


def least_level(dimension: int, places: int) -> float:
    """Return the first level worth a look: before it, noise is larger than any gradient."""
    return max(_LEAST_LEVEL, _FIRST * 0.5 * math.sqrt(dimension) / places)


def usable_levels(
    levels: Sequence[float],
    goal: GoalSettings,
    places: Places,
    confidence: float,
    charged: Concentrated | None = None,
) -> tuple[float, ...]:
    """Return the levels at which held-out rows can let a model pass; none if there is no room."""
    score = _held_out_score(goal, places)
    room = score.best_sum(places.scoring) - score.bar_sum(places.scoring)
    if charged is not None:
        return useful_rhos(levels, room=room, confidence=confidence, steps=score.sensitivity)
    return useful_levels(
        levels,
        room=room,
        confidence=confidence,
        steps=score.sensitivity,
        monotone=places.relation != ADD_REMOVE,
    )


def no_useful_level(goal: GoalSettings, places: Places, top: float) -> InvalidInput:
    """Return the error of a bar that leaves no room for the noise of held-out rows."""
    return InvalidInput(
        "goal.at_least" if goal.larger_is_better else "goal.at_most",
        goal.bar,
        f"with {places.scoring} scoring rows no look up to ε = {top:.3g} can tell whether a model "
        "reaches it; choose another goal, a larger privacy.max_epsilon, more scoring rows, or "
        "declare the scoring rows public",
    )


def _held_out_score(goal: GoalSettings, places: Places) -> Score:
    """Return the score of held-out rows; centred at the bar if their number is secret."""
    return Score(goal, None, centred=places.relation == ADD_REMOVE)


def training_of(
    way: Way, loss: str, classes: int, width: int, places: int, weights: Any = None
) -> LinearTraining:
    """Return what progressive training trains."""
    return LinearTraining(
        loss, width, places, classes, class_weights=weights, rule=Rule(scale=way.scale)
    )


def class_weights_of(goal: GoalSettings) -> tuple[float, ...] | None:
    """Return public class weights up to 1 for a balanced metric, else None."""
    shares = goal.class_shares
    return None if shares is None else tuple(min(shares) / share for share in shares)


def feature_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a model whose rows are features already."""
    return replace(recipe, features=None)


def step_of(
    way: Way,
    recipe: Recipe,
    goal: GoalSettings,
    places: Places,
    public: PublicScore | None,
    charged_delta: float | None,
) -> Step:
    """Return the request of a way, priced. No private row is read."""
    if goal.target is None:
        raise InvalidInput("goal.maximize", True, "this training needs a bar: give at_least")
    classes = recipe.class_count or 2
    looks = len(way.levels)
    path: Path
    if way.kind == MOMENTS:
        recipe, rows = feature_recipe(recipe), None
        moments = SecondMoments(places.features, way.norm_bound)
        finish = Finish(recipe, goal, moments, None, public, looks, way.confidence)
        path = NoisePath(
            Sums(moments), moments.sensitivity, finish, moments.dimension, places.relation
        )
    else:
        assert recipe.features is not None
        rows = FeatureRows(recipe.features)
        finish = Finish(recipe, goal, None, rows, public, looks, way.confidence)
        width = recipe.features.width(places.features)
        weights = class_weights_of(goal)
        training = training_of(way, recipe.loss, classes, width, places.training, weights)
        path = ProgressivePath(training, rows, finish, places.relation)
    held_out = None
    if public is None:
        held_out = held_out_rule(way, recipe, goal, places, rows)
    request = way.request(
        path,
        at_least=None if public is None else goal.target,
        held_out=held_out,
        charged_delta=charged_delta,
    )
    return replace(request, recipe=recipe)


def held_out_rule(
    way: Way, recipe: Recipe, goal: GoalSettings, places: Places, rows: FeatureRows | None
) -> HeldOut | GaussianCounts:
    """Return the rule by which held-out rows stop a way."""
    score = _held_out_score(goal, places)
    count, bar = places.scoring, score.bar_sum(places.scoring)
    return way.stop_by(
        HeldOutCount(recipe, score, rows),
        bar=bar,
        steps=score.sensitivity,
        monotone=places.relation != ADD_REMOVE,
        report=Report(score, count, bar, way.confidence, len(way.levels)),
    )
