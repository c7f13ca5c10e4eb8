"""The drop coins that Algorithms 2 and 3 share.

A level k = k₀ + Geom(e^{−ε′h}) is drawn once; every copy of candidate i is kept with probability e^{−γ_i·h·k}, all coins exact
(h = 1 under pure DP). The number kept among the copies of a group is binomial, and which ones is a uniform subset: so the
cost of a draw follows what is kept, never the number of copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from expost.errors import InvalidCandidate
from expost.privacy.guarantees import PureDP
from expost.randomness.coins import geometric
from expost.randomness.inversion import binomial_exp, subset
from expost.randomness.source import Randomness
from expost.rationals import exact, round_up
from expost.selection.candidate import Candidate, Group


@dataclass(frozen=True)
class DropLaw:
    """Groups, the exact rate per step at which each is dropped, and the law of the level."""

    groups: tuple[Group, ...]
    rates: tuple[Fraction, ...]
    overhead: Fraction
    minimum: int

    def draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> list[int]:
        """The kept copies as candidate indices, ascending; a candidate stands once for each of its kept copies."""
        level = self.minimum + geometric(self.overhead, randomness)
        kept: list[int] = []
        for each, rate in zip(self.groups, self.rates, strict=True):
            count = binomial_exp(each.copies, rate * level, randomness)
            kept.extend(_members(candidates, each, subset(each.copies, count, randomness)))
        return sorted(kept)

    @property
    def copies(self) -> int:
        return sum(each.copies for each in self.groups)


def pure_rates(groups: Sequence[Group]) -> tuple[Fraction, ...]:
    """Drop rates under pure DP: γ_i = ε_i, or a larger one that the candidate asks for."""
    rates = []
    for each in groups:
        epsilon = each.guarantee.size
        rate = epsilon if each.drop_rate is None else exact(each.drop_rate, "drop_rate")
        if rate < epsilon:
            raise InvalidCandidate(
                "drop_rate", each.drop_rate, f"under pure DP give at least the candidate's ε = {float(epsilon)}"
            )
        rates.append(rate)
    return tuple(rates)


def pure_levels(groups: Sequence[Group], extra: Sequence[Fraction]) -> list[PureDP]:
    """One charge a group: its ε plus an extra, rounded up."""
    return [
        PureDP(round_up(each.guarantee.size + more), each.guarantee.neighbours)
        for each, more in zip(groups, extra, strict=True)
    ]


def level_places(groups: Sequence[Group], count: int) -> tuple[int, ...]:
    """Which group each candidate belongs to."""
    places = [0] * count
    for place, each in enumerate(groups):
        for member in each.members:
            places[member] = place
    return tuple(places)


def _members(candidates: Sequence[Candidate], each: Group, copies: Sequence[int]) -> list[int]:
    """Which candidate each copy of the group belongs to."""
    if each.copies == len(each.members):
        return [each.members[copy] for copy in copies]
    ends = list(accumulate(candidates[member].repeats for member in each.members))
    return [each.members[bisect_right(ends, copy)] for copy in copies]
