"""What a job would cost and reach, before anything runs. No private row is read.

With a goal: the planned attempts, their charges, and what to expect (:mod:`.attempts`). Without a
goal: one request of Algorithm 3 with a recommended overhead. Charges are the selectors' own;
chances and times are for orientation. Times come from the rehearsal
(:mod:`expost.tuning.plan.rehearsal`).

Tests: ``tests/tuning/test_job_plan.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from expost.certificates.document import composed, in_epsilon_delta, worst_in_turn
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP
from expost.rationals import charge_text, exact_positive
from expost.selection.attempt_planner import plan_attempts
from expost.selection.attempts import Belief, Ladder, ReachRow, Schedule, level_of, reach_of
from expost.selection.baselines import TruncatedNegativeBinomial
from expost.selection.candidate import Candidate
from expost.selection.drop_law import run_counts
from expost.selection.plan import plan_levels
from expost.selection.random_dropping import RandomDropping
from expost.tuning.model.scoring import Margins
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.request.settings import Settings
from expost.tuning.runs.candidates import deviation_of, score_of, selection_cost
from expost.tuning.runs.run_attempts import (
    OverTheLimit,
    Step,
    priced_steps,
)

Level = Callable[[Candidate], float]
"""Names the privacy level of a candidate."""

_SHAPES = (-0.5, 0.0, 0.5, 1.0)
TYPICAL_SHARE = 0.1  # the share of settings for which times are announced


@dataclass(frozen=True, eq=False, repr=False)
class JobPlan:
    """What a job would cost and do; everything in it is public.

    ``left_out`` says what ``privacy.max_epsilon`` leaves of the levels and attempts; else empty.
    """

    steps: tuple[Step, ...]
    delta: float  # 0 under pure DP
    pace: Pace
    schedule: Schedule | None = None
    reach: tuple[ReachRow, ...] = ()
    margins: Margins | None = None
    margin: float = 0.0
    scoring_rows: int = 0
    warnings: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: str = ""
    tell: Step | None = None

    def __repr__(self) -> str:
        """Return the size and the price of the job in one line."""
        return (
            f"JobPlan(attempts={self.attempts}, candidates={len(self.candidates)}, "
            f"delta={self.delta:g}, worst_case={self.worst_case})"
        )

    @property
    def charges(self) -> Charges:
        """The charges of the first request."""
        return self.steps[0].charges

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates: those of the first request."""
        return self.steps[0].candidates

    @property
    def attempts(self) -> int:
        """How many requests the job may make."""
        return len(self.steps)

    @property
    def worst_case(self) -> ApproxDP:
        """The most that the job can cost: misses, then the worst outcome of the last request."""
        return self.in_epsilon_delta(worst_in_turn([request.charges for request in self.requests]))

    @property
    def requests(self) -> tuple[Step, ...]:
        """All requests: the attempts and, last, the score of a model that missed."""
        return self.steps if self.tell is None else (*self.steps, self.tell)

    @property
    def needed_to_start(self) -> ApproxDP:
        """What a budget must hold for the first request: its worst case, which is reserved."""
        return self.in_epsilon_delta(self.charges.worst_case)

    @property
    def all_missed(self) -> ApproxDP:
        """What the job costs if every request misses."""
        return self.in_epsilon_delta(composed([step.charges.nothing for step in self.steps]))

    @property
    def order(self) -> float | None:
        """The Rényi order at which charges are converted; None if they are in (ε, δ) or in ρ.

        It is the order at which the first level of DP-SGD costs least. It is fixed by public
        numbers: the order that suits an outcome best would depend on the outcome, and the
        conversion would not hold.
        """
        attempts = [step for step in self.steps if step.recipe is None]
        first = attempts[0].charges[0].as_renyi() if attempts else None
        if first is None:
            return None
        return min(first.orders, key=lambda order: first.on([order]).to_approx(self.delta).epsilon)

    def in_epsilon_delta(self, charge: Guarantee) -> ApproxDP:
        """Return a charge as (ε, δ); see :mod:`expost.certificates.document`."""
        looks = sum(len(step.candidates) for step in self.requests)
        return in_epsilon_delta(charge, self.delta, self.order, looks)

    def epsilon(self, charge: Guarantee) -> float:
        """Return the ε of a charge at the job's δ."""
        return self.in_epsilon_delta(charge).epsilon

    @property
    def expected_runs(self) -> float:
        """Runs expected if a tenth of the settings passes from the first level on; or in all."""
        rows = [row for row in self.reach if row.share == TYPICAL_SHARE]
        return rows[0].runs_mean if rows else self.steps[0].runs

    @property
    def seconds(self) -> float:
        """Expected time of training and scoring, for :attr:`expected_runs` runs."""
        return self.pace.seconds(self.expected_runs)

    def _repr_html_(self) -> str:
        """Return the forecast for a notebook."""
        from expost.html_tables import HtmlTable, Loss, html_summary

        facts = {
            "candidates": len(self.candidates),
            "attempts at most": self.attempts,
            "worst case": self.worst_case,
            "cheapest level, ε": Loss(self.epsilon(self.charges[0])),
            "expected trainings": self.expected_runs,
            "expected seconds": self.seconds,
        }
        columns = ["passing from level", "share that passes", "chance", "mean ε", "mean runs"]
        rows = [
            (row.level, row.share, row.p_pass, Loss(row.epsilon_mean), row.runs_mean)
            for row in self.reach
        ]
        tables = [HtmlTable("What to expect", columns, rows)] if rows else []
        return html_summary("JobPlan", facts, *tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast in plain JSON types."""
        record = {
            "candidates": len(self.candidates),
            "attempts": self.attempts,
            "expected_runs": self.expected_runs,
            "seconds": self.seconds,
            "seconds_per_run": self.pace.run,
            "delta": self.delta,
            "worst_case": {"epsilon": self.worst_case.epsilon, "delta": self.worst_case.delta},
            "needed_to_start": {
                "epsilon": self.needed_to_start.epsilon,
                "delta": self.needed_to_start.delta,
            },
            "cheapest": self.epsilon(self.charges[0]),
            "reasons": list(self.reasons),
            "left_out": self.left_out,
            "tell": None if self.tell is None else self.tell.candidates[0].params["tell"],
        }
        if self.schedule is not None:
            record["price_of_a_miss"] = [self.epsilon(step.charges.nothing) for step in self.steps]
            record["schedule"] = self.schedule.as_dict()
            record["margin"] = self.margin
            record["scoring_rows"] = self.scoring_rows
            record["scoring_rows_for_half_the_margin"] = 2 * self.scoring_rows
            record["reach"] = [row.as_dict() for row in self.reach]
        return record


def plan_search(
    settings: Settings,
    candidates: Sequence[Candidate],
    n: int,
    order: tuple[float, ...] | None,
    scoring_rows: int,
    pace: Pace,
    level: Level = level_of,
) -> JobPlan:
    """Plan a job; under pure DP its δ is 0. ``level`` names the privacy level of a candidate."""

    def planned(settings: Settings, keep: int | None = None) -> JobPlan:
        """Plan the levels and attempts of these settings, or keep the first attempts alone."""
        allowed = set(settings.search.epsilons)
        kept = [candidate for candidate in candidates if level(candidate) in allowed]
        if settings.goal.least_score is None:
            step = _maximising(settings, kept, n, order)
            return JobPlan((step,), settings.privacy.delta, pace)
        return _to_a_goal(settings, kept, order, pace, scoring_rows, keep, level)

    return _within_limit(settings, settings.privacy.max_epsilon, planned, level)


def _within_limit(
    settings: Settings, limit: float, planned: Callable[..., JobPlan], level_of: Level
) -> JobPlan:
    """Return the plan with most levels, then with most attempts, whose worst case fits.

    Levels are left out from the highest one on, until at least two attempts fit. If only one level
    is left, a plan may also be cut off after the attempts that fit.
    """
    levels = settings.search.epsilons
    count = max(1, sum(level <= limit for level in levels))
    while True:
        fewer = replace(settings, search=replace(settings.search, epsilons=levels[:count]))
        smaller = planned(fewer)
        wanted = 1 if count == 1 else min(2, smaller.attempts)
        number, plan_of = _fitting(smaller, limit), smaller
        while number >= wanted:
            if number < smaller.attempts:
                privacy = replace(fewer.privacy, attempts=number)
                plan_of = planned(replace(fewer, privacy=privacy))
            if plan_of.worst_case.epsilon <= limit:
                dropped = count < len(levels) or number < smaller.attempts
                attempts = "one attempt" if number == 1 else f"at most {number} attempts"
                text = f"levels up to ε = {levels[count - 1]:g}, {attempts}"
                return replace(plan_of, left_out=text if dropped else "")
            # Fewer attempts share δ anew, which changes every charge: look again.
            number = min(number - 1, _fitting(plan_of, limit))
        if count == 1:
            break
        # A level whose winner alone costs too much does not fit with fewer levels or attempts.
        charges, candidates = smaller.charges, smaller.candidates
        fits = [smaller.epsilon(charge) <= limit for charge in charges.levels]
        fitting = {
            level_of(candidate)
            for candidate, level in zip(candidates, charges.level_of, strict=True)
            if fits[level]
        }
        count = max(1, min(count - 1, len(fitting)))
    for number in range(_fitting(smaller, limit), 0, -1):
        plan_of = planned(fewer, number)
        if plan_of.worst_case.epsilon <= limit:
            text = f"only the level ε = {levels[0]:g}, and {number} of {smaller.attempts} attempts"
            return replace(plan_of, left_out=text)
    needed = charge_text(smaller.needed_to_start.epsilon, 3)
    raise OverTheLimit(
        "privacy.max_epsilon",
        limit,
        f"one attempt at the lowest level (ε = {levels[0]:g}) may cost {needed}; give at least "
        "that, or lower levels",
    )


def _fitting(job: JobPlan, limit: float) -> int:
    """Return how many of the first attempts fit into a limit together."""
    charges = [step.charges for step in job.steps]
    # Misses of the attempts before, then the worst outcome of this one: the order of a job.
    sums = (job.epsilon(worst_in_turn(charges[: number + 1])) for number in range(len(charges)))
    return sum(total <= limit for total in sums)


def _to_a_goal(
    settings: Settings,
    candidates: Sequence[Candidate],
    order: tuple[float, ...] | None,
    pace: Pace,
    scoring_rows: int,
    keep: int | None,
    level: Level,
) -> JobPlan:
    privacy, at_least = settings.privacy, settings.goal.least_score
    assert at_least is not None
    delta = privacy.delta or None
    ladder = ladder_of(candidates, settings.search.epsilons, privacy.delta or 1e-6, level)
    shares = privacy.expected_shares
    schedule = plan_attempts(
        ladder,
        delta=delta,
        belief=None if shares is None else Belief.of_shares(len(ladder.epsilons), shares),
        attempts=privacy.attempts,
    )
    schedule = schedule if keep is None else schedule.first(keep)
    steps = priced_steps(
        schedule,
        candidates,
        ladder.epsilons,
        at_least=at_least,
        delta=delta,
        order=order,
        level=level,
    )
    margins = Margins.of(settings.goal.confidence, schedule, [step.runs for step in steps])
    if settings.model.training == "dp-sgd":
        _check_reachable(settings, candidates, margins, scoring_rows)
    draft = JobPlan(tuple(steps), privacy.delta, pace)
    reach = reach_of(ladder, schedule, [_by_level(draft, step, ladder, level) for step in steps])
    return JobPlan(
        tuple(steps),
        privacy.delta,
        pace,
        schedule,
        tuple(reach),
        margins,
        _margin(margins, candidates[0], scoring_rows),
        scoring_rows,
    )


def _check_reachable(
    settings: Settings, candidates: Sequence[Candidate], margins: Margins, scoring_rows: int
) -> None:
    """Refuse a goal that not even a perfect model clears, because of the noise of its score."""
    goal = settings.goal
    assert goal.least_score is not None
    metric = goal.measure
    room = (metric.best if metric.larger_is_better else -metric.best) - goal.least_score
    distinct = {id(score_of(candidate)): candidate for candidate in candidates}.values()
    margin = min(_margin(margins, each, scoring_rows) for each in distinct)
    if margin <= room:
        return
    rows = math.ceil(scoring_rows * margin / room) if room > 0 else None
    more = "more scoring rows" if rows is None else f"at least {rows} scoring rows"
    raise InvalidInput(
        "at_least" if goal.larger_is_better else "at_most",
        goal.value,
        f"no model can pass: with {scoring_rows} scoring rows, a noisy score must exceed the "
        f"goal by {margin:.3g} even at the highest level, and the {goal.metric} is at "
        f"{'most' if metric.larger_is_better else 'least'} {metric.best:g}. Choose another goal, "
        f"higher levels (with a larger privacy.max_epsilon), a lower confidence, {more}, or "
        "declare the scoring rows public",
    )


def _margin(margins: Margins, candidate: Candidate, scoring_rows: int) -> float:
    """Return by how much a candidate's score must clear the goal in the first attempt."""
    score = score_of(candidate)
    deviation, unit = deviation_of(candidate, scoring_rows), score.unit / max(1, scoring_rows)
    return margins.margin(0, deviation, unit, law=score.law)


def ladder_of(
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    delta: float,
    level_of: Level = level_of,
) -> Ladder:
    """Return the levels with the guarantee of a typical (median) setting at each."""
    guarantees, copies = [], []
    for level in levels:
        members = [candidate for candidate in candidates if level_of(candidate) == level]
        members.sort(key=lambda each: selection_cost(each.guarantee, delta))
        guarantees.append(members[len(members) // 2].guarantee)
        copies.append(sum(member.repeats for member in members))
    return Ladder(tuple(levels), tuple(guarantees), tuple(copies))


def _by_level(job: JobPlan, step: Step, ladder: Ladder, level_of: Level) -> Any:
    """Return the mean charge of each level of an attempt and, last, of nothing."""
    totals: dict[float, list[float]] = {}
    for index, candidate in enumerate(step.candidates):
        totals.setdefault(level_of(candidate), []).append(job.epsilon(step.charges[index]))
    ordered = [float(np.mean(totals[level])) for level in ladder.epsilons if level in totals]
    return np.array([*ordered, job.epsilon(step.charges.nothing)])


def _maximising(
    settings: Settings, candidates: Sequence[Candidate], n: int, order: tuple[float, ...] | None
) -> Step:
    """Return the one request of a job without a goal."""
    fraction = settings.privacy.overhead
    if fraction is None:
        first = settings.search.settings[0]
        fraction = plan_levels(
            settings.search.epsilons,
            len(settings.search.settings),
            delta=settings.privacy.delta,
            repeats=settings.privacy.repeats,
            sampling_rate=first.batch_size / n,
            epochs=first.epochs,
        ).overhead
    claim: dict[str, Any] = {"delta": settings.privacy.delta or None}
    if order is not None:
        claim = {"order": order}
    selector = dropping(candidates, fraction, None, **claim)
    counts = run_counts(selector.drop_law(candidates))
    return Step(selector, tuple(candidates), selector.charges(candidates), counts.mean)


def dropping(
    candidates: Sequence[Candidate], fraction: float, at_least: float | None, **claim: Any
) -> RandomDropping:
    """Return random dropping whose overhead is a fraction of the first candidate's drop rate.

    ``claim`` is ``delta``, ``order`` or nothing.
    """
    law = RandomDropping(overhead=1, **claim).drop_law(candidates)  # its overhead is the step
    first = next(
        rate for group, rate in zip(law.groups, law.rates, strict=True) if 0 in group.members
    )
    return RandomDropping(
        overhead=float(first / law.overhead) * float(exact_positive(fraction, "overhead")),
        at_least=at_least,
        **claim,
    )


def comparison(job: JobPlan, candidate: Candidate) -> dict[str, float]:
    """Return what other methods would have charged (ε at the job's δ), for orientation.

    ``papernot_steinke``
        Their tuning over the whole grid with as many expected runs, at the best of four shapes:
        every winner pays for the largest level.
    ``papernot_steinke_level``
        The same over the winner's level alone, as if that had been known beforehand.
    ``naive_composition``
        Running every setting of the winner's level and of those below it.
    """
    below = [
        other for other in job.candidates if other.params["epsilon"] <= candidate.params["epsilon"]
    ]
    total = _curve(below[0]) * 0
    for other in below:
        total = total + _curve(other) * other.repeats
    highest = reduce(
        lambda a, b: a.at_worst(b),
        {id(candidate.guarantee): _curve(candidate) for candidate in job.candidates}.values(),
    )
    return {
        "papernot_steinke": _repeat_and_select(highest, job),
        "papernot_steinke_level": _repeat_and_select(_curve(candidate), job),
        "naive_composition": total.to_approx(job.delta).epsilon,
    }


def _curve(candidate: Candidate) -> RenyiDP:
    curve = candidate.guarantee.as_renyi()
    assert curve is not None
    return curve


def _repeat_and_select(guarantee: RenyiDP, job: JobPlan) -> float:
    laws = [
        TruncatedNegativeBinomial.with_mean(shape, max(job.expected_runs, 1.01))
        for shape in _SHAPES
    ]
    return min(law.renyi_charge(guarantee).to_approx(job.delta).epsilon for law in laws)
