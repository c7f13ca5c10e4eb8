"""The drop coins of Algorithms 2 and 3: which copies of the candidates are kept.

A level k = k₀ + Geom(e^{−ε′h}) is drawn once. Then every copy of candidate i is kept with
probability e^{−γ_i·h·k}. All coins are exact; h = 1 under pure DP. The number kept among the
copies of a group is binomial, and the kept copies are a uniform subset of that size. So the cost
of a draw depends on the number of copies kept, not on the number of copies.

The level and the kept copies are secret. Tests: ``tests/statistical/test_selectors.py`` (the draws
against the enumerated law), ``tests/theorems/test_pure.py`` and ``tests/theorems/test_renyi.py``
(the guarantees of that law).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.guarantees import ZCDP, PureDP, RenyiDP
from expost.randomness.coins import geometric
from expost.randomness.inverse_cdf import binomial_exp, subset
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact, exact_normal, round_up
from expost.selection.candidate import Candidate, CandidateGroup, check_goal, group_equal
from expost.selection.renyi.sharp_charges import Problem
from expost.selection.renyi.table import (
    ChargeKind,
    Rated,
    RenyiTable,
    check_weights,
    price_renyi,
    rate_renyi,
    renyi_problem,
)
from expost.selection.selector import Selector, require_kind


@dataclass(frozen=True)
class DropLaw:
    """The law of what is kept. It is public and the same for every data set."""

    groups: tuple[CandidateGroup, ...]
    rates: tuple[Fraction, ...]
    overhead: Fraction
    minimum: int

    def draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> list[int]:
        """Draw the kept copies."""
        level = self.minimum + geometric(self.overhead, randomness)
        kept: list[int] = []
        for group, rate in zip(self.groups, self.rates, strict=True):
            count = binomial_exp(group.copies, rate * level, randomness)
            kept.extend(_members(candidates, group, subset(group.copies, count, randomness)))
        return sorted(kept)

    @property
    def copies(self) -> int:
        """The number of copies in all groups."""
        return sum(group.copies for group in self.groups)


def pure_rates(groups: Sequence[CandidateGroup]) -> tuple[Fraction, ...]:
    """Return the drop rates under pure DP: γ_i = ε_i, or a larger one if the candidate has it."""
    rates = []
    for group in groups:
        epsilon = group.guarantee.size
        rate = epsilon if group.drop_rate is None else exact(group.drop_rate, "drop_rate")
        if rate < epsilon:
            raise InvalidCandidate(
                "drop_rate",
                group.drop_rate,
                f"under pure DP give at least the candidate's ε = {float(epsilon)}",
            )
        rates.append(rate)
    return tuple(rates)


def pure_levels(groups: Sequence[CandidateGroup], extra: Sequence[Fraction]) -> list[PureDP]:
    """Return one charge per group: its ε plus ``extra``, rounded up."""
    return [
        PureDP(round_up(group.guarantee.size + more), group.guarantee.neighbours)
        for group, more in zip(groups, extra, strict=True)
    ]


def _members(
    candidates: Sequence[Candidate], group: CandidateGroup, copies: Sequence[int]
) -> list[int]:
    """Return the candidate to which each copy of the group belongs."""
    if group.copies == len(group.members):
        return [group.members[copy] for copy in copies]
    ends = list(accumulate(candidates[member].repeats for member in group.members))
    return [group.members[bisect_right(ends, copy)] for copy in copies]


class DroppingSelector(Selector):
    """Base class of selectors that keep copies by random dropping.

    The settings are fields of the subclasses and documented there. ``earlier_only`` is True if a
    winner competes only with the candidates before it (Algorithm 2).
    """

    overhead: Number
    minimum_drop_level: int
    delta: Number | None
    order: Number | tuple[Number, ...] | None
    method: str
    weights: tuple[float, ...] | None
    earlier_only: ClassVar[bool]

    @property
    @abstractmethod
    def _may_release_nothing(self) -> bool:
        """Whether "nothing" is a possible outcome."""

    def _check_settings(self) -> None:
        """Refuse settings that are not valid, before any candidate is known."""
        exact_normal(self.overhead, "overhead")
        check_goal(self.at_least)
        count_of(self.minimum_drop_level, "minimum_drop_level", at_least=0)
        if self._claim() is None and self.weights is not None:
            raise InvalidInput(
                "weights",
                self.weights,
                "weights are for Rényi charges only: give delta or order, too",
            )

    def _claim(self) -> ChargeKind | None:
        """Return the Rényi claim that the settings ask for, or None for pure DP."""
        return ChargeKind.check(self.delta, self.order, self.method)

    def _elementary(self) -> str:
        """Return what else a charge may rest on: the least of what is proven is charged."""
        if self.order is not None:
            return ", at this or a larger order, or plain composition"
        return ", or by profiles (T3), or plain composition" if self.method == "sharp" else ""

    def _rated(self, candidates: Sequence[Candidate]) -> tuple[Rated, ChargeKind]:
        """Return the groups with curves and drop rates under Rényi DP, and the claim."""
        claim = self._claim()
        if claim is None:
            raise InvalidInput(
                "delta", None, "give delta for a stand-alone (ε̃, δ) claim, or order for a filter"
            )
        require_kind(self._check(candidates), type(self).__name__, RenyiDP, ZCDP, PureDP)
        weights = None if self.weights is None else check_weights(self.weights, candidates)
        return rate_renyi(
            group_equal(candidates, weights, in_order=self.earlier_only), claim
        ), claim

    def renyi_problem(self, candidates: Sequence[Candidate]) -> Problem:
        """Return the problem that the Rényi pricing solves. No data is read."""
        rated, claim = self._rated(candidates)
        return renyi_problem(
            candidates,
            rated,
            claim,
            overhead=float(self.overhead),
            minimum=self.minimum_drop_level,
            allow_nothing=self._may_release_nothing,
            earlier_only=self.earlier_only,
            weights=self.weights,
        )

    def analyse(self, candidates: Sequence[Candidate]) -> RenyiTable:
        """Return the Rényi charges with the order and shift behind each. No data is read."""
        rated, claim = self._rated(candidates)
        return price_renyi(candidates, rated, claim, self.renyi_problem(candidates))

    def drop_law(self, candidates: Sequence[Candidate]) -> DropLaw:
        """Return the law of what is kept: exact, public, and the same for every data set."""
        overhead = exact(self.overhead, "overhead")
        if self._claim() is None:
            groups = tuple(group_equal(candidates))
            return DropLaw(groups, pure_rates(groups), overhead, self.minimum_drop_level)
        rated, _ = self._rated(candidates)
        rates = tuple(rate * rated.step for rate in rated.rates)
        return DropLaw(rated.groups, rates, overhead * rated.step, self.minimum_drop_level)
