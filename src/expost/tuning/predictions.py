"""What a metric is given: the predictions of a model and the truth, for rows in scaled form.

Tests: ``tests/tuning/test_metrics.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from expost.arrays import Array
from expost.tuning.metrics import LABELS, PROBABILITIES, Metric, OwnMetric
from expost.tuning.model import PART, Recipe
from expost.tuning.request import LINEAR


def predictions(metric: Metric, recipe: Recipe, parameters: Mapping[str, Array], X: Array) -> Array:
    """Return the predictions that a metric takes, one per row."""
    rows = len(X)
    if recipe.kind not in LINEAR and rows % PART:
        # Parts of one shape: a product may round in an order that depends on the number of rows.
        X = np.concatenate([X, np.zeros((PART - rows % PART, *X.shape[1:]), dtype=X.dtype)])
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
