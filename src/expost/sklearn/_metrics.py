"""The metrics of a private search: what a row is worth, between two public numbers.

The value of a row depends on this row and the fitted estimator alone, and is clipped to a public
range, so one row changes a sum of values by at most that range (:mod:`expost.tuning.metrics` states
the same for ``expost.tune``). Larger is better, as in scikit-learn:

===========================  =======================================================================
accuracy                     1 if the class is right
balanced_accuracy            1/(K·share of the class) if the class is right, with public shares
neg_log_loss                 ln of the probability of the true class, at least −``loss_bound``
neg_mean_squared_error,      minus the error, with target and prediction clipped to
neg_mean_absolute_error      ``target_bounds``
r2                           1 − (squared error)/``target_variance``, clipped likewise
a function                   f(prediction, truth) of one row, clipped to ``metric_bounds``
===========================  =======================================================================

A metric that compares rows with each other, such as the area under the ROC curve, has no such
range. It can be a function of the estimator on public data.

Tests: ``tests/tuning/test_sklearn_metrics.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.failure import attempt
from expost.tuning.factories import name_of
from expost.tuning.metrics import weighted_words
from expost.tuning.row_function import RowFunction

ACCURACY, BALANCED, LOG_LOSS, R2 = "accuracy", "balanced_accuracy", "neg_log_loss", "r2"
CLASSIFICATION = (ACCURACY, BALANCED, LOG_LOSS)
REGRESSION = ("neg_mean_squared_error", "neg_mean_absolute_error", R2)
OWN = "a function of one row"
_NEEDS = {
    "class_shares": (BALANCED, "the public share of each class, a dict from class to share"),
    "loss_bound": (
        LOG_LOSS,
        "a number > 0, the public bound of the loss of a row",
    ),
    "target_variance": (R2, "a number > 0, the public variance of the target"),
    "metric_bounds": (OWN, "the public range (low, high) of a function of one row"),
}
_OTHER_NAMES = {"mse": REGRESSION[0], "mae": REGRESSION[1], "log_loss": LOG_LOSS}


@dataclass(frozen=True)
class Facts:
    """What must be publicly known for some metrics; None where it is not given."""

    class_shares: Mapping[Any, float] | None = None
    loss_bound: float | None = None
    target_variance: float | None = None
    metric_bounds: tuple[float, float] | None = None
    function: RowFunction | None = None


NO_FACTS = Facts()


def read_metric(
    scoring: Any, regressor: bool, facts: Mapping[str, Any]
) -> tuple[str, Facts] | None:
    """Return the metric of a private score and its facts; None for a function of the estimator.

    Parameters
    ----------
    scoring : str or callable
        As the user gave it.
    regressor : bool
        Whether the estimator predicts numbers.
    facts : mapping
        ``class_shares``, ``loss_bound``, ``target_variance`` and ``metric_bounds`` as given.

    Raises
    ------
    InvalidInput
        If the metric cannot be scored privately, or a fact is missing, not valid or not used.
    """
    known = REGRESSION if regressor else CLASSIFICATION
    if callable(scoring) and facts["metric_bounds"] is None:
        metric = None
    elif callable(scoring):
        metric = OWN
    else:
        metric = known[0] if scoring == "private" else scoring
        if metric not in known:
            raise InvalidInput("scoring", scoring, _valid(scoring, known))
    for name, (user, meaning) in _NEEDS.items():
        if facts[name] is not None and user != metric:
            raise InvalidInput(name, facts[name], f"only scoring by {user} uses it; leave it out")
        if facts[name] is None and user == metric:
            raise InvalidInput(name, None, f"{metric} needs it: pass {meaning}")
    if metric is None:
        return None
    for name in ("loss_bound", "target_variance"):
        if facts[name] is not None and not _positive(facts[name]):
            raise InvalidInput(name, facts[name], "pass " + _NEEDS[name][1])
    function = RowFunction(name_of(scoring), given=scoring) if metric == OWN else None
    return metric, Facts(
        _shares(facts["class_shares"]),
        facts["loss_bound"],
        facts["target_variance"],
        _range(facts["metric_bounds"]),
        function,
    )


def _valid(scoring: Any, known: tuple[str, ...]) -> str:
    """Return what a private search can be scored by."""
    hint = ""
    if isinstance(scoring, str) and _OTHER_NAMES.get(scoring) in known:
        hint = f'; scores are larger if better: pass "{_OTHER_NAMES[scoring]}" and a target < 0'
    return (
        f'pass "private" or one of {", ".join(known)}; a function f(prediction, truth) of one row '
        f"with metric_bounds; or a function of the estimator that uses public data only{hint}"
    )


def _positive(value: Any) -> bool:
    """Whether a value is a finite number > 0."""
    number = attempt(float, value)
    return isinstance(number, float) and not isinstance(value, bool | str) and 0 < number < np.inf


def _shares(given: Any) -> Mapping[Any, float] | None:
    """Return checked class shares."""
    if given is None:
        return None
    fits = isinstance(given, Mapping) and len(given) > 1 and all(map(_positive, given.values()))
    if not fits or abs(sum(map(float, given.values())) - 1) > 1e-6:
        raise InvalidInput(
            "class_shares",
            type(given).__name__,
            "pass a dict from each class to its public share > 0; the shares sum to 1",
        )
    return dict(given)


def _range(given: Any) -> tuple[float, float] | None:
    """Return a checked range."""
    if given is None:
        return None
    pair = attempt(lambda: tuple(float(each) for each in given))
    if not isinstance(pair, tuple) or len(pair) != 2 or not -np.inf < pair[0] < pair[1] < np.inf:
        raise InvalidInput("metric_bounds", given, "pass two numbers (low, high) with low < high")
    return pair


def range_of(
    metric: str, target_bounds: tuple[float, float] | None, facts: Facts
) -> tuple[float, float]:
    """Return the public range of a row's value."""
    if metric == ACCURACY:
        return 0.0, 1.0
    if metric == BALANCED:
        assert facts.class_shares is not None
        return 0.0, 1 / (len(facts.class_shares) * min(facts.class_shares.values()))
    if metric == LOG_LOSS:
        assert facts.loss_bound is not None
        return -float(facts.loss_bound), 0.0
    if metric == OWN:
        assert facts.metric_bounds is not None
        return facts.metric_bounds
    if target_bounds is None:
        raise InvalidInput(
            "target_bounds",
            None,
            "pass the public range (low, high) of the target: it bounds the error of a row",
        )
    width = target_bounds[1] - target_bounds[0]
    if metric == R2:
        assert facts.target_variance is not None
        return 1 - width**2 / float(facts.target_variance), 1.0
    return -(width**2 if metric == REGRESSION[0] else width), 0.0


def described(
    metric: str, target_bounds: tuple[float, float] | None, facts: Facts
) -> dict[str, Any]:
    """Return what is certified in words, and the range of its values, for a certificate."""
    low, high = range_of(metric, target_bounds, facts)
    words = metric
    if facts.class_shares is not None:
        words = weighted_words([f"{key}: {each:g}" for key, each in facts.class_shares.items()])
        high = 1.0
    elif metric == OWN and facts.function is not None:
        words = facts.function.name
    if metric in (LOG_LOSS, OWN):
        words += f" (each row's clipped to {low:g} … {high:g})"
    elif target_bounds is not None:
        stated = "" if metric != R2 else f", by the stated variance {facts.target_variance:g}"
        ends = f"{target_bounds[0]:g} … {target_bounds[1]:g}"
        words += f" (target and prediction clipped to {ends}{stated})"
    return {"certified": words, "range": [low, high]}


def values_of(
    metric: str,
    target_bounds: tuple[float, float] | None,
    facts: Facts,
    fitted: Any,
    X: Any,
    y: Array,
) -> Array | None:
    """Return one value per row; None for predictions of another shape.

    Another shape would be broadcast, and one row would count many times.
    """
    if metric == LOG_LOSS:
        return _log_probabilities(np.asarray(fitted.predict_proba(X)), fitted.classes_, y)
    predicted = np.asarray(fitted.predict(X))
    if predicted.ndim == 2 and predicted.shape[1] == 1:
        predicted = predicted[:, 0]
    if predicted.shape != y.shape:
        return None
    if metric == OWN:
        assert facts.function is not None
        return facts.function.by_rows(predicted, y)
    if metric in CLASSIFICATION:
        same = np.asarray(predicted == y)
        if same.shape != y.shape:
            return None
        return same.astype(np.float64) if metric == ACCURACY else _weighted(same, y, facts)
    assert target_bounds is not None
    with np.errstate(all="ignore"):
        errors = np.clip(predicted.astype(np.float64), *target_bounds) - np.clip(
            y.astype(np.float64), *target_bounds
        )
        if metric == R2:
            assert facts.target_variance is not None
            return np.asarray(1 - np.square(errors) / float(facts.target_variance))
        return -(np.square(errors) if metric == REGRESSION[0] else np.abs(errors))


def _weighted(same: Array, y: Array, facts: Facts) -> Array:
    """Return the weight of the class where it is right; 0 for a class without a share."""
    assert facts.class_shares is not None
    weights = np.zeros(len(y))
    for label, share in facts.class_shares.items():
        weights[np.asarray(y == label)] = 1 / (len(facts.class_shares) * share)
    return np.where(same, weights, 0.0)


def _log_probabilities(shares: Array, classes: Any, y: Array) -> Array | None:
    """Return ln of the probability of each row's class; NaN for a class that is not known."""
    if shares.shape != (len(y), len(classes)):
        return None
    chosen = np.full(len(y), np.nan)
    for place, label in enumerate(classes):
        here = np.asarray(y == label)
        chosen[here] = shares[here, place]
    with np.errstate(all="ignore"):
        return np.asarray(np.log(chosen))
