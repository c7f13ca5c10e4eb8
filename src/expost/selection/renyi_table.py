"""From candidates with Rényi guarantees to a table of charges: the least of what is proven.

The steps are: read all curves at common orders, choose the drop rates and the weights, price each
group (:mod:`expost.selection.renyi_charges`), and build the table. The drop rates γ_j are
free; by default they are proportional to the candidates' divergences. The drop level is a multiple
of a step h, the natural shift (rounded down to a power of two) divided by 256, so that every coin
is exact. Charges are rounded up. It is assumed that each candidate keeps its curve.

A stand-alone (ε̃, δ) claim gives outcome i a share w_i of δ, with Σ w_i ≤ 1. Bounds that keep to
the same shares may be chosen outcome by outcome; a bound for all outcomes together replaces all of
them or none (docs/theory.md, "The least of all bounds", "Two elementary bounds").

Tests: ``tests/theorems/test_renyi.py``, ``tests/theorems/test_elementary_bounds.py``,
``tests/selection/test_renyi_charges.py``, ``tests/selection/test_least_charges.py``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP
from expost.privacy.profiles import DEFAULT_ORDERS, Profile, profile_epsilon
from expost.rationals import Number, exact, pad_up
from expost.selection.candidate import Candidate, CandidateGroup, level_places
from expost.selection.drop_law import ChargeKind, log_keep_probability
from expost.selection.renyi_charges import (
    Priced,
    Problem,
    price_by_profiles,
    sharpest_charges,
)

if TYPE_CHECKING:
    from expost.selection.random_dropping import DroppingSelector


_STEPS = 256  # at least this many lattice steps in a natural shift


@dataclass(frozen=True, eq=False)
class Rated:
    """Groups with curves on common orders, exact drop rates and the lattice step."""

    groups: tuple[CandidateGroup, ...]
    orders: Floats
    curves: Floats
    rates: tuple[Fraction, ...]
    step: Fraction
    octave: int


def rate_renyi(groups: Sequence[CandidateGroup], claim: ChargeKind) -> Rated:
    """Return curves, drop rates and lattice step of the groups; uses public numbers only."""
    orders, curves = _common_curves(groups, claim.orders)
    natural = _natural_rates(orders, curves, claim)
    rates = tuple(_rate(group, rate) for group, rate in zip(groups, natural, strict=True))
    # The largest natural shift ε/γ sets the scale of the lattice.
    shift = max(float(own) / float(rate) for own, rate in zip(natural, rates, strict=True))
    octave = math.floor(math.log2(shift)) if shift > 0 else 0
    # Fourth octaves only: lists that differ a little share the step, and with it their bounds.
    step = Fraction(2) ** (4 * (octave // 4)) / _STEPS
    return Rated(tuple(groups), orders, curves, rates, step, octave)


def _rate(group: CandidateGroup, natural: float) -> Fraction:
    """Return the drop rate that the candidate asks for, or the natural one."""
    if group.drop_rate is not None:
        return exact(group.drop_rate, "drop_rate")
    if natural <= 0:
        raise InvalidCandidate(
            "guarantee",
            group.guarantee,
            "it states a loss of 0: give the candidate a drop_rate > 0",
        )
    return Fraction(float(natural))


def _common_curves(
    groups: Sequence[CandidateGroup], extra: Sequence[float]
) -> tuple[Floats, Floats]:
    """Return all guarantees as curves on the same orders.

    A curve that does not list an order uses its next larger one, which has a larger divergence.
    """
    guarantees = [group.guarantee for group in groups]
    if any(guarantee.shared_delta for guarantee in guarantees):
        raise InvalidCandidate(
            "guarantee",
            "ApproxDP",
            "an (ε, δ) guarantee implies no Rényi curve; give RenyiDP, ZCDP or PureDP",
        )
    curves = [curve for guarantee in guarantees if (curve := guarantee.as_renyi()) is not None]
    tables = {curve.orders for curve in curves} or {DEFAULT_ORDERS}
    last = min(table[-1] for table in tables)
    if any(order > last for order in extra):
        raise InvalidInput("order", max(extra), f"the candidates' curves end at order {last:g}")
    wanted = {order for table in tables for order in table if order <= last} | set(extra)
    if len(tables) > 1 or any(not set(extra) <= set(curve.orders) for curve in curves):
        warnings.warn(
            "Rényi curves on different orders: the divergence at an order that a curve does not "
            "list is taken from its next larger one, which is valid because divergence grows with "
            "the order",
            stacklevel=2,
        )
    orders = tuple(sorted(wanted))
    return np.array(orders), np.array(
        [guarantee.to_renyi(orders).epsilons for guarantee in guarantees]
    )


def _natural_rates(orders: Floats, curves: Floats, claim: ChargeKind) -> Floats:
    """Return drop rates proportional to the divergences, scaled so that the natural shift is 1.

    At fixed orders this is the divergence at the middle order. For an (ε̃, δ) claim it is the slope
    ε_j(α_j)/α_j of each curve at the order α_j that converts it best, times the best order of the
    cheapest candidate (for Gaussian curves this is the divergence at that order). One common order
    would be wrong for DP-SGD: each of its curves grows very fast beyond an order that depends on
    the curve.
    """
    if claim.delta is None:
        return np.asarray(curves[:, np.searchsorted(orders, claim.orders[len(claim.orders) // 2])])
    converted = (
        curves + np.log1p(-1 / orders) - (math.log(claim.delta) + np.log(orders)) / (orders - 1)
    )
    best = converted.argmin(axis=1)
    rows = np.arange(len(best))
    cheapest = int(np.argmin(converted[rows, best]))
    return np.asarray(curves[rows, best] / orders[best] * orders[best[cheapest]])


@dataclass(frozen=True, eq=False)
class RenyiTable:
    """Charges and the analysis behind them."""

    charges: Charges
    problem: Problem
    priced: tuple[Priced, ...]


def renyi_problem(
    selector: DroppingSelector, candidates: Sequence[Candidate], rated: Rated, claim: ChargeKind
) -> Problem:
    """Return the pricing problem of Algorithm 3, or of Algorithm 2 (``earlier_only``)."""
    overhead, minimum = float(selector.overhead), selector.minimum_drop_level
    earlier_only, allow_nothing = selector.earlier_only, selector.allow_nothing
    copies = np.array([float(group.copies) for group in rated.groups])
    rates = np.array([float(rate) for rate in rated.rates])
    h = float(rated.step)
    log_keep = np.array([log_keep_probability(overhead * h, rate * h, minimum) for rate in rates])
    sharp_claim = claim.delta is not None and claim.method == "sharp"
    # Algorithm 2: "nothing" needs no δ by (T3). Algorithm 3: it has the same probability anyway.
    weigh_nothing = (earlier_only and not sharp_claim) or (
        allow_nothing and not earlier_only and (claim.delta is None or claim.method == "paper")
    )
    log_weights, log_weight_nothing = _weights(
        rated.groups, candidates, log_keep, copies, selector.weights, weigh_nothing
    )
    return Problem(
        orders=rated.orders,
        curves=rated.curves,
        rates=rates,
        copies=copies,
        overhead=overhead,
        step=rated.step,
        natural_shift=2.0**rated.octave,
        minimum=minimum,
        log_weights=log_weights,
        log_weight_nothing=log_weight_nothing,
        conditioned=not allow_nothing,
        earlier_only=earlier_only,
        method=claim.method,
        log_delta=None if claim.delta is None else math.log(claim.delta),
        profiles=tuple(_profile(group.guarantee) for group in rated.groups if sharp_claim),
    )


@lru_cache(maxsize=4096)
def _profile(guarantee: Guarantee) -> Profile:
    """Return the profile of a guarantee; remembered, because its fields are checked every time."""
    return guarantee.as_profile()


def price_renyi(
    candidates: Sequence[Candidate], rated: Rated, claim: ChargeKind, problem: Problem
) -> RenyiTable:
    """Return the table of charges: one search for a stand-alone claim, or one per fixed order."""
    if problem.conditioned and problem.lattice.nothing >= 1:
        raise InvalidInput(
            "overhead",
            problem.overhead,
            "almost surely nothing is kept; raise it or the repeats, or lower minimum_drop_level",
        )
    if claim.delta is not None:
        priced: tuple[Priced, ...] = (standalone_charges(problem),)
    else:
        indices = [int(np.searchsorted(rated.orders, order)) for order in claim.orders]
        priced = tuple(charges_at_order(problem, index) for index in indices)
    if not all(np.isfinite(row.charges).all() for row in priced):
        raise InvalidInput(
            "method",
            claim.method,
            "no order and shift gives a finite charge; try 'sharp', or other drop rates",
        )
    return RenyiTable(_table(candidates, rated.groups, problem, priced, claim), problem, priced)


def _weights(
    groups: Sequence[CandidateGroup],
    candidates: Sequence[Candidate],
    log_keep: Floats,
    copies: Floats,
    weights: Sequence[float] | None,
    weigh_nothing: bool,
) -> tuple[Floats, float]:
    """Return ln w of a copy in each group, and ln w_⊥.

    The default weights are proportional to the keep probabilities, as in the paper.
    """
    if weights is None:
        runs = np.append(np.log(copies) + log_keep, 0.0 if weigh_nothing else -np.inf)
        # 2^{−40} more than the sum: the weights must add up to at most 1 in spite of rounding.
        log_total = float(np.logaddexp.reduce(runs)) + 2.0**-40
        return log_keep - log_total, -log_total if weigh_nothing else -math.inf
    given = check_weights(weights, candidates)
    rest = 1 - sum(given)
    if weigh_nothing and rest <= 0:
        raise InvalidInput(
            "weights",
            "sum 1",
            "leave some weight for the outcome 'nothing': let them sum to less than 1",
        )
    copy_weights = [
        float(given[group.members[0]] / candidates[group.members[0]].repeats) for group in groups
    ]
    log_rest = math.log(rest) - 2.0**-40 if weigh_nothing else -math.inf
    return np.log(copy_weights) - 2.0**-40, log_rest


def check_weights(weights: Sequence[Number], candidates: Sequence[Candidate]) -> list[Fraction]:
    """Return the public weights: one per candidate, positive, with sum at most 1."""
    if not isinstance(weights, (list, tuple)) or len(weights) != len(candidates):
        raise InvalidInput("weights", weights, f"give one per candidate, {len(candidates)} in all")
    given = [exact(weight, "weights") for weight in weights]
    if min(given) <= 0 or sum(given) > 1:
        raise InvalidInput("weights", weights, "give positive numbers that sum to at most 1")
    return given


def _table(
    candidates: Sequence[Candidate],
    groups: Sequence[CandidateGroup],
    problem: Problem,
    priced: Sequence[Priced],
    claim: ChargeKind,
) -> Charges:
    """Return the table of charges from the priced groups, rounded up."""
    neighbours = candidates[0].guarantee.neighbours

    def guarantee(losses: Sequence[float]) -> Guarantee:
        rounded = tuple(pad_up(max(0.0, loss)) for loss in losses)
        if claim.delta is not None:
            return ApproxDP(rounded[0], claim.delta, neighbours)
        return RenyiDP(claim.orders, rounded, neighbours)

    levels = tuple(
        guarantee([float(row.charges[index]) for row in priced]) for index in range(len(groups))
    )
    if problem.earlier_only:
        nothing = guarantee([float(row.charges[-1]) for row in priced])
    elif math.isfinite(problem.log_weight_nothing):
        nothing = guarantee(_nothing_losses(problem, claim))
    else:
        nothing = levels[0] * 0
        if nothing.shared_delta is not None:
            nothing = nothing.to_approx(claim.delta or 0)
    return Charges(levels, level_places(groups, len(candidates)), nothing)


def _nothing_losses(problem: Problem, claim: ChargeKind) -> list[float]:
    """Return the charge of Algorithm 3's outcome "nothing".

    Its probability P_⊥ is the same for all data sets, so the charge is ln(P_⊥/w_⊥)/(α−1). A claim
    with a δ uses the paper's conversion.
    """
    gap = (
        max(0.0, math.log(problem.lattice.nothing) - problem.log_weight_nothing)
        if problem.lattice.nothing > 0
        else 0.0
    )
    if claim.delta is None:
        return [gap / (order - 1) for order in claim.orders]
    return [(gap - math.log(claim.delta)) / (float(problem.orders[-1]) - 1)]


_LATER = 12  # about this many larger orders are tried for charges at a fixed order


def standalone_charges(problem: Problem) -> Priced:
    """Return the charges of an (ε̃, δ) claim: the least of what is proven (docs/theory.md).

    (T1), (T3), and composition of what an outcome depends on give outcome i at most its share
    w_i·δ, so any of them may be taken outcome by outcome. Composition of all copies has no shares,
    so it replaces the charges of all candidates at once. (T1) is never above the published bound.
    """
    if not problem.profiles:
        return sharpest_charges(problem)
    groups = len(problem.rates)
    best = price_by_profiles(problem)
    best = best.or_less(sharpest_charges(problem, known=best.charges))
    best = best.or_less(_composition(problem, np.log(problem.copies) + problem.log_weights))
    # All or none: this bound holds for all outcomes together and has no shares of δ.
    everything = _composition(problem, np.zeros(groups), whole=True)
    if float(everything.charges[0]) < float(best.charges[:groups].min()):
        best = best.or_less(everything)
    return best


def _composition(problem: Problem, log_shares: Floats, *, whole: bool = False) -> Priced:
    """Return what running and composing the copies before and with each winner costs."""
    assert problem.log_delta is not None
    losses = problem.copies[:, None] * problem.curves
    everything = np.broadcast_to(losses.sum(axis=0), losses.shape)
    totals = (everything if whole or not problem.earlier_only else np.cumsum(losses, axis=0)) * (
        1 + len(losses) * 2.0**-50
    )
    conversion = np.array([problem.conversion(order) for order in problem.orders.tolist()])
    converted = totals + conversion - log_shares[:, None] / (problem.orders - 1)
    best = converted.argmin(axis=1)
    charges = converted.min(axis=1) + 2.0**-44 * (1 + totals[np.arange(len(losses)), best])
    alone = len(losses) == 1 or (problem.earlier_only and not whole)
    if problem.copies[0] == 1 and alone:  # a single run: its own profile
        share = math.exp(log_shares[0] + problem.log_delta) * (1 - 2.0**-40)  # rounded down
        charges[0] = profile_epsilon(problem.profiles[0], share, float(charges[0]))
    rest = problem.outcomes - len(losses)  # "nothing" of Algorithm 2
    return Priced(
        np.append(charges, [charges[-1] if whole else np.inf] * rest),
        np.append(problem.orders[best], [np.nan] * rest),
        np.full(problem.outcomes, np.nan),
        ("composition",) * problem.outcomes,
    )


def charges_at_order(problem: Problem, index: int) -> Priced:
    """Return the charges at one order: the least of what is proven (docs/theory.md).

    Ex-post Rényi DP at a *larger order* implies it here with the same charges (Lyapunov); all
    outcomes must take their charge from one order, that with the least expected charge. *Plain
    composition* of all copies replaces the charges of all candidates at once. The bound as
    published (method "paper") stays as it was published.
    """
    here = sharpest_charges(problem, [index])
    if problem.method == "paper":
        return here
    later = range(index + 1, len(problem.orders))
    # Orders nearer than 1.2 times differ little from this one.
    ahead = [
        later_index
        for later_index in later
        if problem.orders[later_index] >= problem.orders[index] * 1.2
    ]
    tried = [
        here,
        *(sharpest_charges(problem, [index]) for index in ahead[:: max(1, len(ahead) // _LATER)]),
    ]
    finite = [priced for priced in tried if np.isfinite(priced.charges).all()] or [here]
    best = min(finite, key=lambda priced: _expected(problem, priced))
    return _or_composition(problem, index, here, best)


def _expected(problem: Problem, priced: Priced) -> float:
    """Return the mean charge of a released candidate under the weights."""
    weights = problem.copies * np.exp(problem.log_weights)
    return float(weights @ priced.charges[: len(weights)])


def _or_composition(problem: Problem, index: int, here: Priced, best: Priced) -> Priced:
    """Return ``best``, or plain composition if that is cheaper for every candidate.

    Composition is a statement about the order itself, so "nothing" then keeps its charge at this
    order (``here``), not at a larger one: the weights add up to 1 at one order only.
    """
    groups, order = len(problem.rates), float(problem.orders[index])
    total = pad_up(float(problem.copies @ problem.curves[:, index]) * (1 + groups * 2.0**-50))
    if math.isfinite(problem.log_weight_nothing):  # "nothing" takes a share of the weight
        total = pad_up(total - math.log(-math.expm1(problem.log_weight_nothing)) / (order - 1))
    nothing_holds = np.isfinite(here.charges[groups:]).all()
    if not (nothing_holds and total < float(best.charges[:groups].min())):
        return best
    charges, orders, shifts = here.charges.copy(), here.orders.copy(), here.shifts.copy()
    charges[:groups], orders[:groups], shifts[:groups] = total, order, np.nan
    return Priced(charges, orders, shifts, ("composition",) * groups + here.bounds[groups:])
