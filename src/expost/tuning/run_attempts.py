"""The attempts of a job: what each may run, what its outcomes cost, and how they are made.

With a bar a job is a sequence of Algorithm 2 attempts, each with its own draw and its own request
to the ledger, until one passes or the planned attempts are used up. A miss releases nothing and
pays the price of nothing. Without a bar a job is one request of Algorithm 3.

δ belongs to the job. The plan shares it among the attempts, and each attempt's charges are priced
at its own share; the whole δ is charged with the first attempt, because it is spent whether later
attempts are made or not. So ledger, certificate and screen show the same ε and the same δ at any
time. Composition: docs/theory.md, "Attempts in sequence" (``tests/theorems/test_attempts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import exp
from typing import Any, Protocol

from expost.errors import BudgetRefused, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.attempts import Schedule, candidates_of, level_of
from expost.selection.candidate import Candidate
from expost.selection.drop_law import log_keep_probability
from expost.selection.job_selectors import PlannedAttempt
from expost.selection.noise_path import PathSearch
from expost.selection.release import Release
from expost.selection.selector import Selector
from expost.tuning.confidence import Margins
from expost.tuning.job_folder import Journal
from expost.tuning.model import Recipe


@dataclass(frozen=True, eq=False)
class Step:
    """One request of a job: a selector, its candidates, and what its outcomes cost.

    ``recipe`` describes the released model if it is not the job's own, as after noise reduction,
    where outputs are compared with the bar by the selector itself.
    """

    selector: Selector
    candidates: tuple[Candidate, ...]
    charges: Charges
    runs: float
    recipe: Recipe | None = None


def priced_steps(
    schedule: Schedule,
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    *,
    at_least: float,
    delta: float | None,
    order: tuple[float, ...] | None = None,
    level: Callable[[Candidate], float] = level_of,
) -> list[Step]:
    """Return the requests of a schedule, priced; without ``delta`` and ``order``: pure DP."""
    steps = []
    pure = delta is None and order is None
    for number, attempt in enumerate(schedule.attempts):
        chosen = candidates_of(candidates, levels, attempt, pure=pure, level=level)
        plain = schedule.selector(number, at_least, delta=delta, order=order)
        settings = {field.name: getattr(plain, field.name) for field in fields(plain)}
        charged = None if pure or order is not None else delta if number == 0 else 0.0
        selector = PlannedAttempt(**settings, charged_delta=charged).remember(chosen)
        law = selector.drop_law(chosen)
        runs = sum(
            group.copies * exp(log_keep_probability(float(law.overhead), float(rate)))
            for group, rate in zip(law.groups, law.rates, strict=True)
        )
        steps.append(Step(selector, tuple(chosen), selector.charges(chosen), runs))
    return steps


class OverTheLimit(InvalidInput):
    """Not even one attempt at the lowest level fits into ``privacy.max_epsilon``."""


class Scored(Protocol):
    """An output with a score and the law of its noise; :class:`.candidates.Fitted` is one."""

    @property
    def score(self) -> float: ...

    @property
    def deviation(self) -> float: ...

    @property
    def unit(self) -> float: ...

    @property
    def law(self) -> str: ...


@dataclass(frozen=True)
class ClearedScore:
    """The score that an attempt compares with the bar: the noisy score less the margin."""

    margins: Margins | None
    attempt: int

    def __call__(self, fitted: Scored) -> float:
        if self.margins is None:
            return fitted.score
        margin = self.margins.margin(self.attempt, fitted.deviation, fitted.unit, law=fitted.law)
        return fitted.score - margin


def make_attempts(
    steps: Sequence[Step],
    data: dict[str, Any],
    journal: Journal | None,
    margins: Margins | None,
    on_attempt: Callable[[int, int], None] | None = None,
    allowed: Callable[[Guarantee], bool] = lambda total: True,
    after_miss: Callable[[Sequence[Release | None]], Step | None] = lambda releases: None,
    **request: Any,
) -> tuple[list[Release | None], bool]:
    """Make the requests in turn until one passes.

    ``on_attempt`` is called with the number of an attempt and the most that there may be.
    ``allowed`` takes what the job would have cost after another request, at worst: attempts that a
    crash lost stay charged, and must not lead above the job's limit. ``after_miss`` returns a
    further request if all of them missed.
    """
    releases: list[Release | None] = [] if journal is None else journal.attempts
    while True:
        step, further = steps[min(len(releases), len(steps) - 1)], None
        if _finished(steps, releases):
            further = after_miss(releases) if len(releases) == len(steps) else None
            if further is None:
                return releases, False
            step = further
        plain = further is not None or _own_bar(step)  # outputs are compared as they are, or not
        score = ClearedScore(margins, len(releases) - sum(map(_own_bar, steps)))
        total = step.charges.worst_case
        for number, earlier in enumerate(releases):
            planned = steps[min(number, len(steps) - 1)].charges.worst_case
            total = total + (planned if earlier is None else earlier.spent)
        if releases and not allowed(total):
            return releases, True
        if on_attempt is not None:
            on_attempt(len(releases) + 1, max(len(steps), len(releases) + 1))
        try:
            release = step.selector.select(
                step.candidates,
                data,
                score=None if plain else score,  # margins count attempts of Algorithm 2 alone
                checkpoint=None if journal is None else journal.checkpoint,
                on_start=None if journal is None else journal.begin,
                on_release=None if journal is None else journal.add,
                **request,
            )
        except BudgetRefused:
            if not releases:
                raise
            return releases, True
        releases.append(release)


def _own_bar(step: Step) -> bool:
    """Whether a request is one of noise reduction."""
    return isinstance(step.selector, PathSearch)


def _finished(steps: Sequence[Step], releases: Sequence[Release | None]) -> bool:
    """Whether the job is over: a model passed, or the planned attempts were made.

    A request without a bar is over when it released something; one that a crash lost stays charged
    and is drawn again.
    """
    present = [release for release in releases if release is not None]
    if any(each.passed is None or each.passed for each in present):
        return True
    planned = isinstance(steps[0].selector, PlannedAttempt) or _own_bar(steps[0])
    return len(releases) >= len(steps) and planned
