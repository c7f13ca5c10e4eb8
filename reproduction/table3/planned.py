"""Planned attempts on a bank of trainings: the schedule, its charges, and simulated trials.

The schedule and the charges are those of ``expost tune`` (:mod:`expost.selection.attempts`): a
sequence of Algorithm 2 attempts that share a total δ of 10⁻⁶, until one passes. A miss releases
nothing and pays the price of nothing; ε̃ adds up over the attempts that were made (docs/theory.md,
"Attempts in sequence"). Drop levels and coins are simulated in floating point.
Tests: ``tests/reproduction/test_planned.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from expost.arrays import Floats
from expost.privacy.charges import Charges
from expost.selection.attempt_planner import plan_attempts
from expost.selection.attempts import Schedule, candidates_of, reach_of
from expost.selection.candidate import Candidate
from expost.tuning.plan.job_plan import ladder_of
from expost.tuning.runs.candidates import selection_cost
from reproduction.table3.problem import TableProblem, Trial, TrialOutcome
from reproduction.table3.tasks import DELTA


class PlannedTrial(NamedTuple):
    """The total cost of a trial, whether it passed, and how many runs and attempts it made."""

    epsilon: float
    passed: bool
    runs: float
    attempts: int


@dataclass(frozen=True, eq=False)
class PricedRequest:
    """One request: its drop rates, its charges, and which candidates take part.

    Parameters
    ----------
    overhead : float
        ε′.
    rates : array
        Drop rate of each candidate that takes part.
    repeats : int
        Copies of each candidate.
    charges : array
        ε of releasing each candidate.
    nothing : float
        ε of releasing nothing.
    cells : tuple of int
        Place of each candidate in the problem's list.
    """

    overhead: float
    rates: Floats
    repeats: int
    charges: Floats
    nothing: float
    cells: tuple[int, ...]

    @property
    def worst_case(self) -> float:
        """The most that this request could cost."""
        return max(self.nothing, float(self.charges.max()))


@dataclass(frozen=True, eq=False)
class PlannedAttempts:
    """A schedule and its priced requests; they depend on the candidates and not on the bar."""

    schedule: Schedule
    requests: tuple[PricedRequest, ...]

    @classmethod
    def of(cls, problem: TableProblem, delta: float = DELTA) -> PlannedAttempts:
        """Plan and price; the candidates must be ordered (:func:`cheapest_first`)."""
        candidates, levels = problem.candidates, problem.levels
        schedule = plan_attempts(ladder_of(candidates, levels, delta), delta=delta)
        return cls(
            schedule,
            tuple(
                _priced(schedule, number, candidates, levels, delta)
                for number in range(len(schedule))
            ),
        )

    def least_mean(self, problem: TableProblem, delta: float) -> float:
        """Return what the attempts are expected to cost where they cost least."""
        ladder = ladder_of(problem.candidates, problem.levels, delta)
        charges = []
        for request in self.requests:
            named = [problem.candidates[place].params["epsilon"] for place in request.cells]
            of_levels = [
                float(np.mean(request.charges[[each == level for each in named]]))
                for level in problem.levels
                if level in named
            ]
            charges.append(np.array([*of_levels, request.nothing]))
        return min(row.epsilon_mean for row in reach_of(ladder, self.schedule, charges))

    @property
    def worst_case(self) -> float:
        """The most that all attempts together could cost."""
        return sum(each.worst_case for each in self.requests)

    def trial(
        self,
        scores: Sequence[tuple[float, ...]],
        target: float,
        generator: np.random.Generator,
    ) -> PlannedTrial:
        """Simulate attempts until one passes."""
        spent, runs = 0.0, 0
        for number, request in enumerate(self.requests, start=1):
            level = generator.exponential(1 / request.overhead)
            kept = generator.binomial(request.repeats, np.exp(-request.rates * level))
            for place in np.flatnonzero(kept):
                cell = scores[request.cells[place]]
                drawn = generator.integers(0, len(cell), kept[place])
                passes = [cell[each] >= target for each in drawn]
                if any(passes):
                    runs += passes.index(True) + 1
                    spent += float(request.charges[place])
                    return PlannedTrial(spent, True, float(runs), number)
                runs += len(passes)
            spent += request.nothing
        return PlannedTrial(spent, False, float(runs), len(self.requests))


def cheapest_first(problem: TableProblem) -> TableProblem:
    """Return the problem with the candidates of each level ordered by what they cost."""
    costs = {
        id(each.guarantee): selection_cost(each.guarantee, DELTA) for each in problem.candidates
    }
    listed = sorted(
        problem.candidates, key=lambda each: (each.params["epsilon"], costs[id(each.guarantee)])
    )
    return replace(problem, candidates=tuple(listed))


def scores_of(problem: TableProblem) -> list[tuple[float, ...]]:
    """Return the scores in the bank of each candidate."""
    return [each.mechanism.scores for each in problem.candidates]  # type: ignore[union-attr]


def reach(problem: TableProblem, trials: int, seed: int) -> TrialOutcome:
    """Run the planned attempts on the promises of the trainings in the bank."""
    ordered = cheapest_first(problem)
    planned, scores = PlannedAttempts.of(ordered), scores_of(ordered)
    generator = np.random.default_rng(
        [seed, round(1000 * problem.bar), round(1000 * problem.levels[0])]
    )
    made = [planned.trial(scores, problem.target, generator) for _ in range(trials)]
    return TrialOutcome(
        "reach",
        "sharp",
        None,
        f"planned: up to {len(planned.schedule)} attempts of Algorithm 2, which share δ",
        None,
        "Algorithm 2 under Rényi DP, sharpened (T1), (T2); attempts in sequence (docs/theory.md)",
        [Trial(each.epsilon, each.passed, each.attempts) for each in made],
        len(ordered.candidates),
        planned.worst_case,
    )


def _priced(
    schedule: Schedule,
    number: int,
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    delta: float,
) -> PricedRequest:
    """Return one attempt with the charges that a job would pay."""
    attempt = schedule.attempts[number]
    chosen = candidates_of(candidates, levels, attempt, pure=False)
    charges: Charges = schedule.selector(number, 0.0, delta=delta).charges(chosen)
    return PricedRequest(
        attempt.overhead,
        np.array([float(each.params["epsilon"]) for each in chosen]),
        attempt.repeats,
        np.array([float(charges[place].size) for place in range(len(chosen))]),
        float(charges.nothing.size),
        tuple(range(len(candidates) - len(chosen), len(candidates))),
    )
