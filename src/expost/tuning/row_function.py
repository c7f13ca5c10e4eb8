"""A metric of the user: a function of one prediction and one truth.

``goal.metric`` is ``"module:function"`` or ``"file.py:function"``, or in Python the function.
Files of the job's folder are loaded as those of models (:mod:`expost.tuning.factories`), and their
code is part of the identity of the job.

The function gets one row at a time, so it cannot compute a value from several rows, unless it keeps
something between calls; that it does not is assumed. If it raises, or returns no number, the row
counts as the worst possible: one row cannot end a job.

Tests: ``tests/tuning/test_metrics.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.tuning.factories import NamedCode

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
