"""The least of what is proven, outcome by outcome or for all outcomes at once.

A stand-alone (ε̃, δ) claim gives outcome i a share w_i of δ, with Σ w_i ≤ 1. Bounds that keep to
the same shares may be chosen outcome by outcome; a bound for all outcomes together replaces all of
them or none. At a fixed Rényi order the weights play the part of the shares. Proofs:
docs/theory.md, "The least of all bounds" and "Two elementary bounds". Tests:
``tests/theorems/test_elementary_bounds.py``, ``tests/selection/test_least_charges.py``.
"""

from __future__ import annotations

import math

import numpy as np

from expost.arrays import Floats
from expost.privacy.profiles import profile_epsilon
from expost.rationals import pad_up
from expost.selection.renyi.profile_charges import price_by_profiles
from expost.selection.renyi.sharp_charges import Priced, Problem, sharpest_charges

_LATER = 12  # about this many larger orders are tried for charges at a fixed order


def standalone_charges(problem: Problem) -> Priced:
    """Return the charges of an (ε̃, δ) claim: the least of what is proven.

    (T1) at every order, (T3), and composition of what an outcome depends on all give outcome i a
    hockey stick of at most its share w_i·δ. The shares sum to at most 1, so any of them may be
    taken outcome by outcome. Composition of all copies bounds all outcomes together, without
    shares; so it replaces the charges of all candidates at once, if it is below every one of them.
    "Nothing" is charged by (T3), needs no δ, and may stand beside both. The published bound need
    not be tried: at equal orders and shifts (T1) is never above it (β = α). Proofs: docs/theory.md.
    """
    if not problem.profiles:
        return sharpest_charges(problem)
    groups = len(problem.rates)
    best = price_by_profiles(problem)
    best = best.or_less(sharpest_charges(problem, known=best.charges))
    best = best.or_less(_composition(problem, np.log(problem.copies) + problem.log_weights))
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
    """Return the charges at one order: the least of what is proven.

    Besides the theorem at this order there are two elementary bounds (docs/tightness.md):

    * *A larger order.* Ex-post Rényi DP at an order α′ > α with some charges implies it at α with
      the same charges (Lyapunov's inequality). All outcomes must take their charge from the same
      order: the one with the least expected charge under the weights is used.
    * *Plain composition.* A selection is post-processing of all copies, so Σ_j T_j·ε_j(α) bounds
      the moment of everything that can be released. It replaces the charges of all candidates at
      once, if it is below every one of them; "nothing" keeps its own charge and weight.

    The bound as published (method "paper") stays as it was published.
    """
    here = sharpest_charges(problem, [index])
    if problem.method == "paper":
        return here
    later = range(index + 1, len(problem.orders))
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
