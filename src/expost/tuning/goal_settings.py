"""The ``[goal]`` table of a tuning job: the metric, the bar and what must be publicly known.

Tests: ``tests/tuning/test_metrics.py``, ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from expost.tuning.config_file import ConfigTable, is_number
from expost.tuning.factories import name_of
from expost.tuning.metrics import LOSSES, METRICS, Metric, OwnMetric, kind_of, make_metric
from expost.tuning.row_function import RowFunction

GOAL_KEYS = (
    "metric",
    "at_least",
    "at_most",
    "maximize",
    "loss_bound",
    "class_shares",
    "target_variance",
    "metric_bounds",
    "confidence",
)
_FACTS = {
    "loss_bound": "the public bound to which the loss of a row is clipped",
    "class_shares": "the public share of each class",
    "target_variance": "the public variance of the target",
    "metric_bounds": "the public range [low, high] of the function",
}


@dataclass(frozen=True)
class GoalSettings:
    """What the model must reach.

    Parameters
    ----------
    metric : str
        A name of :data:`expost.tuning.metrics.METRICS`, or the name of ``function``.
    bar : float or None
        The least value, or the largest one if smaller values are better. None means that the score
        is maximised.
    loss_bound : float, optional
        Bound to which the loss of a row is clipped: of ``"log_loss"``, ``"mae"``, ``"mse"`` and
        ``"r2"``.
    confidence : float
        A model whose score on the scoring rows is below the bar is certified with probability at
        most 1 − confidence.
    class_shares : tuple of float, optional
        Public shares of the classes, for a private ``"balanced_accuracy"``.
    target_variance : float, optional
        Public variance of the target, for ``"r2"``.
    metric_bounds : (float, float), optional
        Public range of ``function``.
    larger_is_better : bool
        The direction of the metric.
    function : RowFunction, optional
        A metric of the user.
    """

    metric: str
    bar: float | None
    loss_bound: float | None = None
    confidence: float = 0.9
    class_shares: tuple[float, ...] | None = None
    target_variance: float | None = None
    metric_bounds: tuple[float, float] | None = None
    larger_is_better: bool | None = None
    function: RowFunction | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.larger_is_better is None:
            object.__setattr__(self, "larger_is_better", self.metric not in LOSSES)

    @property
    def target(self) -> float | None:
        """The bar as a score: larger is better."""
        return None if self.bar is None else self.bar if self.larger_is_better else -self.bar

    @property
    def measure(self) -> Metric:
        """The metric."""
        return make_metric(
            self.metric,
            loss_bound=self.loss_bound,
            class_shares=self.class_shares,
            target_variance=self.target_variance,
            metric_bounds=self.metric_bounds,
            function=self.function,
            larger=bool(self.larger_is_better),
        )


def read_goal(table: ConfigTable) -> GoalSettings:
    """Read and check the ``[goal]`` table.

    Parameters
    ----------
    table : ConfigTable
        The table.

    Raises
    ------
    InvalidInput
        If a key is missing, not valid, or does not belong to the metric.
    """
    metric, function = _metric(table)
    given = [key for key in ("at_least", "at_most", "maximize") if key in table]
    if len(given) != 1:
        table.refuse(
            given[1] if given else "at_least", "give exactly one of at_least, at_most and maximize"
        )
    larger = metric not in LOSSES if function is None else given[0] != "at_most"
    shares = _shares(table, metric)
    kind = kind_of(metric, class_shares=shares)
    _check_facts(table, metric, kind.needs)
    facts: dict[str, Any] = {
        "loss_bound": table.number("loss_bound"),
        "class_shares": shares,
        "target_variance": table.number("target_variance"),
        "metric_bounds": _range(table),
        "larger_is_better": larger,
        "function": function,
    }
    if "maximize" in table:
        if not table.flag("maximize"):
            table.refuse("maximize", "give true, or give a bar instead")
        if "confidence" in table:
            table.refuse(
                "confidence",
                "a confidence needs a bar; give at_least or at_most instead of maximize",
            )
        return GoalSettings(metric, None, **facts)
    wanted = "at_least" if larger else "at_most"
    if given[0] != wanted:
        side = "larger" if larger else "smaller"
        table.refuse(given[0], f"a {side} {metric} is better; give {wanted} instead")
    confidence = table.number("confidence", 0.9)
    if confidence is None or not 0.5 <= confidence < 1:
        table.refuse("confidence", "give a number with 0.5 <= confidence < 1, e.g. 0.9")
    bar = table.number(wanted)
    goal = GoalSettings(metric, bar, confidence=confidence, **facts)
    assert bar is not None
    _check_bar(table, wanted, bar, goal.measure)
    return goal


def check_scoring(table: ConfigTable, goal: GoalSettings, scoring: str) -> None:
    """Refuse a metric that cannot be scored in this way.

    Parameters
    ----------
    table : ConfigTable
        The ``[goal]`` table.
    goal : GoalSettings
        The settings in it.
    scoring : str
        ``"private"`` or ``"public"``.
    """
    if scoring == "private" and not goal.measure.by_rows:
        choices = (
            "give goal.class_shares, the public share of each class; or score"
            if goal.metric == "balanced_accuracy"
            else "score"
        )
        table.refuse(
            "metric",
            f"{goal.metric} is no mean over rows, so it has no private score; {choices} on public "
            'rows: privacy.scoring = "public" and data.public_test',
        )
    if scoring == "public" and goal.class_shares is not None:
        table.refuse(
            "class_shares", "public rows are scored with the shares they have; leave this key out"
        )


def _metric(table: ConfigTable) -> tuple[str, RowFunction | None]:
    """Return the name of the metric and, if it is one of the user, the function."""
    value: Any = table.values.get("metric", "accuracy")
    if callable(value):
        name = name_of(value)
        return name, RowFunction(name, given=value)
    metric = table.text("metric", "accuracy") or "accuracy"
    if metric in METRICS:
        return metric, None
    module, _, name = metric.rpartition(":")
    if not (module.strip() and name.strip()):
        table.refuse(
            "metric",
            f'give one of {", ".join(METRICS)}; or "module:name" or "file.py:name" of a function '
            "f(prediction, truth) of one row; or, in Python, that function",
        )
    return metric, RowFunction(metric, table.document.folder.resolve())


def _check_facts(table: ConfigTable, metric: str, needs: Sequence[str]) -> None:
    """Refuse public facts that are missing, or that the metric has no use for."""
    for key, meaning in _FACTS.items():
        if key in table and key not in needs and key != "class_shares":
            table.refuse(key, f"{metric} does not use {meaning}; leave this key out")
        if key not in needs:
            continue
        if key == "metric_bounds":
            if key not in table:
                table.refuse(key, f"give {meaning}, e.g. [0, 1]")
            continue
        value = table.number(key)
        if value is None or value <= 0:
            table.refuse(key, f"give a number > 0, {meaning}")


def _shares(table: ConfigTable, metric: str) -> tuple[float, ...] | None:
    """Read ``class_shares``."""
    value: Any = table.values.get("class_shares")
    if value is None:
        return None
    if metric != "balanced_accuracy":
        table.refuse("class_shares", "only balanced_accuracy uses them; leave this key out")
    fits = isinstance(value, (list, tuple)) and all(is_number(each) and each > 0 for each in value)
    if not fits or len(value) < 2 or abs(math.fsum(value) - 1) > 1e-6:
        table.refuse(
            "class_shares",
            "give one share > 0 per class, in the order of data.classes; they sum to 1",
        )
    return tuple(float(each) for each in value)


def _range(table: ConfigTable) -> tuple[float, float] | None:
    """Read ``metric_bounds``."""
    value: Any = table.values.get("metric_bounds")
    if value is None:
        return None
    fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value))
    if not fits or not value[0] < value[1]:
        table.refuse("metric_bounds", "give two numbers [low, high] with low < high")
    return float(value[0]), float(value[1])


def _check_bar(table: ConfigTable, key: str, bar: float, metric: Metric) -> None:
    """Refuse a bar that every model passes or none can."""
    fits = (
        metric.worst < bar <= metric.best
        if metric.larger_is_better
        else metric.best < bar < metric.worst
    )
    if isinstance(metric, OwnMetric) and not metric.larger_is_better:
        fits = metric.best <= bar < metric.worst
    if fits:
        return
    ends = (
        f"{metric.worst:g} < {key} ≤ {metric.best:g}"
        if metric.larger_is_better
        else f"{metric.best:g} < {key} < {metric.worst:g}"
    )
    if "loss_bound" in metric.needs and not metric.larger_is_better:
        ends = f"{metric.best:g} < {key} < loss_bound = {metric.worst:g}"
    table.refuse(key, f"give a number with {ends}; otherwise every model passes or none can")
