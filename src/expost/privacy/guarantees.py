"""Promises: pure, approximate, zero-concentrated and Rényi differential privacy, each with its neighbouring relation.

A promise is a frozen record of floats. Every operation rounds towards more privacy loss: sums and products are made on
exact rationals and rounded up; logarithms are padded up (:func:`expost.rationals.pad_up`). Promises of different kinds or
of different neighbouring relations never mix silently: convert first.

Tests: ``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from expost.errors import InvalidGuarantee
from expost.rationals import Number, count_of, exact, pad_up, round_down, round_up

ADD_REMOVE = "add-remove"
REPLACE = "replace"
RELATIONS = (ADD_REMOVE, REPLACE)


class Guarantee(ABC):
    """A privacy promise. Smaller is more private."""

    kind: ClassVar[str]
    neighbours: str

    @abstractmethod
    def _combine(self, other: Self, function: Callable[[Fraction, Fraction], Fraction]) -> Self:
        """The promise whose numbers are ``function`` of the two promises' numbers, rounded up."""

    @abstractmethod
    def _numbers(self, other: Self) -> Iterable[tuple[float, float]]:
        """The pairs of numbers that a comparison looks at."""

    def require_same_kind(self, other: Guarantee) -> None:
        """Refuse promises of another kind or another neighbouring relation."""
        if not isinstance(other, Guarantee) or self.kind != other.kind:
            raise InvalidGuarantee(
                "guarantee",
                other,
                f"expected {type(self).__name__}; convert one of them first, kinds do not mix",
            )
        if self.neighbours != other.neighbours:
            raise InvalidGuarantee(
                "neighbours",
                other.neighbours,
                f"the other promise is for {self.neighbours!r}; relations do not mix",
            )

    def require_same_terms(self, other: Guarantee) -> None:
        """Refuse promises that cannot be added or compared number by number."""
        self.require_same_kind(other)

    def __add__(self, other: Self) -> Self:
        """The promise of running both (sequential composition)."""
        self.require_same_terms(other)
        return self._combine(other, lambda a, b: a + b)

    def __mul__(self, count: int) -> Self:
        """The promise of running it ``count`` times."""
        times = count_of(count, "count", at_least=0, error=InvalidGuarantee)
        return self._combine(self, lambda a, _: a * times)

    __rmul__ = __mul__

    def at_worst(self, other: Self) -> Self:
        """The smallest promise of this kind that both keep."""
        self.require_same_terms(other)
        return self._combine(other, max)

    def __le__(self, other: Self) -> bool:
        """Whether this promise implies ``other`` number by number."""
        self.require_same_terms(other)
        return all(mine <= theirs for mine, theirs in self._numbers(other))

    def __ge__(self, other: Self) -> bool:
        self.require_same_terms(other)
        return other <= self

    @property
    def size(self) -> Fraction:
        """A number to sort promises on the same terms by (ε, ρ, or ε at the last order)."""
        *_, (number, _) = self._numbers(self)
        return Fraction(number)

    @abstractmethod
    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """A Rényi curve that this promise implies."""

    @abstractmethod
    def to_approx(self, delta: Number) -> ApproxDP:
        """An (ε, δ) promise that this one implies."""

    @property
    def shared_delta(self) -> float | None:
        """The δ that all outcomes of a claim share; None for kinds without a δ."""
        return None

    def as_pure(self) -> PureDP | None:
        """This promise as pure DP if it is one, else None. No conversion loses anything."""
        return None

    def as_approx(self) -> ApproxDP | None:
        """This promise as an (ε, δ) pair if it is one (pure DP: δ = 0), else None."""
        return None

    def as_zcdp(self) -> ZCDP | None:
        """This promise as zCDP if it was stated so, else None."""
        return None

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        """This promise as a Rényi curve, or None if it implies none at these orders.

        Without ``orders`` only a promise that was stated as a curve answers. With ``orders`` pure
        DP and zCDP answer by the curves they imply.
        """
        return None

    def as_dict(self) -> dict[str, Any]:
        """A JSON form, read back by :func:`guarantee_from_dict`."""
        numbers = {
            field.name: list(value)
            if isinstance(value := getattr(self, field.name), tuple)
            else value
            for field in fields(self)  # type: ignore[arg-type]
        }
        return {"kind": self.kind, **numbers}


@dataclass(frozen=True)
class PureDP(Guarantee):
    """ε-differential privacy."""

    epsilon: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        _set(self, epsilon=_loss(self.epsilon, "epsilon"), neighbours=_relation(self.neighbours))

    def _combine(self, other: PureDP, function: Callable[[Fraction, Fraction], Fraction]) -> PureDP:
        return replace(self, epsilon=_apply(function, self.epsilon, other.epsilon))

    def _numbers(self, other: PureDP) -> Iterable[tuple[float, float]]:
        return [(self.epsilon, other.epsilon)]

    def to_zcdp(self) -> ZCDP:
        """ρ = ε²/2 (Bun and Steinke 2016, Proposition 1.4)."""
        return ZCDP(round_up(Fraction(self.epsilon) ** 2 / 2), self.neighbours)

    def as_pure(self) -> PureDP:
        return self

    def as_approx(self) -> ApproxDP:
        return self.to_approx(0)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        return None if orders is None else self.to_renyi(orders)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """The smaller of αε²/2 (through zCDP) and ε (the divergence of infinite order) at each order."""
        through_zcdp = self.to_zcdp().to_renyi(orders)
        return replace(
            through_zcdp, epsilons=tuple(min(self.epsilon, e) for e in through_zcdp.epsilons)
        )

    def to_approx(self, delta: Number = 0) -> ApproxDP:
        """(ε, δ) for any δ; with δ > 0 a promise that pure privacy keeps a fortiori."""
        return ApproxDP(self.epsilon, delta, self.neighbours)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ApproxDP(Guarantee):
    """(ε, δ)-differential privacy."""

    epsilon: float
    delta: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "approx"

    def __post_init__(self) -> None:
        delta = round_up(exact(self.delta, "delta", error=InvalidGuarantee))
        if not 0 <= delta < 1:
            raise InvalidGuarantee("delta", self.delta, "give a number with 0 ≤ delta < 1")
        _set(
            self,
            epsilon=_loss(self.epsilon, "epsilon"),
            delta=delta,
            neighbours=_relation(self.neighbours),
        )

    def _combine(
        self, other: ApproxDP, function: Callable[[Fraction, Fraction], Fraction]
    ) -> ApproxDP:
        return replace(
            self,
            epsilon=_apply(function, self.epsilon, other.epsilon),
            delta=_apply(function, self.delta, other.delta),
        )

    def _numbers(self, other: ApproxDP) -> Iterable[tuple[float, float]]:
        return [(self.delta, other.delta), (self.epsilon, other.epsilon)]

    @property
    def shared_delta(self) -> float:
        return self.delta

    def as_approx(self) -> ApproxDP:
        return self

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Only for δ = 0, where this is a pure promise: (ε, δ) alone bounds no Rényi divergence."""
        if self.delta > 0:
            raise InvalidGuarantee(
                "delta", self.delta, "an (ε, δ) promise with δ > 0 implies no Rényi curve"
            )
        return PureDP(self.epsilon, self.neighbours).to_renyi(orders)

    def to_approx(self, delta: Number) -> ApproxDP:
        """The same ε at a larger δ."""
        wanted = ApproxDP(self.epsilon, delta, self.neighbours)  # type: ignore[arg-type]
        if wanted.delta < self.delta:
            raise InvalidGuarantee(
                "delta", delta, f"an (ε, δ) promise cannot be sharpened: give δ ≥ {self.delta}"
            )
        return wanted


@dataclass(frozen=True)
class ZCDP(Guarantee):
    """ρ-zero-concentrated differential privacy: Rényi divergence at most ρα at every order α > 1."""

    rho: float
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        _set(self, rho=_loss(self.rho, "rho"), neighbours=_relation(self.neighbours))

    def _combine(self, other: ZCDP, function: Callable[[Fraction, Fraction], Fraction]) -> ZCDP:
        return replace(self, rho=_apply(function, self.rho, other.rho))

    def _numbers(self, other: ZCDP) -> Iterable[tuple[float, float]]:
        return [(self.rho, other.rho)]

    def as_zcdp(self) -> ZCDP:
        return self

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        return None if orders is None else self.to_renyi(orders)

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        """ε(α) = αρ, rounded up."""
        rho = Fraction(self.rho)
        checked = _orders(orders)
        return RenyiDP(
            checked, tuple(round_up(rho * Fraction(a)) for a in checked), self.neighbours
        )

    def to_approx(self, delta: Number) -> ApproxDP:
        """(ε, δ) with the tight conversion at the best order; any order is valid, so the search needs no certificate."""
        log_delta = _log_delta(delta)
        if self.rho == 0:
            return ApproxDP(0.0, delta, self.neighbours)  # type: ignore[arg-type]

        def epsilon(log_excess: float) -> float:
            order = 1 + math.exp(log_excess)
            return tight_epsilon(order, round_up(Fraction(order) * Fraction(self.rho)), log_delta)

        guess = max(
            -20.0, 0.5 * (math.log(max(-log_delta, 1e-3)) - math.log(self.rho))
        )  # orders stay above 1 in floats
        best = _minimise(epsilon, guess - 12, guess + 12)
        return ApproxDP(max(0.0, best), delta, self.neighbours)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RenyiDP(Guarantee):
    """A Rényi curve: divergence at most ``epsilons[k]`` at order ``orders[k]`` > 1, orders ascending."""

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    neighbours: str = ADD_REMOVE
    kind: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        orders = _orders(self.orders)
        epsilons = tuple(_loss(e, "epsilons") for e in _listed(self.epsilons, "epsilons"))
        if len(orders) != len(epsilons):
            raise InvalidGuarantee(
                "epsilons", self.epsilons, f"give one per order, {len(orders)} in all"
            )
        _set(self, orders=orders, epsilons=epsilons, neighbours=_relation(self.neighbours))

    def at(self, order: float) -> float:
        """The divergence at an order: that of the next tabulated order, since divergence grows with the order."""
        for tabulated, epsilon in zip(self.orders, self.epsilons, strict=True):
            if tabulated >= order > 1:
                return epsilon
        raise InvalidGuarantee(
            "order", order, f"give an order > 1 and ≤ {self.orders[-1]}, the last of the curve"
        )

    def on(self, orders: Sequence[float]) -> RenyiDP:
        """The curve on other orders (each at most the last tabulated one), by :meth:`at`."""
        if tuple(orders) == self.orders:
            return self
        return replace(
            self, orders=tuple(orders), epsilons=tuple(self.at(order) for order in orders)
        )

    def require_same_terms(self, other: Guarantee) -> None:
        super().require_same_terms(other)
        if isinstance(other, RenyiDP) and self.orders != other.orders:
            raise InvalidGuarantee(
                "orders", other.orders, "the curves are on different orders; use .on(orders) first"
            )

    def _combine(
        self, other: RenyiDP, function: Callable[[Fraction, Fraction], Fraction]
    ) -> RenyiDP:
        pairs = zip(self.epsilons, other.epsilons, strict=True)
        return replace(self, epsilons=tuple(_apply(function, a, b) for a, b in pairs))

    def _numbers(self, other: RenyiDP) -> Iterable[tuple[float, float]]:
        return zip(self.epsilons, other.epsilons, strict=True)

    def as_renyi(self, orders: Sequence[float] | None = None) -> RenyiDP | None:
        if orders is None:
            return self
        return self.on(orders) if set(orders) <= set(self.orders) else None

    def to_renyi(self, orders: Sequence[float]) -> RenyiDP:
        return self.on(orders)

    def to_approx(self, delta: Number) -> ApproxDP:
        """(ε, δ) with the tight conversion at the best tabulated order."""
        log_delta = _log_delta(delta)
        best = min(
            tight_epsilon(a, e, log_delta) for a, e in zip(self.orders, self.epsilons, strict=True)
        )
        return ApproxDP(max(0.0, best), delta, self.neighbours)  # type: ignore[arg-type]


def tight_epsilon(order: float, divergence: float, log_delta: float) -> float:
    """ε with (ε, δ)-DP from a Rényi divergence: ε(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), padded up.

    Canonne, Kamath and Steinke (2020), Proposition 12; Asoodeh et al. (2020).
    """
    first = -math.log1p(1 / (order - 1))
    second = (log_delta + math.log(order)) / (order - 1)
    magnitude = divergence + abs(first) + (abs(log_delta) + math.log(order)) / (order - 1)
    return pad_up(divergence + first - second, magnitude)


def guarantee_from_dict(record: Mapping[str, Any]) -> Guarantee:
    """The promise that :meth:`Guarantee.as_dict` wrote."""
    kinds: dict[str, type[Guarantee]] = {cls.kind: cls for cls in (PureDP, ApproxDP, ZCDP, RenyiDP)}
    values = dict(record)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidGuarantee("kind", kind, "one of " + ", ".join(kinds))
    try:
        return kinds[kind](**values)
    except TypeError:
        expected = ", ".join(field.name for field in fields(kinds[kind]))  # type: ignore[arg-type]
        raise InvalidGuarantee(
            "guarantee", sorted(values), f"a {kind} promise has the fields {expected}"
        ) from None


def zero_like(guarantee: Guarantee) -> Guarantee:
    """The promise of releasing nothing that depends on data, on the terms of ``guarantee``."""
    return guarantee * 0


def _set(instance: Guarantee, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _loss(value: Number, field: str) -> float:
    result = round_up(exact(value, field, error=InvalidGuarantee))
    if not 0 <= result < math.inf:
        raise InvalidGuarantee(field, value, "give a finite number ≥ 0")
    return result


def _relation(value: str) -> str:
    if value not in RELATIONS:
        raise InvalidGuarantee("neighbours", value, "give 'add-remove' or 'replace'")
    return value


def _listed(values: object, field: str) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidGuarantee(field, values, "give a non-empty list of numbers")
    return values


def _orders(values: object) -> tuple[float, ...]:
    listed = _listed(values, "orders")
    orders = tuple(
        round_down(exact(value, "orders", error=InvalidGuarantee)) for value in listed
    )  # claims less
    if any(not 1 < order < math.inf for order in orders):
        raise InvalidGuarantee("orders", values, "give finite orders > 1")
    if any(a >= b for a, b in pairwise(orders)):
        raise InvalidGuarantee("orders", values, "give orders in ascending order, each once")
    return orders


def _log_delta(delta: Number) -> float:
    value = exact(delta, "delta", error=InvalidGuarantee)
    if not 0 < value < 1:
        raise InvalidGuarantee(
            "delta", delta, "give 0 < delta < 1: a Rényi promise implies no pure one"
        )
    return math.log(float(value)) if float(value) > 0 else math.log(math.ulp(0))


def _apply(function: Callable[[Fraction, Fraction], Fraction], a: float, b: float) -> float:
    return round_up(function(Fraction(a), Fraction(b)))


def _minimise(
    function: Callable[[float], float], low: float, high: float, steps: int = 80
) -> float:
    """The least value of a unimodal function found by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return min(at_a, at_b)
