"""Privacy profiles: a bound of δ for every ε.

The profile of a mechanism is δ(ε) = max Σ (P − e^ε·P′)₊ over both orders of a pair of neighbours.
It says more than a Rényi curve. A profile belongs to one request: it stands beside its guarantee
(:class:`expost.privacy.guarantees.RenyiDP`), and a ledger never adds profiles, because the sum is
not valid for requests that are chosen adaptively.

Every profile errs upwards and does not rise with ε.

Tests: ``tests/privacy/test_profiles.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidGuarantee
from expost.privacy.base import check_list, check_loss, check_orders, plain, set_fields
from expost.privacy.gaussian_profile import gaussian_delta
from expost.privacy.loss_distribution import covers, training_loss
from expost.privacy.orders import DEFAULT_ORDERS
from expost.rationals import count_of, round_up

_PAD = 2.0**-44  # the margin of rationals.pad_up


@runtime_checkable
class Profile(Protocol):
    """A bound of δ for every ε: a public record that can be hashed and written as JSON."""

    @property
    def accountant(self) -> str:
        """By what the profile is computed, in words, for certificates."""
        ...

    def delta(self, epsilons: npt.ArrayLike) -> Floats:
        """Return an upper bound of δ(ε), at most 1, for each ε ≥ 0."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; :func:`profile_from_dict` reads it back."""
        ...


class _Record:
    """What all profiles share: the checks of ε, and the form for JSON."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; :func:`profile_from_dict` reads it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: plain(value) for name, value in values.items()}}

    def delta(self, epsilons: npt.ArrayLike) -> Floats:
        """Return an upper bound of δ(ε) for each ε.

        Parameters
        ----------
        epsilons : array_like
            Numbers ≥ 0; infinity is allowed.

        Returns
        -------
        ndarray
            One bound, at most 1, per ε.
        """
        values = np.asarray(epsilons, dtype=float)
        if not np.all(values >= 0):
            raise InvalidGuarantee("epsilons", "…", "give numbers ≥ 0")
        return np.clip(self._delta(values.ravel()), 0.0, 1.0).reshape(values.shape)

    def _delta(self, epsilons: Floats) -> Floats:
        """The bound at each ε of a flat array; it may exceed 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class PureProfile(_Record):
    """The profile that (ε, δ)-DP implies: randomised response, and δ for a full disclosure.

    No (ε₀, δ₀)-DP mechanism has a larger one (Kairouz, Oh and Viswanath 2015).

    Parameters
    ----------
    epsilon : float
        ε₀ ≥ 0.
    floor : float, default 0
        δ₀, with 0 ≤ δ₀ ≤ 1.
    """

    epsilon: float
    floor: float = 0.0
    kind: ClassVar[str] = "pure"
    accountant: ClassVar[str] = "(ε, δ)-DP"

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=check_loss(self.epsilon, "epsilon"),
            floor=check_loss(self.floor, "floor"),
        )

    def _delta(self, epsilons: Floats) -> Floats:
        gap = np.maximum(self.epsilon - epsilons, 0.0)
        excess = (1 - self.floor) * -np.expm1(-gap) / (1 + math.exp(-self.epsilon))
        return np.where(excess > 0, (self.floor + excess) * (1 + _PAD), self.floor)


@dataclass(frozen=True)
class GaussianProfile(_Record):
    """The exact profile of μ-Gaussian DP (:func:`expost.privacy.gaussian_profile.gaussian_delta`).

    Parameters
    ----------
    mu : float
        μ > 0: the sensitivity divided by the standard deviation of the noise.
    """

    mu: float
    kind: ClassVar[str] = "gaussian"
    accountant: ClassVar[str] = "the exact profile of Gaussian noise"

    def __post_init__(self) -> None:
        if not check_loss(self.mu, "mu") > 0:
            raise InvalidGuarantee("mu", self.mu, "give a finite number > 0")
        set_fields(self, mu=check_loss(self.mu, "mu"))

    def _delta(self, epsilons: Floats) -> Floats:
        most = 40 * self.mu * (1 + self.mu)  # beyond it δ is below 1e-300, and does not rise
        return np.array([gaussian_delta(min(e, most), self.mu) for e in epsilons.tolist()])


@dataclass(frozen=True)
class RenyiProfile(_Record):
    """The profile that a Rényi curve implies, by the tight conversion at the best order.

    Parameters
    ----------
    orders, epsilons : tuple of float
        As in :class:`expost.privacy.guarantees.RenyiDP`.
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    kind: ClassVar[str] = "renyi"
    accountant: ClassVar[str] = "Rényi DP"

    def __post_init__(self) -> None:
        orders = check_orders(self.orders)
        epsilons = tuple(check_loss(e, "epsilons") for e in check_list(self.epsilons, "epsilons"))
        if len(orders) != len(epsilons):
            raise InvalidGuarantee("epsilons", self.epsilons, "give one number per order")
        set_fields(self, orders=orders, epsilons=epsilons)

    def _delta(self, epsilons: Floats) -> Floats:
        # ε = D + ln(1 − 1/α) − (ln δ + ln α)/(α − 1), solved for ln δ
        order, divergence = np.array(self.orders)[:, None], np.array(self.epsilons)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            exponent = (order - 1) * (divergence - epsilons + np.log1p(-1 / order)) - np.log(order)
            terms = (order - 1) * (divergence + epsilons + 1 / (order - 1)) + np.log(order)
            exponent = np.where(np.isinf(epsilons), -np.inf, exponent + _PAD * (1 + terms))
            return np.asarray(np.exp(np.minimum(exponent.min(axis=0), 1.0)) * (1 + _PAD))


@dataclass(frozen=True)
class ZCDPProfile(_Record):
    """The profile that ρ-zCDP implies, by the tight conversion at the best default order.

    Parameters
    ----------
    rho : float
        ρ ≥ 0.
    """

    rho: float
    kind: ClassVar[str] = "zcdp"
    accountant: ClassVar[str] = "zCDP"

    def __post_init__(self) -> None:
        set_fields(self, rho=check_loss(self.rho, "rho"))

    def _delta(self, epsilons: Floats) -> Floats:
        rho = Fraction(self.rho)
        curve = tuple(round_up(rho * Fraction(order)) for order in DEFAULT_ORDERS)
        return RenyiProfile(DEFAULT_ORDERS, curve).delta(epsilons)


@dataclass(frozen=True)
class DPSGDProfile(_Record):
    """The profile of DP-SGD with Poisson sampling, by its privacy loss distribution.

    The larger of both directions of add-remove neighbours, with all errors of the computation added
    (:mod:`expost.privacy.loss_distribution`).

    Parameters
    ----------
    sampling_rate : float
        q, 0 < q ≤ 1.
    noise_multiplier : float
        Standard deviation of the noise divided by the clipping norm, from 0.01 to 1e6.
    steps : int
        Number of steps, from 1 to 10^9.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    kind: ClassVar[str] = "dp-sgd"
    accountant: ClassVar[str] = "privacy loss distribution"

    def __post_init__(self) -> None:
        rate, noise = float(self.sampling_rate), float(self.noise_multiplier)
        steps = count_of(self.steps, "steps", at_least=1, error=InvalidGuarantee)
        if not covers(rate, noise, steps):
            raise InvalidGuarantee(
                "profile",
                (rate, noise, steps),
                "give a rate from 1e-9 to 1, noise from 0.01 to 1e6 and at most 10^9 steps",
            )
        set_fields(self, sampling_rate=rate, noise_multiplier=noise, steps=steps)

    def _delta(self, epsilons: Floats) -> Floats:
        if self.sampling_rate == 1:  # T steps are one Gaussian mechanism
            mu = math.sqrt(self.steps) / self.noise_multiplier * (1 + 4 * _PAD)
            return GaussianProfile(mu).delta(epsilons)
        loss = training_loss(self.sampling_rate, self.noise_multiplier, self.steps)
        return np.maximum(loss.delta(epsilons, removal=True), loss.delta(epsilons, removal=False))


@dataclass(frozen=True)
class LargestProfile(_Record):
    """The largest of some profiles at each ε: of mechanisms on disjoint rows, run together.

    A pair of neighbours differs in the rows of one of them only; the others are post-processing.

    Parameters
    ----------
    parts : tuple of Profile
        The profiles, at least one.
    """

    parts: tuple[Profile, ...]
    kind: ClassVar[str] = "largest"

    def __post_init__(self) -> None:
        set_fields(self, parts=tuple(map(check_profile, check_list(self.parts, "parts"))))

    @property
    def accountant(self) -> str:
        """The accountants of the parts."""
        return " and ".join(dict.fromkeys(part.accountant for part in self.parts))

    def _delta(self, epsilons: Floats) -> Floats:
        return np.asarray(np.max([part.delta(epsilons) for part in self.parts], axis=0))


_KINDS: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (
        PureProfile,
        GaussianProfile,
        ZCDPProfile,
        RenyiProfile,
        DPSGDProfile,
        LargestProfile,
    )
}


def profile_from_dict(record: Mapping[str, Any]) -> Profile:
    """Read a profile that ``as_dict`` wrote.

    Parameters
    ----------
    record : mapping
        The key ``kind`` and the fields of that kind.

    Returns
    -------
    Profile
        The profile.

    Raises
    ------
    InvalidGuarantee
        If the kind is unknown, or the fields do not belong to it or are not valid.
    """
    values = dict(record)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidGuarantee("profile", kind, "give one of " + ", ".join(_KINDS))
    try:
        profile: Profile = _KINDS[kind](**values)
    except TypeError:
        expected = ", ".join(field.name for field in fields(_KINDS[kind]))
        raise InvalidGuarantee(
            "profile", sorted(values), f"a profile of kind {kind!r} has the fields {expected}"
        ) from None
    return profile


def check_profile(value: object) -> Profile:
    """Return a profile, or read it from its record; refuse anything else."""
    if isinstance(value, Mapping):
        return profile_from_dict(value)
    if not isinstance(value, _Record):
        raise InvalidGuarantee("profile", value, "give a profile of expost.privacy.profiles")
    profile: Profile = value  # type: ignore[assignment]
    return profile


def training_profile(
    sampling_rate: float, noise_multiplier: float, steps: int
) -> DPSGDProfile | None:
    """Return the profile of a training, or None outside the range of :class:`DPSGDProfile`."""
    if not covers(sampling_rate, noise_multiplier, steps):
        return None
    return DPSGDProfile(sampling_rate, noise_multiplier, steps)


def least_epsilon(profile: Profile, delta: float, most: float) -> float:
    """Return the least ε up to ``most`` at which the profile is certified to be at most δ.

    ``most`` is returned where the profile says nothing better.
    """
    low, high = 0.0, most
    if float(profile.delta(high)) > delta:
        return most
    if float(profile.delta(low)) <= delta:
        return low
    for _ in range(4):  # each round divides the interval by 2,000
        grid = np.linspace(low, high, 2001)[1:-1]
        enough = profile.delta(grid) <= delta
        first = int(np.argmax(enough)) if enough.any() else len(grid)
        low, high = (
            float(grid[first - 1]) if first else low,
            float(grid[first]) if first < len(grid) else high,
        )
    return high
