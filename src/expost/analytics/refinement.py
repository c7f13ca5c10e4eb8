"""Which group is looked at next, how finely, and what all looks together cost.

Guarantee. Every user contributes to at most m groups and changes each group's value by at most the
sensitivity. Each group has its own noise-reduction path (``mechanisms.noise_paths``), so looking at
a group up to level n costs ε_n (or ρ_n) for a user of that group. For neighbouring tables that
differ in user u the densities of everything released differ by a product over u's groups only, at
most m of them. So the release is ex-post ε̃-DP with ε̃ = **the sum of the m largest group costs**,
and in zCDP the same sum of ρ_g never exceeds the total (a filter). Without a bound on the
groups per user, m is the number of groups. What is refined next, and when to stop, depends on
released values only. Sums are exact rationals.

Strategy. All groups are refined level by level up to a level that all can afford: total/m if m is
below the number of groups, else a fifth of the total in all. Groups that cannot reach the wanted
error with what is left are left where they are. What is left of the total then refines the groups
that are cheapest to finish, one at a time (``race``). With ``given`` the groups are refined one
after another, in their order. At the end every group is refined up to the level F of the m-th
most expensive group: the sum of the m largest does not change, so this is free.

Intervals of free looks. Let g be a group whose level at the end is not above that of m other
groups. Then F is the m-th largest level of the *other* groups. Suppose also that g changed no
refusal: whenever the total refused a look, m other groups were at the level of g or above, so that
leaving g out would not have lowered the charge. Then the other groups are refined in the same way
without g (a look that is granted would be granted without g too), and F is a function F′ of the
other groups' noise alone. It is independent of the noise of g, so P(g is such a group and its noise
at F exceeds h_F) ≤ P(noise of level F′ exceeds h_F′) ≤ 1 − confidence, with h the half-width of a
single look. Such groups are published at level F with half-width h_F, and are answered if that is
within the wanted error. Up to m other groups, and those that may have changed a refusal, are
published at the level where they stopped, or at F with the half-width that holds at all levels at
once, whichever is narrower.
Tests: ``tests/analytics/test_refinement.py`` (never overspends), ``test_refinement_law.py`` (law by
enumeration, mutants), ``test_free_looks.py`` (intervals of free looks).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics import refinement_goals as goals
from expost.analytics.refinement_goals import (
    GIVEN,
    LAWS,
    LEAST_COST,
    RACE,
    LevelOptions,
    Wanted,
)
from expost.analytics.refinement_noise import (
    ENOUGH,
    GroupPaths,
    NoiseLevels,
    StoppingRule,
    absolute_rule,
    geometric_grid,
    half_widths_at,
    make_rule,
    single_look,
)
from expost.errors import InvalidInput
from expost.randomness.source import Randomness
from expost.rationals import Number, round_down, round_up

COARSE_RATIO, FINE_RATIO = math.sqrt(2), 1.2
_LARGEST_FIRST = 10**6  # a group of this size stops at the first look, which then costs little
_FIRST_DEVIATION = 2000  # Gaussian noise up to this deviation is drawn fast
_FIRST_PART = 1000  # the first look at m groups costs at most the total over this
_LOOK_AT_ALL = Fraction(1, 5)  # of the total, where every group's cost adds to the charge
_PATIENCE = 10  # in the given order one group costs at most total/10 unless the caller says so
LEAST_PART = 0.1  # of the wanted error must be left after the bias of caps


@dataclass(frozen=True)
class Answer:
    """A released value: estimate, interval, and what the looks at this group cost."""

    group: Any
    estimate: float
    low: float
    high: float
    spent: float

    def as_dict(self) -> dict[str, Any]:
        """Return the answer with names for JSON."""
        group = list(self.group) if isinstance(self.group, tuple) else self.group
        return vars(self) | {"group": group}


@dataclass(frozen=True)
class Job:
    """The public settings of a refinement.

    ``most_groups`` is m, the number of groups that one user can be in. ``shared`` is the level
    that every group can afford.
    """

    levels: NoiseLevels
    rule: StoppingRule
    total: Fraction
    order: str
    most_groups: int
    shared: int
    answered: int | None = None
    top: int | None = None


def make_job(
    groups: int,
    wanted: Wanted,
    *,
    bias: float = 0.0,
    rule_of: Callable[[NoiseLevels], StoppingRule] | None = None,
    **options: Any,
) -> Job:
    """Choose levels and stop rule for this many groups; touches no data.

    ``options`` are :class:`LevelOptions`. ``rule_of`` makes another rule (means). ``bias``
    is the part of a value that caps are estimated to remove: it is taken off the wanted relative
    error. If nothing is left of that, no group can be answered, and none is looked at beyond the
    first level.
    """
    chosen = LevelOptions(**options)
    levels, shared, most = make_levels(groups, wanted, chosen)
    total, order = chosen.total, chosen.order
    if wanted.top is not None:
        rule = goals.top_rule(levels, wanted.confidence, wanted.signed)
        return Job(levels, rule, total, order, most, shared, top=wanted.top)
    if rule_of is not None:
        return Job(levels, rule_of(levels), total, order, most, shared, wanted.answered)
    if wanted.within is None:
        return Job(levels, absolute_rule(levels, wanted.confidence), total, GIVEN, most, 0)
    hopeless = wanted.within - bias < LEAST_PART * wanted.within
    error = wanted.within if hopeless else wanted.within - bias
    if wanted.answered and goals.one_level_for_all(wanted, groups, most):
        rule = goals.single_rule(levels, error, wanted.confidence, wanted.signed)
    else:
        kind: Any = {"signed": wanted.signed, "shared": shared, "draft": wanted.draft}
        rule = make_rule(levels, error, wanted.confidence, wanted.rule, **kind)
    if hopeless:
        never = np.full(len(levels.costs), math.inf)
        rule = replace(rule, name="never", within=0.0, least=never)
    return Job(levels, rule, total, order, most, shared, wanted.answered)


def make_levels(groups: int, wanted: Wanted, options: LevelOptions) -> tuple[NoiseLevels, int, int]:
    """Return the levels, the one that every group can afford, and m; refuse what does not fit."""
    law, total, sensitivity = options.law, options.total, options.sensitivity
    most_groups, order, max_group = options.most_groups, options.order, options.max_group
    if order not in (GIVEN, RACE):
        raise InvalidInput("group_order", order, "give 'given' or 'race'")
    most = max(1, min(groups, groups if most_groups is None else most_groups))
    last = total if order == RACE else total / _PATIENCE
    last = min(total, last if max_group is None else max_group)
    last = min(last, Fraction(ENOUGH * sensitivity ** (1 if law == "laplace" else 2)))
    least = LEAST_COST[law] * (sensitivity if law == "laplace" else sensitivity**2)
    if last < least:
        field = "epsilon" if max_group is None else "max_group_epsilon"
        raise InvalidInput(field, float(last), f"too little for any noise: give ≥ {float(least):g}")
    if wanted.plus_minus is None and least * most > total:
        raise InvalidInput(
            "epsilon",
            float(total),
            f"the first look at {most} groups would cost {float(least * most):.3g}: give a larger "
            "epsilon, a coarser grid, or fewer groups (per user)",
        )
    if wanted.plus_minus is not None:
        levels = _absolute_levels(law, wanted, sensitivity, options.path)
        if levels.costs[0] > total:
            raise InvalidInput(
                "plus_minus",
                float(wanted.plus_minus),
                f"one group alone would cost {levels.costs[0]:.3g} of {float(total):.3g}: "
                "allow a larger error or a larger epsilon",
            )
        return levels, 0, most
    assert wanted.within is not None
    shared = min(last, max(least, total / most * (_LOOK_AT_ALL if most == groups else 1)))
    if options.path is not None:  # a path that is continued has its levels
        costs = tuple(cost for cost in options.path if cost <= last) or options.path[:1]
        level = int(np.searchsorted(costs, round_down(shared), side="right")) - 1
        return LAWS[law](costs, sensitivity), max(0, level), most
    first = min(shared, max(least, _first_cost(law, wanted, sensitivity, total / most)))
    one_level = wanted.answered and goals.one_level_for_all(wanted, groups, most)
    if wanted.top is not None or one_level:
        top, normal = wanted.top is not None, law == "gaussian"
        drawn = bool(wanted.top and goals.draws_list(wanted.top, groups, most, law))
        share = total / (most + goals.TEST_PART if top else most)
        if drawn:
            share = total * (1 - goals.LIST_PART) / min(most, wanted.top or most)
        costs = goals.goal_levels(least, min(last, share), top=top, drawn=drawn, gaussian=normal)
        return LAWS[law](costs, sensitivity), len(costs) - 1, most
    if options.ratio is None:
        steps = spaced_ladder if options.spaced else ladder
        costs = steps(round_down(first), round_down(shared), round_down(last))
    else:
        costs = geometric_grid(round_down(first), round_down(last), options.ratio)
    level = int(np.searchsorted(costs, round_down(shared), side="right")) - 1
    return LAWS[law](costs, sensitivity), level, most


def ladder(first: Number, shared: Number, last: Number) -> tuple[float, ...]:
    """Return the default levels: ``shared`` is what every group can afford, ``last`` what one can.

    Next to ``shared`` come shared/1.08, shared/1.5 and shared·1.44; further away the ratio is 1.2,
    and √2 where a look costs less than an eighth of ``shared``. Looks at other places near
    ``shared`` would make its intervals wider (found by trial; any levels are valid).
    """
    low, middle, high = float(first), min(float(shared), float(last)), float(last)
    start = min(middle / 1.5, max(low, middle / 8))
    levels = [
        middle / 1.08,
        middle,
        *geometric_grid(low, max(low, start), COARSE_RATIO),
        *geometric_grid(start, middle / 1.5, FINE_RATIO),
        *geometric_grid(min(high, middle * 1.44), high, FINE_RATIO),
    ]
    return tuple(sorted({cost for cost in levels if low <= cost <= high}))


def spaced_ladder(first: Number, shared: Number, last: Number) -> tuple[float, ...]:
    """Return levels of ratio √2 around ``shared``, for means: few of them can be where one stops.

    The fewer levels a group may stop at, the less its interval is widened for the choice.
    """
    low, middle, high = float(first), min(float(shared), float(last)), float(last)
    below = [middle]
    while below[-1] / COARSE_RATIO >= low:
        below.append(below[-1] / COARSE_RATIO)
    above = [middle * COARSE_RATIO]
    while above[-1] < high / FINE_RATIO:
        above.append(above[-1] * COARSE_RATIO)
    near = [level for level in above if level < high / FINE_RATIO]
    return tuple(sorted({*below, *near, high} if high > middle * FINE_RATIO else set(below)))


def _first_cost(law: str, wanted: Wanted, sensitivity: int, share: Fraction) -> Fraction:
    """A first look at next to no cost: large groups stop there, others lose nothing."""
    width = Fraction(max(1e-9, min(1.0, wanted.within or 1.0)))
    costs = {
        "laplace": Fraction(5, 2) / (width * _LARGEST_FIRST),
        "gaussian": Fraction(sensitivity**2, 2 * _FIRST_DEVIATION**2),
    }
    return min(costs[law], share / _FIRST_PART)


def _absolute_levels(
    law: str, wanted: Wanted, sensitivity: int, path: tuple[float, ...] | None = None
) -> NoiseLevels:
    """The one level whose half-width is the wanted absolute error: the cheapest, by bisection.

    Of a ``path`` that is continued the cheapest step whose half-width is small enough.
    """
    assert wanted.plus_minus is not None
    target, miss = float(wanted.plus_minus), np.array([1 - wanted.confidence])
    for cost in path or ():
        if half_widths_at(LAWS[law]((cost,), sensitivity), miss)[0] <= target:
            return LAWS[law]((cost,), sensitivity)
    if path is not None:
        raise InvalidInput("plus_minus", target, "the path that is continued ends before")
    low, high = -60.0, 60.0  # of log₂ of the cost
    for _ in range(200):
        middle = (low + high) / 2
        width = half_widths_at(LAWS[law]((2.0**middle,), sensitivity), miss)[0]
        low, high = (low, middle) if width <= target else (middle, high)
    if high >= 59:
        raise InvalidInput("plus_minus", target, "no noise is that small: allow a larger error")
    return LAWS[law]((round_up(Fraction(2.0**high)),), sensitivity)


class Charge:
    """The running charge of a job: the sum of the m largest group costs, exactly.

    Costs are floats, that is dyadic rationals: sums are made in integers of their common unit.
    """

    def __init__(
        self,
        costs: Sequence[float],
        groups: int,
        most_groups: int,
        path: GroupPaths | None = None,
    ) -> None:
        self.steps = tuple(costs) if path is None else path.costs  # all that may be paid
        exact = [Fraction(cost) for cost in self.steps]
        self._unit = math.lcm(*(cost.denominator for cost in exact))
        self._costs = [int(cost * self._unit) for cost in exact]
        self._most, self._all = most_groups, most_groups >= groups
        self.level = np.full(groups, -1)
        self._step_of = np.searchsorted(self.steps, costs)  # of each level
        self.paid = np.full(groups, -1) if path is None else path.paid.copy()  # steps
        self._at = [int((self.paid == step).sum()) for step in range(len(self.steps))]
        self._sum = self._largest(self._at)

    @property
    def spent(self) -> Fraction:
        """The charge of all looks so far."""
        return Fraction(self._sum, self._unit)

    def after(self, group: int, level: int) -> Fraction:
        """Return what the charge would be if ``group`` were looked at up to ``level``."""
        previous = int(self.paid[group])
        step = max(previous, int(self._step_of[level]))
        if self._all:
            old = self._costs[previous] if previous >= 0 else 0
            return Fraction(self._sum + self._costs[step] - old, self._unit)
        at = list(self._at)
        if previous >= 0:
            at[previous] -= 1
        at[step] += 1
        return Fraction(self._largest(at), self._unit)

    def at_most(self, level: int) -> Fraction:
        """Return the charge if all groups were looked at up to ``level``: no sum is larger."""
        step = int(self._step_of[level])
        above = self._at[step + 1 :]
        at = [0] * step + [len(self.paid) - sum(above)] + above
        return Fraction(self._largest(at), self._unit)

    @property
    def free_level(self) -> int:
        """The level of the m-th most expensive group, −1 if fewer than m groups were looked at."""
        return self._level_of(self._most)

    @property
    def outweighed(self) -> int:
        """The highest level at which a group adds nothing: m others are there or above."""
        return self._level_of(self._most + 1)

    def _level_of(self, rank: int) -> int:
        """The level of the most expensive group but ``rank`` − 1, −1 if it was not looked at."""
        for step in range(len(self._at) - 1, -1, -1):
            rank -= self._at[step]
            if rank <= 0:
                return int(self.level_at(step))
        return -1

    def level_at(self, step: Any) -> Any:
        """The highest level that is paid if this step of the path is."""
        return np.searchsorted(self._step_of, step, side="right") - 1

    def pay(self, groups: npt.NDArray[np.int64], level: int) -> None:
        """Record looks at ``groups`` up to ``level``."""
        self.level[groups] = level
        step = int(self._step_of[level])
        more = groups[self.paid[groups] < step]
        for previous, count in zip(*np.unique(self.paid[more], return_counts=True), strict=True):
            if previous >= 0:
                self._at[previous] -= int(count)
        self._at[step] += len(more)
        self.paid[more] = step
        self._sum = self._largest(self._at)

    def _largest(self, at: Sequence[int]) -> int:
        """The sum of the m largest: from the finest level down until m groups are counted."""
        total, left = 0, self._most
        for cost, count in zip(reversed(self._costs), reversed(at), strict=True):
            taken = min(left, count)
            total += taken * cost
            left -= taken
            if not left:
                break
        return total


class Refinement:
    """A running job: iterate over it to get answers as they are released.

    Afterwards ``unanswered`` and ``spent`` are final. ``values`` are integers in grid units.
    """

    def __init__(
        self,
        job: Job,
        groups: Sequence[Any],
        values: npt.NDArray[np.int64],
        randomness: Randomness,
        path: GroupPaths | None = None,
    ) -> None:
        self.job, self.groups, self._path = job, groups, path
        costs = job.levels.costs
        if path is None:
            self._estimates = job.levels.estimates(values, randomness)
        else:
            self._estimates = path.at(path.noisy, costs)
        self._charge = Charge(costs, len(groups), job.most_groups, path)
        self._before = self._charge.spent  # by earlier questions on the same path
        self._stopped: dict[int, int] = {}  # group → the level at which it was good enough
        self._answered: dict[int, None] = {}  # in order
        self._free = np.zeros(len(groups), dtype=bool)  # published by the looks of the others
        self._refused = False
        self._weighed = np.zeros(len(groups), dtype=bool)  # may have changed a refusal
        if self._before:  # which level is the last one may depend on earlier looks
            self._weighed[:] = True
        self._single, self._single_least = single_look(job.levels, job.rule)
        self._values, self._randomness = values, randomness  # for the tests of top lists
        self._tests: goals.ListTests | None = None
        self._drawn: Fraction | None = None  # what a list that was drawn has cost
        if job.top is not None:
            self._tests = goals.ListTests(job.levels, job.rule, job.most_groups)

    def __iter__(self) -> Iterator[Answer]:
        for group in self._walk():
            self._stopped[group] = int(self._charge.level[group])
        if self._charge.free_level >= 0:
            self._free = (self._charge.level <= self._charge.outweighed) & ~self._weighed
        for group in self._free_looks():
            self._stopped[group] = int(self._charge.level[group])
        free = np.flatnonzero(self._free)
        good = dict.fromkeys(free[self._good_alone(self._charge.free_level, free)].tolist())
        self._answered = {
            group: None for group in self._stopped if group in good or not self._free[group]
        } | good
        yield from (self._answer(group) for group in self._answered)

    @property
    def spent(self) -> Fraction:
        """What has been bought so far, exactly: the sum of the m largest, and tests of lists.

        On a path that is continued: what the sum has grown by.
        """
        return self._charge.spent - self._before + self.tested

    @property
    def tested(self) -> Fraction:
        """What a list cost so far: its draw, or its tests."""
        tests = Fraction(0) if self._tests is None else self._tests.spent
        return tests + (self._drawn or 0)

    @property
    def remaining(self) -> Fraction:
        """What is left of the total."""
        return self.job.total - self._before - self.spent

    @property
    def path(self) -> GroupPaths | None:
        """The path with what is paid now, to be kept for later questions."""
        return self._path and replace(self._path, paid=self._charge.paid.copy())

    @property
    def unanswered(self) -> list[Answer]:
        """The other groups at their last level."""
        others = (group for group in range(len(self.groups)) if group not in self._answered)
        return [self._answer(group) for group in others]

    def _walk(self) -> Iterator[int]:
        """Every group that becomes good enough, at the moment when it does."""
        if self.job.top is not None:
            job, size, groups = self.job, self.job.top, len(self.groups)
            drawn = goals.draws_list(size, groups, job.most_groups, job.levels.law)
            yield from self._drawn_top(size) if drawn else self._until_top(size)
        elif self.job.rule.name == goals.SINGLE:
            self._until_answered(self.job.answered or 1)
        else:
            yield from self._counted(self._in_order() if self.job.order == GIVEN else self._all())

    def _all(self) -> Iterator[int]:
        yield from self._sweep()
        yield from self._race()

    def _counted(self, walk: Iterator[int]) -> Iterator[int]:
        """The groups of a walk, which ends when as many as are wanted are answered."""
        if self.job.answered is None:
            yield from walk
            return
        self._weighed[:] = True  # any group may decide when the walk ends
        for number, group in enumerate(walk, start=1):
            yield group
            if number >= self.job.answered:
                return

    def _look_at_all(self) -> Iterator[int]:
        """Look at all groups, level by level, as far as the total allows."""
        everybody = np.arange(len(self.groups))
        for level in range(len(self.job.levels.costs)):
            if not len(everybody):
                return
            if self._charge.at_most(level) + self.tested > self.job.total:
                return
            self._charge.pay(everybody, level)
            yield level

    def _until_answered(self, wanted: int) -> None:
        """Stop at the first level at which one group more than wanted passes (``goals``)."""
        everybody = np.arange(len(self.groups))
        enough, passed = min(wanted + 1, len(everybody)), []
        for level in self._look_at_all():
            passed.append(np.asarray(self._good_alone(level, everybody)))
            if passed[-1].sum() >= enough:
                break
        self._weighed |= goals.late_groups(passed, enough)

    def _until_top(self, size: int) -> Iterator[int]:
        """Stop when a list of the largest groups has passed a test (``goals``)."""
        assert self._tests is not None
        self._weighed[:] = True
        for level in self._look_at_all():
            estimates = self._estimates[level]
            order = np.argsort(-estimates, kind="stable")
            listed = frozenset(order[:size].tolist())
            gap = float(estimates[order[size - 1]] - estimates[order[size]])
            cost = self._tests.cost(listed, gap, level, self.remaining)
            if cost and self._tests.passes(listed, self._values, cost, self._randomness):
                yield from (int(group) for group in order[:size])
                return

    def _drawn_top(self, size: int) -> Iterator[int]:
        """Draw a list, and look at its groups once (all groups if there is none) (``goals``)."""
        job, levels = self.job, self.job.levels
        limit = job.total * goals.LIST_PART
        drawn = goals.draw_list(self._values, size, levels, job.rule, limit, self._randomness)
        self._drawn = drawn[1]
        looked = np.array(range(len(self.groups)) if drawn[0] is None else drawn[0])
        share = goals.VALUE_PART * drawn[1] / min(len(looked), job.most_groups)
        if drawn[0] is None and share < Fraction(levels.costs[0]):
            return  # looks at so many groups would cost more than the total
        level = max(0, int(np.searchsorted(levels.costs, round_down(share), side="right")) - 1)
        self._charge.pay(looked, level)
        self._weighed[looked] = True
        for group in sorted(looked, key=lambda group: -self._estimates[level, group]):
            if drawn[0] is not None:
                yield int(group)

    def _answer(self, group: int) -> Answer:
        level, rule, cost = int(self._charge.level[group]), self.job.rule, self._cost(group)
        if level < 0:
            return Answer(self.groups[group], math.nan, -math.inf, math.inf, cost)
        alone = self._free[group] or self._drawn is not None
        width = float((self._single if alone else rule.open_half_widths)[level])
        stopped = None if self._free[group] else self._stopped.get(group)
        if stopped is not None and rule.half_widths[stopped] <= width:
            level, width = stopped, float(rule.half_widths[stopped])
        estimate = float(self._estimates[level, group])
        return Answer(self.groups[group], estimate, estimate - width, estimate + width, cost)

    def _cost(self, group: int) -> float:
        """What the looks at a group cost so far, those of earlier questions included."""
        paid = int(self._charge.paid[group])
        return self._charge.steps[paid] if paid >= 0 else 0.0

    def _size(self, level: int, group: Any) -> Any:
        """The estimate as the stop rule sees it: its size if values may be negative."""
        estimate = self._estimates[level, group]
        return np.abs(estimate) if self.job.rule.signed else estimate

    def _good(self, level: int, group: Any) -> Any:
        """Whether estimates at this level are good enough."""
        return self._size(level, group) >= self.job.rule.least[level]

    def _good_alone(self, level: int, group: Any) -> Any:
        """Whether estimates are good enough where this look is the only one that matters."""
        return self._size(level, group) >= self._single_least[level]

    def _reachable(self, level: int, group: Any, wanted: int) -> Any:
        """Whether the upper end of the interval at ``level`` would stop at level ``wanted``."""
        upper = self._size(level, group) + self.job.rule.open_half_widths[level]
        return upper >= self.job.rule.least[wanted]

    def _enough(self, level: int, group: int) -> int:
        """The level at which the group would stop if its estimate were exact."""
        return int(np.searchsorted(-self.job.rule.least, -float(self._size(level, group))))

    def _refine(self, group: int) -> bool:
        """Look at the next level of a group, if there is one and the total pays for it."""
        level = int(self._charge.level[group]) + 1
        if level >= len(self.job.levels.costs):
            return False
        if self._refuses(group, level):
            return False
        self._charge.pay(np.array([group]), level)
        if self._refused and level > self._charge.outweighed:
            self._weighed[group] = True
        return True

    def _refuses(self, group: int, level: int) -> bool:
        """Whether the total cannot pay for this look; notes the groups that may matter for it.

        Levels only grow, so after the first refusal a group can start to matter only when it is
        refined itself.
        """
        if self._charge.after(group, level) <= self.job.total:
            return False
        if not self._refused:
            self._refused = True
            self._weighed |= self._charge.level > self._charge.outweighed
        return True

    def _sweep(self) -> Iterator[int]:
        """All groups that can still get there, level by level, up to the shared level."""
        running = np.arange(len(self.groups))
        all_count = self.job.most_groups >= len(self.groups)
        wanted = len(self.job.levels.costs) - 1 if all_count else self.job.shared
        for level in range(self.job.shared + 1):
            if not len(running) or self._charge.at_most(level) > self.job.total:
                return
            self._charge.pay(running, level)
            good = self._good(level, running)
            yield from (int(group) for group in running[good])
            running = running[~good]
            running = running[self._reachable(level, running, wanted)]

    def _free_looks(self) -> Iterator[int]:
        """All groups up to the level of the m-th most expensive one, which changes no charge.

        Yields groups that become good enough on the way, unless they are published by their last
        look alone.
        """
        finest = self._charge.free_level
        self._charge.pay(np.flatnonzero(self._free & (self._charge.level < finest)), finest)
        before = self._charge.level_at(self._charge.paid)  # also what earlier questions paid
        last = np.maximum(finest, before)
        for level in range(int(last.max(initial=-1)) + 1):
            behind = np.flatnonzero((self._charge.level < level) & (last >= level))
            self._charge.pay(behind, level)
            open_ones = np.array([g for g in behind if g not in self._stopped], dtype=np.int64)
            good = self._good(level, open_ones)
            yield from (int(group) for group in open_ones[good])

    def _race(self) -> Iterator[int]:
        """Refine the group that is cheapest to finish, as far as the total allows."""
        looked = np.flatnonzero(self._charge.level >= 0).tolist()
        others = (group for group in looked if group not in self._stopped)
        waiting = [(self._need(group), group) for group in others]
        heapq.heapify(waiting)
        while waiting:
            cost, group = heapq.heappop(waiting)
            if self._good(int(self._charge.level[group]), group):
                yield group
            elif math.isfinite(cost) and self._refine(group):
                heapq.heappush(waiting, (self._need(group), group))

    def _need(self, group: int) -> float:
        """What the estimate says is still to be paid; infinite if the total cannot pay it."""
        level, costs = int(self._charge.level[group]), self.job.levels.costs
        enough = max(level, self._enough(level, group))
        if enough >= len(costs) or self._refuses(group, enough):
            return math.inf
        return costs[enough] - costs[level]

    def _in_order(self) -> Iterator[int]:
        """One group after another, each until it is good, hopeless, or unaffordable."""
        last = len(self.job.levels.costs) - 1
        for group in range(len(self.groups)):
            while self._refine(group):
                level = int(self._charge.level[group])
                if self._good(level, group):
                    yield group
                    break
                if not self._reachable(level, group, last):
                    break
