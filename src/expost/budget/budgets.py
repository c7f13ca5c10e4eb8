"""Pure, approximate, zCDP and Rényi budgets: which charges each accepts, and how they add up.

* ``pure``: PureDP charges. The budget limits their sum.
* ``approx``: PureDP and ApproxDP charges. The budget limits the sum of ε̃ and the sum of δ. One δ
  covers all outcomes of a request together, so it is never refunded: an analyst could otherwise
  repeat a request until it fails. A request whose outcomes list different δ is refused.
* ``zcdp``: ZCDP charges. An ex-post pure charge does *not* become ε̃²/2, so it is refused.
* ``renyi``: RenyiDP charges that list the budget's orders, ZCDP charges as αρ, and PureDP charges
  as ε̃ at every order (``lem:rdp-v-dp``). Rule ``all``: every order must stay within its limit. Each
  order is its own filter (``theorem:rdp-filter``), so the whole curve holds. Rule ``any``: at least
  one order must. With limits B(α) = ε − ln(1/δ_α)/(α−1) the total is (ε, Σ_α w_α·δ_α)-DP, where
  w_α = (1/α)(1−1/α)^{α−1}; the tight conversion at every order would not be valid.

Rounding: see :mod:`expost.budget.limits`; limits made from (ε, δ) are lowered by more than their
evaluation can lose to rounding. Tests: ``tests/budget/test_filter.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.budget.limits import (
    Budget,
    Coordinates,
    amount_of,
    check_delta_limit,
    check_limit,
    displayed,
    guaranteed,
)
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP, RenyiDP
from expost.rationals import pad_up, read_kind, round_down, set_fields


@dataclass(frozen=True)
class RenyiBudget(Budget):
    """A limit on the total Rényi ε at each order.

    Parameters
    ----------
    orders : tuple of float
        Rényi orders, each above 1, in increasing order.
    epsilons : tuple of float
        The limit at each order. See :meth:`for_approx` for limits from (ε, δ).
    rule : {"all", "any"}, default "all"
        Whether every order must stay within its limit, or at least one of them. ``"any"`` needs a
        ``target``.
    neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
        The neighbouring relation of all charges.
    target : tuple of two floats, optional
        The (ε, δ) that the limits imply. Limits that do not imply it are refused.
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    rule: str = "all"
    neighbours: str = ADD_REMOVE
    target: tuple[float, float] | None = None
    kind: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        curve = RenyiDP(self.orders, self.epsilons, self.neighbours)
        if self.rule not in ("all", "any"):
            raise InvalidInput("rule", self.rule, "give 'all' or 'any'")
        if self.rule == "any" and self.target is None:
            raise InvalidInput(
                "rule", "any", "limits for 'any' need a target (ε, δ): use RenyiBudget.for_approx"
            )
        target = (
            None
            if self.target is None
            else (check_limit(self.target[0], "target"), check_delta_limit(self.target[1]))
        )
        set_fields(
            self,
            orders=curve.orders,
            epsilons=curve.epsilons,
            target=target,
            neighbours=curve.neighbours,
        )
        if target is not None and not self._implies(*target):
            raise InvalidInput(
                "epsilons",
                self.epsilons,
                f"these limits do not imply ε = {target[0]} at δ = {target[1]}; use for_approx",
            )

    def _implies(self, epsilon: float, delta: float) -> bool:
        """Whether what the limits guarantee implies (ε, δ) under the rule; rounded up."""
        limits = tuple(guaranteed(limit) for limit in self.limits)
        if self.rule == "all":
            return RenyiDP(self.orders, limits).to_approx(delta).epsilon <= epsilon
        total = 0.0
        for order, limit in zip(self.orders, limits, strict=True):
            weight, power = math.log(any_weight(order)), (order - 1) * (limit - epsilon)
            size = abs(weight) + (order - 1) * (limit + epsilon)  # of what is added and subtracted
            total += pad_up(math.exp(min(pad_up(weight + power, 1 + size), 1.0)))  # δ < 1 < e
        return pad_up(total) <= delta

    @classmethod
    def for_approx(
        cls,
        epsilon: float,
        delta: float,
        orders: Sequence[float],
        rule: str = "all",
        neighbours: str = ADD_REMOVE,
    ) -> RenyiBudget:
        """Return a budget whose limits imply (ε, δ).

        Parameters
        ----------
        epsilon, delta : float
            The guarantee that everything the budget admits must satisfy.
        orders : sequence of float
            Rényi orders, each above 1, in increasing order. Those that cannot have a positive limit
            are left out; if there is no other, InvalidInput is raised.
        rule, neighbours : str
            As in :class:`RenyiBudget`.

        Notes
        -----
        ``any``: the limits are B(α) = ε − ln(1/δ_α)/(α−1), with the same δ_α for all
        orders, such that Σ w_α·δ_α ≤ δ. ``all``: the limits are the zCDP-like curve αρ for the
        largest ρ that implies (ε, δ) at the best listed order. A single order gets the limit of the
        tight conversion.
        """
        check_limit(epsilon, "epsilon")
        check_delta_limit(delta)
        listed = RenyiDP(tuple(orders), (0.0,) * len(tuple(orders)), neighbours).orders
        if rule == "any":
            # Σ w_α·δ_α ≤ δ with one δ_α for all orders; 2^{−40} less than rounding can take.
            share = (
                delta / max(1.0, math.fsum(any_weight(order) for order in listed)) * (1 - 2.0**-40)
            )
            limits = [epsilon + math.log(share) / (order - 1) for order in listed]
        else:
            gain = [
                math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
                for order in listed
            ]
            # The largest ρ whose curve αρ converts to ε at the best order (tight conversion).
            rho = max((epsilon - more) / order for order, more in zip(listed, gain, strict=True))
            limits = [rho * order for order in listed]
        # More than the lines above can lose to rounding.
        margin = 2.0**-40 * (epsilon + abs(math.log(delta)))
        padded = [
            (order, limit - margin * max(1.0, order))
            for order, limit in zip(listed, limits, strict=True)
        ]
        usable = [(order, limit) for order, limit in padded if limit > 0]
        if not usable:
            raise InvalidInput(
                "orders",
                listed,
                f"none of them can guarantee ε = {epsilon} at δ = {delta}; give larger orders",
            )
        return cls(
            tuple(o for o, _ in usable),
            tuple(e for _, e in usable),
            rule,
            neighbours,
            (epsilon, delta),
        )

    @property
    def limits(self) -> Coordinates:
        return tuple(amount_of(epsilon) for epsilon in self.epsilons)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        stated = charge.as_zcdp()
        if stated is not None:  # exact; the curve of ZCDP would be rounded up at each order
            return tuple(amount_of(stated.rho) * Fraction(order) for order in self.orders)
        pure = charge.as_pure()
        if pure is not None:  # ε at every order; the curve that pure DP implies is smaller
            return (amount_of(pure.epsilon),) * len(self.orders)
        curve = charge.as_renyi(self.orders)
        return None if curve is None else tuple(amount_of(epsilon) for epsilon in curve.epsilons)

    def _accepts(self) -> str:
        return f"give RenyiDP charges at the orders {list(self.orders)}, or ZCDP or PureDP charges"

    def guarantee(self) -> Guarantee:
        if self.rule == "all" and self.target is None:
            limits = tuple(guaranteed(limit) for limit in self.limits)
            return RenyiDP(self.orders, limits, self.neighbours)
        assert self.target is not None
        return ApproxDP(*self.target, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        if len(amount) == 1:
            return displayed(amount[0], up)
        return {
            "orders": list(self.orders),
            "epsilons": [displayed(epsilon, up) for epsilon in amount],
        }


def any_weight(order: float) -> float:
    """Return w_α = (1/α)(1−1/α)^{α−1}, the weight of an order's δ_α in the δ of an "any" budget."""
    return math.exp((order - 1) * math.log1p(-1 / order)) / order


@dataclass(frozen=True)
class PureBudget(Budget):
    """A limit on the total ε of pure charges.

    Parameters
    ----------
    epsilon : float
        The total ε, positive.
    neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
        The neighbouring relation of all charges.

    Examples
    --------
    >>> PureBudget(10).guarantee()
    PureDP(epsilon=10.000000000000002, neighbours='add-remove')
    """

    epsilon: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "pure"
    _counted: ClassVar[tuple[str, ...]] = ("epsilon",)
    _guarantee: ClassVar[type[Guarantee]] = PureDP
    _accepted: ClassVar[str] = (
        "give PureDP charges, or use a budget with a δ (expost ledger create --delta)"
    )

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pure = charge.as_pure()
        return None if pure is None else (amount_of(pure.epsilon),)


@dataclass(frozen=True)
class ApproxBudget(Budget):
    """A limit on the total ε and the total δ of pure and approximate charges.

    Parameters
    ----------
    epsilon : float
        The total ε, positive.
    delta : float
        The total δ, between 0 and 1. It is never refunded: one δ covers all outcomes of a request.
    neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
        The neighbouring relation of all charges.
    """

    epsilon: float
    delta: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "approx"
    never_refunded: ClassVar[tuple[int, ...]] = (1,)
    _counted: ClassVar[tuple[str, ...]] = ("epsilon", "delta")
    _guarantee: ClassVar[type[Guarantee]] = ApproxDP
    _accepted: ClassVar[str] = "give PureDP or ApproxDP charges"

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pair = charge.as_approx()
        return None if pair is None else (amount_of(pair.epsilon), amount_of(pair.delta))

    def worst(self, charges: Charges) -> Coordinates:
        outcomes = (*charges.levels, charges.nothing)
        deltas = {charge.shared_delta for charge in outcomes if charge.shared_delta is not None}
        if len(deltas) > 1:
            raise InvalidGuarantee(
                "delta",
                sorted(deltas),
                "one δ covers all outcomes together: give the largest δ to every outcome, also "
                "to the outcome that releases nothing",
            )
        return super().worst(charges)


@dataclass(frozen=True)
class ZCDPBudget(Budget):
    """A limit on the total ρ of zCDP charges.

    Parameters
    ----------
    rho : float
        The total ρ, positive. See :meth:`for_approx` for a limit from (ε, δ).
    neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
        The neighbouring relation of all charges.
    """

    rho: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "zcdp"
    _counted: ClassVar[tuple[str, ...]] = ("rho",)
    _guarantee: ClassVar[type[Guarantee]] = ZCDP
    _accepted: ClassVar[str] = "give ZCDP charges"

    @classmethod
    def for_approx(cls, epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDPBudget:
        """Return the budget with the largest ρ that implies (ε, δ) by the tight conversion."""
        # Lowered, so that what the budget guarantees (a little more than ρ) implies (ε, δ).
        rho = round_down(Fraction(gaussian_for(epsilon, delta).rho) * (1 - Fraction(1, 2**50)))
        return cls(rho, neighbours)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        stated = charge.as_zcdp()
        return None if stated is None else (amount_of(stated.rho),)


def as_budget(budget: Budget | Guarantee) -> Budget:
    """Return a budget, or the one that a guarantee describes: PureBudget(10) for PureDP(10)."""
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, Guarantee):
        if (pure := budget.as_pure()) is not None:
            return PureBudget(pure.epsilon, pure.neighbours)
        if (pair := budget.as_approx()) is not None:
            return ApproxBudget(pair.epsilon, pair.delta, pair.neighbours)
        if (stated := budget.as_zcdp()) is not None:
            return ZCDPBudget(stated.rho, stated.neighbours)
        if (curve := budget.as_renyi()) is not None:
            return RenyiBudget(curve.orders, curve.epsilons, "all", curve.neighbours)
    raise InvalidInput(
        "budget", budget, "give a budget such as PureBudget(10), or a guarantee such as PureDP(10)"
    )


def budget_from_dict(record: Mapping[str, Any]) -> Budget:
    """Return the budget that :meth:`Budget.as_dict` wrote."""
    kinds = {cls.kind: cls for cls in (PureBudget, ApproxBudget, ZCDPBudget, RenyiBudget)}
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    budget: Budget = read_kind(values, kinds, "budget")
    return budget
