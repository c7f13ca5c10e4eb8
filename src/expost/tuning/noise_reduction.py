"""One training whose noise is taken off until the bar is passed: a request of a tuning job.

A :class:`Way` solves a regularised linear problem once, or sums second moments for least squares,
adds noise along a Brownian path (:mod:`expost.selection.noise_path`), and looks at the levels from
coarse to fine. The first level that passes is released and paid; a miss costs the last level.

Scoring. On public rows each level is scored exactly. On held-out rows the levels are compared with
one noisy threshold (:mod:`expost.selection.held_out`): the training rows and the held-out rows are
disjoint, so a level costs the larger of its noise path and its comparison, and both cost the same.
So scoring adds no cost. A noisy score per level at no further cost would be the alternative; it
would have to share the level's cost among all looks, and needs a wider margin
(:func:`margin_of_noisy_scores`). The plan states both margins.

The parameter ε′ of the noisy threshold is min(¼, 100/rows) for ``rows`` scoring rows, so that the
threshold is raised by about one row in a hundred; levels below 2ε′ are not looked at.

Tests: ``tests/tuning/test_noise_reduction.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.gaussian_profile import gaussian_mu
from expost.privacy.guarantees import ADD_REMOVE
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.selection.held_out import HeldOut, rates_of
from expost.selection.noise_path import NoisePath, PathSearch
from expost.training.convex import (
    ClassMoments,
    ConvexProblem,
    Preprocessing,
    SecondMoments,
    minimise,
)
from expost.tuning.candidates import Fitted
from expost.tuning.confidence import NOT_A_MEAN, SECRET_ROWS, Bounds, population_bound
from expost.tuning.goal_settings import GoalSettings
from expost.tuning.model import Recipe
from expost.tuning.predictions import predictions, truths
from expost.tuning.run_attempts import Step, with_delta
from expost.tuning.scoring import Score

LEVELS = tuple(float(level) for level in np.geomspace(0.005, 4.0, 200))
"""The default levels: 200, geometric, from 0.005 to 4."""

_CROWD = 16  # with a secret number of rows: for how many times the public number solvers are quick
_MOST_OVERHEAD = 0.25
_ROWS_IN_A_HUNDRED = 100


@dataclass(frozen=True)
class Way:
    """One request by noise reduction; everything in it is public.

    Parameters
    ----------
    regularisation : float or None
        λ; None for least squares by second moments, whose ridge follows the noise.
    epsilons : tuple of float
        The levels, ascending.
    delta : float
        δ of this request.
    confidence : float
        A model below the bar passes this request with probability at most 1 − confidence.
    preprocessing : Preprocessing
        How rows are scaled.
    norm_bound : float, optional
        Bound on the norm of (x, 1), for second moments.
    """

    regularisation: float | None
    epsilons: tuple[float, ...]
    delta: float
    confidence: float
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
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
    """

    charged_delta: float | None = None

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        return with_delta(super()._price(candidates), self.charged_delta)


@dataclass(frozen=True)
class Minimiser:
    """The statistic of a classifier: the regularised minimiser on rows of norm at most 1."""

    problem: ConvexProblem
    preprocessing: Preprocessing

    def __call__(self, data: Any) -> Floats:
        targets = np.asarray(data["y"], dtype=np.float64)
        _, valid = self.problem.targets(targets)
        rows = self.preprocessing.rows(data["X"], valid)
        return minimise(self.problem, rows, targets).ravel()


@dataclass(frozen=True)
class Sums:
    """The statistic of least squares: second moments."""

    moments: SecondMoments | ClassMoments

    def __call__(self, data: Any) -> Floats:
        return self.moments.sums(np.asarray(data["X"]), np.asarray(data["y"], dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Finish:
    """Turn noisy numbers into a model and, with public rows, score it."""

    recipe: Recipe
    goal: GoalSettings
    source: Preprocessing | SecondMoments | ClassMoments
    public_X: Array | None
    public_y: Array | None
    looks: int
    confidence: float

    def __call__(self, values: Floats, scale: float) -> Fitted:
        if not isinstance(self.source, Preprocessing):
            weight, bias = self.source.solve(values, scale)
        else:
            outputs = self.recipe.class_count if self.recipe.loss == "softmax" else 1
            weight, bias = self.source.unfold(values.reshape(-1, outputs or 1))
        parameters = {"weight": weight, "bias": bias}
        if self.public_X is None or self.public_y is None:
            return Fitted(parameters, math.nan)
        metric = self.goal.measure
        truth = truths(metric, self.recipe, self.public_y)
        predicted = predictions(metric, self.recipe, parameters, self.public_X)
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

    def __call__(self, fitted: Fitted, data: Any) -> int:
        metric = self.score.metric
        truth = truths(metric, self.recipe, np.asarray(data["score_y"], dtype=np.float64))
        predicted = predictions(metric, self.recipe, fitted.parameters, data["score_X"])
        return self.score.total(predicted, truth) - self.score.centre * len(truth)


@dataclass(frozen=True)
class Report:
    """What is released of a level that passed on held-out rows."""

    score: Score
    rows: int
    bar: int
    confidence: float
    looks: int

    def __call__(self, fitted: Fitted, count: int, threshold: int) -> Fitted:
        margin = threshold - self.bar
        # The margin m has ln(looks/β)·s/q ≤ m + 1; at half of β it is longer by ln 2·s/q.
        per_look = math.log(self.looks / (1 - self.confidence))
        longer = margin + math.ceil(math.log(2) * (margin + 1) / per_look)
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


def overhead_for(rows: int) -> float:
    """Return ε′ of the noisy threshold for a public number of scoring rows."""
    return min(_MOST_OVERHEAD, _ROWS_IN_A_HUNDRED / rows)


def levels_up_to(top: float) -> tuple[float, ...]:
    """Return the default levels that are not above ``top``; at least one."""
    return tuple(each for each in LEVELS if each <= top) or (top,)


def usable_levels(epsilons: Sequence[float], scoring_rows: int | None) -> tuple[float, ...]:
    """Return the levels to look at; with private scoring those above 2ε′."""
    least = 0.0 if scoring_rows is None else 2 * overhead_for(scoring_rows)
    kept = tuple(each for each in epsilons if each > least)
    if not kept:
        raise InvalidInput(
            "levels",
            f"up to {max(epsilons):g}",
            f"with {scoring_rows} scoring rows only levels above {least:g} can be judged",
        )
    return kept


def statistic_of(
    way: Way, loss: str, classes: int, places: Places
) -> tuple[Preprocessing | SecondMoments | ClassMoments, Minimiser | Sums, float, int]:
    """Return what makes a model of noisy values, the statistic, its sensitivity and dimension."""
    if way.regularisation is None:
        moments = (
            SecondMoments(places.features, way.norm_bound)
            if loss == "squared"
            else ClassMoments(
                places.features, classes, classes if loss == "softmax" else 1, way.preprocessing
            )
        )
        return moments, Sums(moments), moments.sensitivity, moments.dimension
    crowd = _CROWD if places.relation == ADD_REMOVE else 1
    problem = ConvexProblem(
        loss, places.training, places.features + 1, way.regularisation, classes, crowd
    )
    statistic = Minimiser(problem, way.preprocessing)
    return way.preprocessing, statistic, problem.sensitivity, problem.width * problem.outputs


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
        Description of a linear model.
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
        raise InvalidInput("goal.maximize", True, "noise reduction needs a bar: give at_least")
    classes = recipe.class_count or 2
    source, statistic, sensitivity, dimension = statistic_of(way, recipe.loss, classes, places)
    X, y = (None, None) if public_rows is None else public_rows
    finish = Finish(recipe, goal, source, X, y, len(way.epsilons), way.confidence)
    path = NoisePath(statistic, sensitivity, finish, dimension, places.relation)
    candidates = [
        Candidate(each.mechanism, {**each.params, **public_params(way)})
        for each in path.levels(way.epsilons, delta=way.delta)
    ]
    selector = PlannedPath(
        target=goal.target if public_rows is not None else None,
        held_out=None if public_rows is not None else held_out_rule(way, recipe, goal, places),
        charged_delta=charged_delta,
    )
    charges = selector.charges(candidates)
    return Step(selector, tuple(candidates), charges, float(len(candidates)), recipe)


def public_params(way: Way) -> dict[str, float]:
    """Return the public settings of a way, for certificates."""
    return {} if way.regularisation is None else {"regularisation": way.regularisation}


def held_out_rule(way: Way, recipe: Recipe, goal: GoalSettings, places: Places) -> HeldOut:
    """Return the rule by which held-out rows stop a way."""
    secret = places.relation == ADD_REMOVE
    score = Score(goal, None, centred=secret)
    rows, bar = places.scoring, score.bar_sum(places.scoring)
    return HeldOut.for_levels(
        HeldOutCount(recipe, score),
        way.epsilons,
        overhead=overhead_for(rows),
        bar=bar,
        confidence=way.confidence,
        steps=score.sensitivity,
        monotone=not secret,
        report=Report(score, rows, bar, way.confidence, len(way.epsilons)),
    )


def margin_of_threshold(way: Way, rows: int, epsilon: float) -> float:
    """Return the share of rows by which a level must clear the bar, the threshold's noise included.

    For accuracy on public places: the margin of the level, and the mean of k.
    """
    least = overhead_for(rows)
    rate = float(rates_of([epsilon], least)[0])
    allowed = math.log(len(way.epsilons) / (1 - way.confidence))
    return (allowed / rate + 1 / least) / rows


def margin_of_noisy_scores(way: Way, rows: int, epsilon: float) -> float:
    """Return that share if every level had a noisy score of its own at no further cost.

    The looks up to a level then share its μ²: a level has only what it adds to the one before. One
    row moves a centred count by half a row (:mod:`expost.tuning.scoring`).
    """
    share = way.delta / len(way.epsilons)
    place = min(range(len(way.epsilons)), key=lambda i: abs(way.epsilons[i] - epsilon))
    here = gaussian_mu(way.epsilons[place], share)
    before = gaussian_mu(way.epsilons[place - 1], share) if place else 0.0
    deviation = 0.5 / math.sqrt(here**2 - before**2)
    allowed = (1 - way.confidence) / len(way.epsilons)
    return -NormalDist().inv_cdf(allowed) * deviation / rows
