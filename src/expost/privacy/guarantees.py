"""Pure, approximate, zero-concentrated and Rényi differential privacy.

Each kind is a frozen record of floats with its neighbouring relation. Every operation rounds
towards more privacy loss: sums and products are computed on exact rationals and rounded up;
logarithms are padded up (:func:`expost.rationals.pad_up`). Guarantees of different kinds, or with
different neighbouring relations, are never combined silently: convert one of them first.

The base class is in ``privacy.base`` and the conversion from Rényi divergences to ε in
``privacy.tight_conversion``; their public names can be imported from here too.

Tests: ``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidGuarantee
from expost.privacy import profiles
from expost.privacy.base import (
    ADD_REMOVE,
    RELATIONS,
    REPLACE,
    ZERO_OUT,
    Guarantee,
    apply_up,
    check_list,
    check_loss,
    check_orders,
    check_relation,
    set_fields,
)
from expost.privacy.conversions import log_of_delta, tight_epsilon, tight_epsilon_of_zcdp
from expost.rationals import Number, exact, round_up

__all__ = [
    "ADD_REMOVE",
    "RELATIONS",
    "REPLACE",
    "ZCDP",
    "ZERO_OUT",
    "ApproxDP",
    "Guarantee",
    "PureDP",
    "RenyiDP",
    "guarantee_from_dict",
    "tight_epsilon",
    "zero_like",
]


@dataclass(frozen=True)
class PureDP(Guarantee):
    """ε-differential privacy.

    Parameters
    ----------
    epsilon : number
        ε ≥ 0, finite; stored as a float, rounded up.
    neighbours : str, default "add-remove"
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.
    """

    epsilon: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=check_loss(self.epsilon, "epsilon"),
            neighbours=check_relation(self.neighbours),
        )

    def _combine(self, other: PureDP, function: Callable[[Fraction, Fraction], Fraction]) -> PureDP:
        return replace(self, epsilon=apply_up(function, self.epsilon, other.epsilon))

    def _numbers(self, other: PureDP) -> Iterable[tuple[float, float]]:
        return [(self.epsilon, other.epsilon)]

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
        """Return a Rényi curve that this guarantee implies.

        At each order α it is the smaller of αε²/2 (through zCDP) and ε (the divergence of infinite
        order). See :meth:`Guarantee.to_renyi` for the parameters.
        """
        through_zcdp = self.to_zcdp().to_renyi(orders)
        return replace(
            through_zcdp, epsilons=tuple(min(self.epsilon, e) for e in through_zcdp.epsilons)
        )

    def to_approx(self, delta: Number = 0) -> ApproxDP:
        """Return (ε, δ) with the same ε, for any δ; δ > 0 gives a weaker guarantee.

        Parameters
        ----------
        delta : number, default 0
            The δ of the result.

        Returns
        -------
        ApproxDP
            The guarantee.
        """
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
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.
    """

    epsilon: float
    delta: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "approx"

    def __post_init__(self) -> None:
        delta = round_up(exact(self.delta, "delta", error=InvalidGuarantee))
        if not 0 <= delta < 1:
            raise InvalidGuarantee("delta", self.delta, "give a number with 0 ≤ delta < 1")
        set_fields(
            self,
            epsilon=check_loss(self.epsilon, "epsilon"),
            delta=delta,
            neighbours=check_relation(self.neighbours),
        )

    def _combine(
        self, other: ApproxDP, function: Callable[[Fraction, Fraction], Fraction]
    ) -> ApproxDP:
        return replace(
            self,
            epsilon=apply_up(function, self.epsilon, other.epsilon),
            delta=apply_up(function, self.delta, other.delta),
        )

    def _numbers(self, other: ApproxDP) -> Iterable[tuple[float, float]]:
        return [(self.delta, other.delta), (self.epsilon, other.epsilon)]

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
        """Return the same ε with a larger δ.

        Parameters
        ----------
        delta : number
            The δ of the result, at least the present one.

        Returns
        -------
        ApproxDP
            The guarantee.

        Raises
        ------
        InvalidGuarantee
            If ``delta`` is smaller than the present δ.
        """
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
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.
    """

    rho: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        set_fields(
            self, rho=check_loss(self.rho, "rho"), neighbours=check_relation(self.neighbours)
        )

    def _combine(self, other: ZCDP, function: Callable[[Fraction, Fraction], Fraction]) -> ZCDP:
        return replace(self, rho=apply_up(function, self.rho, other.rho))

    def _numbers(self, other: ZCDP) -> Iterable[tuple[float, float]]:
        return [(self.rho, other.rho)]

    def as_zcdp(self) -> ZCDP:
        return self

    def as_profile(self) -> profiles.Profile:
        return profiles.ZCDPProfile(self.rho)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        return None if orders is None else self.to_renyi(orders)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Return the curve ε(α) = αρ, rounded up; see :meth:`Guarantee.to_renyi`."""
        rho = Fraction(self.rho)
        checked = check_orders(orders)
        return RenyiDP(
            checked, tuple(round_up(rho * Fraction(a)) for a in checked), self.neighbours
        )

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
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.
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

        Parameters
        ----------
        order : float
            An order > 1, at most the last tabulated one.

        Returns
        -------
        float
            The bound.

        Raises
        ------
        InvalidGuarantee
            If the order is not > 1, or above the last tabulated one.
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
        """Return the curve on other orders, by :meth:`at`.

        Parameters
        ----------
        orders : sequence of float
            Ascending orders > 1, each at most the last tabulated one.

        Returns
        -------
        RenyiDP
            The curve.
        """
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
    """Read a guarantee that :meth:`Guarantee.as_dict` wrote.

    ``record``: the key ``kind`` and the fields of that kind. Raises InvalidGuarantee: the kind is
    unknown, or the fields do not belong to it or are not valid.
    """
    kinds: dict[str, type[Guarantee]] = {cls.kind: cls for cls in (PureDP, ApproxDP, ZCDP, RenyiDP)}
    values = dict(record)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidGuarantee("kind", kind, "give one of " + ", ".join(kinds))
    try:
        return kinds[kind](**values)
    except TypeError:
        expected = ", ".join(field.name for field in fields(kinds[kind]))  # type: ignore[arg-type]
        raise InvalidGuarantee(
            "guarantee", sorted(values), f"a guarantee of kind {kind!r} has the fields {expected}"
        ) from None


def zero_like(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee of a release that does not depend on data, on the terms of another.

    ``guarantee``: gives the kind, the neighbouring relation and, for a Rényi curve, the orders.
    Returns: the same guarantee with every loss equal to 0.
    """
    return guarantee * 0
