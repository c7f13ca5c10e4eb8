"""Pure, approximate and zCDP budgets, and the functions that build a budget of any kind.

Each kind of budget states which charges it accepts:

* ``pure``: PureDP charges. The budget limits their sum.
* ``approx``: PureDP and ApproxDP charges. The budget limits the sum of ε̃ and the sum of δ. One δ
  covers all outcomes of a request together, so it is never refunded, and a request whose outcomes
  list different δ is refused. If δ were returned after every harmless outcome, an analyst could
  repeat a request until it fails.
* ``zcdp``: ZCDP charges. The budget limits their sum. An ex-post pure charge does *not* become
  ε̃²/2, so it is refused.
* ``renyi``: see :mod:`expost.budget.renyi`.

Rounding: see :mod:`expost.budget.amounts`.
Tests: ``tests/budget/test_filter.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.budget.amounts import amount_of
from expost.budget.base import (
    Budget,
    Coordinates,
    check_delta,
    check_limit,
    check_relation,
    guaranteed,
    rounded,
    set_fields,
)
from expost.budget.renyi import RenyiBudget, any_weight
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.conversions import gaussian_for
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP
from expost.rationals import round_down

__all__ = [
    "ApproxBudget",
    "Budget",
    "Coordinates",
    "PureBudget",
    "RenyiBudget",
    "ZCDPBudget",
    "any_weight",
    "as_budget",
    "budget_from_dict",
]


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

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=check_limit(self.epsilon, "epsilon"),
            neighbours=check_relation(self.neighbours),
        )

    @property
    def limits(self) -> Coordinates:
        return (amount_of(self.epsilon),)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pure = charge.as_pure()
        return None if pure is None else (amount_of(pure.epsilon),)

    def _accepted(self) -> str:
        return "give PureDP charges"

    def guarantee(self) -> Guarantee:
        return PureDP(guaranteed(self.limits[0]), self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return rounded(amount[0], up)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon, "neighbours": self.neighbours}


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

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=check_limit(self.epsilon, "epsilon"),
            delta=check_delta(self.delta),
            neighbours=check_relation(self.neighbours),
        )

    @property
    def limits(self) -> Coordinates:
        return (amount_of(self.epsilon), amount_of(self.delta))

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        pair = charge.as_approx()
        return None if pair is None else (amount_of(pair.epsilon), amount_of(pair.delta))

    def worst(self, charges: Charges) -> Coordinates:
        outcomes = (*charges.levels, charges.nothing)
        deltas = {each.shared_delta for each in outcomes if each.shared_delta is not None}
        if len(deltas) > 1:
            raise InvalidGuarantee(
                "delta",
                sorted(deltas),
                "one δ covers all outcomes together: give the largest δ to every outcome, also "
                "to the outcome that releases nothing",
            )
        return super().worst(charges)

    def _accepted(self) -> str:
        return "give PureDP or ApproxDP charges"

    def guarantee(self) -> Guarantee:
        epsilon, delta = (guaranteed(limit) for limit in self.limits)
        return ApproxDP(epsilon, delta, self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return {"epsilon": rounded(amount[0], up), "delta": rounded(amount[1], up)}

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
        }


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

    def __post_init__(self) -> None:
        set_fields(
            self, rho=check_limit(self.rho, "rho"), neighbours=check_relation(self.neighbours)
        )

    @classmethod
    def for_approx(cls, epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDPBudget:
        """Return the budget with the largest ρ that implies (ε, δ) by the tight conversion.

        Parameters
        ----------
        epsilon, delta : float
            The guarantee that everything the budget admits must satisfy.
        neighbours : {"add-remove", "replace", "zero-out"}, default "add-remove"
            The neighbouring relation of all charges.

        Returns
        -------
        ZCDPBudget
            The budget.
        """
        # Lowered, so that what the budget guarantees (a little more than ρ) implies (ε, δ).
        rho = round_down(Fraction(gaussian_for(epsilon, delta).rho) * (1 - Fraction(1, 2**50)))
        return cls(rho, neighbours)

    @property
    def limits(self) -> Coordinates:
        return (amount_of(self.rho),)

    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        stated = charge.as_zcdp()
        return None if stated is None else (amount_of(stated.rho),)

    def _accepted(self) -> str:
        return "give ZCDP charges"

    def guarantee(self) -> Guarantee:
        return ZCDP(guaranteed(self.limits[0]), self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        return rounded(amount[0], up)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rho": self.rho, "neighbours": self.neighbours}


def as_budget(budget: Budget | Guarantee) -> Budget:
    """Return a budget, or the budget that a guarantee describes.

    Parameters
    ----------
    budget : Budget or Guarantee
        A budget is returned as it is. ``PureDP(10)`` becomes ``PureBudget(10)``, and so on.

    Returns
    -------
    Budget
        The budget.

    Raises
    ------
    InvalidInput
        The argument is neither a budget nor a guarantee.
    """
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
    """Return the budget that :meth:`Budget.as_dict` wrote.

    Parameters
    ----------
    record : mapping
        The JSON form of a budget.

    Returns
    -------
    Budget
        The budget.

    Raises
    ------
    InvalidInput
        The kind is unknown, or a limit is not valid.
    """
    kinds: dict[str, type[Budget]] = {
        cls.kind: cls for cls in (PureBudget, ApproxBudget, ZCDPBudget, RenyiBudget)
    }
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    kind = values.pop("kind", None)
    if kind not in kinds:
        raise InvalidInput("kind", kind, "give one of " + ", ".join(kinds))
    return kinds[kind](**values)
