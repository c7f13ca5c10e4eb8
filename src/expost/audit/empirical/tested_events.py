"""Which events are tested: all cells, all classes, and the unions of cells that the pilot chose.

Half of the error probability goes to the cells and classes, half to the chosen unions; within each
half all bounds get an equal share (Bonferroni). The pilot chooses few unions, so their bounds are
nearly as sharp as if they were the only ones. The other half protects against an unlucky pilot. All
events are fixed before the counted runs are examined. Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.audit.claims import ApproxClaims, RenyiClaims
from expost.audit.empirical.clopper_pearson import Counts, clopper_pearson
from expost.audit.empirical.events import Cells

_PILOT_TAIL = 0.1  # tail of the pilot's bounds: a rare event is chosen only if it shows clearly

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Union:
    """A union of cells of one class, chosen for one direction.

    ``side`` is the data set on which the union is more likely.
    """

    place: int
    side: int
    cells: Places


@dataclass(frozen=True)
class Joint:
    """A union of cells of all classes for one direction, and its parts by claimed ε̃."""

    side: int
    cells: Places
    parts: tuple[tuple[float, Places], ...]


@dataclass(frozen=True)
class EventFamily:
    """All events to be tested, and the number of bounds this takes."""

    members: tuple[Places, ...]
    unions: tuple[Union, ...]
    joints: tuple[Joint, ...]
    cells: int

    @cached_property
    def union_of(self) -> dict[tuple[int, int], int]:
        """The number of the union chosen for each class and direction."""
        return {(union.place, union.side): number for number, union in enumerate(self.unions)}

    @property
    def fixed_bounds(self) -> int:
        """Both ends on both data sets for each cell, and for each class of several cells."""
        return 4 * (self.cells + sum(len(cells) > 1 for cells in self.members))

    @property
    def chosen_bounds(self) -> int:
        """Two per union; for a joint event one, plus one per part."""
        return 2 * len(self.unions) + sum(1 + len(joint.parts) for joint in self.joints)

    @property
    def comparisons(self) -> int:
        """The number of all bounds."""
        return self.fixed_bounds + self.chosen_bounds

    def tails(self, confidence: float) -> tuple[float, float]:
        """The error probability of each fixed and each chosen bound; in sum ≤ 1 − confidence."""
        share = (1 - confidence) / 2
        return share / self.fixed_bounds, share / max(1, self.chosen_bounds)


def family_from(
    pilot: Counts, runs: int, cells: Cells, claims: ApproxClaims | RenyiClaims
) -> EventFamily:
    """Choose the events from the pilot's counts (data sets × cells) of ``runs`` runs on each."""
    place_of = np.array([cell.place for cell in cells.cells])
    order = np.argsort(place_of, kind="stable")
    members = tuple(
        np.split(order, np.searchsorted(place_of[order], np.arange(1, len(cells.keys))))
    )
    delta = claims.delta if isinstance(claims, ApproxClaims) else 0.0
    worth = [place for place, each in enumerate(members) if len(each) > 1 and pilot[:, each].any()]
    unions = tuple(
        _best_prefixes(
            pilot,
            runs,
            [(place, side, members[place]) for place in worth for side in (0, 1)],
            delta,
        )
    )
    joints = (
        tuple(_joints(pilot, runs, place_of, claims)) if isinstance(claims, ApproxClaims) else ()
    )
    return EventFamily(members, unions, joints, len(cells))


def _likelihood_order(
    pilot: Counts, cells: Places, side: int, weights: Floats | float = 0.0
) -> tuple[Places, Floats]:
    """Sort cells by decreasing log ratio of their pilot frequencies, minus ``weights``.

    Returns the sorted cells and their numbers.
    """
    ratio = np.log((pilot[side, cells] + 0.5) / (pilot[1 - side, cells] + 0.5)) - weights
    order = np.argsort(-ratio, kind="stable")
    return cells[order], ratio[order]


def _best_prefixes(
    pilot: Counts, runs: int, wanted: Sequence[tuple[int, int, Places]], delta: float
) -> Iterator[Union]:
    """For each class and direction, choose one of the unions {ratio ≥ r}.

    It is the one with the largest bound of ln((P − δ)/P′) on the pilot.
    """
    if not wanted:
        return
    ordered = [_likelihood_order(pilot, cells, side)[0] for _, side, cells in wanted]
    sides = [side for _, side, _ in wanted]
    here = np.concatenate(
        [np.cumsum(pilot[side, cells]) for side, cells in zip(sides, ordered, strict=True)]
    )
    there = np.concatenate(
        [np.cumsum(pilot[1 - side, cells]) for side, cells in zip(sides, ordered, strict=True)]
    )
    low, high = (
        clopper_pearson(here, runs, _PILOT_TAIL)[0],
        clopper_pearson(there, runs, _PILOT_TAIL)[1],
    )
    with np.errstate(divide="ignore"):
        bounds = np.log(np.maximum(low - delta, 0.0)) - np.log(high)
    ends = np.cumsum([len(cells) for cells in ordered])
    for (place, side, _), cells, found in zip(
        wanted, ordered, np.split(bounds, ends[:-1]), strict=True
    ):
        yield Union(place, side, cells[: int(np.argmax(found)) + 1])


def _joints(pilot: Counts, runs: int, place_of: Places, claims: ApproxClaims) -> Iterator[Joint]:
    """For each direction, choose the union over all classes that exceeds its claims the most."""
    epsilon_of = claims.epsilons[place_of]
    levels = np.unique(epsilon_of)
    for side in (0, 1):
        ordered, excess = _likelihood_order(pilot, np.arange(len(place_of)), side, epsilon_of)
        ordered = ordered[excess > 0]
        if not len(ordered):
            continue
        low, _ = clopper_pearson(np.cumsum(pilot[side, ordered]), runs, _PILOT_TAIL)
        found = low.copy()
        for level in levels:
            inside = np.where(epsilon_of[ordered] == level, pilot[1 - side, ordered], 0)
            _, high = clopper_pearson(np.cumsum(inside), runs, _PILOT_TAIL)
            found -= np.where(
                np.cumsum(epsilon_of[ordered] == level) > 0, weight(level) * high, 0.0
            )
        chosen = ordered[: int(np.argmax(found)) + 1]
        parts = [(float(level), chosen[epsilon_of[chosen] == level]) for level in levels]
        yield Joint(side, chosen, tuple((level, cells) for level, cells in parts if len(cells)))


def weight(epsilon: float) -> float:
    """Return e^ε, capped so that sums do not overflow; the cap cannot change a verdict."""
    return float(np.exp(min(epsilon, 600.0)))


def totals(counts: Counts, unions: Sequence[Places], side: int) -> Counts:
    """Count the runs in each union."""
    return np.array([int(counts[side, cells].sum()) for cells in unions], dtype=np.int64)
