"""The settings of a tuning job. All of them are public.

They are checked before any data is read and before anything is charged. The ``[data]`` table is
read by :mod:`expost.tuning.data_settings`, the ``[model]`` table by
:mod:`expost.tuning.model_settings`.

Tests: ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from expost.selection.attempts.planner import MOST_ATTEMPTS
from expost.training.configuration import OPTIMISERS, SCHEDULES
from expost.tuning.config_file import ConfigTable, Document, is_number
from expost.tuning.data_settings import DATA_KEYS, DataSettings, read_data
from expost.tuning.goal_settings import GOAL_KEYS, GoalSettings, check_scoring, read_goal
from expost.tuning.model_settings import (
    LINEAR,
    MODEL_KEYS,
    TRAININGS,
    ModelSettings,
    read_model,
)

_AXES = ("learning_rates", "epochs", "batch_sizes", "clips")
_MORE_AXES = ("optimisers", "schedules", "weight_decays", "class_weights")
SEARCH_KEYS = ("epsilons", *_AXES, *_MORE_AXES, "samples")
MAX_EPSILON = 4.0
"""The default of ``privacy.max_epsilon``."""

PRIVACY_KEYS = (
    "delta",
    "overhead",
    "repeats",
    "attempts",
    "scoring",
    "order",
    "expected_shares",
    "max_epsilon",
)
_MOST_CANDIDATES = 100_000


@dataclass(frozen=True)
class Setting:
    """One point of the grid, without its privacy level.

    Parameters
    ----------
    learning_rate : float
        Learning rate of the optimiser.
    epochs : float
        Expected number of passes over the training rows.
    batch_size : float
        Expected number of rows in a batch.
    clip : float
        Bound on the norm of each row's gradient.
    optimiser : str, optional
        The optimiser. None: that of the model.
    schedule : str, optional
        ``"constant"``, ``"cosine"`` or ``"linear"``. None: constant.
    weight_decay : float, optional
        Decoupled weight decay. None: 0.
    class_weights : tuple of float, optional
        The weight of each class in the loss, before clipping. None: all classes count the same.
    """

    learning_rate: float
    epochs: float
    batch_size: float
    clip: float
    optimiser: str | None = None
    schedule: str | None = None
    weight_decay: float | None = None
    class_weights: tuple[float, ...] | None = None

    def extras(self) -> dict[str, Any]:
        """Return the settings of the training that are given, beyond the four that always are."""
        names = ("optimiser", "schedule", "weight_decay", "class_weights")
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}


@dataclass(frozen=True)
class SearchSettings:
    """The candidates: every setting at every privacy level.

    Parameters
    ----------
    epsilons : tuple of float
        Privacy levels, ascending.
    settings : tuple of Setting
        Points of the grid.
    """

    epsilons: tuple[float, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class PrivacySettings:
    """How privacy is spent.

    Parameters
    ----------
    delta : float
        Total δ of the job.
    overhead : float, optional
        Overhead as a fraction of the first drop rate, for jobs without a bar. None: recommended.
    repeats : int
        Copies of each candidate.
    attempts : int, optional
        The maximum number of attempts to reach a bar. None: planned.
    scoring : str
        ``"private"`` (noisy, on held-out rows) or ``"public"`` (exact, on public rows).
    order : tuple of float, optional
        Rényi orders of the charges, ascending.
    expected_shares : tuple of float, optional
        The shares of the settings that are expected to pass, from some level on. None: a robust
        spread.
    max_epsilon : float, optional
        The most that the job may cost. None: paths cost at most ``MAX_EPSILON``, and attempts with
        DP-SGD what their levels cost.
    """

    delta: float
    overhead: float | None = None
    repeats: int = 1
    attempts: int | None = None
    scoring: str = "private"
    order: tuple[float, ...] | None = None
    expected_shares: tuple[float, ...] | None = None
    max_epsilon: float | None = None

    @property
    def limit(self) -> float:
        """The most that the trainings which stop when they pass may cost together."""
        return MAX_EPSILON if self.max_epsilon is None else self.max_epsilon


@dataclass(frozen=True)
class Settings:
    """All settings of a job.

    Parameters
    ----------
    data : DataSettings
        The ``[data]`` table.
    model : ModelSettings
        The ``[model]`` table.
    search : SearchSettings
        The ``[search]`` table.
    goal : GoalSettings
        The ``[goal]`` table.
    privacy : PrivacySettings
        The ``[privacy]`` table.
    folder : Path
        Folder of the TOML file.
    """

    data: DataSettings
    model: ModelSettings
    search: SearchSettings
    goal: GoalSettings
    privacy: PrivacySettings
    folder: Path

    def public(self) -> dict[str, Any]:
        """Return the settings in plain types, for the certificate and the identity of the job.

        Paths are replaced by file names, and ``folder`` is left out.
        """
        plain = replace(self, model=replace(self.model, given=None))
        record = asdict(replace(plain, goal=replace(self.goal, function=None)))
        del record["folder"], record["model"]["given"], record["goal"]["function"]
        record["search"]["settings"] = tuple(
            {name: value for name, value in each.items() if value is not None}
            for each in record["search"]["settings"]
        )
        for key in ("path", "public_test"):
            record["data"][key] = (
                None if record["data"][key] is None else Path(record["data"][key]).name
            )
        return record


def read_settings(config: str | Path | Mapping[str, Any], *, given_data: bool = False) -> Settings:
    """Read and check the settings of a job.

    Parameters
    ----------
    config : str, Path or mapping
        A TOML file, or a mapping with the same tables.
    given_data : bool
        Whether the rows are passed as arrays. Then ``[data]`` must not name a source.

    Returns
    -------
    Settings
        The checked settings.

    Raises
    ------
    InvalidInput
        If a table or key is missing, unknown or not valid.
    """
    document = Document.read(config)
    _check_tables(document)
    goals = document.table("goal", GOAL_KEYS)
    goal = read_goal(goals)
    privacy = _privacy(document.table("privacy", PRIVACY_KEYS), goal)
    check_scoring(goals, goal, privacy.scoring)
    searched = "search" in document.tables
    model = read_model(
        document.table("model", MODEL_KEYS),
        goal.metric,
        goal.measure.regression,
        search=searched,
    )
    if model.training != "dp-sgd" and goal.bar is None:
        raise InvalidInput(
            "goal.maximize", True, "this training stops at a bar: give at_least or at_most"
        )
    data = read_data(
        document.table("data", DATA_KEYS),
        document.folder,
        kind=model.kind,
        loss=model.loss,
        scoring=privacy.scoring,
        given=given_data,
        training=model.training,
    )
    search = SearchSettings((), ())
    if searched or model.training == "dp-sgd":
        table = document.table("search", SEARCH_KEYS)
        if "optimisers" in table and "optimiser" in document.tables["model"]:
            table.refuse("optimisers", "give either this key or model.optimiser")
        if "class_weights" in table and model.loss == "squared":
            table.refuse("class_weights", "a regression has no classes; leave this key out")
        search = _search(table)
    return Settings(data, model, search, goal, privacy, document.folder)


def _check_tables(document: Document) -> None:
    """Name every table that is missing; linear models and noise reduction need no ``[search]``."""
    model = document.tables.get("model", {})
    kind: Any = model.get("kind")
    linear = isinstance(kind, str) and kind in LINEAR
    needed = ["data", "model", "search", "goal", "privacy"]
    if "model" not in document.tables or linear or model.get("training") in TRAININGS[1:]:
        needed.remove("search")
    missing = [f"[{name}]" for name in needed if name not in document.tables]
    if missing:
        raise InvalidInput(
            "job",
            f"without {', '.join(missing)}",
            "add what is missing; expost tune ROWS --init writes all tables with defaults",
        )


def _privacy(table: ConfigTable, goal: GoalSettings) -> PrivacySettings:
    """Read and check the ``[privacy]`` table."""
    delta = table.number("delta")
    if delta is None or not 0 < delta < 1:
        table.refuse(
            "delta", "give a number with 0 < delta < 1, far below one over the number of rows"
        )
    overhead = table.values.get("overhead", "auto")
    if overhead != "auto" and not (is_number(overhead) and 1e-9 <= overhead <= 1e9):
        table.refuse(
            "overhead",
            'give "auto", or a fraction of the first drop rate, at least 1e-9 and at most 1e9',
        )
    if overhead != "auto" and goal.bar is not None:
        table.refuse("overhead", "with a bar the attempts are planned; leave the overhead out")
    attempts = table.count("attempts", None, MOST_ATTEMPTS)
    if attempts is not None and goal.bar is None:
        table.refuse(
            "attempts",
            "attempts need a bar; give goal.at_least or goal.at_most, or leave this key out",
        )
    order = table.positives("order") if "order" in table else None
    if order is not None and (sorted(order) != list(order) or order[0] <= 1):
        table.refuse("order", "give Rényi orders > 1 in ascending order")
    scoring = table.text("scoring", "private", ("private", "public")) or "private"
    shares = table.positives("expected_shares") if "expected_shares" in table else None
    if shares is not None and (goal.bar is None or max(shares) > 1):
        table.refuse(
            "expected_shares",
            "with a bar, give shares of the settings that may pass, each with 0 < share <= 1",
        )
    chosen = None if overhead == "auto" else float(overhead)
    repeats = table.count("repeats", 1) or 1
    most = table.number("max_epsilon") if "max_epsilon" in table else None
    if "max_epsilon" in table and (most is None or not 1e-3 <= most <= 1e3):
        table.refuse("max_epsilon", "give the most that the job may cost, from 0.001 to 1000")
    return PrivacySettings(delta, chosen, repeats, attempts, scoring, order, shares, most)


def _search(table: ConfigTable) -> SearchSettings:
    """Read and check the ``[search]`` table."""
    epsilons = table.positives("epsilons")
    if list(epsilons) != sorted(epsilons):
        table.refuse("epsilons", "give levels in ascending order")
    axes: list[Sequence[Any]] = [tuple(map(float, table.positives(key))) for key in _AXES]
    axes += [_more(table, key) if key in table else (None,) for key in _MORE_AXES]
    points = math.prod(map(len, axes))
    samples = table.count("samples")
    kept = points if samples is None else min(points, samples)
    total = kept * len(epsilons)
    if total > _MOST_CANDIDATES:  # checked before the grid is made: it may not fit in memory
        table.refuse(
            "samples",
            f"there would be {total} candidates; give samples so that there are at most "
            f"{_MOST_CANDIDATES}",
        )
    if kept < points:
        # A public draw with a fixed seed: the same for everyone.
        places = sorted(random.Random(0).sample(range(points), kept))
        grid = [_point(axes, place) for place in places]
    else:
        grid = list(product(*axes))
    return SearchSettings(tuple(map(float, epsilons)), tuple(Setting(*point) for point in grid))


def _more(table: ConfigTable, key: str) -> tuple[Any, ...]:
    """Read an axis of the grid that may be left out."""
    value: Any = table.values[key]
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if key in _TEXTS:
        valid = "give a list of different texts from " + ", ".join(_TEXTS[key])
        fine = all(isinstance(each, str) and each in _TEXTS[key] for each in listed)
    elif key == "weight_decays":
        valid = "give a list of different finite numbers >= 0"
        fine = all(is_number(each) and each >= 0 for each in listed)
        listed = [float(each) for each in listed] if fine else []
    else:
        valid = (
            "give a list of different lists with one number > 0 per class, in the order of "
            "data.classes, e.g. [[1, 1], [1, 5]]; "
            "they are public and must not be computed from the labels"
        )
        fine = all(
            isinstance(each, (list, tuple)) and all(is_number(one) and one > 0 for one in each)
            for each in listed
        )
        listed = [tuple(map(float, each)) for each in listed] if fine else []
    if not fine or not listed or len(set(listed)) < len(listed):
        table.refuse(key, valid)
    return tuple(listed)


_TEXTS = {"optimisers": OPTIMISERS, "schedules": SCHEDULES}


def _point(axes: Sequence[Sequence[Any]], place: int) -> tuple[Any, ...]:
    """Return the point at one position of the product of the axes, without making the product."""
    point = []
    for axis in reversed(axes):
        place, digit = divmod(place, len(axis))
        point.append(axis[digit])
    return tuple(reversed(point))
