"""What a job would cost and reach, before anything runs. No private row is read.

With a bar: the planned attempts, their charges, and what to expect (:mod:`.attempts`). Without a
bar: one request of Algorithm 3 with a recommended overhead. Charges are the selectors' own; chances
and times are for orientation. Times come from the rehearsal (:mod:`expost.tuning.rehearsal`).

Tests: ``tests/tuning/test_forecast.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP
from expost.rationals import charge_text, exact_positive
from expost.selection.attempts import Belief, Ladder, ReachRow, Schedule, plan_attempts, reach_of
from expost.selection.attempts.schedule import level_of
from expost.selection.candidate import Candidate
from expost.selection.plan import plan
from expost.selection.random_dropping import RandomDropping
from expost.selection.repeat_and_select import TruncatedNegativeBinomial
from expost.selection.run_counts import run_counts
from expost.tuning.candidates import TrainAndScore, deviation_of, selection_cost
from expost.tuning.confidence import Margins
from expost.tuning.pace import Pace
from expost.tuning.run_attempts import OverTheLimit, Step, steps_of
from expost.tuning.settings import Settings

_SHAPES = (-0.5, 0.0, 0.5, 1.0)
_TYPICAL_SHARE = 0.1  # the share of settings for which times are announced


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """What a job would cost and do; everything in it is public.

    Parameters
    ----------
    steps : tuple of Step
        The requests, in the order in which they are made.
    delta : float
        The job's total δ.
    pace : Pace
        How long runs take, measured by :mod:`expost.tuning.rehearsal`.
    schedule : Schedule or None
        The planned attempts; None without a bar.
    reach : tuple of ReachRow
        What to expect, level by level; empty without a bar.
    margins : Margins or None
        By how much a score must clear the bar; None without a bar.
    margin : float
        The margin of the first candidate in the first attempt, in the metric's unit.
    scoring_rows : int
        Number of rows that score.
    warnings : tuple of str
        What is weak about the guarantee.
    reasons : tuple of str
        Why the requests are made in this order, if several ways of training compete.
    left_out : str
        What ``privacy.max_epsilon`` leaves out; empty if nothing.
    """

    steps: tuple[Step, ...]
    delta: float
    pace: Pace
    schedule: Schedule | None = None
    reach: tuple[ReachRow, ...] = ()
    margins: Margins | None = None
    margin: float = 0.0
    scoring_rows: int = 0
    warnings: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: str = ""

    def __repr__(self) -> str:
        """Return the size and the price of the job in one line."""
        return (
            f"Forecast(attempts={self.attempts}, candidates={len(self.candidates)}, "
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
        """The most that all requests together could cost."""
        return self.in_epsilon_delta(composed([each.charges.worst_case for each in self.steps]))

    @property
    def needed_to_start(self) -> ApproxDP:
        """What a budget must hold for the first request: its worst case, which is reserved."""
        return self.in_epsilon_delta(self.charges.worst_case)

    @property
    def all_missed(self) -> ApproxDP:
        """What the job costs if every request misses."""
        return self.in_epsilon_delta(composed([each.charges.nothing for each in self.steps]))

    @property
    def order(self) -> float | None:
        """The Rényi order at which charges are converted; None if they are (ε, δ) already.

        It is the order at which the first level costs least. It is fixed by public numbers: the
        order that suits an outcome best would depend on the outcome, and the conversion would not
        hold.
        """
        first = self.charges[0].as_renyi()
        if first is None:
            return None
        return min(first.orders, key=lambda order: first.on([order]).to_approx(self.delta).epsilon)

    def in_epsilon_delta(self, charge: Guarantee) -> ApproxDP:
        """Return a charge as (ε, δ); a Rényi charge is converted at the job's order."""
        pair = charge.as_approx()
        if pair is not None:
            return pair
        curve = charge.as_renyi()
        assert curve is not None
        assert self.order is not None
        return curve.on([self.order]).to_approx(self.delta)

    def epsilon(self, charge: Guarantee) -> float:
        """Return the ε of a charge at the job's δ."""
        return self.in_epsilon_delta(charge).epsilon

    @property
    def expected_runs(self) -> float:
        """Runs expected if a tenth of the settings passes from the first level on; or in all."""
        rows = [each for each in self.reach if each.share == _TYPICAL_SHARE]
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
            (each.level, each.share, each.p_pass, Loss(each.epsilon_mean), each.runs_mean)
            for each in self.reach
        ]
        tables = [HtmlTable("What to expect", columns, rows)] if rows else []
        return html_summary("Forecast", facts, *tables)

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
        }
        if self.schedule is not None:
            record["price_of_a_miss"] = [self.epsilon(each.charges.nothing) for each in self.steps]
            record["schedule"] = self.schedule.as_dict()
            record["margin"] = self.margin
            record["scoring_rows"] = self.scoring_rows
            record["scoring_rows_for_half_the_margin"] = 2 * self.scoring_rows
            record["reach"] = [each.as_dict() for each in self.reach]
        return record


def forecast(
    settings: Settings,
    candidates: Sequence[Candidate],
    n: int,
    order: tuple[float, ...] | None,
    scoring_rows: int,
    pace: Pace,
) -> Forecast:
    """Plan a job.

    Parameters
    ----------
    settings, candidates
        What is asked.
    n : int
        Number of training rows.
    order : tuple of float or None
        Rényi orders to charge at, for budgets that ask for them.
    scoring_rows : int
        Number of rows that score.
    pace : Pace
        How long runs take.
    """

    def planned(settings: Settings) -> Forecast:
        """Plan the levels and attempts of these settings."""
        allowed = set(settings.search.epsilons)
        kept = [each for each in candidates if each.params["epsilon"] in allowed]
        if settings.goal.target is None:
            step = _maximising(settings, kept, n, order)
            return Forecast((step,), settings.privacy.delta, pace)
        return _to_a_bar(settings, kept, order, pace, scoring_rows)

    if settings.privacy.max_epsilon is None:
        return planned(settings)
    return _within_limit(settings, settings.privacy.max_epsilon, planned)


def _within_limit(
    settings: Settings, limit: float, planned: Callable[[Settings], Forecast]
) -> Forecast:
    """Return the plan with most levels, then with most attempts, whose worst case fits.

    Levels are left out from the highest one on, until at least two attempts fit, or one if there
    is only one level left.
    """
    levels = settings.search.epsilons
    made = None
    for count in range(max(1, sum(level <= limit for level in levels)), 0, -1):
        fewer = replace(settings, search=replace(settings.search, epsilons=levels[:count]))
        made = planned(fewer)
        wanted = 1 if count == 1 else min(2, made.attempts)
        for number in range(_fitting(made, limit), wanted - 1, -1):
            plan_of = made
            if number < made.attempts:
                privacy = replace(fewer.privacy, attempts=number)
                plan_of = planned(replace(fewer, privacy=privacy))
            if plan_of.worst_case.epsilon <= limit:
                dropped = count < len(levels) or number < made.attempts
                text = (
                    f"To cost at most privacy.max_epsilon = {limit:g}: levels up to ε = "
                    f"{levels[count - 1]:g}, at most {plan_of.attempts} attempts."
                )
                return replace(plan_of, left_out=text if dropped else "")
    assert made is not None
    needed = charge_text(made.needed_to_start.epsilon, 3)
    raise OverTheLimit(
        "privacy.max_epsilon",
        limit,
        f"one attempt at the lowest level (ε = {levels[0]:g}) may cost {needed}; give at least "
        "that, or lower levels",
    )


def _fitting(job: Forecast, limit: float) -> int:
    """Return how many of the first attempts fit into a limit together."""
    worst = [each.charges.worst_case for each in job.steps]
    sums = (job.epsilon(composed(worst[: number + 1])) for number in range(len(worst)))
    return sum(total <= limit for total in sums)


def _to_a_bar(
    settings: Settings,
    candidates: Sequence[Candidate],
    order: tuple[float, ...] | None,
    pace: Pace,
    scoring_rows: int,
) -> Forecast:
    privacy, target = settings.privacy, settings.goal.target
    assert target is not None
    ladder = ladder_of(candidates, settings.search.epsilons, privacy.delta)
    shares = privacy.expected_shares
    schedule = plan_attempts(
        ladder,
        delta=privacy.delta,
        belief=None if shares is None else Belief.of_shares(len(ladder.epsilons), shares),
        attempts=privacy.attempts,
    )
    steps = steps_of(
        schedule,
        candidates,
        ladder.epsilons,
        target=target,
        delta=privacy.delta,
        order=order,
    )
    margins = Margins.of(settings.goal.confidence, schedule, [each.runs for each in steps])
    if settings.model.training == "dp-sgd":
        _check_reachable(settings, candidates, margins, scoring_rows)
    made = Forecast(tuple(steps), privacy.delta, pace)
    reach = reach_of(ladder, schedule, [_by_level(made, each, ladder) for each in steps])
    first = candidates[0].mechanism
    assert isinstance(first, TrainAndScore)
    deviation = deviation_of(candidates[0], scoring_rows)
    return Forecast(
        tuple(steps),
        privacy.delta,
        pace,
        schedule,
        tuple(reach),
        margins,
        margins.margin(0, deviation, first.score.unit / scoring_rows),
        scoring_rows,
    )


def _check_reachable(
    settings: Settings, candidates: Sequence[Candidate], margins: Margins, scoring_rows: int
) -> None:
    """Refuse a bar that not even a perfect model clears, because of the noise of its score."""
    goal = settings.goal
    assert goal.target is not None
    needed = []
    for each in {id(candidate.mechanism): candidate for candidate in candidates}.values():
        assert isinstance(each.mechanism, TrainAndScore)
        unit = each.mechanism.score.unit / scoring_rows
        needed.append(margins.margin(0, deviation_of(each, scoring_rows), unit))
    metric = goal.measure
    room = (metric.best if metric.larger_is_better else -metric.best) - goal.target
    margin = min(needed)
    if margin <= room:
        return
    rows = math.ceil(scoring_rows * margin / room) if room > 0 else None
    more = "more scoring rows" if rows is None else f"at least {rows} scoring rows"
    raise InvalidInput(
        "at_least" if goal.larger_is_better else "at_most",
        goal.bar,
        f"no model can pass: with {scoring_rows} scoring rows, a noisy score must clear the bar by "
        f"{margin:.3g} even at the highest level, and the {goal.metric} is at "
        f"{'most' if metric.larger_is_better else 'least'} {metric.best:g}. Choose another bar, "
        f"higher levels, a lower confidence, {more}, or declare the scoring rows public",
    )


def ladder_of(
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    delta: float,
    level_of: Callable[[Candidate], float] = level_of,
) -> Ladder:
    """Return the levels with the promise of a typical (median) setting at each."""
    promises, copies = [], []
    for level in levels:
        members = [each for each in candidates if level_of(each) == level]
        members.sort(key=lambda each: selection_cost(each.guarantee, delta))
        promises.append(members[len(members) // 2].guarantee)
        copies.append(sum(each.repeats for each in members))
    return Ladder(tuple(levels), tuple(promises), tuple(copies))


def _by_level(job: Forecast, step: Step, ladder: Ladder) -> Any:
    """Return the mean charge of each level of an attempt and, last, of nothing."""
    totals: dict[float, list[float]] = {}
    for place, candidate in enumerate(step.candidates):
        totals.setdefault(candidate.params["epsilon"], []).append(job.epsilon(step.charges[place]))
    ordered = [float(np.mean(totals[level])) for level in ladder.epsilons if level in totals]
    return np.array([*ordered, job.epsilon(step.charges.nothing)])


def _maximising(
    settings: Settings, candidates: Sequence[Candidate], n: int, order: tuple[float, ...] | None
) -> Step:
    """Return the one request of a job without a bar."""
    fraction = settings.privacy.overhead
    if fraction is None:
        first = settings.search.settings[0]
        fraction = plan(
            settings.search.epsilons,
            len(settings.search.settings),
            delta=settings.privacy.delta,
            repeats=settings.privacy.repeats,
            sampling_rate=first.batch_size / n,
            epochs=first.epochs,
        ).overhead
    claim: dict[str, Any] = {"delta": settings.privacy.delta} if order is None else {"order": order}
    selector = dropping(candidates, fraction, None, **claim)
    counts = run_counts(selector.drop_law(candidates))
    return Step(selector, tuple(candidates), selector.charges(candidates), counts.mean)


def dropping(
    candidates: Sequence[Candidate], fraction: float, target: float | None, **claim: Any
) -> RandomDropping:
    """Return random dropping whose overhead is a fraction of the first candidate's drop rate.

    ``claim`` is ``delta``, ``order`` or nothing.
    """
    law = RandomDropping(overhead=1, **claim).drop_law(candidates)  # its overhead is the step
    first = next(
        rate for each, rate in zip(law.groups, law.rates, strict=True) if 0 in each.members
    )
    return RandomDropping(
        overhead=float(first / law.overhead) * float(exact_positive(fraction, "overhead")),
        target=target,
        **claim,
    )


def composed(charges: Sequence[Guarantee]) -> Guarantee:
    """Return the charge of several requests: sums, exact and rounded up.

    Of ex-post (ε̃, δ) charges both numbers add up. The first attempt of a job is charged with the
    δ of all attempts that are allowed, so the sum over those that were made is the job's δ. Test:
    ``tests/tuning/test_attempts.py``.
    """
    total = charges[0]
    for charge in charges[1:]:
        total = total + charge
    return total


def comparison(job: Forecast, candidate: Candidate) -> dict[str, float]:
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
        each for each in job.candidates if each.params["epsilon"] <= candidate.params["epsilon"]
    ]
    total = _curve(below[0]) * 0
    for each in below:
        total = total + _curve(each) * each.repeats
    highest = reduce(
        lambda a, b: a.at_worst(b),
        {id(each.guarantee): _curve(each) for each in job.candidates}.values(),
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


def _repeat_and_select(promise: RenyiDP, job: Forecast) -> float:
    laws = [
        TruncatedNegativeBinomial.with_mean(shape, max(job.expected_runs, 1.01))
        for shape in _SHAPES
    ]
    return min(law.renyi_charge(promise).to_approx(job.delta).epsilon for law in laws)
