"""A job from keywords: what is not given has a default that depends on public facts only.

Every key of the TOML file is a keyword of the same name (``model`` stands for ``model.kind``). The
defaults are functions of the number of places (or the public number of rows), and of the kind of
target: they never depend on a value in the data. ``expost tune ROWS --init`` writes the TOML file
that they amount to.

=================  ===============================================================================
``model``          logistic for two classes, softmax for more, linear with ``target_bounds``
``training``       auto for linear models without a grid, else dp-sgd over the grid below
``batch_sizes``    an eighth of the training places, as a power of two, at least 16, at most 4096
``epochs``         as many as make 80 and 240 steps of that size (about 10 and 30), at least 1
``learning_rates`` 1, 2, 4 for classifiers; 0.1, 0.3 for linear; 0.5, 1, 2 for a torch module
``clips``          1
``epsilons``       0.25, 0.5, 1, 2, 4; from 5,000 training places on also 0.0625 and 0.125
``delta``          the largest power of ten that is at most 1/(10 n)
``metric``         accuracy; "mse" with ``target_bounds``
``loss_bound``     the square of half the range of the target, or of the range if the bar is above
                   (for mae without the square); of log_loss 4, or twice the bar
=================  ===============================================================================

The grid was chosen by simulation (``python -m scripts.default_grid``): on four data sets of 455 to
16,000 training rows, from ε = 1 on, the best of these 6 settings is within 0.03 of the best of up
to 160. At smaller levels the noise decides more than the setting, and above ε = 4 the accuracy
hardly grows.

Tests: ``tests/tuning/test_defaults.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from expost.tuning.config_file import is_number
from expost.tuning.data_settings import DATA_KEYS, DataSettings, default_holdout
from expost.tuning.goal_settings import GOAL_KEYS
from expost.tuning.metrics import REGRESSION_METRICS
from expost.tuning.model_settings import LINEAR, MODEL_KEYS
from expost.tuning.settings import MAX_EPSILON, PRIVACY_KEYS, SEARCH_KEYS
from expost.tuning.tables import count_places

TABLES: dict[str, tuple[str, ...]] = {
    "data": tuple(key for key in DATA_KEYS if key not in ("name", "path")),
    "model": MODEL_KEYS,
    "search": SEARCH_KEYS,
    "goal": GOAL_KEYS,
    "privacy": PRIVACY_KEYS,
}
DATA_FILES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".npz")
"""Endings of files of rows."""

_KEYWORDS = {
    "model" if key == "kind" else key: (table, key)
    for table, keys in TABLES.items()
    for key in keys
    if (table, key) != ("model", "features")
}
_OF_GRIDS = ("overhead", "repeats", "attempts", "order", "expected_shares")
_WITHOUT_SEARCH = ("noise-reduction", "progressive")
_GOALS = ("at_least", "at_most", "maximize")
_STEPS = (80, 240)
_SMALLEST, _LARGEST = 16, 4096  # batch sizes
_MANY = 5000  # training places from which small levels can work
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_COMMENTS = {
    "path": "relative to this file",
    "training": '"auto", "progressive", "noise-reduction", or "dp-sgd" (with [search])',
    "features": '"auto" or "plain"',
    "max_epsilon": "the most that the job may cost, whatever happens",
    "holdout": "share of the rows used for scoring and never for training",
    "epsilons": "levels: the cheapest that passes is released",
    "batch_sizes": "expected size: rows are sampled",
    "delta": "of the whole job; the attempts share it",
    "confidence": 'of the statement "passed"',
    "rows": "public number of rows; the actual number stays private",
    "loss_bound": "clips the loss of a row",
}


def is_data_file(name: Any) -> bool:
    """Return whether a path names a file of rows and not a job."""
    return isinstance(name, (str, Path)) and str(name).lower().endswith(DATA_FILES)


def check_keywords(given: Mapping[str, Any]) -> None:
    """Refuse a keyword that is no key of a job; similar ones are named."""
    for name in given:
        if name not in _KEYWORDS:
            close = get_close_matches(name, list(_KEYWORDS), n=2)
            raise InvalidInput(
                name,
                type(given[name]).__name__,
                "there is no such keyword; "
                + (
                    f"did you mean {' or '.join(close)}?" if close else f"the keywords are {_all()}"
                ),
            )


def refuse_both(given: Mapping[str, Any]) -> None:
    """Refuse keywords beside a job that has settings of its own."""
    if given:
        names = ", ".join(given)
        error = InvalidInput("job", "keywords", f"it has settings of its own; leave {names} out")
        error.args = (
            f"{names} cannot be given with a job that has settings of its own: write them there, "
            "or pass the rows in place of the job",
        )
        raise error


def job_of(
    given: Mapping[str, Any], places: int, *, path: str | Path | None = None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a job: what is given, and defaults for the rest.

    Parameters
    ----------
    given : mapping of str to object
        Keywords; see the module. A value None counts as not given.
    places : int
        Number of places, or the public number of rows.
    path : str or Path, optional
        The file of rows.

    Returns
    -------
    dict of str to dict
        The tables, as :func:`expost.tuning.read_settings` takes them.

    Raises
    ------
    InvalidInput
        If a keyword is not known, or no goal is given.
    """
    given = {name: value for name, value in given.items() if value is not None}
    check_keywords(given)
    if not any(name in given for name in _GOALS):
        raise InvalidInput(
            "at_least",
            None,
            "say what the model must reach: at_least=0.8 (accuracy), at_most=… (an error), or "
            "maximize=True",
        )
    regression = given.get("metric") in REGRESSION_METRICS or "target_bounds" in given
    regression = regression or given.get("model") == "linear"
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    if path is not None:
        tables["data"]["path"] = str(path)
    for name, value in given.items():
        table, key = _KEYWORDS[name]
        if name == "features" and isinstance(value, (str, Mapping)):
            table = "model"  # a map of rows, not a list of columns
        tables[table][key] = value
    public = tables["privacy"].get("scoring") == "public"
    _fill_model(tables, regression)
    training_way = tables["model"]["training"]
    if not public:
        usual = default_holdout(tables["data"].get("classes"), training_way)
        tables["data"].setdefault("holdout", usual)
    share = 1.0 if public else 1 - _number(tables["data"]["holdout"], 0.2)
    if training_way in _WITHOUT_SEARCH or (training_way == "auto" and not tables["search"]):
        _levels_of_search(tables["model"], tables.pop("search"))
        tables["privacy"].setdefault("max_epsilon", MAX_EPSILON)
        if training_way != "noise-reduction":
            tables["model"].setdefault("features", "auto")
    else:
        training = max(1, math.floor(places * share))
        _fill_search(tables["search"], tables["model"]["kind"], training)
    _fill_goal(tables["goal"], tables["data"].get("target_bounds"), regression)
    tables["privacy"].setdefault("delta", default_delta(places))
    return {table: _ordered(values, TABLES[table]) for table, values in tables.items()}


def _levels_of_search(model: dict[str, Any], search: dict[str, Any]) -> None:
    """Noise reduction searches levels only: up to the highest one that was asked for."""
    from expost.tuning.noise_reduction import levels_up_to

    given = search.pop("epsilons", None)
    for key in search:
        raise InvalidInput(
            key, search[key], "noise reduction has no such setting; leave it out, or use dp-sgd"
        )
    if given is None or "levels" in model:
        return
    if not isinstance(given, (list, tuple)) or not all(map(is_number, given)) or not given:
        raise InvalidInput("epsilons", given, "give a list of numbers > 0")
    model["levels"] = list(levels_up_to(float(max(given))))


def described(job: Any, X: Any, y: Any, settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the settings of a job and its rows, whichever way they were passed.

    Parameters
    ----------
    job, X, y, settings
        The arguments of :func:`expost.tune`.

    Returns
    -------
    config : path or mapping
        What :func:`expost.tuning.read_settings` takes.
    X, y : object or None
        Rows that were passed as objects.
    """
    if isinstance(job, Mapping) or (isinstance(job, (str, Path)) and not is_data_file(job)):
        refuse_both(settings)
        return job, X, y
    if is_data_file(job):
        if X is not None or y is not None:
            raise InvalidInput("X, y", "arrays", f"{Path(job).name} holds the rows; leave them out")
        return default_job(job, **settings), None, None
    if X is not None and y is not None:
        raise InvalidInput("job", type(job).__name__, "give a TOML file or a mapping before X, y")
    return default_job(job, **settings), job, X if y is None else y


def default_job(rows: Any, /, **settings: Any) -> dict[str, dict[str, Any]]:
    """Return the job that :func:`expost.tune` makes of rows and keywords.

    Parameters
    ----------
    rows : path, array_like or data frame
        The rows; only their number is used, and only if the keyword ``rows`` is not given.
    **settings
        The keywords of :func:`expost.tune`.

    Returns
    -------
    dict of str to dict
        The tables of the job. ``expost.tune`` takes them as ``job``.

    Raises
    ------
    InvalidInput
        If a keyword is not known, or no goal is given.
    """
    path = rows if is_data_file(rows) else None
    check_keywords(settings)
    return job_of(settings, places_of(rows, settings), path=path)


def places_of(rows: Any, given: Mapping[str, Any]) -> int:
    """Return the number of places, or the public number of rows if it is given."""
    public = given.get("rows")
    if isinstance(public, int) and not isinstance(public, bool) and public > 0:
        return public
    if is_data_file(rows):
        chosen = {key: given.get(key) for key in ("target", "delimiter")}
        return count_places(Path(rows), DataSettings(**chosen))  # type: ignore[arg-type]
    try:
        count: int = len(rows)
        return count
    except TypeError:
        raise InvalidInput(
            "job",
            type(rows).__name__,
            "give a TOML file, a mapping, a file of rows, a data frame or an array",
        ) from None


def default_delta(places: int) -> float:
    """Return the largest power of ten that is at most 1/(10 · places)."""
    return float(f"1e{-len(str(10 * max(1, places) - 1))}")


def default_levels(training: int) -> list[float]:
    """Return the privacy levels for a number of training places."""
    return [*([0.0625, 0.125] if training >= _MANY else []), 0.25, 0.5, 1.0, 2.0, 4.0]


def default_batch(training: int) -> int:
    """Return the batch size for a number of training places."""
    wanted = 1 << round(math.log2(max(1.0, training / 8)))
    return min(training, max(_SMALLEST, min(_LARGEST, wanted)))


def default_epochs(training: int, batch: float) -> list[float]:
    """Return the numbers of epochs, so that a training makes 80 and 240 steps."""
    found = {max(1, round(steps * batch / training)) for steps in _STEPS}
    return [float(each) for each in sorted(found)]


def _fill_model(tables: Mapping[str, dict[str, Any]], regression: bool) -> None:
    """Choose the kind of model by the kind of target, and its training by what was asked for."""
    table, classes = tables["model"], tables["data"].get("classes")
    count = classes if isinstance(classes, int) else len(classes or ())
    table.setdefault("kind", "linear" if regression else "logistic" if count == 2 else "softmax")
    plain = table["kind"] in LINEAR and not tables["search"] and not tables["data"].get("integers")
    by_grid = "maximize" in tables["goal"] or not plain
    by_grid = by_grid or any(key in tables["privacy"] for key in _OF_GRIDS)
    table.setdefault("training", "dp-sgd" if by_grid else "auto")


def _fill_search(table: dict[str, Any], kind: Any, training: int) -> None:
    """Choose levels and grid by the number of training places."""
    table.setdefault("epsilons", default_levels(training))
    rates = (
        [0.5, 1.0, 2.0]
        if kind not in LINEAR
        else [0.1, 0.3]
        if kind == "linear"
        else [1.0, 2.0, 4.0]
    )
    table.setdefault("learning_rates", rates)
    table.setdefault("batch_sizes", [default_batch(training)])
    sizes = table["batch_sizes"]
    first = sizes[0] if isinstance(sizes, (list, tuple)) and sizes else sizes
    table.setdefault("epochs", default_epochs(training, _number(first, training / 8)))
    table.setdefault("clips", [1.0])


def _fill_goal(table: dict[str, Any], bounds: Any, regression: bool) -> None:
    """Choose the metric, the confidence and the bound of a row's loss."""
    table.setdefault("metric", "mse" if regression else "accuracy")
    if "maximize" not in table:
        table.setdefault("confidence", 0.9)
    if table["metric"] in REGRESSION_METRICS and "loss_bound" not in table:
        if bounds is None:  # asked for later, with all that is missing; the bar is checked first
            table["loss_bound"] = max(1.0, 2 * _number(table.get("at_most"), 0.0))
            return
        pair = bounds if isinstance(bounds, (list, tuple)) and len(bounds) == 2 else (0, 1)
        width = abs(_number(pair[1], 1.0) - _number(pair[0], 0.0)) or 1.0
        power = 1 if table["metric"] == "mae" else 2
        tight = (width / 2) ** power
        fits = _number(table.get("at_most"), 0.0) < tight
        table["loss_bound"] = tight if fits else width**power
    if table["metric"] == "log_loss":
        table.setdefault("loss_bound", max(4.0, 2 * _number(table.get("at_most"), 0.0)))


def _number(value: Any, otherwise: float) -> float:
    """Return a number; what is none is refused later, by its key."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return otherwise


def _ordered(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a table in the order of its keys; lists instead of tuples."""
    known = ["path", *keys]
    return {key: _plain(values[key]) for key in known if key in values}


def _plain(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def as_toml(job: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of a job as a commented TOML text.

    Parameters
    ----------
    job : mapping of str to mapping
        The tables, from :func:`job_of`.

    Raises
    ------
    InvalidInput
        If a value cannot be written, such as a function given as the model.
    """
    blocks = []
    for table, values in job.items():
        lines = [f"[{table}]"]
        for key, value in values.items():
            known = key in _COMMENTS and (table, key) != ("data", "features")
            note = f"  # {_COMMENTS[key]}" if known else ""
            lines.append(f"{key} = {_written(value, f'{table}.{key}')}{note}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _written(value: Any, where: str) -> str:
    """Return a value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inner = (f"{_key(key)} = {_written(each, where)}" for key, each in value.items())
        return "{ " + ", ".join(inner) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_written(each, where) for each in value) + "]"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise InvalidInput(where, type(value).__name__, "a file takes numbers, texts, lists and tables")


def _key(name: str) -> str:
    """Return a name as a TOML key."""
    return name if _BARE.fullmatch(name) else _written(name, name)


def _all() -> str:
    return ", ".join(_KEYWORDS)
