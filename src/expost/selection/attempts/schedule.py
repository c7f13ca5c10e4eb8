"""The schedule of a tuning job: its levels and its attempts, as public records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.selection.above_threshold import AboveThreshold
from expost.selection.candidate import Candidate

_LEAST_LEVEL, _LARGEST_LEVEL = 1e-9, 1e6


@dataclass(frozen=True)
class Attempt:
    """One attempt: Algorithm 2 over the levels from ``first`` on.

    Parameters
    ----------
    overhead : float
        ε′. A miss costs about this much.
    first : int
        Number of the lowest level that takes part; higher levels always take part.
    repeats : int
        How many copies of every setting take part.
    delta_share : float
        Share of the job's δ.
    """

    overhead: float
    first: int
    repeats: int
    delta_share: float

    def as_dict(self) -> dict[str, Any]:
        """Return the record in plain JSON types."""
        return dict(vars(self))


@dataclass(frozen=True)
class Ladder:
    """The privacy levels of a job, from cheap to dear.

    Parameters
    ----------
    epsilons : tuple of float
        Name of each level; copies at a level are dropped at this rate.
    promises : tuple of Guarantee
        A typical promise of a setting at each level, for planning.
    copies : tuple of int
        Number of copies (settings times repeats) at each level.
    """

    epsilons: tuple[float, ...]
    promises: tuple[Guarantee, ...]
    copies: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.epsilons) == len(self.promises) == len(self.copies) > 0:
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
        """Whether the settings promise pure DP."""
        return self.promises[0].as_pure() is not None

    def candidates(self, attempt: Attempt) -> list[Candidate]:
        """Return one planning candidate per level of an attempt; they are priced, never run."""
        return [
            Candidate(
                never_run,
                {"epsilon": epsilon},
                repeats=copies * attempt.repeats,
                guarantee=promise,
                drop_rate=None if self.pure else epsilon,
            )
            for epsilon, promise, copies in zip(
                self.epsilons[attempt.first :],
                self.promises[attempt.first :],
                self.copies[attempt.first :],
                strict=True,
            )
        ]


@dataclass(frozen=True)
class Schedule:
    """Attempts in the order in which they are made, until one passes.

    Parameters
    ----------
    attempts : tuple of Attempt
        Their δ shares sum to at most 1.
    """

    attempts: tuple[Attempt, ...]

    def __post_init__(self) -> None:
        if not self.attempts:
            raise InvalidInput("attempts", 0, "give at least one attempt")
        if sum(Fraction(each.delta_share) for each in self.attempts) > 1:
            raise InvalidInput("delta_share", "shares of δ", "they must sum to at most 1")

    def __len__(self) -> int:
        return len(self.attempts)

    def first(self, count: int) -> Schedule:
        """Return the schedule that ends after ``count`` attempts, with δ shared among those."""
        kept = self.attempts[:count]
        total = sum(each.delta_share for each in kept) * (1 + 2.0**-40)
        return Schedule(tuple(replace(each, delta_share=each.delta_share / total) for each in kept))

    def selector(
        self,
        number: int,
        target: float,
        *,
        delta: float | None = None,
        order: Any = None,
    ) -> AboveThreshold:
        """Return the selector of attempt ``number`` of a job with total ``delta``.

        Under pure DP leave out ``delta`` and ``order``; with ``order`` attempts are charged at
        those Rényi orders, whose charges add up without a share of δ.
        """
        attempt = self.attempts[number]
        return AboveThreshold(
            overhead=attempt.overhead,
            target=target,
            delta=None if delta is None or order is not None else delta * attempt.delta_share,
            order=order,
        )

    def as_dict(self) -> list[dict[str, Any]]:
        """Return the attempts in plain JSON types."""
        return [each.as_dict() for each in self.attempts]


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
    """Return the candidates of an attempt: those of its levels, level by level.

    Parameters
    ----------
    candidates : sequence of Candidate
        All candidates of the job.
    levels : sequence of float
        The levels in ascending order.
    attempt : Attempt
        Which levels take part, and with how many copies.
    pure : bool
        Under pure DP the drop rate is the candidate's own ε; otherwise it is the level's name.
    level : callable
        Names the level of a candidate.
    """
    kept = [each for each in candidates if level(each) >= levels[attempt.first]]
    kept.sort(key=level)
    return [
        each.copies(each.repeats * attempt.repeats, drop_rate=None if pure else level(each))
        for each in kept
    ]


def never_run(data: Any, randomness: Any) -> Any:
    """Stand for a mechanism in a plan; it is priced and never called."""
    raise AssertionError("a plan runs nothing")
