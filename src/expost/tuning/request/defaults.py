"""What a job leaves open: defaults by public facts, and public facts that must be stated.

Every key of the TOML file is a keyword of the same name (``model`` stands for ``model.kind``). The
defaults are functions of the number of places (or the public number of rows), and of the kind of
target: they never depend on a value in the data. ``expost tune ROWS --init`` writes the TOML file
that they amount to.

=================  ===============================================================================
``model``          logistic for two classes, softmax for more, linear with ``target_bounds``
``training``       auto to a goal (dp-sgd for token ids); dp-sgd over the grid below to maximise
``batch_sizes``    an eighth of the training places, as a power of two, at least 16, at most 4096
``epochs``         as many as make 80 and 240 steps of that size (about 10 and 30), at least 1
``features``       auto; in a grid of a linear model, the list of it alone: rows have norm 1
``learning_rates`` 2, 4, 8 for classifiers, from 5,000 training places on 4, 8, 16; 0.1, 0.3 for
                   linear; 0.5, 1, 2 for a torch module
``clips``          1
``epsilons``       0.25, 0.5, 1, 2, 4; from 5,000 training places on also 0.0625 and 0.125
``delta``          the largest power of ten that is at most 1/(10 n)
``metric``         accuracy; "mse" with ``target_bounds``
``loss_bound``     the square of half the range of the target, or of the range if the goal is above
                   (for mae without the square); of log_loss 4, or twice the goal
=================  ===============================================================================

The grid was chosen by simulation (``python -m scripts.default_grid``): on four data sets of 455 to
16,000 training rows, from ε = 1 on, the best of these 6 settings is within 0.03 of the best of up
to 90. At smaller levels the noise decides more than the setting, and above ε = 4 the accuracy
hardly grows.

**Facts.** :func:`schema_for` makes the schema of the columns. What is needed and missing is asked
for once, ready to fill in. The question is made of column names and types only: a type is a hint
which kind of fact a column needs, and is never decided by a value.

Tests: ``tests/tuning/test_defaults.py``, ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.facts.column_facts import toml_key, toml_value
from expost.features import Features
from expost.features.columns import Column, TableSchema
from expost.files import is_database
from expost.tables.cells import frame_of
from expost.tuning.request.metrics import OWN_METRICS, REGRESSION_METRICS
from expost.tuning.request.setting_kinds import is_number, public_choice
from expost.tuning.request.settings import NO_TARGET, DataSettings
from expost.tuning.request.tune_request import (
    GOALS,
    KEYS,
    LINEAR,
    MAX_EPSILON,
    check_keywords,
    default_holdout,
    facts_filled,
    keys_of,
    tables_of,
    usual_training,
)
from expost.tuning.rows.job_columns import find_column, given_persons, person_codes
from expost.tuning.rows.job_tables import Table, count_places

DATA_FILES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".npz")
"""Endings of files of rows."""

_OF_GRIDS = ("overhead", "repeats", "attempts", "expected_shares")
_WITHOUT_SEARCH = ("noise-reduction", "progressive")
_STEPS = (80, 240)
_SMALLEST, _LARGEST = 16, 4096  # batch sizes
_MANY = 5000  # training places from which small levels can work


def is_data_file(name: Any) -> bool:
    """Return whether a path names a file of rows and not a job."""
    named = isinstance(name, (str, Path))
    return named and (str(name).lower().endswith(DATA_FILES) or is_database(name))


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


def job_with_defaults(
    given: Mapping[str, Any], places: int, *, path: str | Path | None = None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a job: what is given, and defaults for the rest."""
    given = {name: value for name, value in given.items() if value is not None}
    tables = dict(facts_filled(tables_of(given)))
    if not any(name in given for name in GOALS):
        raise InvalidInput(
            "at_least",
            None,
            "say what the model must reach: at_least=0.8 (accuracy), at_most=… (an error), or "
            "maximize=True",
        )
    regression = given.get("metric") in REGRESSION_METRICS or "target_bounds" in tables["data"]
    regression = regression or given.get("model") == "linear"
    if path is not None:
        tables["data"]["path"] = str(path)
    public = tables["privacy"].get("scoring") == "public"
    fill_model(tables, regression)
    training_way = tables["model"]["training"]
    kind = tables["model"]["kind"]
    by_grid = bool(tables["search"])
    by_grid = by_grid or any(key in tables["privacy"] for key in _OF_GRIDS)
    if kind not in LINEAR:  # trained with all rows in each step, if their number is public
        by_grid = by_grid or "rows" in tables["data"]
    if not public:
        own = tables["goal"].get("metric") in OWN_METRICS
        classes = None if regression or own else tables["data"].get("classes", 2)
        usual = default_holdout(classes, training_way, places)
        tables["data"].setdefault("holdout", usual)
    share = 1.0 if public else 1 - _number(tables["data"]["holdout"], 0.2)
    if training_way in _WITHOUT_SEARCH or (training_way == "auto" and not by_grid):
        _levels_of_search(tables["model"], tables.pop("search"))
        if training_way != "noise-reduction" and (kind in LINEAR or training_way == "auto"):
            tables["model"].setdefault("features", "auto")
    else:
        training = max(1, math.floor(places * share))
        most = _number(tables["privacy"].get("max_epsilon"), MAX_EPSILON)
        levels = default_levels(training, most, "maximize" in tables["goal"])
        tables["search"].setdefault("epsilons", levels)
        fill_search(tables["search"], kind, training)
        if kind in LINEAR and not tables["data"].get("integers"):
            tables["search"].setdefault("features", ["auto"])
    fill_goal(tables["goal"], tables["data"].get("target_bounds"), regression)
    tables["privacy"].setdefault("delta", default_delta(places))
    tables["privacy"].setdefault("max_epsilon", MAX_EPSILON)
    return {table: _ordered(values, keys_of(table)) for table, values in tables.items()}


def _levels_of_search(model: dict[str, Any], search: dict[str, Any]) -> None:
    """Noise reduction searches levels only: up to the highest one that was asked for."""
    from expost.tuning.runs.path_training import levels_up_to

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


def settings_and_rows(
    job: Any, X: Any, y: Any, settings: Mapping[str, Any], groups: Any = None
) -> tuple[Any, Any, Any]:
    """Return the settings of a job and its rows, whichever way they were passed."""
    file = is_data_file(job)
    named = isinstance(job, (str, Path, Mapping)) and X is None and y is None
    if groups is not None and (file or named):
        raise InvalidInput(
            "groups", type(groups).__name__, "it belongs to arrays; of a file name the column: user"
        )
    if isinstance(job, Mapping) or (isinstance(job, (str, Path)) and not file):
        refuse_both(settings)
        if groups is not None and isinstance(job, Mapping):
            job = {**job, "data": {"user": _name_of(groups), **job.get("data", {})}}
        return job, X, y
    if file:
        if X is not None or y is not None:
            raise InvalidInput("X, y", "arrays", f"{Path(job).name} holds the rows; leave them out")
        return default_job(job, **settings), None, None
    if X is not None and y is not None:
        raise InvalidInput("job", type(job).__name__, "give a TOML file or a mapping before X, y")
    return default_job(job, groups=groups, **settings), job, X if y is None else y


def _name_of(groups: Any) -> str:
    """Return the name of the persons of rows that are no column of them."""
    name = getattr(groups, "name", None)
    return name if isinstance(name, str) and name else "groups"


def default_job(rows: Any, /, *, groups: Any = None, **settings: Any) -> dict[str, dict[str, Any]]:
    """Return the job that :func:`expost.tune` makes of rows and keywords.

    Parameters
    ----------
    rows : path, array_like or data frame
        The rows; only their number (with ``user`` or ``groups``, that of persons) is used, and only
        if the keyword ``rows`` is not given.
    groups : array_like, optional
        The person of each row, if ``user`` names no column.
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
    if groups is not None:
        settings = {"user": _name_of(groups), **settings}
    check_keywords(settings)
    return job_with_defaults(settings, places_of(rows, settings, groups), path=path)


def places_of(rows: Any, given: Mapping[str, Any], groups: Any = None) -> int:
    """Return the number of places, or of persons; or the public one if it is given."""
    public = given.get("rows")
    if isinstance(public, int) and not isinstance(public, bool) and public > 0:
        return public
    if is_database(rows):
        return 10**6  # the job is refused without a public number of rows
    if is_data_file(rows):
        chosen = {key: given.get(key) for key in ("target", "delimiter", "user")}
        if given.get("metric") in OWN_METRICS:
            chosen["classes"] = NO_TARGET
        return count_places(Path(rows), DataSettings(**chosen))  # type: ignore[arg-type]
    if given.get("user") is not None:
        frame = frame_of(rows)
        if groups is not None:
            return len(person_codes(given_persons(groups))[1])
        if frame is not None:
            position = find_column(str(given["user"]), frame.names, "user", "the data frame")
            return len(person_codes(frame.column(position))[1])
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


def default_levels(training: int, most: float = MAX_EPSILON, best: bool = False) -> list[float]:
    """Return the privacy levels for a number of training places and the most that a job may cost.

    With a goal a winner costs about twice its level, and the misses before it as much again;
    without one (``best``) there are no misses. The plan checks that the levels fit.
    """
    top = most / (1.8 if best else 3.5)
    levels = [0.25 * 2**power for power in range(-2 if training >= _MANY else 0, 12)]
    return [level for level in levels if level <= top] or levels[:1]


def default_batch(training: int) -> int:
    """Return the batch size for a number of training places."""
    wanted = 1 << round(math.log2(max(1.0, training / 8)))
    return min(training, max(_SMALLEST, min(_LARGEST, wanted)))


def default_epochs(training: int, batch: float) -> list[float]:
    """Return the numbers of epochs, so that a training makes 80 and 240 steps."""
    choices = {max(1, round(steps * batch / training)) for steps in _STEPS}
    return [float(choice) for choice in sorted(choices)]


def fill_model(tables: Mapping[str, dict[str, Any]], regression: bool) -> None:
    """Choose the kind of model by the kind of target, and its training by what was asked for."""
    table, classes = tables["model"], tables["data"].get("classes")
    count = classes if isinstance(classes, int) else len(classes or ())
    usual = "linear" if regression else "logistic" if count == 2 else "softmax"
    several = tables.get("search", {}).get("model")
    table.setdefault(
        "kind", several[0] if isinstance(several, (list, tuple)) and several else usual
    )
    table.setdefault(
        "training",
        usual_training("maximize" not in tables["goal"], tables["data"].get("integers") is True),
    )


def fill_search(table: dict[str, Any], kind: Any, training: int) -> None:
    """Choose the grid by the number of training places."""
    rates = (
        [0.5, 1.0, 2.0]
        if kind not in LINEAR
        else [0.1, 0.3]
        if kind == "linear"
        else [4.0, 8.0, 16.0]
        if training >= _MANY
        else [2.0, 4.0, 8.0]
    )
    table.setdefault("learning_rates", rates)
    table.setdefault("batch_sizes", [default_batch(training)])
    sizes = table["batch_sizes"]
    first = sizes[0] if isinstance(sizes, (list, tuple)) and sizes else sizes
    table.setdefault("epochs", default_epochs(training, _number(first, training / 8)))
    table.setdefault("clips", [1.0])


def fill_goal(table: dict[str, Any], bounds: Any, regression: bool) -> None:
    """Choose the metric, the confidence and the bound of a row's loss."""
    table.setdefault("metric", "mse" if regression else "accuracy")
    if "maximize" not in table:
        table.setdefault("confidence", 0.9)
    if table["metric"] in REGRESSION_METRICS and "loss_bound" not in table:
        if bounds is None:  # asked for later, with all that is missing; the goal is checked first
            table["loss_bound"] = max(1.0, 2 * _number(table.get("at_most"), 0.0))
            return
        pair = bounds if isinstance(bounds, (list, tuple)) and len(bounds) == 2 else (0, 1)
        width = abs(_number(pair[1], 1.0) - _number(pair[0], 0.0)) or 1.0
        power = 1 if table["metric"] == "mae" else 2
        tight = (width / 2) ** power
        fits = _number(table.get("at_most"), 0.0) < tight
        table["loss_bound"] = tight if fits else width**power
    if table["metric"] in ("log_loss", "loss"):
        table.setdefault("loss_bound", max(4.0, 2 * _number(table.get("at_most"), 0.0)))


def _number(value: Any, otherwise: float) -> float:
    """Return a number; what is none is refused later, by its key."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return otherwise


def _ordered(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a table in the order of its keys; lists instead of tuples."""
    return {key: _plain(values[key]) for key in keys if key in values}


def _plain(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    return [_plain(member) for member in value] if isinstance(value, (list, tuple)) else value


def as_toml(job: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of a job as a commented TOML text."""
    blocks = []
    comments = {(key.table, key.name or name): key.comment for name, key in KEYS.items()}
    for table, values in job.items():
        lines = [f"[{table}]"]
        for key, value in values.items():
            note = f"  # {comments[table, key]}" if comments.get((table, key)) else ""
            lines.append(f"{key} = {_written(value, f'{table}.{key}')}{note}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _written(value: Any, where: str) -> str:
    """Return a value in TOML; features as their record."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_written(member, where) for member in value) + "]"
    if isinstance(value, Features):  # TOML has no word for what is left at its default None
        value = {key: part for key, part in public_choice(value).items() if part is not None}
    return toml_value(value, where)


_DATES = ("date", "timestamp")
_NUMBERS = ("int", "uint", "float", "double", "half", "decimal", "bool")
_TEXT = ("object", "str", "large_string", "utf8", "categor", "enum", "dictionary")
KINDS = ("feature_bounds", "categories", "booleans", "dates")
"""Kinds of facts about a column."""
_BLANKS = {
    "feature_bounds": "[LOW, HIGH]",
    "categories": "[VALUE, VALUE]",
    "dates": '["FIRST", "LAST"]',
}
_TOML_FORMS = (
    "# Replace a line by another form if the column holds something else:",
    "#   numbers         feature_bounds.COLUMN = [0, 120]",
    '#   categories      categories.COLUMN = ["Bern", "Zug"]  (all other values are "other")',
    '#   text            texts = ["COLUMN"]',
    '#   true and false  booleans = ["COLUMN"]',
    '#   dates           dates.COLUMN = ["1990-01-01", "2029-12-31"]',
    '# If cells may be empty:    missing.COLUMN = 40  (or "indicator"); else the row is not used',
    '# To leave columns out:     features = ["COLUMN", "COLUMN"]  lists those to use',
)
_PYTHON_FORMS = (
    "# Use another form if a column holds something else:",
    "#   numbers         feature_bounds={'COLUMN': [0, 120]}",
    "#   categories      categories={'COLUMN': ['Bern', 'Zug']}  (all other values are \"other\")",
    "#   text            texts=['COLUMN']",
    "#   true and false  booleans=['COLUMN']",
    "#   dates           dates={'COLUMN': ['1990-01-01', '2029-12-31']}",
    "# If cells may be empty:    missing={'COLUMN': 40}  (or 'indicator'); else no such row counts",
    "# To leave columns out:     features=['COLUMN', 'COLUMN']  lists those to use",
)


@dataclass(frozen=True)
class NeededFacts:
    """Public facts that are needed and not given; empty (false) if there are none."""

    target: bool
    target_bounds: bool
    classes: bool
    bounds: bool
    columns: Mapping[str, str | None]

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any((self.target, self.target_bounds, self.classes, self.bounds, self.columns))

    def as_toml(self) -> str:
        """Return the lines to fill in and add to a job's TOML file."""
        lines = ["[data]", *self._general(python=False)]
        for key in (*KINDS, None):
            listed = [name for name, kind in self.columns.items() if kind == key]
            if key == "booleans" and listed:
                lines.append(_line(False, key, json.dumps(listed, ensure_ascii=False)))
            elif key is None:
                lines += [
                    f"feature_bounds.{toml_key(name)} = [LOW, HIGH]"
                    "  # or categories, dates, booleans: see below"
                    for name in listed
                ]
            else:
                lines += [f"{key}.{toml_key(name)} = {_BLANKS[key]}" for name in listed]
        return "\n".join([*lines, *(_TOML_FORMS if self.columns else ())])

    def as_python(self) -> str:
        """Return the keywords to fill in and add to a call."""
        lines = self._general(python=True)
        for key in KINDS:
            listed = [name for name, kind in self.columns.items() if (kind or KINDS[0]) == key]
            if key == "booleans" and listed:
                lines.append(_line(True, key, json.dumps(listed, ensure_ascii=False)))
            elif listed:
                inner = ", ".join(f"{name!r}: {_BLANKS[key]}" for name in listed)
                lines.append(f"{key}={{{inner}}},")
        return "\n".join([*lines, *(_PYTHON_FORMS if self.columns else ())])

    def _general(self, *, python: bool) -> list[str]:
        """Return the lines that are about no single column."""
        asked = (
            (self.target, "target", '"COLUMN"', "the column to predict"),
            (self.target_bounds, "target_bounds", "[LOW, HIGH]", "bounds of the target"),
            (self.classes, "classes", "[LABEL, LABEL]", "every label that may occur"),
            (self.bounds, "feature_bounds", "[LOW, HIGH]", "bounds of all features"),
        )
        return [_line(python, *line) for wanted, *line in asked if wanted]


class FactsMissing(InvalidInput):
    """Public facts about the data are missing."""

    def __init__(self, missing: NeededFacts, lines: str) -> None:
        super().__init__(
            "data",
            None,
            "state these facts from public knowledge, never from the rows, or buy them privately "
            f"(--learn-facts 0.2, learn_facts=0.2):\n{lines}",
        )
        self.args = (self.args[0].replace("data is required", "public facts are missing", 1),)
        self.missing, self.lines = missing, lines


def schema_of(settings: DataSettings, table: Table, *, python: bool = False) -> TableSchema:
    """Return the schema of a table."""
    if table.width == 0:
        raise InvalidInput("data", "no features", "give at least one column besides the target")
    missing = missing_facts(
        settings, table.names, types=table.types, target=table.targets is not None
    )
    if missing:
        raise FactsMissing(missing, missing.as_python() if python else missing.as_toml())
    facts = (settings.classes, settings.target_bounds, settings.integers)
    if table.names is None:
        if isinstance(settings.bounds, Mapping) or _by_name(settings):
            raise InvalidInput(
                "data",
                "facts by column name",
                f"{table.source} has no column names; give feature_bounds as a pair, or as one "
                "pair per feature, or give a data frame",
            )
        assert isinstance(settings.bounds, tuple)
        _check_integers(settings, table)
        return TableSchema.plain(settings.bounds, table.width, *facts)
    return TableSchema(tuple(_columns(settings, table)), *facts)


def missing_facts(
    settings: DataSettings,
    names: Sequence[str] | None,
    *,
    types: Sequence[str] = (),
    target: bool = True,
) -> NeededFacts:
    """Return every public fact that is needed and not given."""
    regression = settings.regression or settings.target_bounds is not None
    columns = {
        name: _guess(kind)
        for name, kind in zip(names or (), types or ("",) * len(names or ()), strict=True)
        if column_kind(settings, name) is None
    }
    return NeededFacts(
        target=not target and settings.classes != NO_TARGET,
        target_bounds=regression and settings.target_bounds is None,
        classes=not regression and settings.classes is None,
        bounds=names is None and settings.bounds is None,
        columns=columns,
    )


def column_kind(settings: DataSettings, name: str) -> str | None:
    """Return the kind of a column by the facts that are given, or None if there are none."""
    if name in settings.categories:
        return "category"
    if name in settings.booleans:
        return "boolean"
    if name in settings.dates:
        return "date"
    if name in settings.texts:
        return "text"
    if isinstance(settings.bounds, Mapping):
        return "number" if name in settings.bounds else None
    return None if settings.bounds is None else "number"


def _columns(settings: DataSettings, table: Table) -> list[Column]:
    """Return the columns of a table with names."""
    assert table.names is not None
    pairs = settings.bounds if isinstance(settings.bounds, tuple) else ()
    if len(pairs) > 1 and len(pairs) != table.width:
        raise InvalidInput(
            "data.feature_bounds",
            f"{len(pairs)} pairs",
            f"give one pair for all features, one for each of {table.width}, or pairs by name",
        )
    columns = []
    for index, (name, type_) in enumerate(zip(table.names, table.types, strict=True)):
        kind = column_kind(settings, name)
        assert kind is not None
        fact: Any = (0.0, 1.0)
        if kind == "number":
            bounds = settings.bounds
            fact = bounds[name] if isinstance(bounds, Mapping) else pairs[index % len(pairs)]
        elif kind in ("date", "category"):
            fact = settings.dates[name] if kind == "date" else settings.categories[name]
        _check_type(name, kind, type_)
        columns.append(Column.of(kind, name, fact, settings.missing.get(name)))
    _check_integers(settings, table)
    return columns


def _check_type(name: str, kind: str, type_: str) -> None:
    """Refuse a column of dates that is read as numbers, and the reverse."""
    dates, numbers = type_.startswith(_DATES), type_.startswith(_NUMBERS)
    if (dates and kind != "date") or (numbers and kind == "date"):
        right = "dates" if dates else "feature_bounds"
        raise InvalidInput(
            f"column {name!r}", f"of type {type_}", f"give its facts in data.{right}"
        )


def _check_integers(settings: DataSettings, table: Table) -> None:
    """Refuse whole numbers that are wanted from columns of another type."""
    if not settings.integers:
        return
    kind = table.cells.dtype.kind if isinstance(table.cells, np.ndarray) else ""
    if table.names is not None or kind not in ("i", "u", "O"):
        raise InvalidInput(
            "data.integers", True, "the features must be an array of whole numbers (int64)"
        )


def _by_name(settings: DataSettings) -> bool:
    """Return whether columns are named."""
    named = (settings.features, settings.categories, settings.booleans, settings.dates)
    return any(named) or bool(settings.texts or settings.missing)


def _guess(type_: str) -> str | None:
    """Return the kind of fact that a column of this type most likely needs; None: no type."""
    if not type_:
        return None
    if type_.startswith("bool"):
        return "booleans"
    if type_.startswith(_DATES):
        return "dates"
    return "categories" if type_.startswith(_TEXT) else "feature_bounds"


def _line(python: bool, key: str, blank: str, comment: str = "") -> str:
    """Return one assignment."""
    note = f"  # {comment}" if comment else ""
    return f"{key}={blank},{note}" if python else f"{key} = {blank}{note}"
