"""What a tuning job is asked to do: public settings, checked before data is read or anything is charged.

Tests: ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from expost.selection.attempts.planner import MOST_ATTEMPTS
from expost.tuning.config_file import ConfigTable, Document, is_number

BUILT_IN = ("digits", "breast_cancer")
KINDS = ("logistic", "softmax", "linear", "cnn")
_MOST_CANDIDATES = 100_000
_IMAGE = (1, 28, 28)  # what "cnn" takes
_DIGITS = 10  # and how many classes it can tell apart

Bounds = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class DataSettings:
    """Where the rows are, and what is publicly known about them.

    ``bounds``  of every feature, or one pair for all; values outside are moved to the nearest bound
    ``classes`` how many, or their names; never read off the labels
    ``holdout`` share of the rows that scores privately and never trains
    """

    name: str | None = None
    path: Path | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    bounds: Bounds | None = None
    classes: int | tuple[str, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    holdout: float = 0.2
    public_test: Path | None = None

    @property
    def class_count(self) -> int | None:
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes


@dataclass(frozen=True)
class ModelSettings:
    kind: str
    loss: str
    input_shape: tuple[int, ...] | None = None
    optimiser: str = "sgd"
    momentum: float = 0.9


@dataclass(frozen=True)
class Setting:
    """One point of the grid without its privacy level."""

    learning_rate: float
    epochs: float
    batch_size: float
    clip: float


@dataclass(frozen=True)
class SearchSettings:
    epsilons: tuple[float, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class GoalSettings:
    """What the model must reach.

    ``bar`` is in the metric's own direction (accuracy at least, squared error at most), or None to
    maximise. ``confidence`` bounds the chance of certifying a model that is below the bar on the
    scoring rows.
    """

    metric: str
    bar: float | None
    loss_bound: float | None = None
    confidence: float = 0.9

    @property
    def target(self) -> float | None:
        """The bar as a score, where more is better."""
        return None if self.bar is None else self.bar if self.metric == "accuracy" else -self.bar


@dataclass(frozen=True)
class PrivacySettings:
    """What may be spent, and how.

    ``delta`` is the total of the job. ``attempts`` is the most attempts that are made to reach a
    bar (None: planned). ``overhead`` is for jobs without a bar. ``expected_shares`` is the belief
    about which share of the settings passes, from some level on (None: a robust spread).
    """

    delta: float
    overhead: float | None = None
    repeats: int = 1
    attempts: int | None = None
    scoring: str = "private"
    order: tuple[float, ...] | None = None
    expected_shares: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Settings:
    data: DataSettings
    model: ModelSettings
    search: SearchSettings
    goal: GoalSettings
    privacy: PrivacySettings
    folder: Path

    def public(self) -> dict[str, Any]:
        """All of it in plain types, for the certificate and for telling jobs apart; paths by their names only."""
        record = asdict(self)
        del record["folder"]
        for key in ("path", "public_test"):
            record["data"][key] = (
                None if record["data"][key] is None else Path(record["data"][key]).name
            )
        return record


def read_settings(config: str | Path | Mapping[str, Any], *, given_data: bool = False) -> Settings:
    """Settings from a TOML file or a mapping. ``given_data``: the rows come as arrays, so [data] names no file."""
    document = Document.read(config)
    goal = _goal(
        document.table(
            "goal", ("metric", "at_least", "at_most", "maximize", "loss_bound", "confidence")
        )
    )
    privacy = _privacy(
        document.table(
            "privacy",
            ("delta", "overhead", "repeats", "attempts", "scoring", "order", "expected_shares"),
        ),
        goal,
    )
    model = _model(
        document.table("model", ("kind", "loss", "input_shape", "optimiser", "momentum")), goal
    )
    listed = (
        "name",
        "path",
        "target",
        "features",
        "feature_bounds",
        "classes",
        "target_bounds",
        "holdout",
        "public_test",
    )
    data = _data(document.table("data", listed), model, privacy, document.folder, given_data)
    keys = ("epsilons", "learning_rates", "epochs", "batch_sizes", "clips", "samples")
    return Settings(
        data, model, _search(document.table("search", keys)), goal, privacy, document.folder
    )


def _goal(table: ConfigTable) -> GoalSettings:
    metric = table.text("metric", "accuracy", ("accuracy", "mse")) or "accuracy"
    given = [key for key in ("at_least", "at_most", "maximize") if key in table]
    if len(given) != 1:
        table.refuse(
            given[1] if given else "at_least", "give exactly one of at_least, at_most and maximize"
        )
    bound = table.number("loss_bound")
    if metric == "accuracy":
        if bound is not None:
            table.refuse("loss_bound", 'only metric = "mse" takes it')
        if "at_most" in table:
            table.refuse("at_most", "an accuracy has to be at_least something")
    elif bound is None or bound <= 0:
        table.refuse(
            "loss_bound",
            "give the public bound to which a row's squared error is clipped, a number > 0",
        )
    if "maximize" in table:
        if not table.flag("maximize"):
            table.refuse("maximize", "give true, or a bar instead")
        if "confidence" in table:
            table.refuse("confidence", "it belongs to a bar: give at_least or at_most, too")
        return GoalSettings(metric, None, bound)
    confidence = table.number("confidence", 0.9)
    if confidence is None or not 0.5 <= confidence < 1:
        table.refuse("confidence", "give a number with 0.5 <= confidence < 1, e.g. 0.9")
    bar = table.number(given[0])
    assert bar is not None
    if metric == "accuracy" and not 0 < bar <= 1:
        table.refuse(
            "at_least",
            "no model can pass or every model does: an accuracy bar is a number with 0 < bar ≤ 1",
        )
    if metric == "mse":
        assert bound is not None
        if given[0] == "at_least":
            table.refuse("at_least", "a squared error has to be at_most something")
        if not 0 < bar < bound:
            table.refuse(
                "at_most",
                f"no model can pass or every model does: give a number with 0 < bar < loss_bound = {bound:g}",
            )
    return GoalSettings(metric, bar, bound, confidence)


def _privacy(table: ConfigTable, goal: GoalSettings) -> PrivacySettings:
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
        table.refuse("attempts", "only a bar can be missed: give goal.at_least, or leave it out")
    order = table.positives("order") if "order" in table else None
    if order is not None and (sorted(order) != list(order) or order[0] <= 1):
        table.refuse("order", "give Rényi orders > 1, ascending")
    scoring = table.text("scoring", "private", ("private", "public")) or "private"
    shares = table.positives("expected_shares") if "expected_shares" in table else None
    if shares is not None and (goal.bar is None or max(shares) > 1):
        table.refuse(
            "expected_shares",
            "with a bar, give shares of the settings that may pass, each with 0 < share <= 1",
        )
    chosen = None if overhead == "auto" else float(overhead)
    repeats = table.count("repeats", 1) or 1
    return PrivacySettings(delta, chosen, repeats, attempts, scoring, order, shares)


def _model(table: ConfigTable, goal: GoalSettings) -> ModelSettings:
    kind = table.text("kind")
    parts = [] if kind is None else kind.split(":")
    if kind is None or not (
        kind in KINDS or (len(parts) == 2 and all(part.strip() for part in parts))
    ):
        table.refuse(
            "kind",
            f'give {", ".join(KINDS)}, or "module:factory" of a function that returns a torch module',
        )
    natural = {"logistic": "logistic", "softmax": "softmax", "linear": "squared", "cnn": "softmax"}
    if kind in natural and "loss" in table:
        table.refuse("loss", "only a module of your own takes it")
    wanted = "squared" if goal.metric == "mse" else "softmax"
    loss = (
        natural.get(kind)
        or table.text("loss", wanted, ("softmax", "logistic", "squared"))
        or wanted
    )
    if (loss == "squared") != (goal.metric == "mse"):
        table.refuse(
            "kind", f"a model with the loss {loss!r} cannot reach a goal in {goal.metric!r}"
        )
    shape = table.values.get("input_shape")
    if shape is not None:
        if kind in ("logistic", "softmax", "linear"):
            table.refuse("input_shape", "linear models take rows as they are")
        if (
            not isinstance(shape, (list, tuple))
            or not all(isinstance(each, int) and each > 0 for each in shape)
            or not shape
        ):
            table.refuse("input_shape", "give the shape of one example, e.g. [1, 28, 28]")
    elif kind == "cnn":
        shape = _IMAGE
    momentum = table.number("momentum", 0.9)
    if momentum is None or not 0 <= momentum < 1:
        table.refuse("momentum", "give a number with 0 ≤ momentum < 1")
    optimiser = table.text("optimiser", "sgd", ("sgd", "momentum", "adam")) or "sgd"
    return ModelSettings(kind, loss, None if shape is None else tuple(shape), optimiser, momentum)


def _data(
    table: ConfigTable, model: ModelSettings, privacy: PrivacySettings, folder: Path, given: bool
) -> DataSettings:
    name, path, test = (
        table.text("name", None, BUILT_IN),
        table.text("path"),
        table.text("public_test"),
    )
    sources = (name is not None) + (path is not None) + given
    if sources != 1:
        keys = "X and y" if given else "name or path"
        table.refuse("path" if path else "name", f"give exactly one source of rows ({keys})")
    target = table.text("target")
    if path is not None and target is None and not path.endswith(".npz"):
        table.refuse("target", "name the column to predict")
    features = table.values.get("features")
    if features is not None and not (
        isinstance(features, list) and features and all(isinstance(f, str) for f in features)
    ):
        table.refuse("features", "give a list of column names")
    if (test is not None) != (privacy.scoring == "public"):
        table.refuse(
            "public_test",
            'give a file of public rows together with privacy.scoring = "public", or neither',
        )
    if (
        test is not None
        and path is not None
        and (folder / test).resolve() == (folder / path).resolve()
    ):
        table.refuse("public_test", "these are the rows to protect; give public ones")
    holdout = table.number("holdout", 0.2)
    if holdout is None or not 0 < holdout < 1:
        table.refuse("holdout", "give a share with 0 < holdout < 1")
    if "holdout" in table and privacy.scoring == "public":
        table.refuse("holdout", "with public scoring every row trains; leave it out")
    return DataSettings(
        name=name,
        path=None if path is None else folder / path,
        target=target,
        features=None if features is None else tuple(features),
        bounds=_bounds(table, name),
        classes=_classes(table, name, model),
        target_bounds=_target_bounds(table, model),
        holdout=holdout,
        public_test=None if test is None else folder / test,
    )


def _bounds(table: ConfigTable, name: str | None) -> Bounds | None:
    if "feature_bounds" not in table:
        if name is None:
            table.refuse(
                "feature_bounds",
                "give [low, high] for all features or a pair for each: public knowledge, not the data's own",
            )
        return ((0.0, 16.0),) if name == "digits" else None
    value = table.values["feature_bounds"]
    pairs = (
        [value]
        if isinstance(value, (list, tuple)) and all(is_number(each) for each in value)
        else value
    )
    if (
        not isinstance(pairs, (list, tuple))
        or not pairs
        or not all(_is_pair(pair) for pair in pairs)
    ):
        table.refuse("feature_bounds", "give [low, high] with low < high, or a list of such pairs")
    return tuple((float(low), float(high)) for low, high in pairs)


def _is_pair(pair: Any) -> bool:
    """Two finite numbers, ascending, whose distance is a finite number too."""
    if not (
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(is_number(each) for each in pair)
    ):
        return False
    return 0 < float(pair[1]) - float(pair[0]) < math.inf


def _classes(
    table: ConfigTable, name: str | None, model: ModelSettings
) -> int | tuple[str, ...] | None:
    value: Any = table.values.get("classes", {"digits": 10, "breast_cancer": 2}.get(name or ""))
    if model.loss == "squared":
        if "classes" in table:
            table.refuse("classes", "a regression has none")
        return None
    named = (
        isinstance(value, (list, tuple))
        and len(value) == len(set(map(str, value)))
        and len(value) >= 2
    )
    if named:
        value = tuple(str(each) for each in value)
    elif isinstance(value, bool) or not isinstance(value, int) or value < 2:
        table.refuse(
            "classes",
            "say how many classes there are (labels 0, 1, …) or list their labels: public knowledge",
        )
    if model.loss == "logistic" and (len(value) if isinstance(value, tuple) else value) != 2:
        table.refuse(
            "classes", 'a logistic model tells two classes apart; give 2, or model.kind = "softmax"'
        )
    if model.kind == "cnn" and (len(value) if isinstance(value, tuple) else value) > _DIGITS:
        table.refuse(
            "classes", f'a "cnn" tells at most {_DIGITS} classes apart; give a module of your own'
        )
    return value  # type: ignore[no-any-return]


def _target_bounds(table: ConfigTable, model: ModelSettings) -> tuple[float, float] | None:
    value: Any = table.values.get("target_bounds")
    if model.loss != "squared":
        if value is not None:
            table.refuse("target_bounds", "only a regression takes them")
        return None
    if not _is_pair(value):
        table.refuse("target_bounds", "give public bounds [low, high] of the target, low < high")
    return (float(value[0]), float(value[1]))


def _search(table: ConfigTable) -> SearchSettings:
    epsilons = table.positives("epsilons")
    if list(epsilons) != sorted(epsilons):
        table.refuse("epsilons", "give levels in ascending order")
    axes = [table.positives(key) for key in ("learning_rates", "epochs", "batch_sizes", "clips")]
    points = math.prod(map(len, axes))
    samples = table.count("samples")
    kept = points if samples is None else min(points, samples)
    if (
        kept * len(epsilons) > _MOST_CANDIDATES
    ):  # before the grid is made: it may not fit into the memory
        table.refuse(
            "samples",
            f"the grid has {kept * len(epsilons)} candidates; draw at most {_MOST_CANDIDATES} of them",
        )
    if kept < points:
        places = sorted(
            random.Random(0).sample(range(points), kept)
        )  # a public draw: the same for everybody
        grid = [_point(axes, place) for place in places]
    else:
        grid = list(product(*axes))
    return SearchSettings(
        tuple(map(float, epsilons)), tuple(Setting(*map(float, point)) for point in grid)
    )


def _point(axes: Sequence[Sequence[float]], place: int) -> tuple[float, ...]:
    """The point at a place of the product of the axes, without making the product."""
    point = []
    for axis in reversed(axes):
        place, digit = divmod(place, len(axis))
        point.append(axis[digit])
    return tuple(reversed(point))
