"""What a budget limits: one or more sums of charges, as exact rationals.

Each kind of budget turns a charge into *coordinates* (ε; ε and δ; ρ; or ε at each order) and says which charges it understands:

* ``pure``    PureDP charges; their sum.
* ``approx``  PureDP and ApproxDP charges; the sums of ε̃ and of δ. One δ covers all outcomes of a request together, so it is never refunded:
  a request whose outcomes list different δ is refused (with δ back after every harmless outcome, one could try until it fails).
* ``zcdp``    ZCDP charges; their sum. An ex-post pure charge does *not* become ε̃²/2, so it is refused.
* ``renyi``   RenyiDP charges that list the budget's orders, ZCDP charges as αρ, PureDP charges as ε̃ at every order (``lem:rdp-v-dp``).
  ``all``: every order must stay within its limit; each order is its own filter (``theorem:rdp-filter``), so the whole curve holds.
  ``any``: some order must. With limits B(α) = ε − ln(1/δ_α)/(α−1) the total is (ε, Σ_α w_α·δ_α)-DP, w_α = (1/α)(1−1/α)^{α−1}; the tight
  conversion at every order would not be valid.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.conversions import gaussian_for
from expost.privacy.guarantees import (
    ADD_REMOVE,
    RELATIONS,
    ZCDP,
    ApproxDP,
    Guarantee,
    PureDP,
    RenyiDP,
)
from expost.rationals import Number, exact_positive, round_down, round_up

Coordinates = tuple[Fraction, ...]


class Budget(ABC):
    """A limit on what may be spent under one neighbouring relation."""

    kind: ClassVar[str]
    neighbours: str
    rule: str = "all"
    never_refunded: ClassVar[tuple[int, ...]] = ()

    @property
    @abstractmethod
    def limits(self) -> Coordinates:
        """The most each coordinate may reach."""

    @abstractmethod
    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        """A charge in coordinates, or None if this kind of budget does not understand it."""

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What holds for everything the budget ever admits."""

    @abstractmethod
    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        """An amount for people and JSON; rounded up, or down for what remains."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """A JSON form, read back by :func:`budget_from_dict`."""

    def coordinates(self, charge: Guarantee) -> Coordinates:
        """A charge in coordinates; refused if it cannot be measured against this budget."""
        if charge.neighbours != self.neighbours:
            raise InvalidGuarantee(
                "neighbours",
                charge.neighbours,
                f"the budget is for {self.neighbours!r} neighbours; relations do not mix",
            )
        measured = self._coordinates(charge)
        if measured is None:
            raise InvalidGuarantee(
                "charge", charge, f"a {self.kind} budget cannot add it; {self._understands()}"
            )
        return measured

    def worst(self, charges: Charges) -> Coordinates:
        """What a request must hold: the worst of its outcomes, coordinate by coordinate."""
        outcomes = dict.fromkeys((*charges.levels, charges.nothing))
        return tuple(
            max(column)
            for column in zip(*(self.coordinates(each) for each in outcomes), strict=True)
        )

    @abstractmethod
    def _understands(self) -> str: ...


@dataclass(frozen=True)
class PureBudget(Budget):
    """A total ε."""

    epsilon: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        _set(self, epsilon=_limit(self.epsilon, "epsilon"), neighbours=_relation(self.neighbours))

    @property
    def limits(self) -> Coordinates:
        return (Fraction(self.epsilon),)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pure = charge.as_pure()
        return None if pure is None else (Fraction(pure.epsilon),)

    def _understands(self) -> str:
        return "give PureDP charges"

    def guarantee(self) -> Guarantee:
        return PureDP(self.epsilon, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return _rounded(amount[0], up)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon, "neighbours": self.neighbours}


@dataclass(frozen=True)
class ApproxBudget(Budget):
    """A total ε and a total δ."""

    epsilon: float
    delta: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "approx"
    never_refunded: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        _set(
            self,
            epsilon=_limit(self.epsilon, "epsilon"),
            delta=_delta(self.delta),
            neighbours=_relation(self.neighbours),
        )

    @property
    def limits(self) -> Coordinates:
        return (Fraction(self.epsilon), Fraction(self.delta))

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pair = charge.as_approx()
        return None if pair is None else (Fraction(pair.epsilon), Fraction(pair.delta))

    def worst(self, charges: Charges) -> Coordinates:
        outcomes = (*charges.levels, charges.nothing)
        deltas = {each.shared_delta for each in outcomes if each.shared_delta is not None}
        if len(deltas) > 1:
            raise InvalidGuarantee(
                "delta",
                sorted(deltas),
                "one δ covers all outcomes together: give every outcome, and nothing, the largest",
            )
        return super().worst(charges)

    def _understands(self) -> str:
        return "give PureDP or ApproxDP charges"

    def guarantee(self) -> Guarantee:
        return ApproxDP(self.epsilon, self.delta, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return {"epsilon": _rounded(amount[0], up), "delta": _rounded(amount[1], up)}

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
        }


@dataclass(frozen=True)
class ZCDPBudget(Budget):
    """A total ρ."""

    rho: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        _set(self, rho=_limit(self.rho, "rho"), neighbours=_relation(self.neighbours))

    @classmethod
    def for_approx(cls, epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDPBudget:
        """The largest ρ that implies (ε, δ) by the tight conversion."""
        return cls(gaussian_for(epsilon, delta).rho, neighbours)

    @property
    def limits(self) -> Coordinates:
        return (Fraction(self.rho),)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        stated = charge.as_zcdp()
        return None if stated is None else (Fraction(stated.rho),)

    def _understands(self) -> str:
        return "give ZCDP charges"

    def guarantee(self) -> Guarantee:
        return ZCDP(self.rho, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return _rounded(amount[0], up)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rho": self.rho, "neighbours": self.neighbours}


@dataclass(frozen=True)
class RenyiBudget(Budget):
    """A limit at each order; ``rule`` says whether all of them must hold, or any. See :meth:`for_approx` for limits from (ε, δ)."""

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
                "rule", "any", "limits for 'any' come from (ε, δ): use RenyiBudget.for_approx"
            )
        target = (
            None
            if self.target is None
            else (_limit(self.target[0], "target"), _delta(self.target[1]))
        )
        _set(
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
                f"they do not imply ε = {target[0]} at δ = {target[1]}; use for_approx",
            )

    def _implies(self, epsilon: float, delta: float) -> bool:
        """Whether the limits imply (ε, δ) under the rule; sums are padded up."""
        if self.rule == "all":
            return RenyiDP(self.orders, self.epsilons).to_approx(delta).epsilon <= epsilon
        pairs = zip(self.orders, self.epsilons, strict=True)
        logs = [
            math.log(any_weight(order)) + (order - 1) * (limit - epsilon) for order, limit in pairs
        ]
        return math.fsum(map(math.exp, logs)) <= delta

    @classmethod
    def for_approx(
        cls,
        epsilon: float,
        delta: float,
        orders: Sequence[float],
        rule: str = "all",
        neighbours: str = ADD_REMOVE,
    ) -> RenyiBudget:
        """Limits that imply (ε, δ).

        ``any``: B(α) = ε − ln(1/δ_α)/(α−1) with one δ_α for all orders, such that Σ w_α·δ_α ≤ δ. ``all``: the zCDP-like curve αρ for the
        largest ρ that implies (ε, δ) at the best listed order; one order alone gets the tight conversion's limit.
        """
        _limit(epsilon, "epsilon")
        _delta(delta)
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
        margin = 2.0**-40 * (
            epsilon + abs(math.log(delta))
        )  # above what rounding in the lines before can lose
        padded = [
            (order, limit - margin * max(1.0, order))
            for order, limit in zip(listed, limits, strict=True)
        ]
        usable = [(order, limit) for order, limit in padded if limit > 0]
        if not usable:
            raise InvalidInput(
                "orders",
                listed,
                f"none of them can promise ε = {epsilon} at δ = {delta}; give larger orders",
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
        return tuple(Fraction(epsilon) for epsilon in self.epsilons)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        stated = charge.as_zcdp()
        if stated is not None:  # exact: the curve ρ·α would be rounded up at each order
            return tuple(Fraction(stated.rho) * Fraction(order) for order in self.orders)
        pure = charge.as_pure()
        if pure is not None:  # ε at every order, which the curve of pure DP improves on
            return (Fraction(pure.epsilon),) * len(self.orders)
        curve = charge.as_renyi(self.orders)
        return None if curve is None else tuple(Fraction(each) for each in curve.epsilons)

    def _understands(self) -> str:
        return f"give RenyiDP charges at the orders {list(self.orders)}, or ZCDP or PureDP charges"

    def guarantee(self) -> Guarantee:
        if self.rule == "all" and self.target is None:
            return RenyiDP(self.orders, self.epsilons, self.neighbours)
        assert self.target is not None
        return ApproxDP(*self.target, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        if len(amount) == 1:
            return _rounded(amount[0], up)
        return {"orders": list(self.orders), "epsilons": [_rounded(each, up) for each in amount]}

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
    """w_α = (1/α)(1−1/α)^{α−1}: the share of δ that an order of an ``any`` budget takes."""
    return math.exp((order - 1) * math.log1p(-1 / order)) / order


def as_budget(budget: Budget | Guarantee) -> Budget:
    """A budget, or the one that a promise describes: PureDP(10) is a total ε of 10."""
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
        "budget", budget, "give a budget such as PureBudget(10), or a promise such as PureDP(10)"
    )


def budget_from_dict(record: Mapping[str, Any]) -> Budget:
    """The budget that :meth:`Budget.as_dict` wrote."""
    kinds: dict[str, type[Budget]] = {
        cls.kind: cls for cls in (PureBudget, ApproxBudget, ZCDPBudget, RenyiBudget)
    }
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    kind = values.pop("kind", None)
    if kind not in kinds:
        raise InvalidInput("kind", kind, "one of " + ", ".join(kinds))
    return kinds[kind](**values)


def _set(instance: Budget, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _limit(value: Number, field: str) -> float:
    return round_down(exact_positive(value, field))


def _delta(value: Number) -> float:
    if not 0 < exact_positive(value, "delta") < 1:
        raise InvalidInput("delta", value, "give 0 < delta < 1")
    return round_down(exact_positive(value, "delta"))


def _relation(value: str) -> str:
    if value not in RELATIONS:
        raise InvalidInput("neighbours", value, "give 'add-remove' or 'replace'")
    return value


def _rounded(value: Fraction, up: bool) -> float:
    return round_up(value) if up else round_down(value)
