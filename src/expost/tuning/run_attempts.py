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
from expost.privacy.guarantees import ApproxDP, Guarantee
from expost.selection.above_threshold import AboveThreshold
from expost.selection.attempts.schedule import Schedule, candidates_of, level_of
from expost.selection.candidate import Candidate
from expost.selection.drop_coins import DropLaw
from expost.selection.drop_level import log_keep_probability
from expost.selection.noise_path import PathSearch
from expost.selection.release import Release
from expost.selection.selector import Selector
from expost.tuning.confidence import Margins
from expost.tuning.job_folder import Journal
from expost.tuning.model import Recipe


@dataclass(frozen=True)
class PlannedAttempt(AboveThreshold):
    """Algorithm 2 as one attempt of a job.

    Parameters
    ----------
    charged_delta : float, optional
        The δ that is charged with this attempt: the job's whole δ for the first, 0 for the others.
        The charges are priced at ``delta``, the attempt's own share.
    """

    charged_delta: float | None = None

    def remember(self, candidates: Sequence[Candidate]) -> PlannedAttempt:
        """Work out charges and drop law for these candidates once; both are public."""
        charges, law = super()._price(candidates), super().drop_law(candidates)
        known = (tuple(candidates), with_delta(charges, self.charged_delta), law)
        object.__setattr__(self, "_known", known)
        return self

    def _remembered(self, candidates: Sequence[Candidate]) -> tuple[Charges, DropLaw] | None:
        """Return charges and law if these are the very candidates they were worked out for."""
        known: tuple[tuple[Candidate, ...], Charges, DropLaw] | None = getattr(self, "_known", None)
        if known is None or len(known[0]) != len(candidates):
            return None
        same = all(a is b for a, b in zip(known[0], candidates, strict=True))
        return known[1:] if same else None

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        known = self._remembered(candidates)
        if known is not None:
            return known[0]
        return with_delta(super()._price(candidates), self.charged_delta)

    def drop_law(self, candidates: Sequence[Candidate]) -> DropLaw:
        known = self._remembered(candidates)
        return super().drop_law(candidates) if known is None else known[1]


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


def steps_of(
    schedule: Schedule,
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    *,
    target: float,
    delta: float | None,
    order: tuple[float, ...] | None = None,
    level: Callable[[Candidate], float] = level_of,
) -> list[Step]:
    """Return the requests of a schedule, priced; without ``delta`` and ``order``: pure DP."""
    steps = []
    pure = delta is None and order is None
    for number, attempt in enumerate(schedule.attempts):
        chosen = candidates_of(candidates, levels, attempt, pure=pure, level=level)
        plain = schedule.selector(number, target, delta=delta, order=order)
        settings = {each.name: getattr(plain, each.name) for each in fields(plain)}
        charged = None if pure or order is not None else delta if number == 0 else 0.0
        selector = PlannedAttempt(**settings, charged_delta=charged).remember(chosen)
        law = selector.drop_law(chosen)
        runs = sum(
            group.copies * exp(log_keep_probability(float(law.overhead), float(rate)))
            for group, rate in zip(law.groups, law.rates, strict=True)
        )
        steps.append(Step(selector, tuple(chosen), selector.charges(chosen), runs))
    return steps


def with_delta(charges: Charges, delta: float | None) -> Charges:
    """Return (ε, δ) charges with another δ; charges of other kinds as they are."""
    if delta is None:
        return charges

    def changed(charge: Guarantee) -> Guarantee:
        pair = charge.as_approx()
        return charge if pair is None else ApproxDP(pair.epsilon, delta, pair.neighbours)

    return Charges(
        tuple(changed(each) for each in charges.levels), charges.level_of, changed(charges.nothing)
    )


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
    **request: Any,
) -> tuple[list[Release | None], bool]:
    """Make the requests in turn until one passes.

    ``on_attempt`` is called with the number of an attempt and the most that there may be.

    Returns
    -------
    releases : list
        What each request released; None for one whose outcome a crash lost.
    refused : bool
        Whether the budget refused another request.

    Raises
    ------
    BudgetRefused
        The budget refused the first request: nothing was charged.
    """
    releases: list[Release | None] = [] if journal is None else journal.attempts
    while not _finished(steps, releases):
        step = steps[min(len(releases), len(steps) - 1)]
        if on_attempt is not None:
            on_attempt(len(releases) + 1, max(len(steps), len(releases) + 1))
        try:
            release = step.selector.select(
                step.candidates,
                data,
                score=_score(steps, len(releases), margins),
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
    return releases, False


def _score(steps: Sequence[Step], number: int, margins: Margins | None) -> ClearedScore | None:
    """Return what a request compares with the bar; None if the selector compares outputs itself.

    Margins count the attempts of Algorithm 2 alone.
    """
    if _own_bar(steps[min(number, len(steps) - 1)]):
        return None
    return ClearedScore(margins, number - sum(map(_own_bar, steps)))


def _own_bar(step: Step) -> bool:
    """Whether a request is one of noise reduction."""
    return isinstance(step.selector, PathSearch)


def _finished(steps: Sequence[Step], releases: Sequence[Release | None]) -> bool:
    """Whether the job is over: a model passed, or the planned attempts were made.

    A request without a bar is over when it released something; one that a crash lost stays charged
    and is drawn again.
    """
    present = [each for each in releases if each is not None]
    if any(each.passed is None or each.passed for each in present):
        return True
    planned = isinstance(steps[0].selector, PlannedAttempt) or _own_bar(steps[0])
    return len(releases) >= len(steps) and planned
