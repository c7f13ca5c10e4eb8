"""What may run: mechanisms with their guarantees and public settings; and checks of settings.

Everything about a candidate is public. Tests: ``tests/contracts/test_selector_input.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from expost.errors import InvalidCandidate, InvalidInput
from expost.mechanisms import Call, Query
from expost.privacy.guarantees import Guarantee
from expost.rationals import Number, count_of, exact, exact_normal, round_up

MOST_REPEATS = 10**300
_MOST_COPIES = 1_000_000


@dataclass(frozen=True)
class Candidate:
    """A mechanism that a selector may run, with its guarantee and its public settings.

    Parameters
    ----------
    mechanism : callable or Query
        A callable ``(data, randomness) → output`` with a guarantee; for Algorithm 1, a bare
        ``Query``.
    params : mapping
        Public settings, released with the winner.
    repeats : int
        Number of copies that compete. Only copies that are run take time; it may be very large.
    guarantee : Guarantee
        The guarantee of a plain function. Leave it out if the mechanism has a ``guarantee`` of its
        own.
    drop_rate : number, optional
        γ > 0, how fast random dropping drops this candidate; by default the selector chooses it.
    priority : number, optional
        Public rank among the candidates that reach a goal, higher first; by default the cheapest
        comes first.

    Raises
    ------
    InvalidCandidate
        The guarantee is missing or given twice, or a setting is not valid.
    """

    mechanism: Call | Query
    params: Mapping[str, Any] = field(default_factory=dict)
    repeats: int = 1
    guarantee: Guarantee = None  # type: ignore[assignment]  # resolved below
    drop_rate: Number | None = None
    priority: Number | None = None

    def __post_init__(self) -> None:
        if not callable(self.mechanism) and not isinstance(self.mechanism, Query):
            raise InvalidCandidate(
                "mechanism",
                type(self.mechanism).__name__,
                "give a callable (data, randomness) → output",
            )
        object.__setattr__(self, "guarantee", self._stated())
        object.__setattr__(
            self, "repeats", count_of(self.repeats, "repeats", at_least=1, error=InvalidCandidate)
        )
        if self.repeats > MOST_REPEATS:
            raise InvalidCandidate("repeats", "more than 10^300", "give at most 10^300")
        if not isinstance(self.params, Mapping) or not all(
            isinstance(key, str) for key in self.params
        ):
            raise InvalidCandidate(
                "params", self.params, "give a mapping from names to public settings"
            )
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        if self.drop_rate is not None:
            exact_normal(self.drop_rate, "drop_rate", error=InvalidCandidate)
        if self.priority is not None:
            exact(self.priority, "priority", error=InvalidCandidate)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the settings as they were given; a read-only mapping cannot be pickled."""
        own = getattr(self.mechanism, "guarantee", None) is not None
        given = None if own else self.guarantee
        settings = (self.repeats, given, self.drop_rate, self.priority)
        return Candidate, (self.mechanism, dict(self.params), *settings)

    def copies(self, repeats: int, *, drop_rate: Number | None) -> Candidate:
        """Return this candidate with other repeats and another drop rate."""
        mechanism, params, _, guarantee, _, priority = self.__reduce__()[1]
        return Candidate(mechanism, params, repeats, guarantee, drop_rate, priority)

    @property
    def call(self) -> Call:
        """The mechanism as a callable; must not be used for a bare query."""
        assert not isinstance(self.mechanism, Query)
        return self.mechanism

    def _stated(self) -> Guarantee:
        """Return the guarantee, from the candidate or from its mechanism."""
        own = getattr(self.mechanism, "guarantee", None)
        if self.guarantee is not None and own is not None:
            raise InvalidCandidate(
                "guarantee",
                self.guarantee,
                "leave it out: the mechanism has a guarantee of its own",
            )
        guarantee = self.guarantee if self.guarantee is not None else own
        if not isinstance(guarantee, Guarantee):
            raise InvalidCandidate(
                "guarantee",
                guarantee,
                "give the guarantee that the mechanism keeps, e.g. guarantee=PureDP(0.5)",
            )
        return guarantee


def check_candidates(candidates: object, *, queries: bool = False) -> Sequence[Candidate]:
    """Return the candidates if they are a non-empty sequence of one kind of guarantee."""
    if isinstance(candidates, Candidate) or not isinstance(candidates, Sequence):
        raise InvalidCandidate("candidates", type(candidates).__name__, "give a list of Candidate")
    if not candidates:
        raise InvalidCandidate("candidates", candidates, "give at least one Candidate")
    seen: set[int] = set()
    first: Guarantee | None = None
    for index, candidate in enumerate(candidates):
        if not isinstance(candidate, Candidate):
            raise InvalidCandidate(
                f"candidates[{index}]", type(candidate).__name__, "give a list of Candidate"
            )
        if not queries and isinstance(candidate.mechanism, Query):
            raise InvalidCandidate(
                f"candidates[{index}].mechanism",
                "Query",
                "a bare query has no noise; wrap it, e.g. DiscreteLaplace(query, ε)",
            )
        if id(candidate.guarantee) not in seen:
            seen.add(id(candidate.guarantee))
            first = first or candidate.guarantee
            first.require_same_kind(candidate.guarantee)
    return candidates


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates that have the same guarantee, the same drop rate and the same weight per copy."""

    guarantee: Guarantee
    drop_rate: Number | None
    members: tuple[int, ...]
    copies: int


def group_equal(
    candidates: Sequence[Candidate],
    weights: Sequence[Fraction] | None = None,
    *,
    in_order: bool = False,
) -> list[CandidateGroup]:
    """Join equal candidates, so that pricing and drawing work on groups instead of copies."""
    members: dict[tuple[Any, ...], list[int]] = {}
    previous, run = None, 0
    for index, (candidate, number) in enumerate(
        zip(candidates, numbered_guarantees(candidates)[1], strict=True)
    ):
        weight = None if weights is None else weights[index] / candidate.repeats
        key = (number, candidate.drop_rate, weight)
        run += in_order and key != previous  # only neighbours in the list are joined
        members.setdefault((run, *key), []).append(index)
        previous = key
    return [
        CandidateGroup(
            candidates[group[0]].guarantee,
            candidates[group[0]].drop_rate,
            tuple(group),
            sum(candidates[member].repeats for member in group),
        )
        for group in members.values()
    ]


def numbered_guarantees(candidates: Sequence[Candidate]) -> tuple[list[Guarantee], list[int]]:
    """Return the distinct guarantees, and the number of the one of each candidate."""
    # Look up guarantees by identity first: hashing a long curve for each candidate would be slow.
    known: dict[int, int] = {}
    distinct: dict[Guarantee, int] = {}
    numbers = []
    for candidate in candidates:
        guarantee = candidate.guarantee
        if id(guarantee) not in known:
            known[id(guarantee)] = distinct.setdefault(guarantee, len(distinct))
        numbers.append(known[id(guarantee)])
    return list(distinct), numbers


def level_places(groups: Sequence[CandidateGroup], count: int) -> tuple[int, ...]:
    """Return the place of the group to which each candidate belongs."""
    group_of = [0] * count
    for index, group in enumerate(groups):
        for member in group.members:
            group_of[member] = index
    return tuple(group_of)


def never_run(*_: Any) -> Any:
    """Stand for a mechanism that is priced and never called."""
    raise AssertionError("a plan or a grid is priced, not run")


def all_copies(candidates: Sequence[Candidate]) -> list[int]:
    """Return the candidate index of every copy, for selectors that run all copies in turn."""
    copies = sum(candidate.repeats for candidate in candidates)
    if copies > _MOST_COPIES:
        raise InvalidCandidate(
            "repeats",
            copies,
            f"this selector runs every copy in turn: give at most {_MOST_COPIES} in all",
        )
    return [index for index, candidate in enumerate(candidates) for _ in range(candidate.repeats)]


def check_noise_levels(candidates: Sequence[Candidate]) -> None:
    """Refuse levels of noise that are not used once each, from coarse to fine."""
    if any(candidate.repeats != 1 for candidate in candidates):
        raise InvalidCandidate("repeats", ">1", "a noise level is used once; leave repeats out")
    sizes = [candidate.guarantee.size for candidate in candidates]
    if any(a >= b for a, b in pairwise(sizes)):
        raise InvalidCandidate(
            "guarantee", [float(size) for size in sizes], "give levels with increasing ε (or ρ)"
        )


def check_callbacks(**callbacks: object) -> None:
    """Refuse callbacks that are not callable."""
    for name, function in callbacks.items():
        if function is not None and not callable(function):
            raise InvalidInput(name, type(function).__name__, "give a function, or leave it out")


def check_flag(value: object, field: str) -> None:
    """Refuse anything but True and False: a string such as 'no' would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "give True or False")


def check_goal(at_least: object) -> None:
    """Refuse a goal that is not a finite number."""
    if at_least is not None and round_up(abs(exact(at_least, "at_least"))) == math.inf:  # type: ignore[arg-type]
        raise InvalidInput("at_least", type(at_least).__name__, "give a number that a float holds")
