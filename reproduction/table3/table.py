"""Table 3 (``table:ml``): what it costs to train a model that passes a bar.

Trials draw their trainings from a bank.

*Algorithm 3.* A trial uses the library's own selector
(:class:`~expost.selection.random_dropping.RandomDropping`: its drop law, its rule, its charges;
with seeded randomness, so it is a simulation). The winner is the cheapest kept training that
passes. If none passes, the cheapest kept one is released and paid, and the trial tries again, up to
``ATTEMPTS`` times. If nothing is kept, nothing is paid, and the draw is repeated.

*The cost of a trial.* Every attempt is charged at one Rényi order, fixed beforehand from public
numbers. The charges of the attempts add up, although the outcomes decide whether there is another
attempt (``theorem:rdp-filter``). Their sum S is converted once, at that order: the whole trial is
ex-post (S + ln((α−1)/α) − (ln δ + ln α)/(α−1), δ)-DP, with a total δ = 10⁻⁶ (docs/theory.md, "From
moments to charges"). Rows with the charge ``paper`` use ``theorem:max-score-rdp`` and the
conversion of ``lem:rdp-v-dp``, S + ln(1/δ)/(α−1).

*Planned attempts* (row ``reach``) are in :mod:`reproduction.table3.planned`; their attempts share
δ, and (ε̃, δ) charges add up. The baselines are in :mod:`reproduction.table3.baselines`. Scores are
on public rows. Tests: ``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.randomness.source import SimulationRandomness
from expost.rationals import count_of
from expost.selection.candidate import Candidate
from expost.selection.drop_law import DropLaw
from expost.selection.plan import plan_levels
from expost.selection.random_dropping import RandomDropping
from reproduction.table3.bank import Bank
from reproduction.table3.baselines import doubling
from reproduction.table3.planned import reach
from reproduction.table3.problem import TableProblem, Trial, TrialOutcome, converted, variance_of
from reproduction.table3.product import product_rows
from reproduction.table3.tasks import DELTA, LEVELS, PAPER_LEVELS, TableTask, task_named

ATTEMPTS = 20
PAPER_OVERHEAD = 0.01


PRODUCT_BARS = {"mnist": (0.6, 0.8, 0.85), "gisette": (0.9,)}
"""Bars of the rows of noise reduction, where they are not those of the task."""


@dataclass(frozen=True)
class Table3Row:
    """A mechanism on a set of levels, over all trials.

    ``paper`` is the number of ``table:ml``, if it is for the same data.
    """

    mechanism: str
    charge: str
    overhead: float | None
    note: str
    levels_from: float
    bar: float
    trials: int
    mean: float
    se: float | None
    pass_rate: float
    attempts_mean: float
    order: float | None
    candidates: int
    worst_case: float
    guarantee: str
    paper: float | None


def table3(
    task_name: str,
    bank: Bank,
    trials: int = 100,
    *,
    seed: int = 20130,
    data: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return all rows of one task.

    Only the rows of noise reduction need ``data`` (the task's files); without it, they are left
    out.
    """
    task = task_named(task_name)
    if bank.task != task.name:
        raise InvalidInput(
            "bank", bank.task, f"it was made for another task; pass a bank of {task.name}"
        )
    count_of(trials, "trials", at_least=1)
    count_of(seed, "seed", at_least=0)
    rows = list(_rows(task, bank, trials, seed, data, say))
    return {
        "table": 3,
        "task": task.name,
        "title": task.title,
        "exactness": bank.details.get("exactness", task.exactness),
        "bar": list(task.bars),
        "bar_note": task.bar_note,
        "metric": task.metric,
        "preparation": task.preparation,
        "trials": trials,
        "seed": seed,
        "delta": DELTA,
        "attempts": ATTEMPTS,
        "randomness": "simulation: drop coins, run counts and which bank entry is drawn are "
        "seeded; the trainings in the bank were not",
        "composition": "charges of attempts add up at one Rényi order fixed beforehand, converted "
        "once at that order; in the row reach, attempts share δ and ε adds up; δ is the total",
        "bank": {
            "settings": len(bank.settings),
            "n": bank.n,
            "trainings_of_each_setting": {
                f"{level:g}": bank.repeats(level) for level in sorted(bank.scores)
            },
            "share_that_passes": _shares(task, bank),
            "made_with": bank.details.get("made_with"),
        },
        "paper": {"note": "as printed in table:ml, for the paper's own data and bar", **task.paper},
        "rows": [vars(row) for row in rows],
    }


def _rows(
    task: TableTask,
    bank: Bank,
    trials: int,
    seed: int,
    data: Path | None,
    say: Callable[[str], None],
) -> Iterator[Table3Row]:
    asked = [
        (bar, start) for bar, starts in zip(task.bars, task.starts, strict=True) for start in starts
    ]
    for number, (bar, start) in enumerate(asked):
        say(f"{task.name}: bar {bar:g}, levels from {start:g}")
        problem = TableProblem.of(task, bank, bar, [level for level in LEVELS if level >= start])
        whole = (
            bank.details.get("exactness", task.exactness) == task.exactness
        )  # not a trial of a few rows or settings
        comparable = (
            whole
            and bar == task.bars[0]
            and start == PAPER_LEVELS[0]
            and task.exactness != "substitute"
        )
        for made in _mechanisms(problem, trials, SimulationRandomness(seed + number), seed):
            yield _row(problem, made, task.paper.get(made.mechanism) if comparable else None)
    if data is None:
        return
    for bar in PRODUCT_BARS.get(task.name, task.bars):
        say(f"{task.name}: noise reduction, bar {bar:g}")
        problem = TableProblem.of(task, bank, bar, PAPER_LEVELS[:1])
        for made in product_rows(problem, data, trials, seed):
            yield _row(problem, made, None)


def _mechanisms(
    problem: TableProblem, trials: int, source: SimulationRandomness, seed: int
) -> Iterator[TrialOutcome]:
    for overhead, charge in (("paper", "paper"), ("paper", "sharp"), ("planner", "sharp")):
        yield random_dropping(problem, overhead, charge, trials, source)
    yield reach(problem, trials, seed)
    yield no_dropping(problem, trials, source)
    yield doubling(problem, trials, source)


def random_dropping(
    problem: TableProblem, overhead: str, charge: str, trials: int, source: SimulationRandomness
) -> TrialOutcome:
    """Run Algorithm 3 as proved, with the paper's ε′ = 0.01 or the planner's.

    The planner's ε′ is a fraction of the median drop rate of the first level.
    """
    order = problem.best_order()
    chosen, note = PAPER_OVERHEAD, "the paper's ε′"
    if overhead == "planner":
        fraction = plan_levels(problem.levels, len(problem.bank.settings), delta=DELTA).overhead
        chosen, note = (
            fraction * problem.rate(order),
            f"the planner's ε′: {fraction:g} of the first level's drop rate",
        )
    candidates = problem.affordable(order)
    priced = RandomDropping(overhead=chosen, at_least=problem.target, order=order, method=charge)
    selector = priced_once(priced, candidates)
    worst = float(selector.charges(candidates).worst_case.size)
    theorem = (
        "theorem:max-score-rdp" if charge == "paper" else "theorem:max-score-rdp, sharpened (T1)"
    )
    return TrialOutcome(
        "random-dropping",
        charge,
        chosen,
        note,
        order,
        f"{theorem}; theorem:rdp-filter over attempts",
        [_ask(selector, candidates, charge, order, source) for _ in range(trials)],
        len(candidates),
        converted(ATTEMPTS * worst, order, charge),
    )


def priced_once(selector: RandomDropping, candidates: Sequence[Candidate]) -> RandomDropping:
    """Return the selector with its charges and its drop law computed once.

    Both are public and do not change for these candidates.
    """
    charges, law = selector.charges(candidates), selector.drop_law(candidates)

    class PricedOnce(RandomDropping):
        """The same selector with stored charges and drop law."""

        def _price(self, candidates: Sequence[Candidate]) -> Charges:
            return charges

        def drop_law(self, candidates: Sequence[Candidate]) -> DropLaw:
            return law

    return PricedOnce(**{each.name: getattr(selector, each.name) for each in fields(selector)})


def _ask(
    selector: RandomDropping,
    candidates: Sequence[Candidate],
    charge: str,
    order: float,
    source: SimulationRandomness,
) -> Trial:
    """Make attempts until one passes; all of them are paid."""
    spent, passed, attempts = 0.0, False, 0
    while attempts < ATTEMPTS and not passed:
        release = selector.select(candidates, None, randomness=source, simulation=True)
        spent, passed, attempts = (
            spent + float(release.spent.size),
            bool(release.passed),
            attempts + 1,
        )
    return Trial(converted(spent, order, charge), passed, attempts)


def no_dropping(problem: TableProblem, trials: int, source: SimulationRandomness) -> TrialOutcome:
    """Run the diagnostic without dropping.

    Everything runs and the cheapest pass is released, at the charge of Algorithm 3. No theorem
    allows this.
    """
    order = problem.best_order()
    candidates = problem.affordable(order)
    table = RandomDropping(
        overhead=PAPER_OVERHEAD, at_least=problem.target, order=order, method="paper"
    ).charges(candidates)
    costs = [
        converted(float(table[place].size), order, "paper") for place in range(len(candidates))
    ]
    cheapest_first = sorted(range(len(costs)), key=costs.__getitem__)

    def trial() -> Trial:
        passes = (
            place
            for place in cheapest_first
            if candidates[place].call(None, source) >= problem.target
        )
        winner = next(passes, None)
        return Trial(costs[cheapest_first[0] if winner is None else winner], winner is not None, 1)

    made = [trial() for _ in range(trials)]
    note = "a diagnostic: nothing is dropped"
    return TrialOutcome(
        "no-dropping",
        "paper",
        PAPER_OVERHEAD,
        note,
        order,
        "none",
        made,
        len(candidates),
        max(costs),
    )


def _row(problem: TableProblem, made: TrialOutcome, paper: float | None) -> Table3Row:
    """Summarise the trials of a mechanism."""
    epsilons = np.array([trial.epsilon for trial in made.trials])
    return Table3Row(
        mechanism=made.mechanism,
        charge=made.charge,
        overhead=made.overhead,
        note=made.note,
        levels_from=problem.levels[0],
        bar=problem.bar,
        trials=len(made.trials),
        mean=float(epsilons.mean()),
        se=float(epsilons.std(ddof=1) / math.sqrt(len(epsilons))) if len(epsilons) > 1 else None,
        pass_rate=float(np.mean([trial.passed for trial in made.trials])),
        attempts_mean=float(np.mean([trial.attempts for trial in made.trials])),
        order=made.order,
        candidates=made.candidates,
        worst_case=made.worst_case,
        guarantee=made.guarantee,
        paper=paper,
    )


def _shares(task: TableTask, bank: Bank) -> dict[str, dict[str, float]]:
    """Return the share of the trainings that passes, by bar and level."""
    shares: dict[str, dict[str, float]] = {}
    for bar in task.bars:
        sign, limit = (1, bar) if task.metric == "accuracy" else (-1, -bar * variance_of(bank))
        shares[f"{bar:g}"] = {
            f"{level:g}": round(
                float(np.mean([sign * score >= limit for cell in cells for score in cell])), 4
            )
            for level, cells in sorted(bank.scores.items())
        }
    return shares
