"""The tables on which the least ε is measured, as jobs that state their public facts and a bar.

``adult`` and ``mnist`` have several bars. The others are measured beside them: more features,
another metric, few rows, wide rows, regressions. ``origin`` says how far the rows are those of the
data set that a task is named after.

Tests: ``tests/reproduction/test_least_epsilon.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.tuning.model.released_model import Recipe
from expost.tuning.plan.strategies import strategies_of
from expost.tuning.request.defaults import default_job
from expost.tuning.request.settings import Settings, read_settings
from expost.tuning.rows.job_rows import JobRows, _published_bounds, held_out, load_rows
from expost.tuning.runs.path_training import Places, Strategy
from reproduction.table3.tasks import task_named

DELTA = 1e-6

ADULT_BOUNDS = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 100_000),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}
_ADULT_LISTS = {
    "workclass": "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
    "Without-pay, Never-worked",
    "education": "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, "
    "7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool",
    "marital_status": "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
    "Married-spouse-absent, Married-AF-spouse",
    "occupation": "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, "
    "Prof-specialty, Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, "
    "Transport-moving, Priv-house-serv, Protective-serv, Armed-Forces",
    "relationship": "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
    "native_country": "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
    "Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, Honduras, "
    "Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, France, "
    "Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, "
    "Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands",
}
ADULT_CATEGORIES = {name: text.split(", ") for name, text in _ADULT_LISTS.items()}
"""As listed in the description of the data."""

ADULT_FACTS: dict[str, Any] = {
    "target": "income",
    "classes": ["<=50K", ">50K"],
    "feature_bounds": ADULT_BOUNDS,
    "categories": ADULT_CATEGORIES,
}


@dataclass(frozen=True, eq=False)
class Problem:
    """The settings, rows and model of a task; ``settings`` has some bar."""

    settings: Settings
    rows: JobRows
    recipe: Recipe

    @property
    def places(self) -> Places:
        """Public numbers of rows."""
        rows = self.rows
        width = int(np.prod(rows.X.shape[1:]))
        return Places(rows.places, rows.score_places, width, rows.relation)

    def at(self, bar: float) -> Settings:
        """Return the settings with another bar."""
        return replace(self.settings, goal=replace(self.settings.goal, value=bar))

    def strategies(self, bar: float, public: bool) -> tuple[Strategy, ...]:
        """Return the ways of a job; with ``public`` all looks, else those that can pass."""
        return strategies_of(self.at(bar), self.recipe, self.places, public, None).strategies


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and targets (None: they are in a file), rows that need no protection, more facts."""

    rows: Any
    y: Array | None = None
    test_X: Array | None = None
    test_y: Array | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A table, its public facts and the bars to reach.

    Parameters
    ----------
    origin : str
        How far the rows are those of the data set of this name.
    bars : tuple of float
        Scores to reach; of ``"mse"``, as a share of the variance of the public rows' targets.
    read : callable
        Makes the table of the folder of data.
    facts : dict
        Public facts, as keywords of :func:`expost.tune`.
    files : tuple of str
        Files that must be in the folder of data.
    """

    origin: str
    bars: tuple[float, ...]
    read: Callable[[Path], Table]
    facts: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def smaller(self) -> bool:
        """Whether smaller scores are better."""
        return "target_bounds" in self.facts


def problem_of(rows: Any, y: Any = None, **facts: Any) -> Problem:
    """Return the problem of a job: what :func:`expost.tune` makes of rows and keywords."""
    job = default_job(rows, **facts)
    settings = read_settings(job, given_data=y is not None)
    loaded = load_rows(settings.data, *((rows, y) if y is not None else ()))
    return Problem(settings, loaded, Recipe.of(settings, loaded.schema, loaded.shape))


def problem_named(name: str, scoring: str, data: Path) -> tuple[Problem, float]:
    """Read a task; also return the unit of its bars.

    Without rows of its own that need no protection, public scoring takes every fifth row as public.
    """
    task = TASKS[name]
    missing = [file for file in task.files if not (data / file).is_file()]
    if missing:
        raise InvalidInput("data", str(data), f"give the folder that holds {', '.join(missing)}")
    table = task.read(data)
    unit = float(np.var(table.test_y)) if task.smaller and table.test_y is not None else 1.0
    bar = {"at_most" if task.smaller else "at_least": task.bars[0] * unit}
    facts = {"delta": DELTA, **task.facts, **table.facts, **bar}
    if scoring == "private":
        return problem_of(table.rows, table.y, **facts), unit
    if table.test_X is None:
        fifth = problem_of(table.rows, table.y, **facts, holdout=0.2)
        return replace(fifth, rows=_every_fifth(fifth.rows)), unit
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test.npz"
        np.savez(test, X=table.test_X, y=np.asarray(table.test_y))
        facts |= {"scoring": "public", "public_test": str(test)}
        return problem_of(table.rows, table.y, **facts), unit


def _every_fifth(rows: JobRows) -> JobRows:
    """Return rows of which a fifth scores, with every fifth row of the table scoring in public."""
    count = rows.places + rows.score_places
    out, fifth = held_out(count, 0.2), np.arange(count) % 5 == 4
    X, y = np.empty((count, *rows.X.shape[1:])), np.empty(count)
    X[~out], X[out], y[~out], y[out] = rows.X, rows.score_X, rows.y, rows.score_y
    return replace(rows, X=X[~fifth], y=y[~fifth], score_X=X[fifth], score_y=y[fifth], public=True)


def _adult(data: Path) -> Table:
    return Table(data / "adult.csv")


def _mnist(data: Path) -> Table:
    with np.load(data / "mnist.npz") as archive:
        return Table(*(archive[name] for name in ("x_train", "y_train", "x_test", "y_test")))


def _of_table3(name: str) -> Callable[[Path], Table]:
    """Read a task of Table 3, scaled as there, with the rows that count as public."""

    def read(data: Path) -> Table:
        split = task_named(name).load(data)
        return Table(split.X, split.y, split.test_X, split.test_y)

    return read


def _digits(data: Path) -> Table:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Table(digits.images, digits.target)


def _breast_cancer(data: Path) -> Table:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    bounds = [list(pair) for pair in _published_bounds()]
    return Table(X, y, facts={"feature_bounds": bounds})


def _fourier() -> dict[str, Any]:
    """Return the record of 2,000 random Fourier features on oriented gradients."""
    from expost.features import Chain, OrientedGradients, RandomFourier

    chain = Chain([OrientedGradients("28x28"), RandomFourier(2000, 2.0, seed=1)])
    return chain.as_dict()


_PICTURES = {"feature_bounds": [0, 255], "classes": 10}
_SIGNED = (20, 22, 24, 45, 47, 49, 54, 59)  # differences and minima, the other columns are counts
_BLOG_BOUNDS = [[-1, 1] if column in _SIGNED else [0, 1] for column in range(280)]

TASKS = {
    "mnist": Task(
        "exact", (0.6, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96), _mnist, _PICTURES, ("mnist.npz",)
    ),
    "adult": Task(
        "exact", (0.79, 0.8, 0.81, 0.82, 0.83, 0.84), _adult, ADULT_FACTS, ("adult.csv",)
    ),
    "mnist-fourier": Task(
        "exact", (0.97, 0.98), _mnist, {**_PICTURES, "features": _fourier()}, ("mnist.npz",)
    ),
    "adult-balanced": Task(
        "exact",
        (0.75,),
        _adult,
        {**ADULT_FACTS, "metric": "balanced_accuracy", "class_shares": [0.76, 0.24]},
        ("adult.csv",),
    ),
    "digits": Task(
        "exact (comes with scikit-learn)",
        (0.8,),
        _digits,
        {"feature_bounds": [0, 16], "classes": 10},
    ),
    "breast-cancer": Task(
        "exact (comes with scikit-learn)",
        (0.85,),
        _breast_cancer,
        {"classes": 2},
    ),
    "gisette": Task(
        "partly reconstructed: 5,831 of the 6,000 training rows",
        (0.9,),
        _of_table3("gisette"),
        {"feature_bounds": [0, 1], "classes": 2},
        task_named("gisette").files,
    ),
    "flights": Task(
        "flights of 2013, a substitute for the paper's Twitter",
        (0.5,),
        _of_table3("twitter"),
        {"feature_bounds": [-1, 1], "target_bounds": [-1, 1]},
        task_named("twitter").files,
    ),
    "blogfeedback": Task(
        "BlogFeedback, a substitute for the paper's Twitter",
        (0.7,),
        _of_table3("twitter-blog"),
        {"feature_bounds": _BLOG_BOUNDS, "target_bounds": [0, 1]},
        task_named("twitter-blog").files,
    ),
}
