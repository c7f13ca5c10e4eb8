"""One training that stops when it passes: a request of a tuning job.

A :class:`Strategy` is either *progressive training* (:mod:`expost.training.progressive`): steps
with all rows and noise that falls; or *second moments* for least squares with noise along a
Brownian path (:mod:`expost.selection.noise_path`). Both are looked at from coarse to fine. The
first level that passes is released and paid; a miss costs the last level.

Scoring. On public rows each level is scored exactly. On held-out rows the levels are compared with
noisy counts (:mod:`expost.selection.held_out`): the training rows and the held-out rows are
disjoint, so a level costs the larger of its training and its comparison, and both cost the same. So
scoring adds no cost. Only levels at which a look can pass are looked at.

Charges. In (ε, δ) a level is ε_i. For a budget in ρ (:class:`Concentrated`: zCDP, Rényi orders) it
is ρ_i = μ²/2 of the steps made, and held-out rows are counted with Gaussian noise of the same ρ_i.

**A score that is told** (``privacy.tell``): a further noisy score of a model that missed. The
released model w is known, so the count f(w) of the held-out rows is a statistic of one number:
discrete Laplace noise of scale c/ε, where one person changes the count by at most c, makes it
ε-DP. It is asked only if every request of the job missed and a model was released. The score of the
last look, which is paid with its level, is noisy at the rate of the last step of the levels; this
one has noise of its own ε, and an interval.

**Price.** The held-out rows and the training rows are disjoint people. A person who trains pays the
paths, Σ ε_m of their last levels, and nothing for the score, which does not read this person's row.
A held-out person pays for having stopped the paths, which is Σ ε_m, too, and ε of the score. So the
score adds ε to the charge of the job. Proof: docs/theory.md, "A miss"
(``tests/theorems/test_until_it_passes.py``).

Tests: ``tests/tuning/test_noise_reduction.py``, ``tests/tuning/test_progressive_jobs.py``,
``tests/tuning/test_missed.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ADD_REMOVE, Guarantee, PureDP
from expost.randomness.coins import discrete_laplace
from expost.randomness.source import Randomness
from expost.rationals import exact
from expost.selection.above_threshold import PlannedPath, Tell
from expost.selection.candidate import Candidate
from expost.selection.held_out import (
    SHARES,
    GaussianCounts,
    HeldOut,
    useful_levels,
    useful_rhos,
)
from expost.selection.noise_path import NoisePath, Path, PathSearch, levels_of_path
from expost.selection.release import Release
from expost.training.progressive import LinearTraining, ProgressivePath, Rule
from expost.training.progressive_modules import (
    FEW_STEPS,
    FINE_TUNING,
    MANY_STEPS,
    ModuleTraining,
)
from expost.training.second_moments import SecondMoments
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import (
    NOT_A_MEAN,
    SECRET_ROWS,
    Bounds,
    Score,
    population_bound,
    predictions,
    truth_of_rows,
)
from expost.tuning.request.settings import GoalSettings
from expost.tuning.rows.job_columns import FeatureRows, with_shares
from expost.tuning.runs.candidates import ScoredModel
from expost.tuning.runs.run_attempts import Step

PROGRESSIVE, MOMENTS = "progressive", "noise-reduction"
"""The kinds of a strategy: training step by step, and least squares from noisy second moments."""

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
class Strategy:
    """One request by a path; everything in it is public."""

    kind: str
    levels: tuple[float, ...]
    delta: float
    confidence: float
    scale: float = 1.0
    norm_bound: float | None = None
    charged: Concentrated | None = None
    network: bool = False

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
        """Return the rule by which counts of held-out rows stop this strategy."""
        rule["confidence"] = self.confidence
        if self.charged is None:
            return HeldOut.for_levels(count, self.levels, monotone=monotone, **rule)
        return GaussianCounts.for_levels(count, self.levels, **rule)


@dataclass(frozen=True)
class Places:
    """Public numbers of a job's rows (or of its persons), and its neighbouring relation."""

    training: int
    scoring: int
    features: int
    relation: str
    rows_per_person: int | None = None


@dataclass(frozen=True)
class Sums:
    """The statistic of least squares: second moments."""

    moments: SecondMoments

    def __call__(self, data: Any) -> Floats:
        parts = getattr(data, "parts", None)
        if parts is not None:
            return parts.moments(self.moments)  # type: ignore[no-any-return]
        return self.moments.sums(*with_shares(data, np.asarray(data["X"])))


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
    network: ModuleTraining | None = None

    def __call__(self, values: Floats, scale: float = 0.0) -> ScoredModel:
        parameters = self._parameters(values, scale)
        if self.public is None:
            return ScoredModel(parameters, math.nan)
        score, population, why = self.public(self, parameters)
        bounds = Bounds(self.confidence, score, score, population, why)
        return ScoredModel(parameters, score, bounds=bounds)

    def _parameters(self, values: Floats, scale: float) -> Mapping[str, Array]:
        """Return what was released as parameters by name."""
        if self.network is not None:
            return self.network.arrays(values)
        if self.moments is not None:
            weight, bias = self.moments.solve(values, scale)
        else:
            middle = 0.5 if self.recipe.loss == "squared" else 0.0  # targets are centred
            weight, bias = np.ascontiguousarray(values.T), np.full(values.shape[1], middle)
        return {"weight": weight, "bias": bias}


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
    """The sum of the held-out rows' merits (:mod:`expost.tuning.request.metrics`).

    With public places an absent row counts 0 and a present one between 0 and ``steps``, so one
    person changes all counts in the same direction. With a secret number of rows each row counts
    its merit less the goal, which may have either sign.
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
        return self.of_rows(X, data["score_y"], data.get("score_shares"), fitted.parameters)

    def of_rows(
        self, X: Any, y: Array, shares: Integers | None, parameters: Mapping[str, Array]
    ) -> int:
        """Return the sum over rows that are features already."""
        metric = self.score.metric
        truth = truth_of_rows(metric, self.recipe, np.asarray(y, dtype=np.float64))
        predicted = predictions(metric, feature_recipe(self.recipe), parameters, X)
        return self.score.sum_of(predicted, truth, shares)


@dataclass(frozen=True)
class Report:
    """What is released of the level at which a search on held-out rows ends."""

    score: Score
    rows: int
    least: int
    confidence: float
    looks: int

    def __call__(self, fitted: ScoredModel, count: int, threshold: int, wider: int) -> ScoredModel:
        margin = threshold - self.least
        longer = margin + wider  # the margin at half of the allowed error
        noisy = self.score.of_sum(count, self.rows)
        certain: float = self.score.of_sum(count - margin, self.rows)
        population: float | None = None
        why: str | None = SECRET_ROWS
        if (
            self.score.centred
        ):  # the number of rows is secret: only the goal is certified, if passed
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
    room = score.best_sum(places.scoring) - score.least_sum(places.scoring)
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
    """Return the error of a goal that leaves no room for the noise of held-out rows."""
    units = "rows" if places.rows_per_person is None else "persons"
    return InvalidInput(
        "goal.at_least" if goal.larger_is_better else "goal.at_most",
        goal.value,
        f"with {places.scoring} scoring {units} no look up to ε = {top:.3g} can tell whether a "
        f"model reaches it; choose another goal, a larger privacy.max_epsilon, more {units}, or "
        "declare the scoring rows public",
    )


def _held_out_score(goal: GoalSettings, places: Places) -> Score:
    """Return the score of held-out rows; centred at the goal if their number is secret."""
    shares = 1 if places.rows_per_person is None else SHARES
    return Score(goal, None, centred=places.relation == ADD_REMOVE, shares=shares)


def training_of(
    strategy: Strategy, loss: str, classes: int, width: int, places: int, weights: Any = None
) -> LinearTraining:
    """Return what progressive training trains."""
    return LinearTraining(
        loss, width, places, classes, class_weights=weights, rule=Rule(scale=strategy.scale)
    )


def network_training(
    strategy: Strategy, recipe: Recipe, goal: GoalSettings, places: Places
) -> ModuleTraining:
    """Return what progressive training trains of a network."""
    assert recipe.factory is not None
    weights, together = class_weights_of(goal), places.rows_per_person or 1
    training = ModuleTraining(
        recipe.factory, recipe.loss, places.training, class_weights=weights, together=together
    )
    # Fewer parameters than rows: many steps come first, and few ones if they miss. With frozen
    # parameters short steps come first.
    many, first = training.width < places.training, strategy.scale == 1.0
    if training.fine_tunes:
        return replace(training, rule=FINE_TUNING if first else MANY_STEPS if many else FEW_STEPS)
    return replace(training, rule=MANY_STEPS if many == first else FEW_STEPS)


@dataclass(frozen=True)
class ShapedRows:
    """The encoded rows of a job in the shape that a network takes, with their targets."""

    recipe: Recipe

    def __call__(self, data: Any) -> Any:
        return with_shares(data, self.recipe.shaped(data["X"]))


def class_weights_of(goal: GoalSettings) -> tuple[float, ...] | None:
    """Return public class weights up to 1 for a balanced metric, else None."""
    shares = goal.class_shares
    return None if shares is None else tuple(min(shares) / share for share in shares)


def feature_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a model whose rows are features already."""
    return replace(recipe, features=None)


def step_of(
    strategy: Strategy,
    recipe: Recipe,
    goal: GoalSettings,
    places: Places,
    public: PublicScore | None,
    charged_delta: float | None,
) -> Step:
    """Return the request of a strategy, priced. No private row is read."""
    if goal.least_score is None:
        raise InvalidInput("goal.maximize", True, "this training needs a goal: give at_least")
    classes = recipe.class_count or 2
    looks = len(strategy.levels)
    path: Path
    if strategy.kind == MOMENTS:
        recipe, rows = feature_recipe(recipe), None
        together = places.rows_per_person or 1
        moments = SecondMoments(places.features, strategy.norm_bound, together)
        finish = Finish(recipe, goal, moments, None, public, looks, strategy.confidence)
        path = NoisePath(
            Sums(moments), moments.sensitivity, finish, moments.dimension, places.relation
        )
    elif strategy.network:
        recipe, rows = feature_recipe(recipe), None
        network = network_training(strategy, recipe, goal, places)
        finish = Finish(recipe, goal, None, None, public, looks, strategy.confidence, network)
        path = ProgressivePath(network, ShapedRows(recipe), finish, places.relation, network.steps)
    else:
        assert recipe.features is not None
        rows = FeatureRows(recipe.features)
        finish = Finish(recipe, goal, None, rows, public, looks, strategy.confidence)
        width = recipe.features.width(places.features)
        weights = class_weights_of(goal)
        training = training_of(strategy, recipe.loss, classes, width, places.training, weights)
        path = ProgressivePath(training, rows, finish, places.relation)
    held_out = None
    if public is None:
        held_out = held_out_rule(strategy, recipe, goal, places, rows)
    request = strategy.request(
        path,
        at_least=None if public is None else goal.least_score,
        held_out=held_out,
        charged_delta=charged_delta,
    )
    return replace(request, recipe=recipe)


def held_out_rule(
    strategy: Strategy, recipe: Recipe, goal: GoalSettings, places: Places, rows: FeatureRows | None
) -> HeldOut | GaussianCounts:
    """Return the rule by which held-out rows stop a strategy."""
    score = _held_out_score(goal, places)
    count, least = places.scoring, score.least_sum(places.scoring)
    return strategy.stop_by(
        HeldOutCount(recipe, score, rows),
        goal=least,
        steps=score.sensitivity,
        monotone=places.relation != ADD_REMOVE,
        report=Report(score, count, least, strategy.confidence, len(strategy.levels)),
    )


@dataclass(frozen=True, eq=False)
class TellScore:
    """Mechanism: the score of one model on the held-out rows, with discrete Laplace noise."""

    epsilon: float
    count: HeldOutCount
    rows: int
    neighbours: str
    fitted: ScoredModel | None = None

    @property
    def guarantee(self) -> PureDP:
        """What the score satisfies."""
        return PureDP(self.epsilon, self.neighbours)

    @property
    def scale(self) -> Fraction:
        """Scale of the noise of the count: one person changes it by at most the sensitivity."""
        return self.count.score.sensitivity / exact(self.epsilon, "tell")

    def __call__(self, data: Any, randomness: Randomness) -> ScoredModel:
        assert self.fitted is not None
        noisy = self.count(self.fitted, data) + discrete_laplace(self.scale, randomness)
        score = self.count.score.of_sum(noisy, self.rows)
        return ScoredModel(self.fitted.parameters, score)

    def half_width(self, confidence: float) -> float | None:
        """Return h: the score is within ±h of the noisy one with this confidence.

        P(|noise| > m) = 2p^{m+1}/(1 + p) with p = e^{−1/scale}. None where the actual number of
        rows is secret, because the score is then a ratio of which only the sum is known.
        """
        if self.neighbours == ADD_REMOVE:
            return None
        rate = 1 / float(self.scale)
        # m + 1 ≥ ln(2/((1 + p)(1 − confidence)))·scale; the factors keep the rounding safe.
        tail = math.log(2 / ((1 + math.exp(-rate)) * (1 - confidence))) + 1e-12
        most = max(0, math.ceil(tail * (1 + 1e-12) / rate) - 1)
        return most * self.count.score.step / self.rows


def tell_step(epsilon: float, strategies: Sequence[Step], rows: int) -> Step:
    """Return the priced request that follows all misses; its model is not known yet."""
    paid = strategies[0].charges.nothing
    curve = paid.as_renyi()
    mechanism = TellScore(epsilon, _count(strategies[0]), rows, paid.neighbours)
    candidates = (Candidate(mechanism, {"tell": epsilon}),)
    selector = Tell(paid.kind, None if curve is None else curve.orders)
    return Step(selector, candidates, selector.charges(candidates), 1.0, strategies[0].recipe)


def with_model(step: Step, strategy: Step, fitted: ScoredModel) -> Step:
    """Return the request for the score of the model that a strategy released as missed."""
    (candidate,) = step.candidates
    assert isinstance(candidate.mechanism, TellScore)
    mechanism = replace(candidate.mechanism, count=_count(strategy), fitted=fitted)
    return replace(
        step, candidates=(Candidate(mechanism, candidate.params),), recipe=strategy.recipe
    )


def _count(strategy: Step) -> HeldOutCount:
    """Return the sum over the held-out rows by which a strategy was stopped."""
    assert isinstance(strategy.selector, PathSearch)
    assert strategy.selector.held_out is not None
    count = strategy.selector.held_out.count
    assert isinstance(count, HeldOutCount)
    return count


@dataclass(frozen=True, eq=False)
class Told:
    """A further noisy score of a model that missed."""

    score: float | None
    low: float | None
    high: float | None
    confidence: float
    epsilon: float
    spent: Guarantee
    release: Release | None = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain JSON types, without the certificate."""
        return {
            "score": self.score,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "epsilon": self.epsilon,
            "spent": self.spent.as_dict(),
        }


def told_of(goal: GoalSettings, step: Step, release: Release | None) -> Told:
    """Return the noisy score of a model that missed, in the metric's direction and range."""
    mechanism = step.candidates[0].mechanism
    assert isinstance(mechanism, TellScore)
    confidence = goal.confidence
    value = None if release is None else release.value
    score: float | None = None
    ends: list[float] | None = None
    if isinstance(value, ScoredModel):
        sign = 1.0 if goal.larger_is_better else -1.0
        low, high = sorted([goal.measure.worst, goal.measure.best])
        score = min(max(sign * value.score, low), high)
        half = mechanism.half_width(confidence)
        if half is not None:
            ends = [min(max(sign * value.score + side * half, low), high) for side in (-1, 1)]
    spent = step.charges.worst_case if release is None else release.spent
    first, last = ends or (None, None)
    return Told(score, first, last, confidence, mechanism.epsilon, spent, release)
