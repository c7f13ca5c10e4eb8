"""The ``[model]`` table of a tuning job: which model is trained, with which loss and optimiser.

Tests: ``tests/tuning/test_settings.py``, ``tests/tuning/test_factories.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from expost.tuning.config_file import ConfigTable, is_number
from expost.tuning.factories import name_of

LINEAR = ("logistic", "softmax", "linear")
KINDS = (*LINEAR, "cnn")
MODEL_KEYS = (
    *("kind", "arguments", "loss", "input_shape", "optimiser", "momentum"),
    *("training", "features", "norm_bound", "levels"),
)
TRAININGS = ("dp-sgd", "noise-reduction", "progressive", "auto")
_IMAGE = (1, 28, 28)  # the input shape of "cnn"
_LOSSES = {"logistic": "logistic", "softmax": "softmax", "linear": "squared", "cnn": "softmax"}


@dataclass(frozen=True)
class ModelSettings:
    """The model and its optimiser.

    Parameters
    ----------
    kind : str
        ``"logistic"``, ``"softmax"``, ``"linear"``, ``"cnn"``, ``"module:name"`` or
        ``"file.py:name"``; or the name of ``given``.
    loss : str
        ``"logistic"``, ``"softmax"`` or ``"squared"``.
    input_shape : tuple of int, optional
        Shape of one example. None if the model takes flat rows.
    optimiser : str
        ``"sgd"``, ``"momentum"`` or ``"adam"``.
    momentum : float
        Momentum coefficient, with 0 ≤ momentum < 1.
    arguments : mapping of str to object
        Keyword arguments of the function that makes the torch module.
    given : callable, optional
        That function, if the caller passed it instead of its name.
    training : str
        ``"progressive"`` (steps with all rows until the bar is passed), ``"noise-reduction"``
        (least squares from second moments), ``"dp-sgd"``, or ``"auto"``: what is cheapest first.
    features : str or mapping
        Public features of linear models (:mod:`expost.tuning.feature_choice`).
    norm_bound : float, optional
        Bound on the norm of a row of a linear regression, for noise reduction.
    levels : tuple of float, optional
        The levels that are looked at, ascending.
    """

    kind: str
    loss: str
    input_shape: tuple[int, ...] | None = None
    optimiser: str = "sgd"
    momentum: float = 0.9
    arguments: Mapping[str, Any] = field(default_factory=dict)
    given: Callable[..., Any] | None = field(default=None, repr=False)
    training: str = "dp-sgd"
    features: str | Mapping[str, Any] = "auto"
    norm_bound: float | None = None
    levels: tuple[float, ...] | None = None


def read_model(
    table: ConfigTable, metric: str, regression: bool | None, *, search: bool = True
) -> ModelSettings:
    """Read and check the ``[model]`` table.

    Parameters
    ----------
    table : ConfigTable
        The table.
    metric : str
        The metric of the goal.
    regression : bool or None
        Whether the metric is for numbers; None if it is for numbers and for classes.
    search : bool
        Whether the job has a ``[search]`` table. A linear model without one is trained by noise
        reduction unless it says otherwise.

    Raises
    ------
    InvalidInput
        If a key is missing, not valid, or does not match the metric.
    """
    kind, given = _kind(table)
    if kind in _LOSSES and "loss" in table:
        table.refuse("loss", "this kind of model has its own loss; leave this key out")
    wanted = "squared" if regression else "softmax"
    loss = (
        _LOSSES.get(kind)
        or table.text("loss", wanted, ("softmax", "logistic", "squared"))
        or wanted
    )
    if regression is not None and (loss == "squared") != regression:
        table.refuse("kind", f"a model with the loss {loss!r} cannot reach a goal in {metric!r}")
    momentum = table.number("momentum", 0.9)
    if momentum is None or not 0 <= momentum < 1:
        table.refuse("momentum", "give a number with 0 ≤ momentum < 1")
    optimiser = table.text("optimiser", "sgd", ("sgd", "momentum", "adam")) or "sgd"
    shape, arguments = _input_shape(table, kind), _arguments(table, kind)
    made = ModelSettings(kind, loss, shape, optimiser, momentum, arguments, given)
    return _with_training(table, made, search)


def _with_training(table: ConfigTable, model: ModelSettings, search: bool) -> ModelSettings:
    """Read the keys that say how the model is trained."""
    usual = "auto" if model.kind in LINEAR and not search else "dp-sgd"
    training = table.text("training", usual, TRAININGS) or usual
    if training in ("noise-reduction", "progressive"):
        if model.kind not in LINEAR:
            table.refuse("training", f"{training} trains linear models: " + ", ".join(LINEAR))
        if search:
            table.refuse("training", f"{training} has no search; leave the table [search] out")
    if training == "auto" and not search and model.kind not in LINEAR:
        table.refuse("training", "this model is trained by DP-SGD; add the table [search]")
    values: dict[str, Any] = {}
    if "levels" in table:
        values["levels"] = tuple(map(float, table.positives("levels")))
    if "norm_bound" in table:
        values["norm_bound"] = table.number("norm_bound")
    if "features" in table:
        given: Any = table.values["features"]
        if not isinstance(given, Mapping) and given not in ("auto", "plain"):
            table.refuse("features", 'give "auto", "plain", or a table that describes features')
        values["features"] = given
    if values and training == "dp-sgd":
        table.refuse(next(iter(values)), "DP-SGD does not use this key; leave it out")
    if "levels" in values and list(values["levels"]) != sorted(values["levels"]):
        table.refuse("levels", "give levels in ascending order")
    if "norm_bound" in values and (
        model.loss != "squared" or values["norm_bound"] is None or values["norm_bound"] < 1
    ):
        table.refuse("norm_bound", "for a linear regression, give a number of at least 1")
    return replace(model, training=training, **values)


def _kind(table: ConfigTable) -> tuple[str, Callable[..., Any] | None]:
    """Return the name of the model and, if it was passed, the function that makes it."""
    value: Any = table.values.get("kind")
    if hasattr(value, "parameters") and not isinstance(value, type):
        table.refuse("kind", "this is one module; give a function or a class that makes new ones")
    if callable(value):
        return name_of(value), value
    kind = table.text("kind")
    module, _, name = (kind or "").rpartition(":")
    if kind is None or not (kind in KINDS or (module.strip() and name.strip())):
        table.refuse(
            "kind",
            f'give one of {", ".join(KINDS)}; or "module:name" or "file.py:name", where name is a '
            "function or a class that makes a torch module; or, in Python, that function or class",
        )
    return kind, None


def _input_shape(table: ConfigTable, kind: str) -> tuple[int, ...] | None:
    """Read ``input_shape``; a "cnn" has its own."""
    shape: Any = table.values.get("input_shape")
    if shape is None:
        return _IMAGE if kind == "cnn" else None
    if kind in LINEAR:
        table.refuse("input_shape", "linear models take flat rows; leave this key out")
    whole = isinstance(shape, (list, tuple)) and all(
        isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in shape
    )
    if not whole or not shape:
        table.refuse("input_shape", "give the shape of one example, e.g. [1, 28, 28]")
    return tuple(shape)


def _arguments(table: ConfigTable, kind: str) -> dict[str, Any]:
    """Read ``arguments``, which only a module of the user has."""
    value: Any = table.values.get("arguments", {})
    if value and kind in KINDS:
        table.refuse("arguments", "only a module of your own has arguments; leave this key out")
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and _is_plain(each) for key, each in value.items()
    ):
        table.refuse(
            "arguments",
            "give a table of numbers, texts, true or false and lists of them, "
            "e.g. {width = 64}; they are public",
        )
    return dict(value)


def _is_plain(value: Any) -> bool:
    """Return whether a value can be written in a certificate."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, str)) or is_number(value)
