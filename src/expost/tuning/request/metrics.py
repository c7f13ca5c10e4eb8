"""The metrics of a goal, and which of them can be scored privately.

**A metric of the user.** ``goal.metric`` is ``"module:function"`` or ``"file.py:function"``, or in
Python the function. Files of the job's folder are loaded as those of models
(:mod:`expost.tuning.request.factories`), and their code is part of the identity of the job.

The function gets one row at a time, so it cannot compute a value from several rows, unless it keeps
something between calls; that it does not is assumed. If it raises, or returns no number, the row
counts as the worst possible: one row cannot end a job.

**Metrics by rows.** A metric by rows is a mean. Row i has a value v_i between two public numbers
low and high, and v_i depends on this row and the model alone. The value is turned into a *merit*, a
whole number of steps between 0 (worst) and S (best): the floor of S·(v − low)/(high − low), or of
S·(high − v)/(high − low) if smaller values are better. Rounding goes against the model. A row whose
value is NaN has merit 0, and so has an empty place. The query of private scoring is the sum of the
merits.

Sensitivity. A merit is an integer in {0, …, S} whatever the row contains: this is enforced after
the value is computed, in integers. The other rows do not enter it. So if one row is put in an empty
place or taken out, the sum changes by at most S, and if each row's merit is compared with a public
number C, by at most max(C, S − C) (:mod:`expost.tuning.model.scoring`). This holds for

- ``accuracy``: the value is 0 or 1;
- ``balanced_accuracy`` with public class shares: a row of class k that is classified correctly has
  the value 1/(K·share_k), for K classes, and otherwise 0. The range is [0, 1/(K·smallest share)].
  The mean is the mean of the recalls of the classes if the shares are those of the rows; if they
  are not, class k weighs (actual share)/(K·share_k) instead of 1/K. The weights are public: they
  do not come from the rows;
- ``log_loss``, ``mae`` and ``mse``: the loss of a row, clipped to the public ``loss_bound``;
- ``loss`` and ``token_accuracy``: the first and the second output of a module that is applied to
  this row alone, clipped to ``loss_bound`` or to [0, 1];
- ``r2``: 1 − (squared error)/``target_variance``, with the squared error clipped to ``loss_bound``
  and a public variance. The variance of the rows would couple them;
- a function of one prediction and one truth, clipped to the public ``metric_bounds``. It is called
  row by row. It must not keep anything between calls.

The area under the ROC curve compares rows with each other, and the mean of recalls divides by the
actual number of rows of each class. For these no such bound is proven here. They are computed
exactly, on public rows only.

Tests: ``tests/tuning/test_metrics.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.tuning.request.factories import NamedCode

_LONGEST = 200  # characters of an exception that a message shows


@dataclass(frozen=True, eq=False)
class RowFunction(NamedCode):
    """A function f(prediction, truth) of one row."""

    key: ClassVar[str] = "goal.metric"

    def by_rows(self, predicted: Array, truth: Array) -> Array:
        """Return the function's value for each row; NaN where it has none."""
        function = self._found["function"]
        with self.inside():
            return np.array(
                [
                    _one(function, guess, true)
                    for guess, true in zip(predicted.tolist(), truth.tolist(), strict=True)
                ],
                dtype=np.float64,
            )

    def check(self, prediction: Any, truth: Any) -> None:
        """Call the function with made-up values and refuse it if it raises or returns no number."""
        text = f"f(prediction, truth) was called with {prediction!r} and {truth!r}"
        try:
            value = self._found["function"](prediction, truth)
        except Exception as error:
            what = f"{type(error).__name__} ({str(error)[:_LONGEST]})"
            raise InvalidInput("goal.metric", self.name, f"{text} and raised {what}") from None
        try:
            float(value)
        except (TypeError, ValueError):
            raise InvalidInput(
                "goal.metric",
                self.name,
                f"{text} and returned a {type(value).__name__}; it must return a number",
            ) from None


def _one(function: Callable[[Any, Any], Any], prediction: Any, truth: Any) -> float:
    """Return the value of one row; NaN if there is none."""
    if truth is None:
        return float("nan")
    value = call_or_failure(lambda: float(function(prediction, truth)))
    # Whatever is raised: a row must not end the job, nor make a candidate fail.
    return value if isinstance(value, float) else float("nan")


STEPS = 1 << 16
"""Steps of the range of a row's value."""

DECISIONS, PROBABILITIES, LABELS, OUTPUTS = "decisions", "probabilities", "labels", "outputs"


@dataclass(frozen=True)
class Metric:
    """A metric. Values are in the metric's own direction; scores are larger if better."""

    larger_is_better: ClassVar[bool] = True
    regression: ClassVar[bool | None] = False
    takes: ClassVar[str] = DECISIONS
    by_rows: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()
    scored: ClassVar[str] = ""

    @property
    def low(self) -> float:
        """The smallest value of a row."""
        return 0.0

    @property
    def high(self) -> float:
        """The largest value of a row."""
        return 1.0

    @property
    def best(self) -> float:
        """The best goal that can be reached."""
        return self.high if self.larger_is_better else self.low

    @property
    def worst(self) -> float:
        """The goal that every model reaches."""
        return self.low if self.larger_is_better else self.high

    @property
    def spread(self) -> float:
        """The range of one row's value."""
        return self.high - self.low

    @property
    def steps(self) -> int:
        """Steps of a merit: 1 if every value is 0 or 1."""
        return STEPS

    def values(self, predicted: Array, truth: Array) -> Array:
        """Return the value of each row; NaN or any number where there is none."""
        raise NotImplementedError

    def merits(self, predicted: Array, truth: Array, steps: int) -> Array:
        """Return the merit of each row: whole numbers from 0 to ``steps``."""
        with np.errstate(all="ignore"):
            values = np.asarray(self.values(predicted, truth), dtype=np.float64)
            above = values - self.low if self.larger_is_better else self.high - values
            whole = np.floor(above / self.spread * steps)
        whole = np.where(np.isnan(whole) | np.isnan(values), 0.0, whole)
        return np.asarray(np.clip(whole, 0, steps).astype(np.int64))

    def exact(self, predicted: Array, truth: Array) -> float:
        """Return the metric on public rows, without rounding to steps."""
        with np.errstate(all="ignore"):
            values = np.asarray(self.values(predicted, truth), dtype=np.float64)
        values = np.clip(np.where(np.isnan(values), self.worst, values), self.low, self.high)
        return math.fsum(values) / len(values)

    def described(self, name: str) -> str:
        """Return what is certified: the name, and the public numbers that define the metric."""
        return name

    def can_reach(self, goal: float) -> bool:
        """Whether some models reach a goal and others do not."""
        if self.larger_is_better:
            return self.worst < goal <= self.best
        return self.best < goal < self.worst

    def range_words(self, name: str) -> str:
        """Return which goals fit; ``name`` is that of the goal's key."""
        if self.larger_is_better:
            share = " (80 % is 0.8)" if self.best == 1 else ""
            return f"{self.worst:g} < {name} ≤ {self.best:g}{share}"
        bound = "loss_bound = " if "loss_bound" in self.needs else ""
        return f"{self.best:g} < {name} < {bound}{self.worst:g}"

    def check_public(self, truth: Array) -> None:
        """Refuse public scoring rows on which the metric is not defined."""

    def check_classes(self, classes: int | None) -> None:
        """Refuse a number of classes that the metric cannot be used with."""


@dataclass(frozen=True)
class Accuracy(Metric):
    """Share of the rows that are classified correctly."""

    @property
    def steps(self) -> int:
        """Merits are 0 or 1."""
        return 1

    def values(self, predicted: Array, truth: Array) -> Array:
        """1 where the class is right."""
        return np.asarray(predicted == truth, dtype=np.float64)


@dataclass(frozen=True)
class WeightedAccuracy(Metric):
    """Accuracy weighted by stated shares of the classes: balanced if the shares are right."""

    class_shares: tuple[float, ...]

    @property
    def high(self) -> float:
        """The weight of the rarest class."""
        return 1 / (len(self.class_shares) * min(self.class_shares))

    @property
    def best(self) -> float:
        """The mean of recalls is at most 1."""
        return 1.0

    def described(self, name: str) -> str:
        """The shares are stated, not measured, so it is not called a balanced accuracy."""
        return weighted_words([f"{class_share:g}" for class_share in self.class_shares])

    def values(self, predicted: Array, truth: Array) -> Array:
        """The weight of the class where it is right, else 0."""
        weights = 1 / (len(self.class_shares) * np.array(self.class_shares))
        return np.where(predicted == truth, weights[_places(truth)], 0.0)

    def merits(self, predicted: Array, truth: Array, steps: int) -> Array:
        """Whole numbers, by exact division."""
        least = Fraction(min(self.class_shares))
        table = np.array(
            [int(least / Fraction(class_share) * steps) for class_share in self.class_shares]
        )
        return np.where(predicted == truth, table[_places(truth)], 0)

    def check_classes(self, classes: int | None) -> None:
        """There must be one share per class."""
        if classes != len(self.class_shares):
            raise InvalidInput(
                "goal.class_shares",
                list(self.class_shares),
                f"give {classes} shares, one per class in the order of data.classes",
            )


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """Mean of the recalls of the classes that occur among the rows. Public rows only."""

    by_rows: ClassVar[bool] = False

    def exact(self, predicted: Array, truth: Array) -> float:
        """Return the mean of the recalls."""
        recalls = [float(np.mean(predicted[truth == label] == label)) for label in np.unique(truth)]
        return math.fsum(recalls) / len(recalls)


@dataclass(frozen=True)
class AUC(Metric):
    """Area under the ROC curve, for two classes. Public rows only."""

    takes: ClassVar[str] = PROBABILITIES
    by_rows: ClassVar[bool] = False

    def exact(self, predicted: Array, truth: Array) -> float:
        """Return the share of pairs of both classes that are in the right order; ties half."""
        scores = predicted[:, 1]
        if not np.isfinite(scores).all():
            return 0.0
        positives = truth == 1
        ones, zeros = int(positives.sum()), int((truth == 0).sum())
        if ones * zeros == 0:  # made-up rows; public rows are checked
            return 0.5
        _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
        return float((math.fsum(ranks[positives]) - ones * (ones + 1) / 2) / (ones * zeros))

    def check_public(self, truth: Array) -> None:
        """Both classes must occur."""
        if len(np.unique(truth)) < 2:
            raise InvalidInput(
                "data.public_test", "rows of one class", "auc needs public rows of both classes"
            )

    def check_classes(self, classes: int | None) -> None:
        """There must be two classes."""
        if classes != 2:
            raise InvalidInput("goal.metric", "auc", f"it needs 2 classes; there are {classes}")


@dataclass(frozen=True)
class _ClippedLoss(Metric):
    """A loss, clipped row by row."""

    loss_bound: float
    larger_is_better: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("loss_bound",)

    @property
    def high(self) -> float:
        """The bound."""
        return self.loss_bound

    def described(self, name: str) -> str:
        """The loss is clipped."""
        return f"{name} (clipped at {self.loss_bound:g} per row)"


@dataclass(frozen=True)
class LogLoss(_ClippedLoss):
    """Mean of −ln(probability of the true class), clipped row by row."""

    takes: ClassVar[str] = PROBABILITIES

    def values(self, predicted: Array, truth: Array) -> Array:
        """The loss of each row; NaN at an empty place."""
        chosen = predicted[np.arange(len(truth)), _places(truth)]
        return np.where(np.isnan(truth), np.nan, -np.log(chosen))


@dataclass(frozen=True)
class OwnLoss(_ClippedLoss):
    """Mean of the losses that the module returns, clipped row by row."""

    regression: ClassVar[bool | None] = None
    takes: ClassVar[str] = OUTPUTS

    def values(self, predicted: Array, truth: Array) -> Array:
        """The first output of each row."""
        return np.asarray(predicted[:, 0])


@dataclass(frozen=True)
class TokenAccuracy(Metric):
    """Mean over rows of the share of a row's tokens that the module predicts."""

    regression: ClassVar[bool | None] = None
    takes: ClassVar[str] = OUTPUTS

    def values(self, predicted: Array, truth: Array) -> Array:
        """The second output of each row."""
        if predicted.shape[1] < 2:
            raise InvalidInput(
                "goal.metric",
                "token_accuracy",
                "the module must return two numbers per row: its loss, and the share of tokens "
                "that it predicts",
            )
        return np.asarray(predicted[:, 1])


@dataclass(frozen=True)
class SquaredError(_ClippedLoss):
    """Mean squared error, clipped row by row."""

    regression: ClassVar[bool | None] = True

    def values(self, predicted: Array, truth: Array) -> Array:
        """The squared error of each row."""
        return np.asarray(np.square(predicted - truth))


@dataclass(frozen=True)
class AbsoluteError(SquaredError):
    """Mean absolute error, clipped row by row."""

    def values(self, predicted: Array, truth: Array) -> Array:
        """The absolute error of each row."""
        return np.asarray(np.abs(predicted - truth))


@dataclass(frozen=True)
class RSquared(Metric):
    """1 − (mean squared error)/(public variance of the target)."""

    loss_bound: float
    target_variance: float
    regression: ClassVar[bool | None] = True
    needs: ClassVar[tuple[str, ...]] = ("loss_bound", "target_variance")

    @property
    def low(self) -> float:
        """The value of a row at the bound."""
        return 1 - self.loss_bound / self.target_variance

    def described(self, name: str) -> str:
        """The variance is stated, not measured."""
        return (
            f"{name} (by the stated variance {self.target_variance:g}, each row's squared error "
            f"clipped at {self.loss_bound:g})"
        )

    def values(self, predicted: Array, truth: Array) -> Array:
        """1 − (squared error)/variance of each row."""
        return np.asarray(1 - np.square(predicted - truth) / self.target_variance)


@dataclass(frozen=True)
class OwnMetric(Metric):
    """Mean of a function of one prediction and one truth, clipped to public bounds."""

    function: RowFunction
    metric_bounds: tuple[float, float]
    larger: bool = True
    regression: ClassVar[bool | None] = None
    takes: ClassVar[str] = LABELS
    needs: ClassVar[tuple[str, ...]] = ("metric_bounds",)

    @property
    def larger_is_better(self) -> bool:  # type: ignore[override]
        """The direction, from the kind of goal."""
        return self.larger

    @property
    def low(self) -> float:
        """The lower bound."""
        return self.metric_bounds[0]

    @property
    def high(self) -> float:
        """The upper bound."""
        return self.metric_bounds[1]

    def can_reach(self, goal: float) -> bool:
        """A function may have its best value in every row."""
        return self.low <= goal < self.high if not self.larger else super().can_reach(goal)

    def described(self, name: str) -> str:
        """The values are clipped."""
        return f"{name} (clipped to {self.low:g} … {self.high:g} per row)"

    def values(self, predicted: Array, truth: Array) -> Array:
        """The function, row by row; NaN where it raises and at empty places."""
        return self.function.by_rows(predicted, truth)


@dataclass(frozen=True)
class PublicFunction(Metric):
    """A function of the fitted model that reads public data only; it may have any value."""

    regression: ClassVar[bool | None] = None
    by_rows: ClassVar[bool] = False
    scored: ClassVar[str] = "a function of public data"

    @property
    def low(self) -> float:
        """No bound."""
        return -math.inf

    @property
    def high(self) -> float:
        """No bound."""
        return math.inf


_SHARED: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "balanced_accuracy": BalancedAccuracy,
    "log_loss": LogLoss,
    "auc": AUC,
    "mae": AbsoluteError,
    "mse": SquaredError,
    "r2": RSquared,
    "loss": OwnLoss,
    "token_accuracy": TokenAccuracy,
}
METRICS = tuple(_SHARED)
_SHARED[PublicFunction.scored] = PublicFunction
"""Names of the built-in metrics."""

OWN_METRICS = tuple(name for name, kind in _SHARED.items() if kind.takes == OUTPUTS)
REGRESSION_METRICS = tuple(name for name, kind in _SHARED.items() if kind.regression)
LOSSES = tuple(name for name, kind in _SHARED.items() if not kind.larger_is_better)


def metric_class(name: str, *, class_shares: Sequence[float] | None = None) -> type[Metric]:
    """Return the class of a metric; one with another name is a function of the user."""
    if name == "balanced_accuracy" and class_shares is not None:
        return WeightedAccuracy
    return _SHARED.get(name, OwnMetric)


def make_metric(
    name: str, *, class_shares: tuple[float, ...] | None = None, **facts: Any
) -> Metric:
    """Return a metric; of the public facts it takes those that its class has as fields."""
    kind = metric_class(name, class_shares=class_shares)
    facts["class_shares"] = class_shares
    return kind(**{one.name: facts[one.name] for one in fields(kind) if one.name in facts})


def weighted_words(shares: Sequence[str]) -> str:
    """Return what an accuracy with stated class shares is called."""
    return f"accuracy weighted by the stated class shares ({', '.join(shares)})"


def _places(truth: Array) -> Any:
    """Return class numbers for looking up; an empty place looks up class 0."""
    return np.where(np.isnan(truth), 0, truth).astype(np.int64)
