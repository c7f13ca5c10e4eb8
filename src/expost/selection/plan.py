"""Plan a tuning job from public numbers: charges, chances and the runs to expect.

No data is read and nothing is charged. The charges come from the selectors that would run; other
numbers are estimates. :func:`plan_levels` plans the best of all settings in one request
(Algorithm 3); :meth:`Plan.to_goal` adds the attempts to reach a goal (Algorithm 2).

:func:`published_charges` is ``theorem:max-score-rdp`` exactly as published, for comparison only.
The drop rates equal the divergences at the order of the analysis. For each order α::

    ε̃(i) = (2+ℓ_i)ε_i + (1+ℓ_i)ε′ + (ln(τ+1) + Σ_{j≠i} e^{−ε_j(1+αℓ_i)})/(α−1),
    τ = Σ_j ε′/(ε′+ε_j),

and the conversion to an (ε̃, δ) claim (``lem:rdp-v-dp``) adds ln(1/δ)/(α−1). Here each level uses
its own best α and ℓ, which makes the bound look better than it is: one run has one α.

Tests: ``tests/theorems/test_plan.py``, ``tests/cli/test_plan_cli.py``,
``tests/selection/test_attempts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, exp, inf, isnan, log, sqrt
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.html_tables import HtmlTable, Loss, html_summary
from expost.privacy.dpsgd import calibrate_noise, dpsgd_curve, gaussian_for
from expost.privacy.guarantees import Guarantee, RenyiDP
from expost.privacy.profiles import DEFAULT_ORDERS, GaussianProfile
from expost.rationals import count_of, exact_positive
from expost.selection.attempt_planner import GoalPlan, plan_goal
from expost.selection.attempts import Ladder
from expost.selection.baselines import TruncatedNegativeBinomial
from expost.selection.candidate import Candidate, never_run
from expost.selection.drop_law import (
    RunCounts,
    log_keep_probability,
    probability_nothing,
    run_counts,
)
from expost.selection.random_dropping import RandomDropping
from expost.selection.renyi_charges import price_by_profiles

_SLACKS = np.concatenate([[0.0], np.geomspace(1e-3, 64.0, 240)])  # ℓ


def published_charges(
    orders: Floats, curves: Floats, copies: Floats, overhead: float, log_delta: float
) -> Floats:
    """Return the smallest published (ε̃, δ) charge of a copy in each group."""
    best = np.full(len(curves), np.inf)
    for index, order in enumerate(orders):
        losses = curves[:, index]
        runs = float(copies @ (overhead / (overhead + losses)))
        factors = np.exp(-losses[:, None] * (1 + order * _SLACKS))  # groups × ℓ
        others = copies @ factors - factors
        own = (2 + _SLACKS) * losses[:, None] + (1 + _SLACKS) * overhead
        charges = own + (np.log1p(runs) + others - log_delta) / (order - 1)
        best = np.minimum(best, charges.min(axis=1))
    return best


OVERHEADS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
"""Overheads that are compared for a recommendation, as fractions of the first level's drop rate."""

_SURCHARGE = 1.05  # the recommended overhead costs at most 5 % more than the cheapest one
_MOST_REDRAWS = 0.999  # refuse a limit on runs if a draw keeps nothing with a higher probability
_SHAPES = (-0.5, 0.0, 0.5, 1.0)  # η of the repeat-and-select laws that are compared


@dataclass(frozen=True)
class LevelPlan:
    """One privacy level of a plan, with its charge by four methods."""

    epsilon: float
    charge: float
    charge_paper: float
    charge_repeat_and_select: float
    charge_composition: float
    bound: str
    order: float | None
    shift: float | None
    keep_probability: float


@dataclass(frozen=True, eq=False)
class Plan:
    """What a tuning job would cost and how many runs it would make."""

    overhead: float
    recommended: bool
    delta: float
    configurations: int
    repeats: int
    minimum_drop_level: int
    counts: RunCounts
    cheapest_runs: float
    levels: tuple[LevelPlan, ...]
    selector: RandomDropping
    candidates: tuple[Candidate, ...]
    goal: GoalPlan | None = None

    def to_goal(
        self, attempts: int | None = None, expected_shares: Sequence[float] | None = None
    ) -> Plan:
        """Return the plan with attempts to reach a goal."""
        ladder = Ladder(
            tuple(level.epsilon for level in self.levels),
            tuple(candidate.guarantee for candidate in self.candidates),
            (self.configurations * self.repeats,) * len(self.levels),
        )
        return replace(self, goal=plan_goal(ladder, self.delta, attempts, expected_shares))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain JSON types, as ``expost plan`` prints it."""
        return ({} if self.goal is None else self.goal.as_dict()) | {
            "overhead": self.overhead,
            "overhead_recommended": self.recommended,
            "overhead_epsilon": float(self.selector.overhead),
            "delta": self.delta,
            "configurations": self.configurations,
            "repeats": self.repeats,
            "minimum_drop_level": self.minimum_drop_level,
            "expected_runs": self.counts.mean,
            "expected_runs_per_draw": self.counts.mean_per_draw,
            "p_nothing": self.counts.nothing,
            "p_cheapest_level_runs": self.cheapest_runs,
            "runs": {
                "p50": self.counts.quantile(0.5),
                "p90": self.counts.quantile(0.9),
                "p99": self.counts.quantile(0.99),
                "max": self.counts.copies,
            },
            "levels": [vars(level) for level in self.levels],
        }

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        facts = {
            "overhead ε′": Loss(float(self.selector.overhead)),
            "δ": Loss(self.delta),
            "candidates": len(self.levels) * self.configurations * self.repeats,
            "expected runs": self.counts.mean,
            "a draw keeps nothing with probability": self.counts.nothing,
        }
        rows = [
            (level.epsilon, *map(Loss, (level.charge, level.charge_composition)))
            for level in self.levels
        ]
        columns = ["level ε", "charge ε̃", "training all and composing"]
        tables = [HtmlTable("Levels", columns, rows)]
        if self.goal is not None:
            facts |= self.goal.html_facts()
            tables.append(self.goal.html_table())
        return html_summary("Plan of a tuning job", facts, *tables)


def plan_levels(
    epsilons: Sequence[float],
    configurations: int,
    *,
    delta: float,
    overhead: float | None = None,
    repeats: int = 1,
    sampling_rate: float | None = None,
    epochs: float | None = None,
    target_charge: float | None = None,
    max_runs: int | None = None,
) -> Plan:
    """Plan a tuning job."""
    levels = _check_levels(epsilons)
    copies = count_of(configurations, "configurations", at_least=1) * count_of(
        repeats, "repeats", at_least=1
    )
    candidates = [
        Candidate(never_run, {"epsilon": epsilon}, repeats=copies, guarantee=guarantee)
        for epsilon, guarantee in zip(
            levels, level_guarantees(levels, delta, sampling_rate, epochs), strict=True
        )
    ]
    if overhead is not None and target_charge is not None:
        raise InvalidInput(
            "target_charge",
            target_charge,
            "give an overhead, or a target charge to find one, not both",
        )
    fraction = (
        _recommend(candidates, delta, target_charge)
        if overhead is None
        else float(exact_positive(overhead, "overhead"))
    )
    selector = _limit_runs(_selector(candidates, delta, fraction), candidates, max_runs)
    counts = run_counts(selector.drop_law(candidates))
    return Plan(
        overhead=fraction,
        recommended=overhead is None,
        delta=float(delta),
        configurations=configurations,
        repeats=repeats,
        minimum_drop_level=selector.minimum_drop_level,
        counts=counts,
        cheapest_runs=_chance_of_first(selector, candidates, counts),
        levels=tuple(_levels(selector, candidates, copies, counts)),
        selector=selector,
        candidates=tuple(candidates),
    )


def level_guarantees(
    epsilons: Sequence[float], delta: float, sampling_rate: float | None, epochs: float | None
) -> list[Guarantee]:
    """Return a guarantee for each level: Gaussian noise, or DP-SGD calibrated to the level."""
    if (sampling_rate is None) != (epochs is None):
        raise InvalidInput(
            "sampling_rate, epochs", (sampling_rate, epochs), "give both for DP-SGD, or neither"
        )
    if sampling_rate is None or epochs is None:
        return [gaussian_guarantee(epsilon, delta) for epsilon in epsilons]
    if not 0 < sampling_rate <= 1:
        raise InvalidInput("sampling_rate", sampling_rate, "give a number with 0 < rate ≤ 1")
    steps = ceil(exact_positive(epochs, "epochs") / Fraction(sampling_rate))
    noises = calibrate_noise(
        sampling_rates=sampling_rate, steps=steps, epsilons=np.asarray(epsilons), delta=delta
    )
    return [
        dpsgd_curve(sampling_rate=sampling_rate, noise_multiplier=float(noise), steps=steps)
        for noise in noises
    ]


def gaussian_guarantee(epsilon: float, delta: float) -> RenyiDP:
    """Return the curve and the profile of the Gaussian noise that is (ε, δ)-DP by zCDP."""
    guarantee = gaussian_for(epsilon, delta)
    mu = sqrt(2 * guarantee.rho) * (1 + 2.0**-50)
    return replace(guarantee.to_renyi(DEFAULT_ORDERS), profile=GaussianProfile(mu))


def _selector(candidates: Sequence[Candidate], delta: float, fraction: float) -> RandomDropping:
    """Return the selector whose overhead is this fraction of the first level's drop rate."""
    # With overhead 1, `law.overhead` is the lattice step.
    law = RandomDropping(overhead=1, delta=delta).drop_law(candidates)
    first = next(
        rate for group, rate in zip(law.groups, law.rates, strict=True) if 0 in group.members
    )
    return RandomDropping(overhead=float(first / law.overhead) * fraction, delta=delta)


def _recommend(candidates: Sequence[Candidate], delta: float, target: float | None) -> float:
    """Return the largest overhead of the list for which the first level's charge is low enough.

    The charge by (T3), or by (T1) at the order and shift that suit one overhead, is near enough.
    """
    table = _selector(candidates, delta, 0.1).analyse(candidates)
    first, priced = table.charges.level_of[0], table.priced[0]

    def charge(fraction: float) -> float:
        problem = _selector(candidates, delta, fraction).renyi_problem(candidates)
        if priced.bounds[first] == "T1":
            order_index = int(np.searchsorted(problem.orders, priced.orders[first]))
            return float(problem.evaluate(order_index, float(priced.shifts[first]))[first])
        return float(price_by_profiles(problem).charges[first])

    charges = {fraction: charge(fraction) for fraction in OVERHEADS}
    cheapest = min(charges.values())
    limit = (
        cheapest * _SURCHARGE if target is None else float(exact_positive(target, "target_charge"))
    )
    allowed = [fraction for fraction, charge in charges.items() if charge <= limit]
    if not allowed:
        raise InvalidInput(
            "target_charge",
            target,
            f"the first level costs at least about {cheapest:.4g}; give more, or lower epsilons",
        )
    return max(allowed)


def _limit_runs(
    selector: RandomDropping, candidates: Sequence[Candidate], max_runs: int | None
) -> RandomDropping:
    """Return the selector with the smallest minimum drop level that limits the runs.

    99 % of draws must make at most ``max_runs`` runs. The level is found by doubling and
    bisection, to about 6 %.
    """
    if max_runs is None:
        return selector
    count_of(max_runs, "max_runs", at_least=1)

    def runs(level: int) -> int:
        """Return the number of runs that 99 % of draws do not exceed."""
        counts = run_counts(replace(selector, minimum_drop_level=level).drop_law(candidates))
        if counts.nothing > _MOST_REDRAWS:
            raise InvalidInput(
                "max_runs",
                max_runs,
                "too few for this many settings: give fewer settings, or more runs",
            )
        return counts.quantile(0.99)

    low, high = 0, 0
    while runs(high) > max_runs:
        low, high = high, max(1, 2 * high)
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) > max_runs else (low, middle)
    return replace(selector, minimum_drop_level=high)


def _chance_of_first(
    selector: RandomDropping, candidates: Sequence[Candidate], counts: RunCounts
) -> float:
    """Return the probability that a copy of the first level runs, given that something does."""
    law = selector.drop_law(candidates)
    index = next(index for index, group in enumerate(law.groups) if 0 in group.members)
    none = (
        sum(
            probability_nothing(
                float(law.overhead),
                [float(law.rates[index])],
                [law.groups[index].copies],
                law.minimum,
            )
        )
        / 2
    )
    return min(1.0, (1.0 - none) / max(1.0 - counts.nothing, 1e-300))


def _levels(
    selector: RandomDropping, candidates: Sequence[Candidate], copies: int, counts: RunCounts
) -> list[LevelPlan]:
    """Return one row per level."""
    sharp = selector.analyse(candidates)
    problem = sharp.problem
    paper = published_charges(
        problem.orders,
        problem.curves,
        problem.copies,
        problem.overhead,
        log(float(selector.delta or 0)),
    )
    law = selector.drop_law(candidates)
    rows = []
    for index, candidate in enumerate(candidates):
        at = sharp.charges.level_of[index]
        guarantee = candidate.guarantee.as_renyi()
        assert guarantee is not None
        rows.append(
            LevelPlan(
                epsilon=float(candidate.params["epsilon"]),
                charge=float(sharp.charges[index].size),
                charge_paper=float(paper[at]),
                charge_repeat_and_select=_repeat_and_select(
                    guarantee, counts.mean, float(selector.delta or 0)
                ),
                charge_composition=(guarantee * copies)
                .to_approx(float(selector.delta or 0))
                .epsilon,
                bound=sharp.priced[0].bounds[at],
                order=_or_none(sharp.priced[0].orders[at]),
                shift=_or_none(sharp.priced[0].shifts[at]),
                keep_probability=exp(
                    log_keep_probability(float(law.overhead), float(law.rates[at]), law.minimum)
                ),
            )
        )
    return rows


def _or_none(value: float) -> float | None:
    """Return a number for JSON; None for NaN."""
    return None if isnan(value) else float(value)


def _repeat_and_select(guarantee: RenyiDP, runs: float, delta: float) -> float:
    """Return the ε of repeat and select with this many expected runs, for the best of four η."""
    mean = max(runs, 1.01)
    laws = [TruncatedNegativeBinomial.with_mean(shape, mean) for shape in _SHAPES]
    return min(law.renyi_charge(guarantee).to_approx(delta).epsilon for law in laws)


def _check_levels(epsilons: Sequence[float]) -> list[float]:
    """Return the levels if they are positive and ascending."""
    if not epsilons:
        raise InvalidInput("epsilons", list(epsilons), "give at least one level")
    levels = [float(exact_positive(epsilon, "epsilons")) for epsilon in epsilons]
    if any(a >= b for a, b in pairwise(levels)) or levels[-1] == inf:
        raise InvalidInput("epsilons", levels, "give levels in ascending order, each once")
    return levels
