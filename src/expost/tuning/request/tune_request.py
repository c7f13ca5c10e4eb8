"""What a tuning job asks for: :class:`TuneRequest`, the one list of its settings.

The TOML file and its errors, the keywords of :func:`expost.tune`, the options of ``expost tune``,
the schema of the server's API, its form and the JSON Schema for editors are derived from it: a new
setting is one field here, and a line in :mod:`expost.tuning.request.settings` that uses it.
Everything in a request is public. Nothing here reads data. Tests: ``tests/tuning/test_request.py``.
"""

# ruff: noqa: RUF009 - the fields of a request are made by a function
from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from expost.errors import InvalidInput
from expost.execution.workers import EXECUTORS
from expost.facts.column_facts import read_facts, with_facts
from expost.files import read_small
from expost.selection.attempt_planner import MOST_ATTEMPTS
from expost.tables.sources import check_database
from expost.training.configuration import LOSSES, OPTIMISERS, OWN, SCHEDULES
from expost.tuning.request import setting_kinds as kinds
from expost.tuning.request.metrics import METRICS
from expost.tuning.request.setting_kinds import Kind, Unfit
from expost.tuning.rows.job_columns import is_choice

TABLES = ("data", "model", "search", "goal", "privacy", "run")
BUILT_IN = ("digits", "breast_cancer")
LINEAR = ("logistic", "softmax", "linear")
MODELS = (*LINEAR, "cnn")
TRAININGS = ("dp-sgd", "noise-reduction", "progressive", "auto")
MAX_EPSILON = 4.0
"""The default of ``privacy.max_epsilon``."""
GOALS = ("at_least", "at_most", "maximize")

_TABLE = re.compile(r"^\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"^\s*(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_-]+))\s*=")
_DOTTED = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*\.\s*([A-Za-z0-9_-]+)\s*=")
_ORDERS = 'give Rényi orders > 1 in ascending order, or "all" for zCDP'
_MOST_ROWS = 10**9
MOST_ROWS_PER_USER = 1000
"""The most that ``data.max_rows_per_user`` may be; its default is :data:`ROWS_PER_USER`."""
ROWS_PER_USER = 10
_MANY_ROWS = 5000  # from here on a quarter of the rows scores a regression


@dataclass(frozen=True)
class Key:
    """Where a setting stands in a job file, what it may be, and how people are asked for it.

    ``name`` is its key in the file, where that is not the name of the field. ``option``: whether
    ``expost tune`` has it as an option. ``label``: of the server's form, behind "Advanced" unless
    ``first``. ``comment``: in a file that ``--init`` writes.
    """

    table: str
    kind: Kind
    help: str
    name: str = ""
    keyword: bool = True
    option: bool = False
    label: str = ""
    first: bool = False
    comment: str = ""


def _key(table: str, kind: Kind, help_text: str, **more: Any) -> Any:
    """A field of a request; None where the setting is not given."""
    return field(default=None, metadata={"key": Key(table, kind, help_text, **more)})


def _option(table: str, kind: Kind, help_text: str, *, asked: str = "", **more: Any) -> Any:
    """A field that is also an option; ``asked`` is its label where a form asks for it first."""
    more = {"label": asked, "first": True} | more if asked else more
    return _key(table, kind, help_text, option=True, **more)


@dataclass(frozen=True)
class TuneRequest:
    """What a tuning job asks for, checked key by key; None where a key is not given.

    ``tables`` are those of the job as they were written, ``folder`` is where its relative paths
    begin, and ``lines`` holds the line of each key in its file.
    """

    name: str | None = _key(
        "data", kinds.choice(*BUILT_IN), "A data set of scikit-learn.", keyword=False
    )
    path: str | None = _key(
        "data", kinds.TEXT, "File of the rows.", keyword=False, comment="relative to this file"
    )
    table: str | None = _option("data", kinds.TEXT, "Table of a database.")
    target: str | None = _option("data", kinds.TEXT, "The column to predict.")
    features: tuple[str, ...] | None = _option(
        "data",
        kinds.FEATURES,
        "The columns to use, separated by commas; by default all but the target. Or what linear "
        "models are trained on: auto (bins, logarithms, gradients of pictures), plain (numbers "
        "scaled to ±1), or plain,auto to search both.",
    )
    feature_bounds: Any = _option("data", kinds.BOUNDS, "Public bounds of all features, LOW:HIGH.")
    categories: Mapping[str, tuple[Any, ...]] | None = _option(
        "data", kinds.CATEGORIES, "Public categories of a column, city=Bern,Zug; repeatable."
    )
    booleans: tuple[str, ...] | None = _option(
        "data", kinds.SEVERAL_NAMES, "Columns of true and false, separated by commas; repeatable."
    )
    dates: Mapping[str, tuple[str, str]] | None = _option(
        "data",
        kinds.DATES,
        "First and last day of a column, born=1900-01-01:2026-12-31; repeatable.",
    )
    texts: tuple[str, ...] | None = _option(
        "data", kinds.SEVERAL_NAMES, "Columns of free text, separated by commas; repeatable."
    )
    shape: tuple[int, ...] | None = _option(
        "data", kinds.SHAPE, "Shape of a picture that is stored flat, 28x28 or 32x32x3."
    )
    missing: Mapping[str, Any] | None = _option(
        "data", kinds.FILLS, "What replaces a missing value, age=40, or age=indicator; repeatable."
    )
    facts: str | None = _option(
        "data",
        kinds.TEXT,
        "File of facts (expost describe --out) for what is not stated. Features are the columns "
        "that it lists.",
    )
    delimiter: str | None = _key(
        "data", kinds.DELIMITER, "Delimiter of a text file; else that of its header."
    )
    classes: Any = _option("data", kinds.CLASSES, "The number of classes, or the labels: no,yes.")
    target_bounds: tuple[float, float] | None = _option(
        "data",
        kinds.PAIR.saying("give public bounds [low, high] of the target with low < high"),
        "Public bounds of a number to predict, LOW:HIGH.",
    )
    rows: int | None = _option(
        "data",
        kinds.whole(_MOST_ROWS),
        "Public number of rows (with --user: of persons); the actual number then stays private "
        "(add-remove neighbours).",
        comment="public number of rows, or of persons; the actual number stays private",
    )
    user: str | None = _option(
        "data",
        kinds.TEXT,
        "The column that tells persons apart: a person with all their rows is protected, not one "
        "row. It is not used as a feature.",
        label="Column of persons",
        comment="the unit of privacy is a person with all their rows",
    )
    max_rows_per_user: int | None = _option(
        "data",
        kinds.whole(MOST_ROWS_PER_USER),
        "With --user: the most rows of a person that are used; 10 by default.",
        label="Most rows of a person",
        comment="of a person so many rows are used at most",
    )
    integers: bool | None = _option(
        "data", kinds.FLAG, "Pass whole numbers such as token ids on without scaling."
    )
    holdout: float | None = _option(
        "data",
        kinds.number(above=0, below=1, valid="give a share with 0 < holdout < 1"),
        "Share of the rows that score models and never train them; 0.2 by default.",
        comment="share of the rows used for scoring and never for training",
    )
    public_test: str | None = _key(
        "data", kinds.TEXT, 'File of public rows, with scoring = "public".'
    )
    model: Any = _option(
        "model",
        kinds.code_or(
            MODELS,
            ", where name is a function or a class that makes a torch module; or, in Python, that "
            "function or class",
        ),
        "logistic, softmax, linear, cnn, or module:name or file.py:name of a torch module.",
        name="kind",
        label="Model",
    )
    arguments: Mapping[str, Any] | None = _key(
        "model", kinds.ARGUMENTS, "Keyword arguments of the function that makes the module."
    )
    loss: str | None = _key(
        "model",
        kinds.choice(*LOSSES[::-1], OWN),
        "Loss of a module of your own; own: its first output is the loss of the row.",
    )
    input_shape: tuple[int, ...] | None = _option(
        "model",
        kinds.INPUT_SHAPE,
        "Shape of one example for a torch module, 1,28,28; by default that of the array.",
    )
    optimiser: str | None = _key("model", kinds.choice(*OPTIMISERS), "Optimiser of DP-SGD.")
    momentum: float | None = _key(
        "model",
        kinds.number(0, below=1, valid="give a number with 0 ≤ momentum < 1"),
        "Momentum of the optimiser.",
    )
    training: str | None = _option(
        "model",
        kinds.choice(*TRAININGS),
        "auto (the least ε first; the default with a goal), progressive (steps with all rows until "
        "the goal is met), noise-reduction (regression), or dp-sgd (over a grid).",
        label="Training",
        comment='"auto", "progressive", "noise-reduction", or "dp-sgd" (with [search])',
    )
    feature_map: Any = _key(
        "model",
        kinds.FEATURE_MAP,
        "Public map of a row for progressive training.",
        name="features",
        keyword=False,
        comment='"auto" or "plain"',
    )
    norm_bound: float | None = _key(
        "model",
        kinds.number(1, valid="for a linear regression, give a number of at least 1"),
        "Bound on the norm of a row for second moments.",
    )
    levels: tuple[float, ...] | None = _key(
        "model",
        kinds.positives(ascending="give levels in ascending order"),
        "Levels of ε at which progressive training looks.",
    )
    epsilons: tuple[float, ...] | None = _option(
        "search",
        kinds.positives(ascending="give levels in ascending order"),
        "Privacy levels: 0.5,1,2 or 0.5:2:0.5.",
        label="Levels of ε, lowest first",
        comment="levels: the lowest at which a model passes is released",
    )
    learning_rates: tuple[float, ...] | None = _key(
        "search", kinds.positives(), "Learning rates of the grid.", label="Learning rates"
    )
    epochs: tuple[float, ...] | None = _key(
        "search", kinds.positives(), "Numbers of epochs of the grid.", label="Epochs"
    )
    batch_sizes: tuple[float, ...] | None = _key(
        "search",
        kinds.positives(),
        "Expected batch sizes of the grid.",
        label="Batch sizes",
        comment="expected size: rows are sampled",
    )
    clips: tuple[float, ...] | None = _key(
        "search", kinds.positives(), "Clipping norms of the grid.", label="Clipping norms"
    )
    optimisers: tuple[str, ...] | None = _key(
        "search", kinds.words_from(OPTIMISERS), "Optimisers of the grid."
    )
    schedules: tuple[str, ...] | None = _key(
        "search", kinds.words_from(SCHEDULES), "Schedules of the learning rate."
    )
    weight_decays: tuple[float, ...] | None = _key(
        "search",
        kinds.different(
            kinds.number(0).check,
            {"type": "number", "minimum": 0},
            "give a list of different finite numbers >= 0",
        ),
        "Weight decays of the grid.",
    )
    class_weights: Any = _key(
        "search", kinds.CLASS_WEIGHTS, "Public weights of the classes, several lists."
    )
    feature_maps: Any = _key(
        "search",
        kinds.FEATURE_MAPS,
        "Public maps of a row that the grid tries.",
        name="features",
        keyword=False,
        comment='"auto" or "plain"',
    )
    models: tuple[Any, ...] | None = _key(
        "search",
        kinds.MODULES,
        "Modules of your own that the grid tries; model.kind is the first, or one of them.",
        name="model",
        keyword=False,
    )
    search_arguments: Mapping[str, tuple[Any, ...]] | None = _key(
        "search", kinds.ARGUMENT_LISTS, "Lists of arguments of the module.", name="arguments"
    )
    samples: int | None = _key(
        "search", kinds.whole(), "So many combinations of the grid, drawn publicly."
    )
    metric: Any = _option(
        "goal",
        kinds.code_or(
            METRICS, " of a function f(prediction, truth) of one row; or, in Python, that function"
        ),
        "accuracy, balanced_accuracy, log_loss, auc, mae, mse, r2, loss and token_accuracy (of a "
        "module that returns them), or module:name or file.py:name of a function "
        "f(prediction, truth) of one row.",
        asked="Metric",
    )
    at_least: float | None = _option(
        "goal", kinds.number(), "The goal: the least accuracy, or another metric.", asked="At least"
    )
    at_most: float | None = _option(
        "goal", kinds.number(), "The goal: the largest loss or error.", asked="At most"
    )
    maximize: bool | None = _option(
        "goal", kinds.FLAG, "Release the best model instead of one that reaches a goal."
    )
    loss_bound: float | None = _option(
        "goal",
        kinds.number(),
        "Largest loss of a row; larger ones are clipped.",
        label="Bound on the loss of one row",
        comment="clips the loss of a row",
    )
    class_shares: tuple[float, ...] | None = _option(
        "goal",
        kinds.CLASS_SHARES,
        "Public shares of the classes, 0.9,0.1, for a private balanced_accuracy.",
    )
    target_variance: float | None = _option(
        "goal", kinds.number(), "Public variance of the target, for r2."
    )
    metric_bounds: tuple[float, float] | None = _option(
        "goal", kinds.PAIR, "Public range of a metric of your own, LOW:HIGH."
    )
    confidence: float | None = _option(
        "goal",
        kinds.number(0.5, below=1, valid="give a number with 0.5 <= confidence < 1, e.g. 0.9"),
        "How sure it must be that a model that passes reaches the goal; 0.9 by default.",
        asked="Confidence that the model really reaches it",
        comment='of the statement "passed"',
    )
    delta: float | None = _option(
        "privacy",
        kinds.number(
            above=0,
            below=1,
            valid="give a number with 0 < delta < 1, far below one over the number of rows",
        ),
        "δ of the whole job.",
        label="δ of the whole job",
        comment="of the whole job; the attempts share it",
    )
    overhead: Any = _key(
        "privacy",
        kinds.word_or(
            "auto",
            kinds.number(1e-9, 1e9),
            'give "auto", or a fraction of the first drop rate, at least 1e-9 and at most 1e9',
        ),
        "Overhead of a search without a goal.",
    )
    repeats: int | None = _key("privacy", kinds.whole(), "Copies of each candidate.")
    attempts: int | None = _option(
        "privacy",
        kinds.whole(MOST_ATTEMPTS),
        "The most attempts; planned if left out.",
        label="Most attempts",
    )
    scoring: str | None = _key(
        "privacy",
        kinds.choice("private", "public"),
        "private: noisy, on held-out rows; public: on the rows of data.public_test.",
    )
    order: Any = _key(
        "privacy",
        kinds.word_or("all", kinds.positives(ascending=_ORDERS), _ORDERS),
        'Rényi orders at which the job is charged, or "all": in zCDP.',
    )
    expected_shares: tuple[float, ...] | None = _key(
        "privacy", kinds.positives(), "The shares of the settings that you expect to pass."
    )
    max_epsilon: float | None = _option(
        "privacy",
        kinds.number(1e-3, 1e3, valid="give the most that the job may cost, from 0.001 to 1000"),
        "The most that the job may cost in all, whatever happens; 4 by default.",
        asked="Largest ε",
        comment="the most that the job may cost, whatever happens",
    )
    learn_facts: float | None = _option(
        "privacy",
        kinds.number(above=0, valid="give the ε of the facts, a number > 0"),
        "Buy the public facts that are missing (bounds, categories, classes) for this ε; it is "
        "part of the largest ε.",
        comment="of facts that are missing: bounds, categories, classes",
    )
    tell: float | None = _option(
        "privacy",
        kinds.number(),
        "If the goal is missed: ε of a further, sharper score of the released model on the "
        "held-out rows. It is part of the largest charge, and charged only if it is used.",
        label="ε of a sharper score, if the goal is missed",
        comment="of a sharper score, if the goal is missed",
    )
    executor: str | None = _key(
        "run",
        kinds.choice(*EXECUTORS),
        "Where the job runs; no part of what it releases.",
        keyword=False,
    )
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    folder: Path = Path()
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, config: str | Path | Mapping[str, Any]) -> TuneRequest:
        """Read a TOML file or a mapping of tables; check every key by itself."""
        if isinstance(config, Mapping):
            return cls._of(config, Path(), {})
        path = Path(config)
        if path.is_dir() or not path.exists():
            raise InvalidInput(
                "config", str(path), "there is no such file; expost tune --init writes an example"
            )
        try:
            text = read_small(path, "config")
            parsed = tomllib.loads(text)
        except UnicodeDecodeError:
            raise InvalidInput(
                "config", str(path), "not TOML: the file is not UTF-8 text"
            ) from None
        except ValueError as error:  # includes numbers with thousands of digits
            raise InvalidInput("config", str(path), f"not TOML: {error}") from None
        except RecursionError:
            raise InvalidInput(
                "config", str(path), "not TOML: brackets are nested too deeply"
            ) from None
        return cls._of(parsed, path.resolve().parent, _lines(text))

    @classmethod
    def _of(
        cls, tables: Mapping[str, Any], folder: Path, lines: Mapping[tuple[str, str], int]
    ) -> TuneRequest:
        """Check the tables of a job, key by key; a file of facts fills in what is not stated."""
        tables = facts_filled(tables, folder)
        values: dict[str, Any] = {}
        for table, keys in tables.items():
            where = _where(lines, table)
            if table not in TABLES:
                listed = ", ".join(f"[{name}]" for name in TABLES)
                raise InvalidInput(where, keys, f"unknown table; the tables are {listed}")
            if not isinstance(keys, Mapping):
                raise InvalidInput(where, keys, f"[{table}] must be a table of settings")
            for key, value in keys.items():
                name = _FIELDS.get((table, key))
                where = _where(lines, table, key)
                if name is None:
                    raise InvalidInput(where, value, _unknown(table, str(key)))
                if value is not None:
                    values[name] = _checked(KEYS[name].kind, where, value)
        if "models" in values:
            values.setdefault("model", values["models"][0])
        return cls(**values, tables=dict(tables), folder=folder, lines=lines)

    def given(self, *names: str) -> bool:
        """Return whether any of some settings is given."""
        return any(getattr(self, name) is not None for name in names)

    def refuse(self, name: str, valid: str) -> NoReturn:
        """Raise ``InvalidInput`` for a setting; ``valid`` says what would be valid."""
        where = _where(self.lines, KEYS[name].table, KEYS[name].name or name)
        raise InvalidInput(where, getattr(self, name), valid)


KEYS: dict[str, Key] = {
    field.name: field.metadata["key"] for field in fields(TuneRequest) if "key" in field.metadata
}
"""The key of each setting, by the name of its field."""

_FIELDS = {(key.table, key.name or name): name for name, key in KEYS.items()}
KEYWORDS = {name: key for name, key in KEYS.items() if key.keyword}
"""The settings that :func:`expost.tune` takes as keywords."""


def facts_filled(tables: Mapping[str, Any], folder: Path = Path()) -> Mapping[str, Any]:
    """Return the tables of a job with the facts of its file of facts instead of the file's name."""
    data = tables.get("data")
    if not isinstance(data, Mapping) or not isinstance(named := data.get("facts"), (str, Path)):
        return tables
    return {**tables, "data": with_facts(data, read_facts(folder / named))}


def keys_of(table: str) -> tuple[str, ...]:
    """Return the keys of a table of the job file, in order."""
    return tuple(key for owner, key in _FIELDS if owner == table)


def _checked(kind: Kind, where: str, value: Any) -> Any:
    try:
        return kind.check(value)
    except Unfit as error:
        raise InvalidInput(where, value, str(error)) from None


def _where(lines: Mapping[tuple[str, str], int], table: str, key: str | None = None) -> str:
    """The name of a key or a table in error messages, with its line if it is known."""
    line = lines.get((table, key)) if key is not None else None
    tabled = (lines.get((table, "")), lines.get(("", table)))
    line = line or (tabled[0] or tabled[1] if key is not None else tabled[1] or tabled[0])
    return (table if key is None else f"{table}.{key}") + (f" (line {line})" if line else "")


def _unknown(table: str, key: str) -> str:
    """What to give instead of a key that the table does not have."""
    owners = [owner for owner, name in _FIELDS if name == key]
    if owners:
        return f"unknown key of [{table}]; it belongs to [{owners[0]}]"
    known = keys_of(table)
    close = get_close_matches(key, known, n=2)
    return "unknown key; " + (
        f"did you mean {' or '.join(close)}?" if close else "the keys are " + ", ".join(known)
    )


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each (table, key); (table, "") is the line where the table starts.

    This is not a full parser. It is only used for messages.
    """
    numbers: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.match(line):
            table = match.group(1)
            numbers.setdefault((table, ""), number)
        elif match := _DOTTED.match(line):
            numbers.setdefault((match.group(1), match.group(2)), number)
        elif match := _KEY.match(line):
            numbers.setdefault((table, next(name for name in match.groups() if name)), number)
    return numbers


def check_keywords(given: Mapping[str, Any]) -> None:
    """Refuse a keyword that is no key of a job; similar ones are named."""
    for name, value in given.items():
        if name not in KEYWORDS:
            close = get_close_matches(name, list(KEYWORDS), n=2)
            hint = f"did you mean {' or '.join(close)}?"
            hint = hint if close else f"the keywords are {', '.join(KEYWORDS)}"
            raise InvalidInput(name, type(value).__name__, f"there is no such keyword; {hint}")


def tables_of(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return keywords as the tables of a job file; None means that a keyword is not given."""
    given = {name: value for name, value in given.items() if value is not None}
    check_keywords(given)
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES if table != "run"}
    for name, value in given.items():
        owner = KEYS[name]
        table = owner.table
        if name == "features" and is_choice(value):
            table = "model"  # a map of rows, not a list of columns
        elif name == "features" and isinstance(value, (list, tuple)) and all(map(is_choice, value)):
            table = "search"  # several maps
        elif name == "model" and isinstance(value, (list, tuple)):
            table, owner = "search", KEYS["models"]
        tables[table][owner.name or name] = value
    return tables


def parsed(name: str, value: Any) -> Any:
    """Return a setting from the text, or the repeated texts, of an option or a form."""
    if isinstance(value, bool):
        return value or None
    if value is None or not isinstance(value, (str, list, tuple)):
        return value
    return parse_texts(name, KEYS[name].kind, value)


def parse_texts(name: str, kind: Kind, value: str | Sequence[str]) -> Any:
    """Return a value of a kind from its text, or from repeated texts: lists or facts by column."""
    try:
        if isinstance(value, str):
            return kind.parse(value)
        parts = [kind.parse(text) for text in value]
    except Unfit as error:
        raise InvalidInput(name, value, str(error)) from None
    except (ValueError, TypeError):
        raise InvalidInput(name, value, kind.valid) from None
    if kind.schema["type"] != "object":
        return [part for listed in parts for part in listed] or None
    facts = dict(parts)
    if len(facts) < len(parts):
        raise InvalidInput(name, value[-1], "this column was given before; give it once")
    return facts or None


def job_schema(allowed: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Return the JSON Schema of a job file, or of the settings that are allowed."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Tuning job of expost",
        "type": "object",
        "properties": {table: table_schema(table, allowed) for table in TABLES},
        "required": ["goal", "privacy"],
        "additionalProperties": False,
    }


def table_schema(table: str, allowed: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Return the JSON Schema of one table of a job."""
    properties = {
        key: dict(KEYS[name].kind.schema) | {"description": KEYS[name].help}
        for (owner, key), name in _FIELDS.items()
        if owner == table and allowed(name)
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def usual_training(goal: bool, integers: bool) -> str:
    """Return how a job trains that does not say it: to a goal, what costs least comes first."""
    return "auto" if goal and not integers else "dp-sgd"  # token ids have no features


def default_holdout(classes: Any, training: str, rows: int | None) -> float:
    """Return the default share of rows that score: more where training needs few of them.

    ``rows`` is their public number, ``classes`` is None for a regression: with many rows its score
    is sharp enough, and every row that scores is missed in training.
    """
    count = len(classes) if isinstance(classes, (list, tuple)) else classes
    several = isinstance(count, int) and count > 2
    precise = classes is None and (rows is None or rows >= _MANY_ROWS)
    if training == "dp-sgd" or several:
        return 0.2
    return 0.25 if precise else 0.35


def database_of(request: TuneRequest) -> str:
    """Return the URL or the file of a database; the job says what no database has in public."""
    source = str(request.path)
    check_database(source, "data.path")
    if not request.given("table"):
        request.refuse("table", "say which table of the database to use")
    if not request.given("rows"):
        request.refuse(
            "rows", "the rows of a database have no order; give their public number, rows = 100000"
        )
    return source if "://" in source else str(request.folder / source)


def check_persons(request: TuneRequest, training: str) -> int:
    """Return the most rows of a person; refuse what protects rows only in a job for persons."""
    if request.user is None:
        if request.given("max_rows_per_user"):
            request.refuse("max_rows_per_user", "it belongs to user, the column of persons")
        return 1
    if training == "dp-sgd" or "search" in request.tables:
        request.refuse(
            "user",
            "DP-SGD over a grid samples rows one by one and protects a row, not a person; leave it "
            'out, and give a goal and training = "auto", "progressive" or "noise-reduction"',
        )
    if request.user == request.target:
        request.refuse("user", "it is the target; name another column")
    return request.max_rows_per_user or ROWS_PER_USER
