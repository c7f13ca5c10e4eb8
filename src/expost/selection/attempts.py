"""Tuning to a goal as a sequence of attempts: what is asked, and what to expect of it.

An attempt is one run of Algorithm 2 (:class:`expost.selection.above_threshold.AboveThreshold`)
with its own draw, its own charges and its own share of δ. A miss releases nothing and costs about
the attempt's overhead. The attempts are planned before data is read
(:mod:`expost.selection.attempt_planner`). All records here are public. A :class:`Belief` (which
share of the settings passes at each level) affects the expected cost only: charges are valid
whatever the truth is, and no charge depends on the chances here.

Composition of attempts: docs/theory.md ("Attempts in sequence"),
``tests/theorems/test_attempts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.selection.above_threshold import AboveThreshold
from expost.selection.candidate import Candidate, never_run

_LEAST_LEVEL, _LARGEST_LEVEL = 1e-9, 1e6


@dataclass(frozen=True)
class Attempt:
    """One attempt: Algorithm 2 over the levels from ``first`` on."""

    overhead: float
    first: int
    repeats: int
    delta_share: float


@dataclass(frozen=True)
class Ladder:
    """The privacy levels of a job, from cheap to dear."""

    epsilons: tuple[float, ...]
    guarantees: tuple[Guarantee, ...]
    copies: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.epsilons) == len(self.guarantees) == len(self.copies) > 0:
            raise InvalidInput("levels", len(self.epsilons), "give at least one level")
        if any(low >= high for low, high in zip(self.epsilons, self.epsilons[1:], strict=False)):
            raise InvalidInput("epsilons", self.epsilons, "give levels in ascending order")
        if not _LEAST_LEVEL <= self.epsilons[0] <= self.epsilons[-1] <= _LARGEST_LEVEL:
            raise InvalidInput(
                "epsilons",
                self.epsilons,
                f"attempts are planned for levels between {_LEAST_LEVEL:g} and {_LARGEST_LEVEL:g}",
            )

    @property
    def pure(self) -> bool:
        """Whether the settings guarantee pure DP."""
        return self.guarantees[0].as_pure() is not None

    def candidates(self, attempt: Attempt) -> list[Candidate]:
        """Return one planning candidate per level of an attempt; they are priced, never run."""
        return [
            Candidate(
                never_run,
                {"epsilon": epsilon},
                repeats=copies * attempt.repeats,
                guarantee=guarantee,
                drop_rate=None if self.pure else epsilon,
            )
            for epsilon, guarantee, copies in zip(
                self.epsilons[attempt.first :],
                self.guarantees[attempt.first :],
                self.copies[attempt.first :],
                strict=True,
            )
        ]


@dataclass(frozen=True)
class Schedule:
    """Attempts in the order in which they are made, until one passes."""

    attempts: tuple[Attempt, ...]

    def __post_init__(self) -> None:
        if not self.attempts:
            raise InvalidInput("attempts", 0, "give at least one attempt")
        if sum(Fraction(attempt.delta_share) for attempt in self.attempts) > 1:
            raise InvalidInput("delta_share", "shares of δ", "they must sum to at most 1")

    def __len__(self) -> int:
        return len(self.attempts)

    def first(self, count: int) -> Schedule:
        """Return the schedule that ends after ``count`` attempts, with δ shared among those."""
        kept = self.attempts[:count]
        # Rounded down: the shares of δ must not add up to more than 1.
        total = sum(attempt.delta_share for attempt in kept) * (1 + 2.0**-40)
        return Schedule(
            tuple(replace(attempt, delta_share=attempt.delta_share / total) for attempt in kept)
        )

    def selector(
        self, number: int, at_least: float, *, delta: float | None = None, order: Any = None
    ) -> AboveThreshold:
        """Return the selector of attempt ``number`` of a job with total ``delta``.

        Under pure DP leave out ``delta`` and ``order``; with ``order`` attempts are charged at
        those Rényi orders, whose charges add up without a share of δ.
        """
        attempt = self.attempts[number]
        return AboveThreshold(
            overhead=attempt.overhead,
            at_least=at_least,
            delta=None if delta is None or order is not None else delta * attempt.delta_share,
            order=order,
        )

    def as_dict(self) -> list[dict[str, Any]]:
        """Return the attempts in plain JSON types."""
        return [dict(vars(attempt)) for attempt in self.attempts]


def level_of(candidate: Candidate) -> float:
    """Return the level of a candidate: ``params["epsilon"]``."""
    return float(candidate.params["epsilon"])


def candidates_of(
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    attempt: Attempt,
    *,
    pure: bool,
    level: Callable[[Candidate], float] = level_of,
) -> list[Candidate]:
    """Return the candidates of an attempt: those of its levels, level by level."""
    kept = [candidate for candidate in candidates if level(candidate) >= levels[attempt.first]]
    kept.sort(key=level)
    return [
        candidate.copies(
            candidate.repeats * attempt.repeats, drop_rate=None if pure else level(candidate)
        )
        for candidate in kept
    ]


_POINTS = 120


@dataclass(frozen=True, eq=False)
class Chances:
    """Chances by scenario."""

    passes: Floats
    miss: Floats
    runs: Floats


def chances_of(rates: Floats, copies: Floats, overhead: float, shares: Floats) -> Chances:
    """Return the chances of one attempt."""
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, _POINTS)])  # in units of 1/ε′
    masses = np.exp(-edges[:-1]) - np.exp(-edges[1:])
    middle = np.sqrt(np.maximum(edges[:-1], 1e-5) * edges[1:]) / overhead
    going_on = np.ones((len(shares), len(middle)))
    passes, runs = [], np.zeros(len(shares))
    for rate, count, share in zip(rates, copies, shares.T, strict=True):
        kept = np.exp(-rate * middle)[None, :]
        passing = np.minimum(share[:, None] * kept, 1 - 1e-12)
        none = np.exp(count * np.log1p(-passing))
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.where(share[:, None] > 0, (1 - none) / share[:, None], count * kept)
        runs += (going_on * expected) @ masses
        passes.append((going_on * (1 - none)) @ masses)
        going_on = going_on * none
    return Chances(np.array(passes).T, going_on @ masses, runs)


SHARES = (0.5, 0.2, 0.08, 0.03)
"""Shares of the default belief: each may hold from any level on."""

LEAST_SHARE = 0.01
"""At the last level the default belief also has one passing setting in a hundred."""


@dataclass(frozen=True)
class Scenario:
    """A share ``share`` of the settings passes from level number ``level`` on (0 is the first)."""

    level: int
    share: float


@dataclass(frozen=True)
class Belief:
    """Scenarios, equally likely."""

    levels: int
    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        for scenario in self.scenarios:
            if not 0 <= scenario.level < self.levels:
                raise InvalidInput(
                    "belief.level",
                    scenario.level,
                    f"give the number of a level, 0 to {self.levels - 1}",
                )
            if not 0 < scenario.share <= 1:
                raise InvalidInput(
                    "belief.share", scenario.share, "give a share with 0 < share <= 1"
                )
        if not self.scenarios:
            raise InvalidInput("belief", "no scenario", "give at least one scenario")

    @classmethod
    def default(cls, levels: int, copies: int) -> Belief:
        """Return a robust spread: shares of 50 to 3 % from any level on, 1 % at the last level.

        No share is below one copy in ``copies``, the number of copies at a level: a smaller one
        would mean that nothing passes.
        """
        shares = sorted({max(share, 1 / copies) for share in SHARES}, reverse=True)
        spread = [Scenario(level, share) for level in range(levels) for share in shares]
        return cls(levels, (*spread, Scenario(levels - 1, max(LEAST_SHARE, 1 / copies))))

    @classmethod
    def of_shares(cls, levels: int, shares: Sequence[float]) -> Belief:
        """Return the belief that one of ``shares`` holds, from any level on."""
        return cls(
            levels, tuple(Scenario(level, share) for level in range(levels) for share in shares)
        )

    @property
    def shares(self) -> Floats:
        """Share that passes, by scenario (rows) and level (columns)."""
        table = np.zeros((len(self.scenarios), self.levels))
        for row, scenario in zip(table, self.scenarios, strict=True):
            row[scenario.level :] = scenario.share
        return table


REPORTED_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


@dataclass(frozen=True)
class ReachRow:
    """What to expect if a share ``share`` of the settings passes from level ``level`` on."""

    level: float
    share: float
    p_pass: float
    epsilon_mean: float
    epsilon_p90: float
    runs_mean: float

    def as_dict(self) -> dict[str, Any]:
        """Return the row in plain JSON types."""
        return dict(vars(self))


def reach_of(
    ladder: Ladder,
    schedule: Schedule,
    charges: Sequence[Floats],
    shares: Sequence[float] = REPORTED_SHARES,
) -> list[ReachRow]:
    """Return one row per level and share."""
    belief = Belief.of_shares(len(ladder.epsilons), shares)
    outcomes, epsilons, passed, runs = _outcomes(ladder, schedule, charges, belief.shares)
    rows = []
    for index, scenario in enumerate(belief.scenarios):
        chances = outcomes[index]
        rows.append(
            ReachRow(
                level=ladder.epsilons[scenario.level],
                share=scenario.share,
                p_pass=float(chances[passed].sum()),
                epsilon_mean=float(chances @ epsilons),
                epsilon_p90=_quantile(epsilons, chances, 0.9),
                runs_mean=float(runs[index]),
            )
        )
    return rows


def _outcomes(
    ladder: Ladder, schedule: Schedule, charges: Sequence[Floats], shares: Floats
) -> tuple[Floats, Floats, Any, Floats]:
    """Return chances (scenario × outcome of the job), total ε and pass flag of each, and runs."""
    rates, copies = np.array(ladder.epsilons), np.array(ladder.copies, dtype=float)
    going_on, runs, paid = np.ones(len(shares)), np.zeros(len(shares)), 0.0
    columns: list[Floats] = []
    totals: list[float] = []
    for attempt, costs in zip(schedule.attempts, charges, strict=True):
        first = attempt.first
        chances = chances_of(
            rates[first:], copies[first:] * attempt.repeats, attempt.overhead, shares[:, first:]
        )
        columns.extend(going_on * chances.passes[:, level] for level in range(len(rates) - first))
        totals.extend(paid + float(cost) for cost in costs[:-1])
        runs += going_on * chances.runs
        going_on, paid = going_on * chances.miss, paid + float(costs[-1])
    columns.append(going_on)
    totals.append(paid)
    passed = np.arange(len(totals)) < len(totals) - 1
    return np.array(columns).T, np.array(totals), passed, runs


def _quantile(values: Floats, chances: Floats, level: float) -> float:
    order = np.argsort(values)
    index = int(np.searchsorted(np.cumsum(chances[order]), level * chances.sum()))
    return float(values[order][min(index, len(values) - 1)])
