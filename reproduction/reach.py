"""What it costs to reach a bar: planned attempts and other methods, on a bank of trainings.

Every method gets the same bank, the same levels and a total δ of 10⁻⁶. A trial ends when a training
reaches the bar on the public rows, or when the method gives up. Methods:

``reach``
    The planned attempts of ``expost tune`` (:mod:`expost.selection.attempts`), one schedule for
    all bars. The charges are those that a job would pay. Drop levels and coins are simulated in
    floating point (:mod:`reproduction.table3.planned`).
``auto``
    What ``training = "auto"`` costs at most: noise reduction on a linear model, paid to its last
    level as if it missed, and then planned attempts with the part of δ that is left.
``random-dropping``
    Algorithm 3 with the recommended overhead, as in version 0.1: a draw in which nothing passes
    releases the cheapest kept training, is paid for, and is repeated up to 20 times. Each attempt
    has a twentieth of δ.
``doubling``
    Papernot–Steinke tuning of one level after another (:mod:`reproduction.table3.baselines`).
``brownian``
    Noise reduction on a linear model, stopped at the first level that passes on the public rows.
    It needs the data; without it the rows are left out.

Curves. ``gaussian`` (default): level ε is a Gaussian mechanism that is (ε, δ/24)-DP, where δ/24 is
the share of one of 24 equal attempts. The trainings in the bank were calibrated at δ, so these
rows model the price of such a ladder and are not the price of this bank. ``dpsgd``: the promises
of the very trainings in the bank. Tests: ``tests/reproduction/test_planned.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.selection.baselines import TruncatedNegativeBinomial, worst_guarantee
from expost.selection.candidate import Candidate
from expost.selection.plan import gaussian_guarantee, plan_levels
from expost.selection.random_dropping import RandomDropping
from expost.tuning.plan.job_plan import dropping
from expost.tuning.plan.strategies import DELTA_SHARE, SHARE
from reproduction.table3.bank import Bank
from reproduction.table3.baselines import LAWS, ladder, public_scores, tuned_levels
from reproduction.table3.planned import (
    PlannedAttempts,
    PricedRequest,
    cheapest_first,
    scores_of,
)
from reproduction.table3.problem import TableProblem
from reproduction.table3.tasks import DELTA, task_named

CURVES = ("gaussian", "dpsgd")
GAUSSIAN_DELTA = DELTA / 24
ATTEMPTS = 20


@dataclass(frozen=True)
class ReachResult:
    """One method at one bar, over all trials."""

    bar: float
    method: str
    mean_epsilon: float
    standard_error: float
    passed: float
    runs: float


def reach_table(
    bank: Bank,
    levels: Sequence[float],
    bars: Sequence[float],
    trials: int,
    *,
    curves: str = "gaussian",
    seed: int = 15183,
    data: Path | None = None,
) -> dict[str, Any]:
    """Return the rows of all methods at all bars, with the schedule that was used."""
    if curves not in CURVES:
        raise InvalidInput("curves", curves, "give one of " + ", ".join(CURVES))
    task = task_named(bank.task)
    problems = [_problem(TableProblem.of(task, bank, bar, levels), curves) for bar in bars]
    planned = PlannedAttempts.of(problems[0])
    rows = list(_rows(problems, planned, trials, seed, data))
    return {
        "bank": bank.task,
        "levels": list(levels),
        "curves": curves,
        "calibrated_at": GAUSSIAN_DELTA if curves == "gaussian" else bank.delta,
        "delta": DELTA,
        "trials": trials,
        "seed": seed,
        "schedule": planned.schedule.as_dict(),
        "rows": [vars(row) for row in rows],
    }


def _problem(problem: TableProblem, curves: str) -> TableProblem:
    """Return the problem with the promises that were asked for, cheapest first in each level."""
    if curves == "gaussian":
        promises = {level: gaussian_guarantee(level, GAUSSIAN_DELTA) for level in problem.levels}
        listed = tuple(
            Candidate(each.mechanism, each.params, guarantee=promises[each.params["epsilon"]])
            for each in problem.candidates
        )
        problem = replace(problem, candidates=listed)
    return cheapest_first(problem)


def _rows(
    problems: Sequence[TableProblem],
    planned: PlannedAttempts,
    trials: int,
    seed: int,
    data: Path | None,
) -> Iterator[ReachResult]:
    before, (after, first) = _algorithm_3(problems[0]), _after_noise_reduction(problems[0])
    laws = [_tuned(problems[0], *law) for law in LAWS]
    paths: list[Sequence[float]] = []
    if data is not None:  # scores do not depend on the bar
        generator = np.random.default_rng([seed, 3])
        paths = list(public_scores(problems[0], data, trials, generator))
    for problem in problems:
        generator = np.random.default_rng([seed, round(1000 * problem.bar)])
        scores = scores_of(problem)
        reached = [planned.trial(scores, problem.target, generator) for _ in range(trials)]
        yield _result(problem, "reach", [each[:3] for each in reached])
        others = np.random.default_rng([seed, round(1000 * problem.bar), 4])
        followed = [after.trial(scores, problem.target, others) for _ in range(trials)]
        costs = [(first + each.epsilon, each.passed, each.runs) for each in followed]
        yield _result(problem, "auto", costs)
        made = [_old_trial(before, scores, problem.target, generator) for _ in range(trials)]
        yield _result(problem, "random-dropping", made)
        yield _doubling(problem, laws, trials, generator)
        if paths:
            yield _brownian(problem, paths)


def _after_noise_reduction(problem: TableProblem) -> tuple[PlannedAttempts, float]:
    """Return the attempts of ``"auto"`` for a network, and the cost of the miss before them."""
    left = (1 - DELTA_SHARE) * DELTA
    attempts = PlannedAttempts.of(problem, left)
    return attempts, SHARE * attempts.least_mean(problem, left)


def _algorithm_3(problem: TableProblem) -> PricedRequest:
    fraction = plan_levels(problem.levels, len(problem.bank.settings), delta=DELTA).overhead
    candidates = list(problem.candidates)
    selector = dropping(candidates, fraction, problem.target, delta=DELTA / ATTEMPTS)
    assert isinstance(selector, RandomDropping)
    charges, law = selector.charges(candidates), selector.drop_law(candidates)
    rates = np.zeros(len(candidates))
    for group, rate in zip(law.groups, law.rates, strict=True):
        rates[list(group.members)] = float(rate / law.overhead)
    costs = np.array([float(charges[place].size) for place in range(len(candidates))])
    return PricedRequest(1.0, rates, 1, costs, 0.0, tuple(range(len(candidates))))


def _old_trial(
    request: PricedRequest,
    scores: Sequence[tuple[float, ...]],
    target: float,
    generator: np.random.Generator,
) -> tuple[float, bool, float]:
    """Draw until something is kept; release the cheapest that passes, else the cheapest kept."""
    order = np.argsort(request.charges, kind="stable")
    spent, runs = 0.0, 0
    for _ in range(ATTEMPTS):
        kept = np.zeros(len(order), dtype=bool)
        while not kept.any():
            level = generator.exponential(1 / request.overhead)
            kept = generator.random(len(order)) < np.exp(-request.rates * level)
        places = [place for place in order if kept[place]]
        for place in places:
            runs += 1
            if scores[place][generator.integers(0, len(scores[place]))] >= target:
                return spent + float(request.charges[place]), True, float(runs)
        spent += float(request.charges[places[0]])
    return spent, False, float(runs)


@dataclass(frozen=True, eq=False)
class _TunedLevels:
    """Doubling with one law of the number of runs: its probabilities, and the ε of stopping."""

    levels: tuple[float, ...]
    probabilities: Floats
    costs: tuple[float, ...]


def _tuned(problem: TableProblem, shape: float, mean: float) -> _TunedLevels:
    law = TruncatedNegativeBinomial.with_mean(shape, mean)
    levels = ladder(problem.levels)
    promises = {level: worst_guarantee(problem.level(level)) for level in levels}
    _, costs = tuned_levels(problem, promises, law)
    counts = np.arange(1, 200_000)
    steps = np.log(counts[:-1] + shape) - np.log(counts[1:]) + math.log1p(-float(law.gamma))
    weights = np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    return _TunedLevels(tuple(levels), weights / weights.sum(), tuple(costs))


def _doubling(
    problem: TableProblem,
    laws: Sequence[_TunedLevels],
    trials: int,
    generator: np.random.Generator,
) -> ReachResult:
    """Run doubling with each law and return the best in hindsight, which flatters it."""
    shares = {
        level: np.mean(
            [
                np.mean([score >= problem.target for score in each.mechanism.scores])  # type: ignore[union-attr]
                for each in problem.level(level)
            ]
        )
        for level in laws[0].levels
    }
    found = []
    for law in laws:
        made = []
        for _ in range(trials):
            runs = (
                generator.choice(len(law.probabilities), len(law.levels), p=law.probabilities) + 1
            )
            passes = [
                generator.random() >= (1 - shares[level]) ** count
                for level, count in zip(law.levels, runs, strict=True)
            ]
            last = passes.index(True) if any(passes) else len(passes) - 1
            made.append((law.costs[last], any(passes), float(runs[: last + 1].sum())))
        found.append(_result(problem, "doubling", made))
    return min(found, key=lambda each: (-min(each.passed, 0.99), each.mean_epsilon))


def _brownian(problem: TableProblem, paths: Sequence[Sequence[float]]) -> ReachResult:
    """Noise reduction on a linear model, stopped at the first level that passes publicly."""
    made = []
    for scores in paths:
        passing = [place for place, score in enumerate(scores) if score >= problem.target]
        last = passing[0] if passing else len(problem.levels) - 1
        made.append((problem.levels[last], bool(passing), float(last + 1)))
    return _result(problem, "brownian", made)


def _result(
    problem: TableProblem, method: str, made: Sequence[tuple[float, bool, float]]
) -> ReachResult:
    epsilons = np.array([each[0] for each in made])
    return ReachResult(
        problem.bar,
        method,
        float(epsilons.mean()),
        float(epsilons.std(ddof=1) / math.sqrt(len(epsilons))) if len(made) > 1 else 0.0,
        float(np.mean([each[1] for each in made])),
        float(np.mean([each[2] for each in made])),
    )
