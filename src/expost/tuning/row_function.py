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
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.failure import attempt
from expost.tuning import factories

_LONGEST = 200  # characters of an exception that a message shows


@dataclass(frozen=True, eq=False)
class RowFunction:
    """A function f(prediction, truth) of one row.

    Parameters
    ----------
    name : str
        ``"module:function"`` or ``"file.py:function"``, or the qualified name of ``given``.
    folder : Path
        Folder of the job.
    given : callable, optional
        The function itself. None: it is found by ``name``.

    Raises
    ------
    InvalidInput
        If there is no such function.
    """

    name: str
    folder: Path = field(default_factory=Path)
    given: Callable[[Any, Any], float] | None = None
    _found: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.given is not None:
            self._found.update(function=self.given, siblings=None, code="")
            return
        try:
            module, siblings, code = factories.load_code(self.name, self.folder)
            function = factories.named(module, self.name.rpartition(":")[2], self.name)
        except InvalidInput as error:
            raise InvalidInput("goal.metric", self.name, error.valid) from None
        self._found.update(function=function, siblings=siblings, code=code)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded: workers load the file again."""
        return {**vars(self), "_found": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the function and load its module."""
        vars(self).update(state)
        self.__post_init__()

    def checkpoint_identity(self) -> Any:
        """Return what identifies the function."""
        return [self.name, self._found["code"], self._found["function"]]

    def by_rows(self, predicted: Array, truth: Array) -> Array:
        """Return the function's value for each row; NaN where it has none.

        Parameters
        ----------
        predicted, truth : ndarray
            One prediction and one truth per row. The truth is None at an empty place.
        """
        function, siblings = self._found["function"], self._found["siblings"]
        inside = nullcontext() if siblings is None else factories.own_modules(self.folder, siblings)
        with inside:
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
    value = attempt(lambda: float(function(prediction, truth)))
    # Whatever is raised: a row must not end the job, nor make a candidate fail.
    return value if isinstance(value, float) else float("nan")
