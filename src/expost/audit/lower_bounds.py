"""From counts to lower bounds of the privacy loss; all bounds hold together at the confidence.

*(ε̃, δ)*: for every event E inside class i, P(E) ≤ e^{ε̃(i)}P′(E) + δ, so ln((P(E) − δ)/P′(E)) is a
lower bound of any valid ε̃(i). Over all classes, P(U) − Σ_i e^{ε̃(i)}P′(U ∩ i) ≤ δ for every U.

*Rényi, order α*: Σ_o A^α A′^{1−α} over the outcomes of a class is at least the same sum over cells
of the class, because a^α b^{1−α} is jointly convex and homogeneous. It increases in a and decreases
in b. Lower bounds of a and upper bounds of b therefore give a lower bound of the sum.

Tests: ``tests/audit/test_empirical.py``, ``tests/audit/test_bounds.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats
from expost.audit.clopper_pearson import Counts, clopper_pearson
from expost.audit.events import Cells, EventFamily, describe_cells, event_counts, weight
from expost.audit.report import ApproxClaims, JointFinding, RenyiClaims


@dataclass(frozen=True)
class Found:
    """The best lower bound of a class, its claim, the event, and where that is more likely."""

    claimed: float
    lower_bound: float
    event: str
    side: int
    order: float | None = None


@dataclass(frozen=True)
class Bounded:
    """Simultaneous bounds, data sets × events, for cells, whole classes and chosen unions."""

    cell_low: Floats
    cell_high: Floats
    class_low: Floats
    class_high: Floats
    union_low: Floats
    union_high: Floats


def bounded(counts: Counts, runs: int, family: EventFamily, confidence: float) -> Bounded:
    """Compute Clopper–Pearson bounds of every event at its share of the error probability."""
    fixed, chosen = family.tails(confidence)
    cells = clopper_pearson(counts, runs, fixed)
    classes = clopper_pearson(
        [event_counts(counts, family.members, side) for side in (0, 1)], runs, fixed
    )
    sets = [union.cells for union in family.unions]
    unions = clopper_pearson([event_counts(counts, sets, side) for side in (0, 1)], runs, chosen)
    return Bounded(*cells, *classes, *unions)


def judge(
    counts: Counts,
    runs: int,
    cells: Cells,
    family: EventFamily,
    claims: ApproxClaims | RenyiClaims,
    confidence: float,
) -> tuple[list[Found], list[JointFinding]]:
    """Return the best lower bound of each class, and those for all outcomes together."""
    bounds = bounded(counts, runs, family, confidence)
    if isinstance(claims, RenyiClaims):
        return _judge_renyi(bounds, cells, family, claims)
    _, chosen = family.tails(confidence)
    bests = [
        _judge_class(index, bounds, cells, family, claims) for index in range(len(family.members))
    ]
    return bests, [_judge_joint(counts, runs, family, side, claims, chosen) for side in (0, 1)]


def _judge_class(
    index: int, bounds: Bounded, cells: Cells, family: EventFamily, claims: ApproxClaims
) -> Found:
    """Find the event of a class that gives the largest lower bound of its ε̃."""
    members, claimed = family.members[index], float(claims.epsilons[index])
    best = Found(claimed, 0.0, "", 0)
    for side in (0, 1):
        events = [(bounds.class_low[side, index], bounds.class_high[1 - side, index], members)]
        low, high = bounds.cell_low[side, members], bounds.cell_high[1 - side, members]
        if len(members) > 1:
            top = int(np.argmax(_log_ratio(low, high, claims.delta)))
            events.append((low[top], high[top], members[top : top + 1]))
        if (number := family.union_of.get((index, side))) is not None:
            events.append(
                (
                    bounds.union_low[side, number],
                    bounds.union_high[1 - side, number],
                    family.unions[number].cells,
                )
            )
        for lower, upper, event in events:
            value = float(_log_ratio(lower, upper, claims.delta))
            if value > best.lower_bound:
                best = Found(claimed, value, _words(cells, event, len(members)), side)
    return best


def _log_ratio(low: Floats, high: Floats, delta: float) -> Floats:
    """Return ln((low − δ)/high); −∞ where low ≤ δ."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(low - delta, 0.0)) - np.log(high))


def _words(cells: Cells, event: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> str:
    """Describe an event in words."""
    return "any" if len(event) == size else describe_cells([cells.cells[cell] for cell in event])


def _judge_joint(
    counts: Counts, runs: int, family: EventFamily, side: int, claims: ApproxClaims, tail: float
) -> JointFinding:
    """Bound Σ (P − e^{ε̃}P′)₊ from below in one direction."""
    value = 0.0
    for joint in family.joints:
        if joint.side == side:
            low, _ = clopper_pearson(event_counts(counts, [joint.cells], side), runs, tail)
            _, high = clopper_pearson(
                event_counts(counts, [part for _, part in joint.parts], 1 - side), runs, tail
            )
            value = float(
                low[0]
                - sum(
                    weight(level) * upper
                    for (level, _), upper in zip(joint.parts, high, strict=True)
                )
            )
    return JointFinding(claims.delta, max(0.0, value))


def _judge_renyi(
    bounds: Bounded, cells: Cells, family: EventFamily, claims: RenyiClaims
) -> tuple[list[Found], list[JointFinding]]:
    """Bound the Rényi moments of each class, and their sum, at every order and direction."""
    bounds_of: list[list[Found]] = [[] for _ in family.members]
    joint: list[JointFinding] = []
    for number, order in enumerate(claims.orders):
        for side in (0, 1):
            total = 0.0
            for index, (moment, event) in enumerate(_moments(bounds, cells, family, order, side)):
                claimed = float(claims.charges[number, index])
                total += weight(moment - (order - 1) * claimed)
                value = max(0.0, moment / (order - 1))
                bounds_of[index].append(
                    Found(claimed, value, event if value > 0 else "", side, order)
                )
            joint.append(JointFinding(1.0, total, order))
    return [max(candidates_, key=_tightness) for candidates_ in bounds_of], joint


def _moments(
    bounds: Bounded, cells: Cells, family: EventFamily, order: float, side: int
) -> Iterator[tuple[float, str]]:
    """For each class, yield ln of a lower bound of Σ A^α A′^{1−α}, and the event that gives it."""
    by_cell = _log_moment(bounds.cell_low[side], bounds.cell_high[1 - side], order)
    by_class = _log_moment(bounds.class_low[side], bounds.class_high[1 - side], order)
    by_union = _log_moment(bounds.union_low[side], bounds.union_high[1 - side], order)
    for index, members in enumerate(family.members):
        moments = [
            (float(np.logaddexp.reduce(by_cell[members])), "all cells"),
            (float(by_class[index]), "any"),
        ]
        if (number := family.union_of.get((index, side))) is not None:
            moments.append(
                (float(by_union[number]), _words(cells, family.unions[number].cells, len(members)))
            )
        yield max(moments)


def _log_moment(low: Floats, high: Floats, order: float) -> Floats:
    """Return ln(low^α · high^{1−α})."""
    with np.errstate(divide="ignore"):
        return np.asarray(order * np.log(low) - (order - 1) * np.log(high))


def _tightness(bound: Found) -> float:
    """Return lower bound / claim; ∞ if a claim of 0 is exceeded."""
    if bound.claimed > 0:
        return bound.lower_bound / bound.claimed
    return np.inf if bound.lower_bound > 0 else 0.0
