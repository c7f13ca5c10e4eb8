"""One training that stops when it passes: a request of a tuning job.

A :class:`Way` is either *progressive training* (:mod:`expost.training.progressive`): steps with all
rows and noise that falls; or *second moments* for least squares with noise along a Brownian path
(:mod:`expost.selection.noise_path`). Both are looked at from coarse to fine. The first level that
passes is released and paid; a miss costs the last level.

Scoring. On public rows each level is scored exactly. On held-out rows the levels are compared with
noisy thresholds (:mod:`expost.selection.held_out`): the training rows and the held-out rows are
disjoint, so a level costs the larger of its training and its comparison, and both cost the same. So
scoring adds no cost. Only levels at which a look can pass are looked at.

Tests: ``tests/tuning/test_noise_reduction.py``, ``tests/tuning/test_progressive_jobs.py``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.features import Features
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.selection.held_out import HeldOut, useful_levels
from expost.selection.noise_path import NoisePath, Path, PathSearch, levels_of
from expost.training.convex import ClassMoments, Preprocessing, SecondMoments
from expost.training.progressive import LinearTraining, ProgressivePath, Rule
from expost.tuning.candidates import Fitted
from expost.tuning.confidence import NOT_A_MEAN, SECRET_ROWS, Bounds, population_bound
from expost.tuning.goal_settings import GoalSettings
from expost.tuning.model import Recipe
from expost.tuning.predictions import predictions, truths
from expost.tuning.run_attempts import Step, with_delta
from expost.tuning.scoring import Score

PROGRESSIVE, MOMENTS = "progressive", "noise-reduction"
"""The kinds of a way: training step by step, and least squares from noisy second moments."""

GROWTH = 1.12
"""Looks are made where ε has grown by this factor."""

_LEAST_LEVEL = 1e-4
_FIRST = 6.0  # the first level, in units of μ of the first step


@dataclass(frozen=True)
class Way:
    """One request by a path; everything in it is public.

    Parameters
    ----------
    kind : str
        ``PROGRESSIVE`` or ``MOMENTS``.
    epsilons : tuple of float
        The levels, ascending.
    delta : float
        δ of this request.
    confidence : float
        A model below the bar passes this request with probability at most 1 − confidence.
    scale : float
        Of progressive training: the scale of its rule (:class:`expost.training.progressive.Rule`).
    norm_bound : float, optional
        Bound on the norm of (x, 1), for a regression by second moments.
    """

    kind: str
    epsilons: tuple[float, ...]
    delta: float
    confidence: float
    scale: float = 1.0
    norm_bound: float | None = None


@dataclass(frozen=True)
class Places:
    """Public numbers of a job's rows, and its neighbouring relation."""

    training: int
    scoring: int
    features: int
    relation: str


@dataclass(frozen=True)
class PlannedPath(PathSearch):
    """A search along a path as one request of a job.

    Parameters
    ----------
    charged_delta : float, optional
        The δ that is charged with this request: the job's whole δ for the first, 0 for the others.
    training : str
        The kind of the way, for certificates.
    """

    charged_delta: float | None = None
    training: str = MOMENTS

    def settings(self) -> dict[str, Any]:
        """Return the selector's name and public settings in plain JSON types."""
        return {**super().settings(), "training": self.training}

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        return with_delta(super()._price(candidates), self.charged_delta)


@dataclass(frozen=True)
class Sums:
    """The statistic of least squares: second moments."""

    moments: SecondMoments | ClassMoments

    def __call__(self, data: Any) -> Floats:
        return self.moments.sums(np.asarray(data["X"]), np.asarray(data["y"], dtype=np.float64))


class FeatureRows:
    """The features of encoded rows, computed once per array and forgotten together with it.

    A result refers to what made it, so nothing that is private may stay here after a job.

    Parameters
    ----------
    features : Features
        Public maps of one row.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._known: list[tuple[weakref.ref[Array], Floats]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the map to a worker, not what it has computed."""
        return FeatureRows, (self.features,)

    def checkpoint_identity(self) -> Features:
        """Return the map, which is all that distinguishes two of these."""
        return self.features

    def of(self, X: Array) -> Floats:
        """Return the features of encoded rows."""
        for known, rows in self._known:
            if known() is X:
                return rows
        cells = np.asarray(X)
        rows = self.features.transform_cells(cells.reshape(len(X), math.prod(cells.shape[1:])))
        self._known = [*self._known[-1:], (weakref.ref(X, self._forget), rows)]
        return rows

    def _forget(self, gone: weakref.ref[Array]) -> None:
        """Forget the features of an array that is no more."""
        self._known = [pair for pair in self._known if pair[0] is not gone]

    def __call__(self, data: Any) -> tuple[Floats, Array]:
        """Return features and targets of the training rows."""
        return self.of(data["X"]), np.asarray(data["y"], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Finish:
    """Turn released numbers into a model and, with public rows, score it.

    ``recipe`` takes the rows that ``rows`` makes of encoded ones.
    """

    recipe: Recipe
    goal: GoalSettings
    moments: SecondMoments | ClassMoments | None
    rows: FeatureRows | None
    public_X: Array | None
    public_y: Array | None
    looks: int
    confidence: float

    def __call__(self, values: Floats, scale: float = 0.0) -> Fitted:
        if self.moments is not None:
            weight, bias = self.moments.solve(values, scale)
        else:
            middle = 0.5 if self.recipe.loss == "squared" else 0.0  # targets are centred
            weight, bias = np.ascontiguousarray(values.T), np.full(values.shape[1], middle)
        parameters = {"weight": weight, "bias": bias}
        if self.public_X is None or self.public_y is None:
            return Fitted(parameters, math.nan)
        metric = self.goal.measure
        truth = truths(metric, self.recipe, self.public_y)
        X = self.public_X if self.rows is None else self.rows.of(self.public_X)
        predicted = predictions(metric, plain(self.recipe), parameters, X)
        exact = Score(self.goal, None)
        score = exact(predicted, truth, Randomness())
        population: float | None = None
        why: str | None = NOT_A_MEAN
        if metric.by_rows:
            sampled = sampling(self.confidence, self.looks, len(truth), metric.spread)
            population, why = population_bound(score, exact.worst, sampled, exact.worst)
        bounds = Bounds(self.confidence, score, score, population, why)
        return Fitted(parameters, score, bounds=bounds)


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

    def __call__(self, fitted: Fitted, data: Any) -> int:
        metric = self.score.metric
        truth = truths(metric, self.recipe, np.asarray(data["score_y"], dtype=np.float64))
        X = data["score_X"] if self.rows is None else self.rows.of(data["score_X"])
        predicted = predictions(metric, plain(self.recipe), fitted.parameters, X)
        return self.score.total(predicted, truth) - self.score.centre * len(truth)


@dataclass(frozen=True)
class Report:
    """What is released of a level that passed on held-out rows."""

    score: Score
    rows: int
    bar: int
    confidence: float
    looks: int

    def __call__(self, fitted: Fitted, count: int, threshold: int, rate: float) -> Fitted:
        margin = threshold - self.bar
        longer = margin + math.ceil(math.log(2) / rate)  # the margin at half of the allowed error
        noisy = self.score.of_sum(count, self.rows)
        certain: float = self.score.of_sum(count - margin, self.rows)
        population: float | None = None
        why: str | None = SECRET_ROWS
        if self.score.centred:  # the number of rows is secret: only the bar is certified
            certain = min(certain, self.score.of_sum(0, self.rows))
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


def levels_up_to(top: float, least: float = 0.004) -> tuple[float, ...]:
    """Return levels from ``least`` to ``top``, each 12 % above the one before it; at least one."""
    count = math.floor(math.log(top / least) / math.log(GROWTH) + 1e-9) if top > least else 0
    return tuple(top / GROWTH**step for step in range(count, -1, -1))


def least_level(dimension: int, places: int) -> float:
    """Return the first level worth a look: before it, noise is larger than any gradient."""
    return max(_LEAST_LEVEL, _FIRST * 0.5 * math.sqrt(dimension) / places)


def usable_levels(
    epsilons: Sequence[float], goal: GoalSettings, places: Places, confidence: float
) -> tuple[float, ...]:
    """Return the levels at which held-out rows can let a model pass; none if there is no room."""
    score = _held_out_score(goal, places)
    best = score.best_sum(places.scoring)
    return useful_levels(
        epsilons,
        room=best - score.bar_sum(places.scoring),
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


def moments_of(way: Way, loss: str, classes: int, features: int) -> SecondMoments | ClassMoments:
    """Return the second moments that least squares needs."""
    if loss == "squared":
        return SecondMoments(features, way.norm_bound)
    return ClassMoments(features, classes, classes if loss == "softmax" else 1, Preprocessing())


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


def plain(recipe: Recipe) -> Recipe:
    """Return the recipe of a model whose rows are features already."""
    return replace(recipe, features=None)


def step_of(
    way: Way,
    recipe: Recipe,
    goal: GoalSettings,
    places: Places,
    public_rows: tuple[Array, Array] | None,
    charged_delta: float | None,
) -> Step:
    """Return the request of a way, priced. No private row is read.

    Parameters
    ----------
    way : Way
        What is asked.
    recipe : Recipe
        Description of a linear model; its features serve progressive training.
    goal : GoalSettings
        A goal with a bar.
    places : Places
        Public numbers of rows.
    public_rows : (ndarray, ndarray) or None
        Features and targets of public scoring rows; None: held-out rows score.
    charged_delta : float or None
        The δ to charge with this request; None: that of the way.
    """
    if goal.target is None:
        raise InvalidInput("goal.maximize", True, "this training needs a bar: give at_least")
    classes = recipe.class_count or 2
    X, y = (None, None) if public_rows is None else public_rows
    looks = len(way.epsilons)
    path: Path
    if way.kind == MOMENTS:
        recipe, rows = plain(recipe), None
        moments = moments_of(way, recipe.loss, classes, places.features)
        finish = Finish(recipe, goal, moments, None, X, y, looks, way.confidence)
        path = NoisePath(
            Sums(moments), moments.sensitivity, finish, moments.dimension, places.relation
        )
    else:
        assert recipe.features is not None
        rows = FeatureRows(recipe.features)
        finish = Finish(recipe, goal, None, rows, X, y, looks, way.confidence)
        width = recipe.features.width(places.features)
        weights = class_weights_of(goal)
        training = training_of(way, recipe.loss, classes, width, places.training, weights)
        path = ProgressivePath(training, rows, finish, places.relation)
    candidates = [
        Candidate(level.mechanism, {**level.params, **public_params(way)})
        for level in levels_of(path, way.epsilons, delta=way.delta)
    ]
    held_out = None
    if public_rows is None:
        held_out = held_out_rule(way, recipe, goal, places, rows)
    selector = PlannedPath(
        target=goal.target if public_rows is not None else None,
        held_out=held_out,
        charged_delta=charged_delta,
        training=way.kind,
    )
    charges = selector.charges(candidates)
    return Step(selector, tuple(candidates), charges, float(len(candidates)), recipe)


def public_params(way: Way) -> dict[str, Any]:
    """Return the public settings of a way, for certificates."""
    return {} if way.kind == MOMENTS else {"training": way.kind, "scale": way.scale}


def held_out_rule(
    way: Way, recipe: Recipe, goal: GoalSettings, places: Places, rows: FeatureRows | None
) -> HeldOut:
    """Return the rule by which held-out rows stop a way."""
    score = _held_out_score(goal, places)
    count, bar = places.scoring, score.bar_sum(places.scoring)
    return HeldOut.for_levels(
        HeldOutCount(recipe, score, rows),
        way.epsilons,
        bar=bar,
        confidence=way.confidence,
        steps=score.sensitivity,
        monotone=places.relation != ADD_REMOVE,
        report=Report(score, count, bar, way.confidence, len(way.epsilons)),
    )
