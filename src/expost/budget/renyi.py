"""Rényi budgets: one limit per order.

Accepted charges are RenyiDP charges that list the budget's orders, ZCDP charges as αρ, and PureDP
charges as ε̃ at every order (``lem:rdp-v-dp``). There are two rules:

* ``all``: every order must stay within its limit. Each order is its own filter
  (``theorem:rdp-filter``), so the whole curve holds.
* ``any``: at least one order must stay within its limit. With limits
  B(α) = ε − ln(1/δ_α)/(α−1) the total is (ε, Σ_α w_α·δ_α)-DP, where
  w_α = (1/α)(1−1/α)^{α−1}. Using the tight conversion at every order would not be valid.

Rounding: limits made from (ε, δ) are lowered by more than their evaluation can lose to rounding.
See also :mod:`expost.budget.base`.
Tests: ``tests/budget/test_filter.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.budget.amounts import amount_of
from expost.budget.base import (
    Budget,
    Coordinates,
    check_delta,
    check_limit,
    guaranteed,
    rounded,
    set_fields,
)
from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ApproxDP, Guarantee, RenyiDP
from expost.rationals import pad_up


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
            else (check_limit(self.target[0], "target"), check_delta(self.target[1]))
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
            Rényi orders, each above 1, in increasing order. Orders that cannot have a positive
            limit are left out.
        rule : {"all", "any"}, default "all"
            Whether every order must stay within its limit, or at least one of them.
        neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
            The neighbouring relation of all charges.

        Returns
        -------
        RenyiBudget
            The budget, with (``epsilon``, ``delta``) as its target.

        Raises
        ------
        InvalidInput
            No listed order can have a positive limit.

        Notes
        -----
        ``any``: the limits are B(α) = ε − ln(1/δ_α)/(α−1), with the same δ_α for all orders, such
        that Σ w_α·δ_α ≤ δ. ``all``: the limits are the zCDP-like curve αρ for the largest ρ that
        implies (ε, δ) at the best listed order. A single order gets the limit of the tight
        conversion.
        """
        check_limit(epsilon, "epsilon")
        check_delta(delta)
        listed = RenyiDP(tuple(orders), (0.0,) * len(tuple(orders)), neighbours).orders
        if rule == "any":
            share = (
                delta / max(1.0, math.fsum(any_weight(order) for order in listed)) * (1 - 2.0**-40)
            )
            limits = [epsilon + math.log(share) / (order - 1) for order in listed]
        else:
            gain = [
                math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
                for order in listed
            ]
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
        return None if curve is None else tuple(amount_of(each) for each in curve.epsilons)

    def _accepted(self) -> str:
        return f"give RenyiDP charges at the orders {list(self.orders)}, or ZCDP or PureDP charges"

    def guarantee(self) -> Guarantee:
        if self.rule == "all" and self.target is None:
            limits = tuple(guaranteed(limit) for limit in self.limits)
            return RenyiDP(self.orders, limits, self.neighbours)
        assert self.target is not None
        return ApproxDP(*self.target, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        if len(amount) == 1:
            return rounded(amount[0], up)
        return {"orders": list(self.orders), "epsilons": [rounded(each, up) for each in amount]}

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "orders": list(self.orders),
            "epsilons": list(self.epsilons),
            "rule": self.rule,
            "neighbours": self.neighbours,
            "target": None if self.target is None else list(self.target),
        }


def any_weight(order: float) -> float:
    """Return w_α, the weight of an order's δ_α in the δ of an ``any`` budget.

    Parameters
    ----------
    order : float
        The Rényi order α, above 1.

    Returns
    -------
    float
        w_α = (1/α)(1−1/α)^{α−1}.
    """
    return math.exp((order - 1) * math.log1p(-1 / order)) / order
