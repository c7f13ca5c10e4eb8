"""The least ε that reaches each bar: ``python -m reproduction least-epsilon``.

Every method has a total δ of 10⁻⁶. A row holds the mean ε over all runs, those that missed
included, and the share of the runs that passed. Randomness is seeded: this is a simulation.

``expost``
    A job that states the public facts of the table and the bar, nothing else
    (:func:`expost.tune` with its defaults): the ways of :mod:`expost.tuning.several_ways` with
    their looks, noise, thresholds and costs.
``reach``, ``random-dropping``
    Planned attempts, and Algorithm 3 as published, on the committed bank of networks. They are read
    from docs/results/reach_mnist.json, which ``python -m reproduction reach`` computes (400 trials,
    minutes). MNIST with public scoring only, and the bars that it has.
``opacus``, ``diffprivlib``
    Not measured yet: the document has a note and no row.

**Scoring.** ``public``: MNIST's 10,000 test rows are public and all 60,000 others train; of Adult
every fifth row is taken as public. ``private``: the default share of the rows is held out and
decides by noisy thresholds with confidence 0.9. ``reached`` is the share of the passed runs whose
model reaches the bar on the held-out rows without noise.

**What bars share.** With public scoring the looks do not depend on the bar, so one training per run
serves all bars: each row is exactly that of a job. With private scoring every bar has the looks,
thresholds and coins of its own job, independent of those of other bars, but all bars of a run look
at one training. Its noise is planned for the looks of all bars, so δ is shared by more looks than
in a job of one bar: a search of one bar is valid as it stands, and costs slightly more than its
job would. Rows of different bars are therefore dependent; runs are independent.

Tests: ``tests/reproduction/test_least_epsilon.py``.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.selection.held_out import HeldOut
from expost.selection.noise_path import PathLevel, path_levels
from expost.training.progressive import ProgressivePath, TrainingRows
from expost.tuning.candidates import Fitted
from expost.tuning.defaults import default_job
from expost.tuning.model import Recipe
from expost.tuning.noise_reduction import FeatureRows, Places, Way, step_of
from expost.tuning.rows import JobRows, load_rows
from expost.tuning.settings import Settings, read_settings
from expost.tuning.several_ways import ways_of

DELTA = 1e-6
BARS = {
    "mnist": (0.6, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96),
    "adult": (0.79, 0.8, 0.81, 0.82, 0.83, 0.84),
}
METHODS = ("expost", "reach", "random-dropping", "diffprivlib", "opacus")
FILES = {"mnist": "mnist.npz", "adult": "adult.csv"}
_REACH = Path(__file__).parent.parent / "docs" / "results" / "reach_mnist.json"
_SEED_BYTES = 32

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
        return replace(self.settings, goal=replace(self.settings.goal, bar=bar))

    def ways(self, bar: float, public: bool) -> tuple[Way, ...]:
        """Return the ways of a job; with ``public`` all looks, else those that can pass."""
        return ways_of(self.at(bar), self.recipe, self.places, public, None).ways


def problem_of(rows: Any, y: Any = None, **facts: Any) -> Problem:
    """Return the problem of a job: what :func:`expost.tune` makes of rows and keywords."""
    job = default_job(rows, **facts)
    settings = read_settings(job, given_data=y is not None)
    loaded = load_rows(settings.data, *((rows, y) if y is not None else ()))
    return Problem(settings, loaded, Recipe.of(settings, loaded.schema, loaded.shape))


def problem_named(task: str, scoring: str, data: Path) -> Problem:
    """Read MNIST or Adult."""
    path = data / FILES[task]
    if not path.is_file():
        raise InvalidInput("data", str(path), f"give the folder that holds {path.name}")
    common: dict[str, Any] = {"at_least": BARS[task][0], "delta": DELTA}
    if task == "adult":
        if scoring == "private":
            return problem_of(path, **ADULT_FACTS, **common)
        fifth = problem_of(path, **ADULT_FACTS, **common, holdout=0.2)
        return replace(fifth, rows=replace(fifth.rows, public=True))
    facts = {"feature_bounds": [0, 255], "classes": 10, **common}
    with np.load(path) as archive:
        X, y = archive["x_train"], archive["y_train"]
        test_X, test_y = archive["x_test"], archive["y_test"]
    if scoring == "private":
        return problem_of(X, y, **facts)
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test.npz"
        np.savez(test, X=test_X, y=test_y)
        return problem_of(X, y, **facts, scoring="public", public_test=str(test))


@dataclass(frozen=True, eq=False)
class Training:
    """One way as all bars see it: a path, its levels, and how a level is scored."""

    path: ProgressivePath
    levels: tuple[PathLevel, ...]
    epsilons: tuple[float, ...]
    count: Callable[[Fitted, Any], int] | None


@dataclass(frozen=True, eq=False)
class Searches:
    """What the runs of one task share: rows, features, trainings and thresholds."""

    data: dict[str, Any]
    rows: TrainingRows
    trainings: tuple[Training, ...]
    rules: dict[float, tuple[HeldOut | None, ...]]
    looks: dict[float, tuple[tuple[float, ...], ...]]
    goals: dict[float, int]
    bars: tuple[float, ...]


def searches_of(problem: Problem, bars: Sequence[float]) -> Searches:
    """Compute the features once, and the looks and thresholds of each bar."""
    public, places, goal = problem.rows.public, problem.places, problem.at(bars[0]).goal
    shown = (problem.rows.score_X, problem.rows.score_y) if public else None
    data = {
        "X": problem.rows.X,
        "y": problem.rows.y,
        "score_X": problem.rows.score_X,
        "score_y": problem.rows.score_y,
    }
    assert problem.recipe.features is not None
    features = FeatureRows(problem.recipe.features)
    trainings: list[Training] = []
    all_ways = problem.ways(bars[0], public=True)
    for way in all_ways:
        step = step_of(way, problem.recipe, goal, places, shown, None)
        levels = tuple(path_levels(step.candidates))
        path = levels[0].path
        assert isinstance(path, ProgressivePath)
        finish = replace(path.finish, rows=features)  # type: ignore[type-var]
        path = replace(path, rows=features, finish=finish)
        rule = step.selector.held_out  # type: ignore[attr-defined]
        count = None if rule is None else replace(rule.count, rows=features)
        trainings.append(Training(path, levels, way.epsilons, count))
    rules: dict[float, tuple[HeldOut | None, ...]] = {}
    looks: dict[float, tuple[tuple[float, ...], ...]] = {}
    goals: dict[float, int] = {}
    for bar in bars:
        ways = problem.ways(bar, public=public)
        by_scale = {way.scale: way for way in ways}
        steps = {
            scale: step_of(way, problem.recipe, problem.at(bar).goal, places, shown, None)
            for scale, way in by_scale.items()
        }
        looks[bar] = tuple(
            by_scale[way.scale].epsilons if way.scale in by_scale else () for way in all_ways
        )
        rules[bar] = tuple(
            steps[way.scale].selector.held_out if way.scale in steps else None  # type: ignore[attr-defined]
            for way in all_ways
        )
        first = next((rule for rule in rules[bar] if rule is not None), None)
        goals[bar] = 0 if first is None else first.report.bar  # type: ignore[union-attr]
    train = TrainingRows.of(*features(data), trainings[0].path.training)
    features.of(problem.rows.score_X)
    return Searches(data, train, tuple(trainings), rules, looks, goals, tuple(bars))


@dataclass(frozen=True)
class Outcome:
    """What one search paid, whether it passed, and whether its model reaches the bar."""

    epsilon: float
    passed: bool
    reached: bool


def one_run(searches: Searches, seed: Sequence[int]) -> dict[float, Outcome]:
    """Make one training and let every bar look at it; a second way follows for those that miss."""
    source = _source([*seed, 0])
    coins = {bar: _source([*seed, 1 + place]) for place, bar in enumerate(searches.bars)}
    spent = dict.fromkeys(searches.bars, 0.0)
    outcomes: dict[float, Outcome] = {}
    for place, training in enumerate(searches.trainings):
        waiting = [bar for bar in searches.bars if bar not in outcomes]
        if not waiting:
            break
        rules = {bar: searches.rules[bar][place] for bar in waiting}
        drawn = {
            bar: None if rule is None else rule.draw(coins[bar]) for bar, rule in rules.items()
        }
        walk = training.path.walk(training.levels, source.bytes(_SEED_BYTES), simulated=True)
        walk._data, walk._rows = searches.data, searches.rows  # rounded once for all runs
        for number, epsilon in enumerate(training.epsilons):
            if not waiting:
                break
            looking = [bar for bar in waiting if epsilon in searches.looks[bar][place]]
            if not looking:
                continue
            fitted = walk.output(number, searches.data)
            count = 0 if training.count is None else training.count(fitted, searches.data)
            for bar in looking:
                rule, noise = rules[bar], drawn[bar]
                if rule is None or noise is None:
                    passed = reached = fitted.score >= bar
                else:
                    look = searches.looks[bar][place].index(epsilon)
                    plain = replace(rule, count=_same, report=None)
                    passed = float(plain.look(look, count, None, noise, coins[bar])) >= 0
                    reached = count >= searches.goals[bar]
                if passed:
                    outcomes[bar] = Outcome(spent[bar] + epsilon, True, reached)
                    waiting.remove(bar)
        for bar in waiting:
            spent[bar] += max(searches.looks[bar][place], default=0.0)
    return {bar: outcomes.get(bar, Outcome(spent[bar], False, False)) for bar in searches.bars}


def _same(count: int, data: Any) -> int:
    """Return a count that is known already."""
    return count


def _source(seed: Sequence[int]) -> SimulationRandomness:
    """Return seeded randomness of its own."""
    return SimulationRandomness(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))


_shared: Searches | None = None


def _in_worker(seed: list[int]) -> dict[float, Outcome]:
    """Make one run in a process that has the rows already."""
    assert _shared is not None
    with _one_thread():
        return one_run(_shared, seed)


def _one_thread() -> AbstractContextManager[Any]:
    """Limit linear algebra to one thread: every core has its own run."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def runs_of(searches: Searches, runs: int, seed: int, jobs: int) -> list[dict[float, Outcome]]:
    """Make the runs, in processes where they can share the rows."""
    global _shared
    _shared = searches
    seeds = [[seed, run] for run in range(runs)]
    if min(jobs, runs) < 2 or "fork" not in get_all_start_methods():
        return [_in_worker(each) for each in seeds]
    with ProcessPoolExecutor(min(jobs, runs), mp_context=get_context("fork")) as pool:
        return list(pool.map(_in_worker, seeds))


def expost_rows(
    problem: Problem, bars: Sequence[float], runs: int, seed: int, jobs: int
) -> list[dict[str, Any]]:
    """Return one row per bar."""
    made = runs_of(searches_of(problem, bars), runs, seed, jobs)
    rows = []
    for bar in bars:
        outcomes = [outcome[bar] for outcome in made]
        row = row_of(bar, "expost", [each.epsilon for each in outcomes])
        row["passed"] = float(np.mean([each.passed for each in outcomes]))
        if not problem.rows.public:
            true = [each.reached for each in outcomes if each.passed]
            row["reached"] = float(np.mean(true)) if true else None
        rows.append(row)
    return rows


def row_of(bar: float, method: str, epsilons: Sequence[float]) -> dict[str, Any]:
    """Return the mean ε and its standard error."""
    error = float(np.std(epsilons, ddof=1) / np.sqrt(len(epsilons))) if len(epsilons) > 1 else 0.0
    mean = float(np.mean(epsilons))
    return {"bar": bar, "method": method, "mean_epsilon": mean, "standard_error": error}


def bank_rows(bars: Sequence[float], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return the committed rows of planned attempts and of Algorithm 3, for the bars they have."""
    table = json.loads(_REACH.read_text(encoding="utf-8"))
    keys = ("bar", "method", "mean_epsilon", "standard_error", "passed")
    return [
        {key: row[key] for key in keys}
        for row in table["rows"]
        if row["method"] in methods and row["bar"] in bars
    ]


def least_epsilon(
    task: str,
    scoring: str,
    data: Path,
    *,
    methods: Sequence[str] = METHODS,
    bars: Sequence[float] | None = None,
    runs: int = 20,
    seed: int = 15183,
    jobs: int = 2,
) -> dict[str, Any]:
    """Return the rows of a task, and notes on methods that are left out.

    Parameters
    ----------
    task : {"mnist", "adult"}
        The table.
    scoring : {"public", "private"}
        Which rows decide that a model passes.
    data : Path
        Folder of mnist.npz and adult.csv.
    methods : sequence of str
        Of ``METHODS``.
    bars : sequence of float, optional
        Accuracies to reach.
    runs, seed, jobs : int
        Runs of ``expost``, the seed, and the number of processes.
    """
    for name, value, known in (("task", task, FILES), ("scoring", scoring, ("public", "private"))):
        if value not in known:
            raise InvalidInput(name, value, "choose from " + ", ".join(known))
    for method in methods:
        if method not in METHODS:
            raise InvalidInput("methods", method, "choose from " + ", ".join(METHODS))
    chosen = tuple(bars or BARS[task])
    if not all(0 < bar < 1 for bar in chosen):
        raise InvalidInput("bars", chosen, "give accuracies between 0 and 1")
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    if "expost" in methods:
        problem = problem_named(task, scoring, data)
        rows += expost_rows(problem, chosen, runs, seed, jobs)
    banked = [method for method in methods if method in ("reach", "random-dropping")]
    if banked and (task, scoring) != ("mnist", "public"):
        notes.append(f"{', '.join(banked)}: left out, the bank has MNIST with public scoring only")
    elif banked:
        rows += bank_rows(chosen, banked)
        notes.append(f"{', '.join(banked)}: as committed in docs/results/reach_mnist.json")
    for method in ("diffprivlib", "opacus"):
        if method in methods:
            notes.append(f"{method}: left out, its least fixed ε is not measured yet")
    return {
        "task": task,
        "scoring": scoring,
        "delta": DELTA,
        "runs": runs,
        "randomness": f"simulation: seed {seed}",
        "rows": rows,
        "notes": notes,
    }
