"""What a search holds besides its settings: a ledger and processes; and how it is copied.

Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any, Self

import numpy as np

from expost.budget.charging import open_ledger
from expost.errors import InvalidInput, MissingExtra
from expost.randomness.source import Randomness

try:
    from sklearn.base import clone
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


class SearchConnections:
    """The part of :class:`~expost.sklearn.ExPostSearch` that connects and copies."""

    estimator: Any
    epsilons: Sequence[float] | None
    n_jobs: int | None
    ledger: Any
    get_params: Any
    _left_ledger_behind: bool

    def _check_numbers(self) -> None:
        """Raise an error for settings with which every fit would fail and be charged."""
        levels, jobs = self.epsilons, self.n_jobs
        if levels is not None and not (
            np.ndim(levels) == 1 and len(levels) and all(map(_is_level, levels))
        ):
            raise InvalidInput("epsilons", levels, "pass a list of numbers > 0, or leave it out")
        if jobs is not None and (
            isinstance(jobs, bool) or not isinstance(jobs, Integral) or jobs == 0
        ):
            raise InvalidInput("n_jobs", jobs, "pass a whole number other than 0, or leave it out")

    def _executor(self) -> Any:
        """Return a pool of spawned processes; forks could share the state of a generator.

        A process that dies is not counted as an outcome: other fits would be lost with it.
        """
        if self.n_jobs in (None, 1):
            return None
        from joblib import effective_n_jobs  # type: ignore[import-untyped]
        from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

        return get_reusable_executor(max_workers=effective_n_jobs(self.n_jobs))

    def _account(self) -> Any:
        """Return the ledger, opened if it is given by its path or URL."""
        if self.ledger is None and getattr(self, "_left_ledger_behind", False):
            raise InvalidInput(
                "ledger",
                None,
                "this is a copy of a search with a ledger: reconnect it with "
                "set_params(ledger=…) before fitting",
            )
        return open_ledger(self.ledger)

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted search on the same ledger, with a clone of the estimator."""
        params = self.get_params(deep=False)
        copied = type(self)(**{**params, "estimator": clone(self.estimator)})
        copied._left_ledger_behind = (
            getattr(self, "_left_ledger_behind", False) and self.ledger is None
        )
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what may be copied: everything but open connections and randomness."""
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        if state.get("ledger") is not None and not isinstance(state["ledger"], (str, PathLike)):
            state["ledger"] = None
            state["_left_ledger_behind"] = True
        if isinstance(state.get("random_state"), Randomness):
            state["random_state"] = None
        return state


def _is_level(value: object) -> bool:
    """Whether a value is a finite number > 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf
