"""The least ε that reaches each bar: ``python -m reproduction least-epsilon``.

Every method has a total δ of 10⁻⁶. A row holds the mean ε over all runs, those that missed
included, and the share of the runs that passed. Randomness is seeded: this is a simulation.

``expost``
    A job that states the public facts of the table and the bar, nothing else (:func:`expost.tune`
    with its defaults): the strategies of :mod:`expost.tuning.plan.strategies` with their looks,
    noise, thresholds and costs.
``reach``, ``random-dropping``
    Planned attempts, and Algorithm 3 as published, on the committed bank of networks. They are read
    from docs/results/reach_mnist.json, which ``python -m reproduction reach`` computes (400 trials,
    minutes). MNIST with public scoring only, and the bars that it has.
``diffprivlib``, ``opacus``, and both with ``-features``
    The least fixed ε of a grid that reaches the bar in 95 % of 20 seeds, with raw rows and with
    expost's public features (:mod:`reproduction.fixed_epsilon`). Their scores and the search for ε
    and for settings are free, so the rows are the same for both kinds of scoring. They are read
    from docs/results/fixed_epsilon.json, unless ``fresh`` asks for trainings (hours on a CPU).

**Scoring.** ``public``: MNIST's 10,000 test rows are public and all 60,000 others train; of Adult
every fifth row is taken as public. ``private``: the default share of the rows is held out and
decides by noisy counts with confidence 0.9. ``reached`` is the share of the passed runs whose
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
from expost.selection.noise_path import Path as LevelPath
from expost.selection.noise_path import PathLevel, path_levels
from expost.training.progressive import (
    LinearTraining,
    ProgressivePath,
    TrainingRows,
    TrainingWalk,
)
from expost.tuning.rows.job_columns import FeatureRows
from expost.tuning.runs.candidates import ScoredModel
from expost.tuning.runs.path_training import PublicRows, step_of
from reproduction import fixed_epsilon
from reproduction.least_tasks import DELTA, TASKS, Problem, problem_named

METHODS = ("expost", "reach", "random-dropping", *fixed_epsilon.METHODS)
_REACH = Path(__file__).parent.parent / "docs" / "results" / "reach_mnist.json"
_SEED_BYTES = 32


@dataclass(frozen=True, eq=False)
class Training:
    """One strategy as all bars see it: a path, its levels, and how a level is scored."""

    path: LevelPath
    levels: tuple[PathLevel, ...]
    epsilons: tuple[float, ...]
    count: Callable[[ScoredModel, Any], int] | None


@dataclass(frozen=True, eq=False)
class Searches:
    """What the runs of one task share: rows, features, trainings and thresholds.

    ``goals`` are counts of held-out rows, or scores of public ones.
    """

    data: dict[str, Any]
    rows: TrainingRows | None
    trainings: tuple[Training, ...]
    rules: dict[float, tuple[HeldOut | None, ...]]
    looks: dict[float, tuple[tuple[float, ...], ...]]
    goals: dict[float, float]
    bars: tuple[float, ...]


def searches_of(problem: Problem, bars: Sequence[float]) -> Searches:
    """Compute the features once, and the looks and thresholds of each bar."""
    public, places, goal = problem.rows.public, problem.places, problem.at(bars[0]).goal
    shown = PublicRows(problem.rows.score_X, problem.rows.score_y) if public else None
    data = {
        "X": problem.rows.X,
        "y": problem.rows.y,
        "score_X": problem.rows.score_X,
        "score_y": problem.rows.score_y,
    }
    assert problem.recipe.features is not None
    features = FeatureRows(problem.recipe.features)
    trainings: list[Training] = []
    train: TrainingRows | None = None
    strategies = problem.strategies(bars[0], public=True)
    for strategy in strategies:
        step = step_of(strategy, problem.recipe, goal, places, shown, None)
        levels = tuple(path_levels(step.candidates))
        path = levels[0].path
        rule = step.selector.held_out  # type: ignore[attr-defined]
        count = None if rule is None else rule.count
        if isinstance(path, ProgressivePath):  # features are computed once for all runs
            finish = replace(path.finish, rows=features)  # type: ignore[type-var]
            path = replace(path, rows=features, finish=finish)
            count = None if count is None else replace(count, rows=features)
            assert isinstance(path.training, LinearTraining)
            rows, targets = features(data)
            train = train or TrainingRows.of(rows, targets, path.training)
        trainings.append(Training(path, levels, strategy.levels, count))
    rules: dict[float, tuple[HeldOut | None, ...]] = {}
    looks: dict[float, tuple[tuple[float, ...], ...]] = {}
    goals: dict[float, float] = {}
    for bar in bars:
        wanted = problem.at(bar).goal
        wanted_by_kind = {
            (strategy.kind, strategy.scale): strategy
            for strategy in problem.strategies(bar, public=public)
        }
        steps = {
            key: step_of(strategy, problem.recipe, wanted, places, shown, None)
            for key, strategy in wanted_by_kind.items()
        }
        keys = [(strategy.kind, strategy.scale) for strategy in strategies]
        looks[bar] = tuple(
            wanted_by_kind[key].levels if key in wanted_by_kind else () for key in keys
        )
        rules[bar] = tuple(
            steps[key].selector.held_out if key in steps else None  # type: ignore[attr-defined]
            for key in keys
        )
        first = next((rule for rule in rules[bar] if rule is not None), None)
        assert wanted.least_score is not None
        goals[bar] = wanted.least_score if first is None else first.report.least  # type: ignore[union-attr]
    return Searches(data, train, tuple(trainings), rules, looks, goals, tuple(bars))


@dataclass(frozen=True)
class Outcome:
    """What one search paid, whether it passed, and whether its model reaches the bar."""

    epsilon: float
    passed: bool
    reached: bool


def one_run(searches: Searches, seed: Sequence[int]) -> dict[float, Outcome]:
    """Make one training and let every bar look at it; those that miss have a second."""
    source = _source([*seed, 0])
    coins = {bar: _source([*seed, 1 + place]) for place, bar in enumerate(searches.bars)}
    spent = dict.fromkeys(searches.bars, 0.0)
    outcomes: dict[float, Outcome] = {}
    for place, training in enumerate(searches.trainings):
        waiting = [bar for bar in searches.bars if bar not in outcomes]
        if not waiting:
            break
        rules = {bar: searches.rules[bar][place] for bar in waiting}
        walk = training.path.walk(training.levels, source.bytes(_SEED_BYTES), simulated=True)
        if isinstance(walk, TrainingWalk):  # rows are rounded once for all runs
            walk._data, walk._rows = searches.data, searches.rows
        for number, epsilon in enumerate(training.epsilons):
            if not waiting:
                break
            looking = [bar for bar in waiting if epsilon in searches.looks[bar][place]]
            if not looking:
                continue
            fitted = walk.output(number, searches.data)
            count = 0 if training.count is None else training.count(fitted, searches.data)
            for bar in looking:
                rule = rules[bar]
                if rule is None:
                    passed = reached = fitted.score >= searches.goals[bar]
                else:
                    look = searches.looks[bar][place].index(epsilon)
                    plain = replace(rule, count=_same, report=None)
                    passed = float(plain.look(look, count, None, coins[bar])) >= 0
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
    problem: Problem,
    bars: Sequence[float],
    runs: int,
    seed: int,
    jobs: int,
    unit: float = 1.0,
) -> list[dict[str, Any]]:
    """Return one row per bar; ``unit`` is that of the bars."""
    made = runs_of(searches_of(problem, [bar * unit for bar in bars]), runs, seed, jobs)
    rows = []
    for bar in bars:
        outcomes = [outcome[bar * unit] for outcome in made]
        row = row_of(bar, "expost", [each.epsilon for each in outcomes])
        row |= {"passed": float(np.mean([each.passed for each in outcomes])), "runs": runs}
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


def fixed_rows(
    task: str, method: str, data: Path, bars: Sequence[float], jobs: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a fixed ε, and a note; without ``jobs`` nothing is trained."""
    if task not in fixed_epsilon.SETTINGS:
        return [], "left out, not measured on this table"
    if jobs:
        known = fixed_epsilon.train_missing(task, method, data, bars=bars, jobs=jobs)
    else:
        known = fixed_epsilon.Accuracies.load(task, method)
    rows = known.rows(bars)
    have = {row["bar"] for row in rows}
    missing = [
        f"{bar:g}" for bar in bars if bar not in have and known.reached(bar, known.largest) is None
    ]
    unknown = [f"{bar:g}" for bar in bars if bar not in have and f"{bar:g}" not in missing]
    note = "least fixed ε of a grid, 95 % of 20 seeds; its scores and its search cost nothing"
    if missing and known.scores:
        note += f"; {', '.join(missing)}: not reached at the ε tried (up to {known.largest:g})"
    if unknown:
        note += f"; {', '.join(unknown)}: not measured"
    return rows, note if known.scores else "left out, not measured on this table"


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
    fresh: bool = False,
) -> dict[str, Any]:
    """Return the rows of a task, and notes on methods that are left out.

    Parameters
    ----------
    task : str
        A name of :data:`reproduction.least_tasks.TASKS`.
    scoring : {"public", "private"}
        Which rows decide that a model passes.
    data : Path
        Folder of the files of data.
    methods : sequence of str
        Of ``METHODS``.
    bars : sequence of float, optional
        Accuracies to reach.
    runs, seed, jobs : int
        Runs of ``expost``, the seed, and the number of processes.
    fresh : bool
        Whether diffprivlib and Opacus train what their committed accuracies lack.
    """
    for name, value, known in (("task", task, TASKS), ("scoring", scoring, ("public", "private"))):
        if value not in known:
            raise InvalidInput(name, value, "choose from " + ", ".join(known))
    for method in methods:
        if method not in METHODS:
            raise InvalidInput("methods", method, "choose from " + ", ".join(METHODS))
    chosen = tuple(bars or TASKS[task].bars)
    if not all(0 < bar < 1 for bar in chosen):
        raise InvalidInput("bars", chosen, "give accuracies between 0 and 1")
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    if "expost" in methods:
        problem, unit = problem_named(task, scoring, data)
        rows += expost_rows(problem, chosen, runs, seed, jobs, unit)
    banked = [method for method in methods if method in ("reach", "random-dropping")]
    if banked and (task, scoring) != ("mnist", "public"):
        notes.append(f"{', '.join(banked)}: left out, the bank has MNIST with public scoring only")
    elif banked:
        rows += bank_rows(chosen, banked)
        notes.append(f"{', '.join(banked)}: as committed in docs/results/reach_mnist.json")
    for method in methods:
        if method in fixed_epsilon.METHODS:
            found, note = fixed_rows(task, method, data, chosen, jobs if fresh else 0)
            rows += found
            notes.append(f"{method}: {note}")
    return {
        "task": task,
        "origin": TASKS[task].origin,
        "scoring": scoring,
        "delta": DELTA,
        "runs": runs,
        "randomness": f"simulation: seed {seed}",
        "rows": rows,
        "notes": notes,
    }
