"""Pure, approximate, zero-concentrated and Rényi differential privacy.

A guarantee is a frozen record of floats together with a neighbouring relation. Every operation
rounds towards more privacy loss: sums and products are computed on exact rationals and rounded up;
logarithms are padded up (:func:`expost.rationals.pad_up`). Guarantees of different kinds, or with
different neighbouring relations, are never combined silently: convert one of them first.

A guarantee for add-remove neighbours implies one for zero-out neighbours with the same numbers
(:meth:`Guarantee.as_zero_out`): a mechanism that ignores empty places sees two data sets that
differ by the presence of one person. The converse is false: with add-remove neighbours the number
of rows is not public, and positions move.

Tests: ``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

from expost.errors import InvalidGuarantee
from expost.privacy import profiles
from expost.privacy.profiles import log_of_delta, tight_epsilon, tight_epsilon_of_zcdp
from expost.rationals import (
    Number,
    apply_up,
    as_json,
    check_list,
    check_loss,
    check_orders,
    count_of,
    exact,
    product_up,
    read_kind,
    round_up,
    set_fields,
)

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
    _counted: ClassVar[tuple[str, ...]]  # the numbers; the last one is the size

    def __post_init__(self) -> None:
        checked = {name: check_loss(getattr(self, name), name) for name in self._counted}
        set_fields(self, **checked, neighbours=check_relation(self.neighbours))

    def _combine(self, other: Self, function: Callable[[Fraction, Fraction], Fraction]) -> Self:
        """Apply ``function`` to the numbers of both guarantees, pair by pair, and round up."""
        pairs = zip(self._counted, self._numbers(other), strict=True)
        combined = {name: apply_up(function, *pair) for name, pair in pairs}
        return replace(self, **combined)  # type: ignore[type-var]

    def _numbers(self, other: Self) -> Iterable[tuple[float, float]]:
        """The pairs of numbers that a comparison looks at."""
        return [(getattr(self, name), getattr(other, name)) for name in self._counted]

    def require_same_kind(self, other: Guarantee) -> None:
        """Refuse a guarantee of another kind or with another neighbouring relation."""
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
        """Refuse a guarantee that cannot be added; Rényi curves need the same orders, too."""
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
        """Return the smallest guarantee that both imply: the larger number of each pair."""
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
        """Return a Rényi curve on these ascending orders, each > 1, that this guarantee implies.

        It is rounded up. Raises InvalidGuarantee if this guarantee implies no such curve.
        """

    @abstractmethod
    def to_approx(self, delta: Number) -> ApproxDP:
        """Return an (ε, δ) guarantee with this δ that this guarantee implies.

        ε is rounded up. Raises InvalidGuarantee if none follows.
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

        Without orders only a guarantee that was stated as a curve gives a result. With them, pure
        DP and zCDP give the curves that they imply.
        """
        return None

    @abstractmethod
    def as_profile(self) -> profiles.Profile:
        """Return the privacy profile that this guarantee implies, for the charge of one request.

        It is δ for every ε, rounded up. Profiles are never added up.
        """

    def as_zero_out(self) -> Self:
        """Return the guarantee for zero-out neighbours that this guarantee implies.

        The mechanism must ignore empty places. The numbers stay. Raises InvalidGuarantee for
        ``"replace"`` neighbours, which imply nothing about presence.
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


def check_relation(value: str) -> str:
    """Return a neighbouring relation; require one of :data:`RELATIONS`."""
    if value not in tuple(RELATIONS):
        raise InvalidGuarantee("neighbours", value, "give 'add-remove', 'replace' or 'zero-out'")
    return value


@dataclass(frozen=True)
class PureDP(Guarantee):
    """ε-differential privacy.

    Parameters
    ----------
    epsilon : number
        ε ≥ 0, finite; stored as a float, rounded up.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    """

    epsilon: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "pure"
    _counted: ClassVar[tuple[str, ...]] = ("epsilon",)

    def to_zcdp(self) -> ZCDP:
        """Return the zCDP guarantee with ρ = ε²/2 (Bun and Steinke 2016, Proposition 1.4)."""
        return ZCDP(round_up(Fraction(self.epsilon) ** 2 / 2), self.neighbours)

    def as_pure(self) -> PureDP:
        return self

    def as_approx(self) -> ApproxDP:
        return self.to_approx(0)

    def as_profile(self) -> profiles.Profile:
        return profiles.PureProfile(self.epsilon)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        return None if orders is None else self.to_renyi(orders)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Return a Rényi curve that this guarantee implies; see :meth:`Guarantee.to_renyi`.

        At each order α it is the smaller of αε²/2 (through zCDP) and ε (the divergence of infinite
        order).
        """
        through_zcdp = self.to_zcdp().to_renyi(orders)
        return replace(
            through_zcdp, epsilons=tuple(min(self.epsilon, e) for e in through_zcdp.epsilons)
        )

    def to_approx(self, delta: Number = 0) -> ApproxDP:
        """Return (ε, δ) with the same ε, for any δ; δ > 0 gives a weaker guarantee."""
        return ApproxDP(self.epsilon, delta, self.neighbours)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ApproxDP(Guarantee):
    """(ε, δ)-differential privacy.

    Parameters
    ----------
    epsilon : number
        ε ≥ 0, finite; stored as a float, rounded up.
    delta : number
        0 ≤ δ < 1; stored as a float, rounded up.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    """

    epsilon: float
    delta: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "approx"
    _counted: ClassVar[tuple[str, ...]] = ("delta", "epsilon")

    def __post_init__(self) -> None:
        delta = round_up(exact(self.delta, "delta", error=InvalidGuarantee))
        if not 0 <= delta < 1:
            raise InvalidGuarantee("delta", self.delta, "give a number with 0 ≤ delta < 1")
        super().__post_init__()

    @property
    def shared_delta(self) -> float:
        return self.delta

    def as_approx(self) -> ApproxDP:
        return self

    def as_profile(self) -> profiles.Profile:
        return profiles.PureProfile(self.epsilon, self.delta)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Return a Rényi curve; possible only if δ = 0, where this guarantee is pure.

        An (ε, δ) guarantee with δ > 0 bounds no Rényi divergence. See :meth:`Guarantee.to_renyi`
        for the parameters.
        """
        if self.delta > 0:
            raise InvalidGuarantee(
                "delta", self.delta, "an (ε, δ) guarantee with δ > 0 implies no Rényi curve"
            )
        return PureDP(self.epsilon, self.neighbours).to_renyi(orders)

    def to_approx(self, delta: Number) -> ApproxDP:
        """Return the same ε with a larger δ; a smaller one raises InvalidGuarantee."""
        wanted = ApproxDP(self.epsilon, delta, self.neighbours)  # type: ignore[arg-type]
        if wanted.delta < self.delta:
            raise InvalidGuarantee(
                "delta", delta, f"give δ ≥ {self.delta}: an (ε, δ) guarantee cannot be sharpened"
            )
        return wanted


@dataclass(frozen=True)
class ZCDP(Guarantee):
    """ρ-zero-concentrated DP: the Rényi divergence is at most ρα at every order α > 1.

    Parameters
    ----------
    rho : number
        ρ ≥ 0, finite; stored as a float, rounded up.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    """

    rho: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "zcdp"
    _counted: ClassVar[tuple[str, ...]] = ("rho",)

    def as_zcdp(self) -> ZCDP:
        return self

    def as_profile(self) -> profiles.Profile:
        return profiles.ZCDPProfile(self.rho)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        return None if orders is None else self.to_renyi(orders)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Return the curve ε(α) = αρ, rounded up; see :meth:`Guarantee.to_renyi`."""
        checked = check_orders(orders)
        return RenyiDP(checked, tuple(product_up(self.rho, a) for a in checked), self.neighbours)

    def to_approx(self, delta: Number) -> ApproxDP:
        """Return (ε, δ) with the tight conversion at the best order that a search finds.

        The conversion is valid at every order, so the search needs no certificate. See
        :meth:`Guarantee.to_approx` for the parameters; δ must be > 0.
        """
        log_delta = log_of_delta(delta)
        best = 0.0 if self.rho == 0 else tight_epsilon_of_zcdp(self.rho, log_delta)
        return ApproxDP(max(0.0, best), delta, self.neighbours)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RenyiDP(Guarantee):
    """A Rényi curve: the divergence at order ``orders[k]`` is at most ``epsilons[k]``.

    Parameters
    ----------
    orders : sequence of number
        Finite orders > 1 in ascending order; stored as floats, rounded down.
    epsilons : sequence of number
        One finite bound ≥ 0 per order; stored as floats, rounded up.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    profile : Profile, optional
        A privacy profile of the same mechanism, which prices a single request more sharply. It is
        dropped where guarantees are added or compared: profiles do not add up.
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    neighbours: str = ADD_REMOVE
    profile: profiles.Profile | None = None
    kind: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        orders = check_orders(self.orders)
        epsilons = tuple(check_loss(e, "epsilons") for e in check_list(self.epsilons, "epsilons"))
        if len(orders) != len(epsilons):
            raise InvalidGuarantee(
                "epsilons", self.epsilons, f"give one number per order, {len(orders)} in total"
            )
        set_fields(
            self,
            orders=orders,
            epsilons=epsilons,
            neighbours=check_relation(self.neighbours),
            profile=None if self.profile is None else profiles.check_profile(self.profile),
        )

    def as_profile(self) -> profiles.Profile:
        return self.profile or profiles.RenyiProfile(self.orders, self.epsilons)

    def at(self, order: float) -> float:
        """Return a bound of the divergence at one order.

        The bound is that of the next tabulated order, because divergence grows with the order.
        Raises InvalidGuarantee if the order is not > 1, or above the last tabulated one.
        """
        for tabulated, epsilon in zip(self.orders, self.epsilons, strict=True):
            if tabulated >= order > 1:
                return epsilon
        raise InvalidGuarantee(
            "order",
            order,
            f"give an order > 1 and ≤ {self.orders[-1]}, the last order of the curve",
        )

    def on(self, orders: Sequence[float]) -> RenyiDP:
        """Return the curve on other ascending orders, by :meth:`at`."""
        if tuple(orders) == self.orders:
            return self
        return replace(
            self, orders=tuple(orders), epsilons=tuple(self.at(order) for order in orders)
        )

    def require_same_terms(self, other: Guarantee) -> None:
        super().require_same_terms(other)
        if isinstance(other, RenyiDP) and self.orders != other.orders:
            raise InvalidGuarantee(
                "orders",
                other.orders,
                "the curves have different orders: call .on(orders) on one of them first",
            )

    def _combine(
        self, other: RenyiDP, function: Callable[[Fraction, Fraction], Fraction]
    ) -> RenyiDP:
        pairs = zip(self.epsilons, other.epsilons, strict=True)
        sums = tuple(apply_up(function, a, b) for a, b in pairs)
        return replace(self, epsilons=sums, profile=None)  # profiles do not add up

    def _numbers(self, other: RenyiDP) -> Iterable[tuple[float, float]]:
        return zip(self.epsilons, other.epsilons, strict=True)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        if orders is None:
            return self
        return self.on(orders) if set(orders) <= set(self.orders) else None

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        return self.on(orders)

    def to_approx(self, delta: Number) -> ApproxDP:
        """Return (ε, δ) with the tight conversion at the best tabulated order, or by the profile.

        See :meth:`Guarantee.to_approx` for the parameters; δ must be > 0.
        """
        log_delta = log_of_delta(delta)
        best = min(
            tight_epsilon(a, e, log_delta) for a, e in zip(self.orders, self.epsilons, strict=True)
        )
        if self.profile is not None:
            best = profiles.profile_epsilon(
                self.profile, math.exp(log_delta) * (1 - 2.0**-40), best
            )
        return ApproxDP(max(0.0, best), delta, self.neighbours)  # type: ignore[arg-type]


def guarantee_from_dict(record: Mapping[str, Any]) -> Guarantee:
    """Read a guarantee that :meth:`Guarantee.as_dict` wrote; refuse what it would not write."""
    kinds = {cls.kind: cls for cls in (PureDP, ApproxDP, ZCDP, RenyiDP)}
    guarantee: Guarantee = read_kind(record, kinds, "guarantee")
    return guarantee


def zero_like(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee of a release that does not depend on data, on the terms of another."""
    return guarantee * 0
