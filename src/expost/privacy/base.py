"""The base class of all privacy guarantees, and the checks of their fields.

A guarantee is a frozen record of floats together with a neighbouring relation. Every operation
rounds towards more privacy loss: sums and products are computed on exact rationals and rounded up.
Guarantees of different kinds, or with different neighbouring relations, are never combined
silently: convert one of them first.

A guarantee for add-remove neighbours implies one for zero-out neighbours with the same numbers
(:meth:`Guarantee.as_zero_out`): a mechanism that ignores empty places sees two data sets that
differ by the presence of one person. The converse is false: with add-remove neighbours the number
of rows is not public, and positions move.

Tests: ``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from expost.errors import InvalidGuarantee
from expost.rationals import Number, count_of, exact, round_down, round_up

if TYPE_CHECKING:
    from expost.privacy.guarantees import ZCDP, ApproxDP, PureDP, RenyiDP
    from expost.privacy.profiles import Profile

ADD_REMOVE, REPLACE, ZERO_OUT = "add-remove", "replace", "zero-out"
RELATIONS = {
    ADD_REMOVE: "a person's row is in the data or not; the number of rows is not public",
    REPLACE: "a person's row is replaced by any other row; the number of rows is public",
    ZERO_OUT: "a person's row is present or blank; the number of rows, blank ones included, is "
    "public",
}
"""All neighbouring relations, in words."""


def persons_words(most: int | None) -> str:
    """Return who is protected by a charge per person, who counts in so many groups at most."""
    if most is None:
        return "one person with all their rows, in any number of groups"
    limit = "one group" if most == 1 else f"at most {most:,} groups"
    return f"one person with all their rows; they count in {limit}, chosen at random per request"


class Guarantee(ABC):
    """A privacy guarantee. Smaller numbers mean more privacy.

    Attributes
    ----------
    kind : str
        ``"pure"``, ``"approx"``, ``"zcdp"`` or ``"renyi"``.
    neighbours : str
        The neighbouring relation, ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    """

    kind: ClassVar[str]
    neighbours: str

    @abstractmethod
    def _combine(self, other: Self, function: Callable[[Fraction, Fraction], Fraction]) -> Self:
        """Apply ``function`` to the numbers of both guarantees, pair by pair, and round up."""

    @abstractmethod
    def _numbers(self, other: Self) -> Iterable[tuple[float, float]]:
        """The pairs of numbers that a comparison looks at."""

    def require_same_kind(self, other: Guarantee) -> None:
        """Refuse a guarantee of another kind or with another neighbouring relation.

        Parameters
        ----------
        other : Guarantee
            The guarantee to check.

        Raises
        ------
        InvalidGuarantee
            If ``other`` is of another kind, has another relation, or is no guarantee.
        """
        if not isinstance(other, Guarantee) or self.kind != other.kind:
            raise InvalidGuarantee(
                "guarantee",
                other,
                f"give a {type(self).__name__}, or convert one of them: "
                "guarantees of different kinds cannot be combined",
            )
        if self.neighbours != other.neighbours:
            raise InvalidGuarantee(
                "neighbours",
                other.neighbours,
                f"the other guarantee is for {self.neighbours!r} neighbours: "
                "guarantees for different relations cannot be combined",
            )

    def require_same_terms(self, other: Guarantee) -> None:
        """Refuse a guarantee that cannot be added or compared number by number.

        Parameters
        ----------
        other : Guarantee
            The guarantee to check.

        Raises
        ------
        InvalidGuarantee
            As :meth:`require_same_kind`; Rényi curves must also have the same orders.
        """
        self.require_same_kind(other)

    def __add__(self, other: Self) -> Self:
        """Guarantee of running both mechanisms (sequential composition)."""
        self.require_same_terms(other)
        return self._combine(other, lambda a, b: a + b)

    def __mul__(self, count: int) -> Self:
        """Guarantee of running the mechanism ``count`` times."""
        times = count_of(count, "count", at_least=0, error=InvalidGuarantee)
        return self._combine(self, lambda a, _: a * times)

    __rmul__ = __mul__

    def at_worst(self, other: Self) -> Self:
        """Return the smallest guarantee of this kind that both guarantees imply.

        Parameters
        ----------
        other : Guarantee
            A guarantee on the same terms.

        Returns
        -------
        Guarantee
            The larger number of each pair.
        """
        self.require_same_terms(other)
        return self._combine(other, max)

    def __le__(self, other: Self) -> bool:
        """Whether this guarantee implies ``other`` number by number."""
        self.require_same_terms(other)
        return all(mine <= theirs for mine, theirs in self._numbers(other))

    def __ge__(self, other: Self) -> bool:
        """Whether ``other`` implies this guarantee number by number."""
        self.require_same_terms(other)
        return other <= self

    @property
    def size(self) -> Fraction:
        """A number by which to sort guarantees on the same terms (ε, ρ, or ε at the last order)."""
        *_, (number, _) = self._numbers(self)
        return Fraction(number)

    @abstractmethod
    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Return a Rényi curve that this guarantee implies.

        Parameters
        ----------
        orders : sequence of float
            The orders of the curve, ascending, each > 1.

        Returns
        -------
        RenyiDP
            The curve, rounded up.

        Raises
        ------
        InvalidGuarantee
            If this guarantee implies no curve on these orders.
        """

    @abstractmethod
    def to_approx(self, delta: Number) -> ApproxDP:
        """Return an (ε, δ) guarantee that this guarantee implies.

        Parameters
        ----------
        delta : number
            The δ of the result.

        Returns
        -------
        ApproxDP
            The guarantee, with ε rounded up.

        Raises
        ------
        InvalidGuarantee
            If no (ε, δ) guarantee with this δ follows.
        """

    @property
    def shared_delta(self) -> float | None:
        """The δ that all outcomes of a claim share, or None for kinds without a δ."""
        return None

    def as_pure(self) -> PureDP | None:
        """Return this guarantee as pure DP if it is pure, else None; nothing is lost."""
        return None

    def as_approx(self) -> ApproxDP | None:
        """Return this guarantee as an (ε, δ) pair if it is one (pure: δ = 0), else None."""
        return None

    def as_zcdp(self) -> ZCDP | None:
        """Return this guarantee as zCDP if it was stated as zCDP, else None."""
        return None

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        """Return this guarantee as a Rényi curve, or None if it implies none at these orders.

        Parameters
        ----------
        orders : sequence of float, optional
            The orders of the curve. Without them only a guarantee that was stated as a curve gives
            a result. With them, pure DP and zCDP give the curves that they imply.

        Returns
        -------
        RenyiDP or None
            The curve.
        """
        return None

    @abstractmethod
    def as_profile(self) -> Profile:
        """Return the privacy profile that this guarantee implies, for the price of one request.

        Returns
        -------
        Profile
            δ for every ε, rounded up. Profiles are never added up.
        """

    def as_zero_out(self) -> Self:
        """Return the guarantee for zero-out neighbours that this guarantee implies.

        The mechanism must ignore empty places.

        Returns
        -------
        Guarantee
            The same numbers with the relation ``"zero-out"``.

        Raises
        ------
        InvalidGuarantee
            If this guarantee is for ``"replace"`` neighbours, which imply nothing about presence.
        """
        if self.neighbours == ZERO_OUT:
            return self
        if self.neighbours != ADD_REMOVE:
            raise InvalidGuarantee(
                "neighbours",
                self.neighbours,
                "only a guarantee for 'add-remove' neighbours implies one for 'zero-out'",
            )
        return replace(self, neighbours=ZERO_OUT)  # type: ignore[type-var]

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; ``guarantee_from_dict`` reads it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        record = {name: as_json(value) for name, value in values.items() if value is not None}
        return {"kind": self.kind, **record}


def as_json(value: Any) -> Any:
    """Return a field of a guarantee or of a profile as JSON holds it."""
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return value.as_dict() if hasattr(value, "as_dict") else value


def set_fields(instance: object, **values: object) -> None:
    """Set fields of a frozen record while it is created."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def check_loss(value: Number, field: str) -> float:
    """Return a privacy loss as a float, rounded up; require 0 ≤ loss < infinity."""
    result = round_up(exact(value, field, error=InvalidGuarantee))
    if not 0 <= result < math.inf:
        raise InvalidGuarantee(field, value, "give a finite number ≥ 0")
    return result


def check_relation(value: str) -> str:
    """Return a neighbouring relation; require one of :data:`RELATIONS`."""
    if value not in tuple(RELATIONS):
        raise InvalidGuarantee("neighbours", value, "give 'add-remove', 'replace' or 'zero-out'")
    return value


def check_list(values: object, field: str) -> Sequence[Any]:
    """Return a list, tuple or array as a sequence; require at least one element."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidGuarantee(field, values, "give a non-empty list of numbers")
    return values


def check_orders(values: object) -> tuple[float, ...]:
    """Return Rényi orders as floats, rounded down; require finite orders > 1 that ascend."""
    listed = check_list(values, "orders")
    orders = tuple(
        round_down(exact(value, "orders", error=InvalidGuarantee)) for value in listed
    )  # a curve at a lower order claims less
    if any(not 1 < order < math.inf for order in orders):
        raise InvalidGuarantee("orders", values, "give finite orders > 1")
    if any(a >= b for a, b in pairwise(orders)):
        raise InvalidGuarantee(
            "orders", values, "give the orders in ascending order, without repetition"
        )
    return orders


def apply_up(function: Callable[[Fraction, Fraction], Fraction], a: float, b: float) -> float:
    """Apply ``function`` to the exact values of two floats and round the result up."""
    return round_up(function(Fraction(a), Fraction(b)))
