"""A search as a tuning job: its settings, checked as those of a job are; its ledger and processes.

Tests: ``tests/tuning/test_sklearn_scoring.py``, ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone, is_regressor

from expost.budget.charging import open_ledger
from expost.errors import InvalidInput
from expost.randomness.source import Randomness
from expost.rationals import count_of
from expost.sklearn._estimators import DPLinearModel
from expost.sklearn._rows import check_bounds, last_step, setting
from expost.tuning.request.defaults import fill_goal
from expost.tuning.request.metrics import (
    LOSSES,
    METRICS,
    OWN_METRICS,
    REGRESSION_METRICS,
    PublicFunction,
)
from expost.tuning.request.settings import AXES, GoalSettings, Settings, read_settings
from expost.tuning.request.tune_request import default_holdout, tables_of

_SCORERS = {
    "neg_log_loss": "log_loss",
    "neg_mean_squared_error": "mse",
    "neg_mean_absolute_error": "mae",
}
"""scikit-learn's names of losses; its scores are larger if better."""

_OF_ATTEMPTS = ("guarantee", "overhead", "attempts", "expected_shares", "epsilons", "epsilon_param")
_AS_GIVEN = (
    *("max_rows_per_user", "holdout", "levels", "norm_bound", "max_epsilon", "tell"),
    *("overhead", "repeats", "loss_bound", "target_variance", "metric_bounds"),
)
_FACTS = {"feature_bounds", "classes", "target_bounds", "class_weight"}
_NAMES = {"rows": "n_rows", "metric": "scoring", "user": "groups"}


class SearchAsJob:
    """The part of :class:`~expost.sklearn.ExPostSearch` that says what is asked, and is copied."""

    training: str
    delta: float | None
    _left_ledger_behind: bool

    if TYPE_CHECKING:  # the other parameters, which are set by their names

        def __getattr__(self, name: str) -> Any: ...

    @property
    def _own(self) -> bool:
        """Whether the estimator is one of this package, alone or as the last step."""
        return isinstance(last_step(self.estimator), DPLinearModel)

    @property
    def _delta(self) -> float | None:
        """The δ of the claim: as given, or that of the estimator."""
        return setting(self.estimator, "delta") if self.delta is None else self.delta

    @property
    def _goal(self) -> bool:
        """Whether there is a score to reach."""
        return self.at_least is not None or self.at_most is not None

    @property
    def _searched(self) -> bool:
        """Whether there are candidates to fit."""
        return bool(self.param_grid) or self.epsilons is not None

    @property
    def _public_score(self) -> Callable[[Any], float] | None:
        """The function of the estimator that is the score; None for a private score."""
        return self.scoring if callable(self.scoring) and self.metric_bounds is None else None

    @property
    def _searched_names(self) -> set[str]:
        """The names of the parameters that the grid sets."""
        grids = [self.param_grid] if isinstance(self.param_grid, Mapping) else self.param_grid
        return {str(name) for points in grids or [] for name in (points or {})}

    @property
    def _searched_facts(self) -> set[str]:
        """The public facts that the grid sets, which a training without a grid cannot follow."""
        return {name.split("__")[-1] for name in self._searched_names} & _FACTS

    @property
    def _classes(self) -> list[Any]:
        """The public list of classes; empty if the estimator has none, or the grid sets it."""
        known = self._own and not is_regressor(self.estimator)
        fixed = known and "classes" not in self._searched_facts
        return last_step(self.estimator)._known().tolist() if fixed else []

    def _training(self) -> str:
        """Return how the estimator is trained; refuse settings that do not belong to it."""
        chosen = self.training
        weighted = setting(self.estimator, "class_weight") is not None
        if chosen == "auto":
            by_grid = self._searched_facts or (weighted and self._searched)
            if by_grid or not (self._own and self._goal):
                chosen = "dp-sgd"
        unused: tuple[str, ...] = ()
        if chosen == "dp-sgd":
            if self.param_grid is None:
                raise InvalidInput(
                    "param_grid", None, "pass a grid; {} searches the estimator as it is"
                )
        elif not self._own:
            raise InvalidInput(
                "training",
                chosen,
                "it trains DPLogisticRegression and DPLinearRegression (alone, or as the last step "
                'of a Pipeline); pass "dp-sgd" for other estimators',
            )
        elif weighted:
            raise InvalidInput("class_weight", "weights", "this training has none; leave it out")
        elif chosen != "auto" or not self._searched:
            unused = _OF_ATTEMPTS
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
                    name, getattr(self, name), f"training={chosen!r} does not use it"
                )
        return chosen

    def _settings(self, training: str, places: int, *, persons: bool = False) -> Settings:
        """Return the settings of the search as those of a job, checked as they are."""
        regression, public = is_regressor(self.estimator), self._public_score is not None
        bounds, classes = self._target_bounds() if regression else None, self._classes
        count = None if regression else len(classes) or 2
        n_rows = None if self.n_rows is None else count_of(self.n_rows, "n_rows", at_least=2)
        keywords: dict[str, Any] = {
            "holdout": default_holdout(count, training, n_rows or places),
            "feature_bounds": [0, 1],  # the estimator states them
            "target_bounds": (bounds or [0, 1]) if regression else None,
            "classes": count,
            "rows": n_rows,
            "user": "groups" if persons else None,
            "model": "linear" if regression else "softmax",
            "training": training,
            "delta": 1e-6 if self._delta is None else self._delta,
            "attempts": self.attempts if self._goal else None,
            "expected_shares": self.expected_shares if self._goal else None,
            **_given({name: getattr(self, name) for name in _AS_GIVEN}),
        }
        keywords |= self._goal_keywords(bounds, classes)
        tables = tables_of(_given(keywords))
        fill_goal(tables["goal"], bounds, regression)
        if self._searched or training == "dp-sgd":
            tables["search"] = {"epsilons": [1.0], **{axis: [1.0] for axis in AXES}}
        else:
            del tables["search"]
        read = read_settings(tables, given_data=True)
        kind = type(self.estimator)
        name = kind.__qualname__ if self._own else f"{kind.__module__}.{kind.__qualname__}"
        data = replace(read.data, bounds=None, classes=tuple(classes) or None)
        privacy = read.privacy
        if public:
            data, privacy = replace(data, holdout=0.0), replace(privacy, scoring="public")
        if self.max_epsilon is None and not (self._own and self._goal):
            privacy = replace(privacy, max_epsilon=math.inf)
        if not self._goal and self.overhead is None:
            privacy = replace(privacy, overhead=0.1)
        return replace(
            read,
            data=data,
            model=replace(read.model, kind=name, features="plain"),
            goal=self._public_goal() if public else read.goal,
            privacy=privacy,
        )

    def _public_goal(self) -> GoalSettings:
        """Return the goal of a search whose score is a function of the estimator."""
        for name, why in (
            ("tell", "a public score is told without it; leave it out"),
            ("at_most", "scores are larger if better; pass at_least"),
        ):
            if getattr(self, name) is not None:
                raise InvalidInput(name, getattr(self, name), why)
        value = None if self.at_least is None else float(self.at_least)
        return GoalSettings(PublicFunction.scored, value, confidence=self.confidence)

    def _goal_keywords(self, bounds: list[float] | None, classes: list[Any]) -> dict[str, Any]:
        """Return the goal as a job states it."""
        regression = is_regressor(self.estimator)
        usual = "mse" if regression else "accuracy"
        if self._public_score is not None:  # stands for a goal that no job can have
            goal = {"at_most" if regression else "at_least": 0.5, "confidence": self.confidence}
            facts = {"loss_bound": 1.0 if regression else None, "metric_bounds": None}
            return {"metric": usual, **facts, **(goal if self._goal else {"maximize": True})}
        metric: Any = self.scoring
        if isinstance(metric, str):
            metric = usual if metric == "private" else _SCORERS.get(metric, metric)
            known = [
                name
                for name in METRICS
                if (name in REGRESSION_METRICS) == regression and name not in ("auc", *OWN_METRICS)
            ]
            if metric not in known:
                raise InvalidInput(
                    "scoring",
                    self.scoring,
                    f"pass one of {', '.join(known)}; a function f(prediction, truth) of one row "
                    "with metric_bounds; or a function of the estimator that uses public data only",
                )
        if metric == "balanced_accuracy" and self.class_shares is None:
            raise InvalidInput("class_shares", None, "pass a dict from class to public share")
        if regression and metric in METRICS and bounds is None and self.loss_bound is None:
            raise InvalidInput(
                "target_bounds",
                None,
                "pass the public range (low, high) of the target: it bounds the error of a row",
            )
        goal = {"at_least": self.at_least, "at_most": self.at_most}
        if metric in LOSSES and self.at_least is not None and self.at_most is None:
            # Scores of scikit-learn are larger if better: at_least=-4 means at_most=4.
            goal = {"at_least": None, "at_most": -self.at_least}
        return {
            "metric": metric,
            "class_shares": self._shares(classes),
            **(goal | {"confidence": self.confidence} if self._goal else {"maximize": True}),
        }

    def _target_bounds(self) -> list[float] | None:
        """Return the public range of a regression's target; None if it is not given."""
        given = self.target_bounds
        given = setting(self.estimator, "target_bounds") if given is None else given
        if given is None:
            return None
        low, high = check_bounds(given, "target_bounds", None, 1)
        return [float(low[0]), float(high[0])]

    def _shares(self, classes: list[Any]) -> list[float] | None:
        """Return the stated share of each class, in the order of the classes."""
        given = self.class_shares
        if given is None:
            return None
        if not isinstance(given, Mapping) or (classes and set(given) != set(classes)):
            raise InvalidInput(
                "class_shares",
                type(given).__name__,
                "pass a dict from each class to its public share > 0; the shares sum to 1",
            )
        return [given[label] for label in classes or given]

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


@contextmanager
def named_by_parameters() -> Iterator[None]:
    """Name the keys of a job in errors as the parameters of a search."""
    try:
        yield
    except InvalidInput as error:
        table, _, key = error.field.partition(".")
        if table not in ("data", "model", "goal", "privacy", "search"):
            raise
        raise InvalidInput(_NAMES.get(key, key), error.value, error.valid) from None


def _given(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given, with arrays and numbers of NumPy as Python's."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in keywords.items()
        if value is not None
    }


def _is_level(value: object) -> bool:
    """Whether a value is a finite number > 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf
