"""Noise reduction in a search: one statistic of the rows, noise taken off until the target is met.

``training`` of :class:`~expost.sklearn.ExPostSearch` means what it means in ``expost.tune``
(:mod:`expost.tuning.several_ways`): the statistic, its sensitivity, the levels and the order of the
ways are the same. What differs is the output, an estimator, and the score, which is that of the
search (:mod:`expost.sklearn._scoring`).

Held-out rows decide by one noisy threshold (:mod:`expost.selection.held_out`). Without ``n_rows``
the counted value of a row is its value less the lowest one, so an empty place counts 0, and one
person changes all counts in the same direction. With ``n_rows`` it is the value less the target,
which may have either sign.

Tests: ``tests/tuning/test_sklearn_noise_reduction.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sqrt
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput, MissingExtra
from expost.features import EncodedColumns
from expost.privacy.base import ADD_REMOVE, ZERO_OUT
from expost.selection.candidate import Candidate
from expost.selection.held_out import HeldOut, useful_levels
from expost.selection.noise_path import NoisePath, Path, levels_of
from expost.selection.release import Release
from expost.sklearn._candidates import CandidateLister
from expost.sklearn._conventions import check_steps, setting
from expost.sklearn._linear_model import DPLinearModel
from expost.sklearn._rows import inside_selection
from expost.sklearn._scoring import Fitted, RowScore
from expost.training.progressive import ProgressivePath
from expost.tuning.model_settings import TRAININGS, ModelSettings
from expost.tuning.noise_reduction import (
    MOMENTS,
    Places,
    PlannedPath,
    Sums,
    Way,
    moments_of,
    public_params,
    training_of,
)
from expost.tuning.run_attempts import Step
from expost.tuning.settings import MAX_EPSILON
from expost.tuning.several_ways import list_ways

try:
    from sklearn.base import clone, is_regressor
    from sklearn.pipeline import Pipeline
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

_ONLY_DP_SGD = ("guarantee", "overhead", "attempts", "expected_shares", "epsilons", "epsilon_param")
_ONLY_PATHS = ("levels", "norm_bound")


def linear_step(estimator: Any) -> Any:
    """Return the estimator, or the last step of a pipeline."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


@dataclass(frozen=True, eq=False)
class FinishEstimator:
    """Turn noisy numbers into a fitted estimator and, with a public score, score it."""

    estimator: Any
    solve: Callable[[Floats, float], tuple[Floats, Floats]]
    scorer: Callable[[Any], float] | None

    def __call__(self, values: Floats, scale: float = 0.0) -> Fitted:
        weight, bias = self.solve(values, scale)
        made = copy.copy(self.estimator)
        if isinstance(made, Pipeline):
            made.steps = [*made.steps[:-1], (made.steps[-1][0], copy.copy(made.steps[-1][1]))]
        linear_step(made)._take(weight, bias)
        with inside_selection():
            return Fitted(made, np.nan if self.scorer is None else float(self.scorer(made)))


@dataclass(frozen=True)
class UnitRows:
    """Rows of norm at most 1 from features in [0, 1], and the way back.

    Parameters
    ----------
    features : EncodedColumns
        Numbers on a scale from −1 to 1, with a constant.
    """

    features: EncodedColumns

    @classmethod
    def of(cls, width: int, regression: bool) -> UnitRows:
        """Return the rows of a number of features."""
        numbers = tuple((position, 0.0, 1.0) for position in range(width))
        norm = "bound" if regression else "row"
        return cls(EncodedColumns(width, numbers, 0, False, norm=norm))

    def __call__(self, data: Mapping[str, Any]) -> tuple[Floats, Array]:
        return self.features.transform_cells(np.asarray(data["X"], dtype=np.float64)), data["y"]

    def solve(self, values: Floats, scale: float = 0.0) -> tuple[Floats, Floats]:
        """Return weight and bias on features in [0, 1] from weights on the rows.

        Dividing a row by its norm does not change which output is the largest; dividing it by the
        bound is a factor.
        """
        plain = values[:-1]
        bound = sqrt(len(plain))
        constant = self.features.constant * bound
        bias = constant * values[-1] - plain.sum(axis=0)
        if self.features.norm == "row":
            return np.ascontiguousarray(2 * plain.T), np.asarray(bias)
        length = sqrt(bound**2 + constant**2)
        return np.ascontiguousarray(2 * plain.T / length), np.asarray(bias / length + 0.5)


@dataclass(frozen=True)
class CountRows:
    """The sum of the held-out rows' values, in steps."""

    score: RowScore

    def __call__(self, fitted: Fitted, data: Mapping[str, Any]) -> int:
        with inside_selection():
            return self.score.total(fitted.estimator, data["score_X"], data["score_y"])


@dataclass(frozen=True)
class ReportEstimator:
    """What is released of a level that passed."""

    score: RowScore
    bar: int

    def __call__(self, fitted: Fitted, count: int, threshold: int, rate: float) -> Fitted:
        unit = self.score.step / self.score.rows
        certain = count - (threshold - self.bar)
        return replace(
            fitted,
            score=self.score.centre + count * unit,
            lead=float(count - threshold),
            bound=self.score.centre + certain * unit,
        )


def state_cost(estimator: Any, release: Release) -> None:
    """Write what the released estimator cost, selection included, where a fit would write it."""
    model = linear_step(estimator)
    model.simulated_, model.promise_ = release.simulated, None
    model.privacy_spent_ = None if release.simulated else release.spent


class NoiseReducer(CandidateLister):
    """The part of :class:`~expost.sklearn.ExPostSearch` that plans noise reduction."""

    confidence: float
    training: str
    levels: Any
    norm_bound: float | None

    @property
    def _searched(self) -> bool:
        """Whether there are candidates for DP-SGD."""
        return bool(self.param_grid) or self.epsilons is not None

    def _check_training(self) -> None:
        """Refuse settings that do not belong to the training; all of them are public."""
        if self.training not in TRAININGS:
            raise InvalidInput("training", self.training, "pass one of " + ", ".join(TRAININGS))
        unused: tuple[str, ...] = ()
        if self.training == "dp-sgd":
            unused = _ONLY_PATHS
            if self.param_grid is None:
                raise InvalidInput(
                    "param_grid", None, "pass a grid; {} searches the estimator as it is"
                )
        elif not isinstance(linear_step(self.estimator), DPLinearModel):
            raise InvalidInput(
                "training",
                self.training,
                "it trains DPLogisticRegression and DPLinearRegression (alone, or as "
                'the last step of a Pipeline); pass "dp-sgd" for other estimators',
            )
        elif self.target is None:
            raise InvalidInput("target", None, "this training needs a target to stop at")
        elif self.training != "auto" or not self._searched:
            unused = _ONLY_DP_SGD
            if self.param_grid:
                raise InvalidInput(
                    "param_grid",
                    "a grid",
                    'this training has no grid: leave it out, or pass training="auto"',
                )
            if self.repeats != 1:
                raise InvalidInput("repeats", self.repeats, "a level is used once; leave it out")
        for name in unused:
            if getattr(self, name) is not None:
                raise InvalidInput(
                    name, getattr(self, name), f"training={self.training!r} does not use it"
                )
        if self.training != "dp-sgd" and setting(self.estimator, "class_weight") is not None:
            raise InvalidInput("class_weight", "weights", "this training has none; leave it out")

    def _model(self) -> ModelSettings:
        """Return the settings of noise reduction, checked."""
        regression = is_regressor(self.estimator)
        levels = self.levels
        if levels is not None:
            fits = np.ndim(levels) == 1 and all(
                isinstance(level, (int, float)) and 0 < level < np.inf for level in levels
            )
            if not fits or not len(levels):
                raise InvalidInput("levels", levels, "pass a list of numbers > 0, or leave it out")
            if sorted(set(levels)) != list(levels):
                raise InvalidInput("levels", list(levels), "pass levels in ascending order")
            levels = tuple(float(level) for level in levels)
        if self.norm_bound is not None and not (regression and 1 <= self.norm_bound <= 1e6):
            raise InvalidInput(
                "norm_bound",
                self.norm_bound,
                "for a DPLinearRegression, pass a number from 1 to 1e6; else leave it out",
            )
        kind = "linear" if regression else "softmax"
        classes = None if regression else linear_step(self.estimator)._known()
        if classes is not None and len(classes) == 2:
            kind = "logistic"
        return ModelSettings(
            kind,
            {"linear": "squared"}.get(kind, kind),
            training=self.training,
            norm_bound=self.norm_bound,
            levels=levels,
        )

    def _ways(
        self, X: Any, targets: Array, score: Any, out: Array | None, n: int, part: float
    ) -> tuple[list[Step], dict[str, Any]]:
        """Return the requests of noise reduction, priced, and the rows that they need."""
        model, delta = self._model(), self.delta
        delta = setting(self.estimator, "delta") if delta is None else delta
        template, unit, numbers = self._rows_in_unit(X, targets)
        secret = self.n_rows is not None
        held = int(score.rows) if isinstance(score, RowScore) else 0
        places = Places(n, held, unit.shape[1], ADD_REMOVE if secret else ZERO_OUT)
        classes = None if model.loss == "squared" else len(linear_step(template)._known())
        public = not isinstance(score, RowScore)
        if isinstance(score, RowScore) and not secret:
            score = replace(score, centre=score.low)
        width = unit.shape[1] + 1

        def usable(levels: Sequence[float], confidence: float) -> tuple[float, ...]:
            """Return the levels at which a look can pass."""
            return self._usable(levels, confidence, score, places) if not public else tuple(levels)

        ways = list_ways(
            model,
            places,
            usable,
            delta=float(delta),
            confidence=self.confidence,
            classes=classes,
            width=width,
            part=part,
            most=MAX_EPSILON,
        )
        if not ways:
            raise InvalidInput(
                "target",
                self.target,
                f"with {places.scoring} scoring rows no level can tell whether an estimator "
                "reaches it; pass another target, more rows, or a public score",
            )
        steps = []
        for number, way in enumerate(ways):
            charged = float(delta) if number == 0 else 0.0
            path = self._path(way, model.loss, classes or 2, places, template, score)
            candidates = [
                Candidate(level.mechanism, {**level.params, **public_params(way)})
                for level in levels_of(path, way.epsilons, delta=way.delta)
            ]
            selector = PlannedPath(
                target=float(self.target or 0) if public else None,
                held_out=None if public else self._held_out(way, score, places),
                charged_delta=charged,
                training=way.kind,
            )
            charges = selector.charges(candidates)
            steps.append(Step(selector, tuple(candidates), charges, float(len(candidates))))
        rows = slice(None) if out is None else ~out
        return steps, {"X": unit[rows], "y": numbers[rows]}

    def _path(
        self, way: Way, loss: str, classes: int, places: Places, template: Any, score: Any
    ) -> Path:
        """Return the path of a way; no row is read."""
        scorer = None if isinstance(score, RowScore) else score
        if way.kind == MOMENTS:
            moments = moments_of(way, loss, classes, places.features)
            finish = FinishEstimator(template, moments.solve, scorer)
            return NoisePath(
                Sums(moments), moments.sensitivity, finish, moments.dimension, places.relation
            )
        rows = UnitRows.of(places.features, loss == "squared")
        training = training_of(way, loss, classes, places.features + 1, places.training)
        finish = FinishEstimator(template, rows.solve, scorer)
        return ProgressivePath(training, rows, finish, places.relation)

    def _bar(self, score: RowScore, places: Places) -> int:
        """Return the target as a sum over the scoring rows, in steps."""
        if places.relation == ADD_REMOVE:
            return 0
        span = Fraction(score.high) - Fraction(score.low)
        share = (Fraction(float(self.target or 0)) - Fraction(score.low)) / span
        return ceil(share * score.sensitivity(places.relation) * places.scoring)

    def _usable(
        self, levels: Sequence[float], confidence: float, score: RowScore, places: Places
    ) -> tuple[float, ...]:
        """Return the levels at which a look at held-out rows can pass."""
        steps, secret = score.sensitivity(places.relation), places.relation == ADD_REMOVE
        most = places.scoring * (score.largest if secret else steps)
        return useful_levels(
            levels,
            room=most - self._bar(score, places),
            confidence=confidence,
            steps=steps,
            monotone=not secret,
        )

    def _held_out(self, way: Way, score: RowScore, places: Places) -> HeldOut:
        """Return the rule by which held-out rows stop a way."""
        bar = self._bar(score, places)
        return HeldOut.for_levels(
            CountRows(score),
            way.epsilons,
            bar=bar,
            confidence=way.confidence,
            steps=score.sensitivity(places.relation),
            monotone=places.relation != ADD_REMOVE,
            report=ReportEstimator(score, bar),
        )

    def _rows_in_unit(self, X: Any, targets: Array) -> tuple[Any, Array, Array]:
        """Return an estimator that knows its columns, and features and targets in [0, 1].

        Class targets are numbers of classes. A pipeline's other steps are applied first; they learn
        nothing from the rows.
        """
        template = clone(self.estimator)
        if isinstance(template, Pipeline):
            check_steps(template)
            for _, step in template.steps[:-1]:
                if step is not None and step != "passthrough":
                    X = step.transform(X)
        model = linear_step(template)
        rows, numbers = model._checked(X, targets)
        unit = (np.clip(rows, model._low, model._high) - model._low) / (model._high - model._low)
        if is_regressor(model):
            numbers = (numbers + 1) / 2
        return template, np.asarray(unit), np.asarray(numbers, dtype=np.float64)
