"""The settings of a tuning job: a :class:`.TuneRequest` whose settings fit together.

They are checked before any data is read and before anything is charged, and all of them are public.
Bounds, categories, dates, fill values and classes are public knowledge that the user writes down;
they are never computed from the data. Facts that are needed and not given are asked for when the
columns are known, all at once (:mod:`expost.tuning.request.defaults`).

Tests: ``tests/tuning/test_settings.py``, ``tests/tuning/test_metrics.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from expost.features.columns import INDICATOR, Bounds, fill_number
from expost.files import is_database
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.tables.cells import Label
from expost.training.configuration import OWN
from expost.tuning.request.factories import architectures_of, functions_by_name, name_of
from expost.tuning.request.metrics import (
    LOSSES,
    METRICS,
    OWN_METRICS,
    Metric,
    RowFunction,
    make_metric,
    metric_class,
)
from expost.tuning.request.setting_kinds import is_number, iso_day, public_choice
from expost.tuning.request.tune_request import (
    GOALS,
    LINEAR,
    MAX_EPSILON,
    MODELS,
    TRAININGS,
    TuneRequest,
    check_persons,
    database_of,
    default_holdout,
    usual_training,
)
from expost.tuning.rows.job_columns import Choice

AXES = ("learning_rates", "epochs", "batch_sizes", "clips")
MORE_AXES = ("optimisers", "schedules", "weight_decays", "class_weights", "feature_maps")
"""Settings of the grid: those that every grid has, and those that it may have."""
_MOST_CANDIDATES = 100_000
_CNN_CLASSES = 10  # the most classes that "cnn" can distinguish
NO_TARGET = 1
"""The number of classes of rows without a target: all of them are alike."""
_IMAGE = (1, 28, 28)  # the input shape of "cnn"
_LOSSES = {"logistic": "logistic", "softmax": "softmax", "linear": "squared", "cnn": "softmax"}
_FACTS = {
    "loss_bound": "the public bound to which the loss of a row is clipped",
    "class_shares": "the public share of each class",
    "target_variance": "the public variance of the target",
    "metric_bounds": "the public range [low, high] of the function",
}


@dataclass(frozen=True)
class DataSettings:
    """The source of the rows and what is publicly known about them."""

    name: str | None = None
    path: Path | None = None
    database: str | None = None
    table: str | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    bounds: Bounds | Mapping[str, tuple[float, float]] | None = None
    categories: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)
    booleans: tuple[str, ...] = ()
    dates: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    missing: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str | None = None
    classes: int | tuple[Label, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    regression: bool = False
    rows: int | None = None
    integers: bool = False
    holdout: float = 0.2
    public_test: Path | None = None
    user: str | None = None
    max_rows_per_user: int = 1

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    @property
    def relation(self) -> str:
        """The neighbouring relation of the job: "add-remove" or "zero-out"."""
        return ZERO_OUT if self.rows is None else ADD_REMOVE


@dataclass(frozen=True)
class ModelSettings:
    """The model and its optimiser."""

    kind: str
    loss: str
    input_shape: tuple[int, ...] | None = None
    optimiser: str = "sgd"
    momentum: float = 0.9
    arguments: Mapping[str, Any] = field(default_factory=dict)
    given: Callable[..., Any] | None = field(default=None, repr=False)
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    training: str = "dp-sgd"
    features: Choice = "auto"
    norm_bound: float | None = None
    levels: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Setting:
    """One point of the grid, without its privacy level."""

    learning_rate: float
    epochs: float
    batch_size: float
    clip: float
    optimiser: str | None = None
    schedule: str | None = None
    weight_decay: float | None = None
    class_weights: tuple[float, ...] | None = None
    features: Choice | None = None
    arguments: Mapping[str, Any] | None = None

    def extras(self) -> dict[str, Any]:
        """Return the settings of the training that are given, beyond the four that always are."""
        names = ("optimiser", "schedule", "weight_decay", "class_weights")
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}


@dataclass(frozen=True)
class SearchSettings:
    """The candidates: every setting at every privacy level."""

    epsilons: tuple[float, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class GoalSettings:
    """What the model must reach."""

    metric: str
    value: float | None
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
    def least_score(self) -> float | None:
        """The goal as a score: larger is better."""
        return None if self.value is None else self.value if self.larger_is_better else -self.value

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


@dataclass(frozen=True)
class PrivacySettings:
    """How privacy is spent."""

    delta: float
    overhead: float | None = None
    repeats: int = 1
    attempts: int | None = None
    scoring: str = "private"
    order: tuple[float, ...] | None = None
    expected_shares: tuple[float, ...] | None = None
    max_epsilon: float = MAX_EPSILON
    tell: float | None = None


@dataclass(frozen=True)
class Settings:
    """All settings of a job."""

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
        grid = tuple(
            replace(point, features=public_choice(point.features)) for point in self.search.settings
        )
        plain = replace(
            self,
            model=replace(
                self.model, given=None, others={}, features=public_choice(self.model.features)
            ),
            search=replace(self.search, settings=grid),
            goal=replace(self.goal, function=None),
        )
        record = asdict(plain)
        del record["folder"], record["model"]["given"], record["goal"]["function"]
        del record["model"]["others"]
        del record["data"]["database"]  # a URL names machines and people; the table stays
        record["search"]["settings"] = tuple(
            {name: value for name, value in point.items() if value is not None}
            for point in record["search"]["settings"]
        )
        for key in ("path", "public_test"):
            record["data"][key] = record["data"][key] and record["data"][key].name
        return record


def read_settings(config: str | Path | Mapping[str, Any], *, given_data: bool = False) -> Settings:
    """Read and check the settings of a job; ``given_data``: its rows are passed, not named."""
    return check_tune_request(TuneRequest.read(config), given_data=given_data)


def check_tune_request(request: TuneRequest, *, given_data: bool = False) -> Settings:
    """Check that the settings of a request fit together."""
    _check_tables(request)
    goal = _goal(request)
    privacy = _privacy(request, goal)
    _check_scoring(request, goal, privacy.scoring)
    model = _model(request, goal)
    if model.training != "dp-sgd" and goal.value is None:
        raise InvalidInput(
            "goal.maximize", True, "this training stops at a goal: give at_least or at_most"
        )
    data = _data(request, model, privacy.scoring, given_data)
    if privacy.tell is not None and model.training == "dp-sgd":
        request.refuse("tell", "a miss with dp-sgd releases no model to score")
    search = SearchSettings((), ())
    if "search" in request.tables or model.training == "dp-sgd":
        if request.given("optimisers") and request.given("optimiser"):
            request.refuse("optimisers", "give either this key or model.optimiser")
        if request.given("class_weights") and model.loss in ("squared", OWN):
            request.refuse("class_weights", "this loss has no classes; leave this key out")
        if request.given("feature_maps") and (model.kind not in LINEAR or data.integers):
            request.refuse("feature_maps", "only linear models of numbers and columns use it")
        search = _search(request)
    return Settings(data, model, search, goal, privacy, request.folder)


def _check_tables(request: TuneRequest) -> None:
    """Name every table that is missing; linear models and noise reduction need no ``[search]``."""
    needed = ["data", "model", "search", "goal", "privacy"]
    linear = isinstance(request.model, str) and request.model in LINEAR
    if "model" not in request.tables or linear or request.training in TRAININGS[1:]:
        needed.remove("search")
    missing = [f"[{name}]" for name in needed if name not in request.tables]
    if missing:
        raise InvalidInput(
            "job",
            f"without {', '.join(missing)}",
            "add what is missing; expost tune ROWS --init writes all tables with defaults",
        )


def _goal(request: TuneRequest) -> GoalSettings:
    """Check the metric, the goal and the public facts that the metric needs."""
    metric, function = request.metric or "accuracy", None
    if callable(metric):
        function = RowFunction(name_of(metric), given=metric)
        metric = function.name
    elif metric not in METRICS:
        function = RowFunction(metric, request.folder.resolve())
    given = [name for name in GOALS if request.given(name)]
    if len(given) != 1:
        request.refuse(
            given[1] if given else "at_least", "give exactly one of at_least, at_most and maximize"
        )
    larger = metric not in LOSSES if function is None else given[0] != "at_most"
    if request.given("class_shares") and metric != "balanced_accuracy":
        request.refuse("class_shares", "only balanced_accuracy uses them; leave this key out")
    _check_facts(request, metric, metric_class(metric, class_shares=request.class_shares).needs)
    facts: dict[str, Any] = {name: getattr(request, name) for name in _FACTS}
    facts |= {"larger_is_better": larger, "function": function}
    if request.given("maximize"):
        if not request.maximize:
            request.refuse("maximize", "give true, or give a goal instead")
        if request.given("confidence"):
            request.refuse(
                "confidence",
                "a confidence needs a goal; give at_least or at_most instead of maximize",
            )
        return GoalSettings(metric, None, **facts)
    wanted = "at_least" if larger else "at_most"
    if given[0] != wanted:
        side = "larger" if larger else "smaller"
        request.refuse(given[0], f"a {side} {metric} is better; give {wanted}, or another metric")
    goal = GoalSettings(metric, getattr(request, wanted), **facts)
    if request.confidence is not None:
        goal = replace(goal, confidence=request.confidence)
    if not goal.measure.can_reach(getattr(request, wanted)):
        ends = goal.measure.range_words(wanted)
        request.refuse(
            wanted, f"give a number with {ends}; otherwise every model passes or none can"
        )
    return goal


def _check_facts(request: TuneRequest, metric: str, needs: Sequence[str]) -> None:
    """Refuse public facts that are missing, or that the metric has no use for."""
    for name, meaning in _FACTS.items():
        if request.given(name) and name not in needs and name != "class_shares":
            request.refuse(name, f"{metric} does not use {meaning}; leave this key out")
        if name not in needs:
            continue
        value = getattr(request, name)
        if name == "metric_bounds":
            if value is None:
                request.refuse(name, f"give {meaning}, e.g. [0, 1]")
        elif value is None or value <= 0:
            request.refuse(name, f"give a number > 0, {meaning}")


def _check_scoring(request: TuneRequest, goal: GoalSettings, scoring: str) -> None:
    """Refuse a metric that cannot be scored in this way."""
    if scoring == "private" and not goal.measure.by_rows:
        choices = (
            "give goal.class_shares, the public share of each class; or score"
            if goal.metric == "balanced_accuracy"
            else "score"
        )
        request.refuse(
            "metric",
            f"{goal.metric} is not an average over rows, so it has no private score; {choices} on "
            'public rows: privacy.scoring = "public" and data.public_test',
        )
    if scoring == "public" and goal.class_shares is not None:
        request.refuse(
            "class_shares", "public rows are scored with the shares they have; leave this key out"
        )


def _privacy(request: TuneRequest, goal: GoalSettings) -> PrivacySettings:
    """Check how privacy is spent."""
    if request.delta is None:
        request.refuse(
            "delta", "give a number with 0 < delta < 1, far below one over the number of rows"
        )
    overhead = None if request.overhead == "auto" else request.overhead
    if overhead is not None and goal.value is not None:
        request.refuse("overhead", "with a goal the attempts are planned; leave the overhead out")
    if request.attempts is not None and goal.value is None:
        request.refuse(
            "attempts",
            "attempts need a goal; give goal.at_least or goal.at_most, or leave this key out",
        )
    order: tuple[float, ...] | None = () if request.order == "all" else request.order
    if order and order[0] <= 1:
        request.refuse("order", 'give Rényi orders > 1 in ascending order, or "all" for zCDP')
    shares = request.expected_shares
    if shares is not None and (goal.value is None or max(shares) > 1):
        request.refuse(
            "expected_shares",
            "with a goal, give shares of the settings that may pass, each with 0 < share <= 1",
        )
    most = MAX_EPSILON if request.max_epsilon is None else request.max_epsilon
    tell, scoring = request.tell, request.scoring or "private"
    if tell is not None and not 1e-4 <= tell < most:
        request.refuse(
            "tell",
            f"give ε of a score of a model that missed, at least 0.0001 and less than {most:g}, "
            "which is max_epsilon",
        )
    if tell is not None and scoring == "public":
        request.refuse("tell", "a score on public rows is told without it; leave it out")
    return PrivacySettings(
        request.delta,
        overhead,
        request.repeats or 1,
        request.attempts,
        scoring,
        order,
        shares,
        most,
        tell,
    )


def _model(request: TuneRequest, goal: GoalSettings) -> ModelSettings:
    """Check the model, its loss and its optimiser."""
    asked = request.model
    if hasattr(asked, "parameters") and not isinstance(asked, type):
        request.refuse("model", "this is one module; give a function or class that makes new ones")
    if asked is None:
        request.refuse("model", "give one of " + ", ".join(MODELS) + ', or "module:name"')
    kind = name_of(asked) if callable(asked) else asked
    if kind in MODELS and request.given("loss"):
        request.refuse("loss", "this kind of model has its own loss; leave this key out")
    if kind in MODELS and request.arguments:
        request.refuse("arguments", "only a module of your own has arguments; leave this key out")
    regression = goal.measure.regression
    own = goal.metric in OWN_METRICS
    usual = OWN if own else "squared" if regression else "softmax"
    loss = _LOSSES.get(kind) or request.loss or usual
    if own != (loss == OWN):
        refused = "metric" if request.given("metric") else "loss"
        request.refuse(refused, f"{' and '.join(OWN_METRICS)} belong to the loss {OWN!r} alone")
    if regression is not None and (loss == "squared") != regression:
        request.refuse(
            "model", f"a model with the loss {loss!r} cannot reach a goal in {goal.metric!r}"
        )
    if request.given("input_shape") and kind in LINEAR:
        request.refuse("input_shape", "linear models take flat rows; leave this key out")
    chosen = {
        "input_shape": request.input_shape or (_IMAGE if kind == "cnn" else None),
        "arguments": request.arguments or {},
        "training": request.training
        or usual_training(goal.value is not None, request.integers is True),
        "features": request.feature_map,
        **{name: getattr(request, name) for name in ("optimiser", "momentum", "norm_bound")},
        "levels": None if request.levels is None else tuple(map(float, request.levels)),
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen["others"] = functions_by_name(request)
    model = ModelSettings(kind, loss, given=asked if callable(asked) else None, **chosen)
    _check_training(request, model)
    return model


def _check_training(request: TuneRequest, model: ModelSettings) -> None:
    """Refuse keys that do not fit the way in which the model is trained."""
    training, search = model.training, "search" in request.tables
    if training in ("noise-reduction", "progressive"):
        if training == "noise-reduction" and model.kind not in LINEAR:
            request.refuse("training", f"{training} trains linear models: " + ", ".join(LINEAR))
        if training == "noise-reduction" and model.loss != "squared":
            request.refuse("training", 'second moments are for regressions; give "progressive"')
        if search:
            request.refuse("training", f"{training} has no search; leave the table [search] out")
    if request.given("feature_map") and training == "dp-sgd":
        request.refuse(
            "feature_map", 'DP-SGD takes a list of them: features = ["auto"] in [search]'
        )
    for name in ("levels", "norm_bound"):
        if request.given(name) and training == "dp-sgd":
            request.refuse(name, "DP-SGD does not use this key; leave it out")
    if request.given("norm_bound") and model.loss != "squared":
        request.refuse("norm_bound", "for a linear regression, give a number of at least 1")


def _data(request: TuneRequest, model: ModelSettings, scoring: str, given: bool) -> DataSettings:
    """Check the source of the rows and what is publicly known about them."""
    name, path, test, folder = request.name, request.path, request.public_test, request.folder
    if (name is not None) + (path is not None) + given != 1:
        keys = "X and y" if given else "name or path"
        request.refuse("path" if path else "name", f"give exactly one source of rows: {keys}")
    if (test is not None) != (scoring == "public"):
        request.refuse(
            "public_test",
            'give a file of public rows together with privacy.scoring = "public", or neither',
        )
    database = None
    if is_database(path):
        path, database = None, database_of(request)
    elif request.given("table"):
        request.refuse("table", "only a database has tables; leave this key out")
    files = [(folder / file).resolve() for file in (path, test) if file is not None]
    if len(set(files)) < len(files):
        request.refuse(
            "public_test", "this is the file of the rows to protect; give a file of public rows"
        )
    if request.given("holdout") and scoring == "public":
        request.refuse(
            "holdout", "with public scoring all rows are used for training; leave this key out"
        )
    if request.given("target_bounds") and model.loss != "squared":
        request.refuse("target_bounds", "only a regression has target bounds; leave this key out")
    same = ("categories", "booleans", "dates", "texts", "missing", "integers", "holdout")
    classes = _classes(request, model)
    of_labels = None if model.loss in ("squared", OWN) else classes or 2
    usual = {"holdout": default_holdout(of_labels, model.training, request.rows)}
    published = ((0.0, 16.0),) if name == "digits" else None
    settings = DataSettings(
        name=name,
        path=None if path is None else folder / path,
        database=database,
        table=request.table,
        target=request.target,
        features=request.features,
        bounds=published if request.feature_bounds is None else request.feature_bounds,
        shape=request.shape,
        delimiter=request.delimiter,
        classes=classes,
        target_bounds=request.target_bounds,
        regression=model.loss == "squared",
        rows=request.rows,
        public_test=None if test is None else folder / test,
        user=request.user,
        max_rows_per_user=check_persons(request, model.training),
        **usual | {key: vars(request)[key] for key in same if request.given(key)},
    )
    _check_kinds(request, settings)
    _check_missing(request, settings)
    return settings


def _classes(request: TuneRequest, model: ModelSettings) -> int | tuple[Label, ...] | None:
    """Check the classes against the model; built-in data sets have published ones."""
    if model.loss == "squared":
        if request.given("classes"):
            request.refuse("classes", "a regression has no classes; leave this key out")
        return None
    if model.loss == OWN:
        for name in ("classes", "target"):
            if request.given(name):
                request.refuse(name, "a loss of the module's own has no target; leave this key out")
        return NO_TARGET
    classes: Any = request.classes
    if classes is None:
        classes = {"digits": 10, "breast_cancer": 2}.get(request.name or "")
    count = len(classes) if isinstance(classes, tuple) else classes
    if count is not None and model.loss == "logistic" and count != 2:
        request.refuse(
            "classes", 'a logistic model has two classes; give 2, or model.kind = "softmax"'
        )
    if count is not None and model.kind == "cnn" and count > _CNN_CLASSES:
        request.refuse(
            "classes", f'a "cnn" has at most {_CNN_CLASSES} classes; give a module of your own'
        )
    return classes  # type: ignore[no-any-return]


def _check_kinds(request: TuneRequest, settings: DataSettings) -> None:
    """Refuse a column that is declared twice, or facts by name that cannot hold together."""
    by_name = settings.bounds if isinstance(settings.bounds, Mapping) else {}
    seen: dict[str, str] = {}
    kinds = {
        "feature_bounds": by_name,
        "categories": settings.categories,
        "booleans": settings.booleans,
        "dates": settings.dates,
        "texts": settings.texts,
    }
    for key, columns in kinds.items():
        for column in columns:
            if column in seen:
                request.refuse(key, f"{column!r} is also in {seen[column]}; give it in one of them")
            if column == settings.target:
                request.refuse(key, f"{column!r} is the target; its facts are in classes")
            seen[column] = key
    several = isinstance(settings.bounds, tuple) and len(settings.bounds) > 1
    if several and len(seen) > len(by_name):
        request.refuse(
            "feature_bounds", "with columns of several kinds, give the bounds by column name"
        )
    if settings.integers and (seen or settings.missing):
        request.refuse("integers", "whole numbers have bounds only; leave out facts by column name")


def _check_missing(request: TuneRequest, settings: DataSettings) -> None:
    """Check the public fill value of each column against its kind."""
    for column, fill in settings.missing.items():
        if column in settings.categories:
            request.refuse("missing", f'a missing value of {column!r} is "other"; leave it out')
        if column in settings.texts:
            request.refuse("missing", f"a missing text of {column!r} is empty; leave it out")
        if fill == INDICATOR:
            continue
        if column in settings.dates:
            if iso_day(fill) is None:
                request.refuse("missing", f'give an ISO date or "indicator" for {column!r}')
        elif column in settings.booleans:
            if not isinstance(fill, (bool, int, str)) or math.isnan(fill_number("boolean", fill)):
                request.refuse("missing", f'give true, false or "indicator" for {column!r}')
        elif not is_number(fill):
            request.refuse("missing", f'give a public number or "indicator" for {column!r}')


def _search(request: TuneRequest) -> SearchSettings:
    """Return the grid: every combination of the axes, or a public draw of some."""
    for name in ("epsilons", *AXES):
        if not request.given(name):
            request.refuse(name, "give a list of numbers > 0")
    axes: list[Sequence[Any]] = [tuple(map(float, getattr(request, name))) for name in AXES]
    axes += [getattr(request, name) or (None,) for name in MORE_AXES]
    searched = request.given("search_arguments", "models")
    axes.append(architectures_of(request) if searched else (None,))
    points = math.prod(map(len, axes))
    kept = points if request.samples is None else min(points, request.samples)
    assert request.epsilons is not None
    total = kept * len(request.epsilons)
    if total > _MOST_CANDIDATES:  # checked before the grid is made: it may not fit in memory
        request.refuse(
            "samples",
            f"there would be {total} candidates; give samples so that there are at most "
            f"{_MOST_CANDIDATES}",
        )
    if kept < points:
        # A public draw with a fixed seed: the same for everyone.
        grid = [
            _point(axes, index) for index in sorted(random.Random(0).sample(range(points), kept))
        ]
    else:
        grid = list(product(*axes))
    levels = tuple(map(float, request.epsilons))
    return SearchSettings(levels, tuple(Setting(*point) for point in grid))


def _point(axes: Sequence[Sequence[Any]], index: int) -> tuple[Any, ...]:
    """Return the point at one position of the product of the axes, without making the product."""
    point = []
    for axis in reversed(axes):
        index, digit = divmod(index, len(axis))
        point.append(axis[digit])
    return tuple(reversed(point))
