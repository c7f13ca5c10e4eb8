"""The drop coins that Algorithms 2 and 3 share.

A level k = k₀ + Geom(e^{−ε′}) is drawn once; every copy of candidate i is kept with probability e^{−γ_i·k}, all coins
exact. The number kept among the copies of a group is binomial, and which ones is a uniform subset: so the cost of a draw
follows what is kept, never the number of copies.
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
from expost.rationals import exact
from expost.selection.candidate import Candidate, Group, group


@dataclass(frozen=True)
class RatedGroup:
    """A group of candidates and the exact rate at which a unit of the drop level drops them."""

    group: Group
    rate: Fraction


def rate_pure(candidates: Sequence[Candidate]) -> list[RatedGroup]:
    """Groups with their drop rates under pure DP: γ_i = ε_i, or a larger one that the candidate asks for."""
    rated = []
    for each in group(candidates):
        assert isinstance(each.guarantee, PureDP)
        epsilon = Fraction(each.guarantee.epsilon)
        rate = epsilon if each.drop_rate is None else exact(each.drop_rate, "drop_rate")
        if rate < epsilon:
            raise InvalidCandidate(
                "drop_rate", each.drop_rate, f"under pure DP give at least the candidate's ε = {each.guarantee.epsilon}"
            )
        rated.append(RatedGroup(each, rate))
    return rated


def draw_kept(
    candidates: Sequence[Candidate],
    groups: Sequence[RatedGroup],
    overhead: Fraction,
    minimum_drop_level: int,
    randomness: Randomness,
) -> list[int]:
    """The kept copies as candidate indices, ascending; a candidate stands once for each of its kept copies."""
    level = minimum_drop_level + geometric(overhead, randomness)
    kept: list[int] = []
    for rated in groups:
        count = binomial_exp(rated.group.copies, rated.rate * level, randomness)
        kept.extend(_members(candidates, rated.group, subset(rated.group.copies, count, randomness)))
    return sorted(kept)


def _members(candidates: Sequence[Candidate], each: Group, copies: Sequence[int]) -> list[int]:
    """Which candidate each copy of the group belongs to."""
    if each.copies == len(each.members):
        return [each.members[copy] for copy in copies]
    ends = list(accumulate(candidates[member].repeats for member in each.members))
    return [each.members[bisect_right(ends, copy)] for copy in copies]
