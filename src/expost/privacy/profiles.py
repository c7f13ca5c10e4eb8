"""Conversions to (ε, δ): of a Rényi divergence, of Gaussian noise, and privacy profiles.

**Rényi divergences**, on plain numbers. Logarithms are padded up (:func:`expost.rationals.pad_up`),
so ε is never too small. The conversion is valid at every order, so a search for the best one needs
no certificate (Canonne, Kamath and Steinke 2020, Proposition 12; Asoodeh et al. 2020).

**Gaussian noise on real numbers.** Noise of standard deviation σ on a statistic of ℓ2 sensitivity Δ
is μ-Gaussian DP with μ = Δ/σ, and (ε, δ)-DP exactly for δ ≥ Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle
and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13). It needs noise that is exactly
normal, or a rounding of such noise (:mod:`expost.randomness.samplers`); for discrete Gaussian
noise use :func:`expost.privacy.dpsgd.gaussian_for`. Evaluated like this, e^ε overflows and Φ
underflows where δ is an ordinary number. Since e^ε·φ(−μ/2 − ε/μ) = φ(μ/2 − ε/μ), the same is

    δ = φ(u)·(R(u) − R(v)),   u = ε/μ − μ/2,   v = ε/μ + μ/2,   R(x) = Φ(−x)/φ(x).

It errs towards more noise: ε/μ is rounded down; u and v have one rounding each, which changes R by
a relative 2^{−53} at most (0 < 1/R(x) − x < 1/x) and −u²/2 by 2^{−52}·u²; R has a relative error
below 3·10⁻¹⁵ (:func:`_mills`). Twice that is added for each term, and 10⁻¹⁵·(10 + u²) to ln δ.

**Privacy profiles**: a bound of δ(ε) = max Σ (P − e^ε·P′)₊ over both orders of a pair of
neighbours, for every ε. It says more than a Rényi curve, errs upwards and does not rise with ε. It
belongs to one request: a ledger never adds profiles, because the sum is not valid for requests that
are chosen adaptively.

Tests: ``tests/privacy/test_profiles.py``, ``tests/privacy/test_gaussian_profile.py``,
``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.loss_distribution import covers, training_loss
from expost.rationals import (
    Number,
    as_json,
    check_list,
    check_loss,
    check_orders,
    count_of,
    exact,
    pad_up,
    product_up,
    read_kind,
    round_down,
    set_fields,
)

INTEGER_ORDERS: tuple[float, ...] = tuple(
    float(order)
    for order in (
        *range(2, 65),
        *range(66, 129, 2),
        *range(132, 257, 4),
        *range(264, 513, 8),
        *range(528, 1025, 16),
        *(1152, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192),
    )
)
"""Whole orders up to 1,024 with steps of at most 3.2 %, then sparser to 8,192 for very small ε."""

FRACTIONAL_ORDERS: tuple[float, ...] = (
    *(1.05, 1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.75, 1.8, 1.9),
    *(2.1, 2.2, 2.4, 2.6, 2.8, 3.25, 3.5, 3.75, 4.5, 5.5),
)
"""Fractional orders, which matter for large ε: DP-SGD at ε ≈ 10 is best between 1.4 and 3."""

DEFAULT_ORDERS: tuple[float, ...] = tuple(sorted((*FRACTIONAL_ORDERS, *INTEGER_ORDERS)))
""":data:`INTEGER_ORDERS` and :data:`FRACTIONAL_ORDERS`. Ledgers name their own orders."""


def tight_epsilon(order: float, divergence: float, log_delta: float) -> float:
    """Return ε(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), padded up: the divergence implies (ε, δ)-DP.

    It can be negative. Canonne, Kamath and Steinke (2020), Proposition 12; Asoodeh et al. (2020).
    """
    first = -math.log1p(1 / (order - 1))
    second = (log_delta + math.log(order)) / (order - 1)
    magnitude = divergence + abs(first) + (abs(log_delta) + math.log(order)) / (order - 1)
    return pad_up(divergence + first - second, magnitude)


def tight_epsilon_of_zcdp(rho: float, log_delta: float) -> float:
    """Return the least :func:`tight_epsilon` of ρ-zCDP, ρ > 0, that a search over orders finds."""

    def epsilon(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return tight_epsilon(order, product_up(order, rho), log_delta)

    guess = max(
        -20.0, 0.5 * (math.log(max(-log_delta, 1e-3)) - math.log(rho))
    )  # keeps the orders above 1 in floating point
    return _minimise(epsilon, guess - 12, guess + 12)


def log_of_delta(delta: Number) -> float:
    """Return ln δ, for a float with 0 < δ < 1."""
    value = exact(delta, "delta", error=InvalidGuarantee)
    if not 0 < value < 1:
        raise InvalidGuarantee(
            "delta",
            delta,
            "give 0 < delta < 1: a zCDP or Rényi guarantee implies no pure guarantee",
        )
    if round_down(value) == 0:
        raise InvalidGuarantee(
            "delta", type(delta).__name__, "give at least 5e-324, the smallest float"
        )
    return math.log(round_down(value))


def _minimise(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the least value of a unimodal function that golden-section search finds."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(80):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return min(at_a, at_b)


_RELATIVE = 6e-15
_TERMS = 80
_CELLS = 400
_DENSITY = 1 / math.sqrt(2 * math.pi)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return an upper bound, at most 1, on the δ of μ-Gaussian DP at ε ≥ 0."""
    # δ = Φ(−low) − e^ε·Φ(−high) = φ(low)·(R(low) − R(high)): no cancellation of exponentials.
    ratio = math.nextafter(epsilon / mu, 0.0)
    low, high = ratio - mu / 2, ratio + mu / 2
    if low > 40:  # δ < φ(40)·R(40), which is smaller than any float
        return math.nextafter(0.0, 1.0)
    other = _mills(high)
    if low >= 0:
        first = _mills(low)
        part = first - other + _RELATIVE * (first + other)
        return min(1.0, _up(math.log(part * _DENSITY) - low**2 / 2 + 1e-15 * (10 + low**2)))
    # Φ(−u) is at least ½ here, so that nothing underflows but what is subtracted.
    less = _DENSITY * math.exp(-(low**2) / 2) * other
    total = 0.5 * math.erfc(low / math.sqrt(2)) * (1 + _RELATIVE)
    return min(1.0, total - less * (1 - _RELATIVE - min(1.0, 1e-15 * (10 + low**2))))


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ, rounded down, for which μ-Gaussian DP implies (ε, δ)-DP."""
    if not 0 < epsilon < math.inf:
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give a number strictly between 0 and 1")
    # The least guess is safe: u > 40, where the bound on δ is the smallest number there is.
    low, high = epsilon / (42 + epsilon), 1.0
    if low < 1e-300:
        raise InvalidInput("epsilon", epsilon, "it is too small; give a larger one")
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * low:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=256)
def stopped_delta(epsilons: tuple[float, ...], mus: tuple[float, ...]) -> float:
    """Return an upper bound on the δ of a Gaussian path that may be stopped at any of its levels.

    ``epsilons``: ε of each level, ascending. ``mus``: what is released up to level i is
    μ_i-Gaussian DP, ascending. It is the sum over the levels of E[(h_i − C_i)₊], where h_i is the
    excess at level i and C_i what is expected of the next one (docs/theory.md, "One δ for all
    looks").
    """
    total = gaussian_delta(epsilons[-1], mus[-1])
    for index in range(len(epsilons) - 1):
        alone = gaussian_delta(epsilons[index], mus[index])
        both = epsilons[index : index + 2], mus[index : index + 2]
        total += min(alone, _excess_over_next(*both[0], *both[1]))
    return min(1.0, total * (1 + 1e-9))


def _excess_over_next(epsilon: float, later: float, mu: float, larger: float) -> float:
    """Return an upper bound on E[(h(L) − C(L))₊] for L ~ N(μ²/2, μ²).

    h(l) = (1 − e^{ε−l})₊ and C(l) = E[(1 − e^{ε′−l−Z})₊] for Z ~ N(v/2, v) with v = μ′² − μ². Both
    grow with l, so in a cell from a to b the integrand is at most (h(b) − C(a))₊.
    """
    variance = (larger - mu) * (larger + mu)
    spread = math.sqrt(2 * variance)
    # What lies beyond the last cell is counted in full (``beyond``).
    width = min(8.0 * mu, 30.0 * mu * mu / epsilon) / _CELLS  # the density falls like e^{−εl/μ²}

    def above(loss: float) -> float:
        return 0.5 * math.erfc((loss - mu * mu / 2) / (mu * math.sqrt(2)))

    total, start, beyond = 0.0, epsilon, above(epsilon)
    for cell in range(1, _CELLS + 1):
        gap = later - start  # C by the same formula as δ; 4e-15 is more than its rounding
        expected = 0.5 * math.erfc((gap - variance / 2) / spread)
        expected -= 0.5 * math.exp(gap) * math.erfc((gap + variance / 2) / spread)
        end = epsilon + cell * width
        left = above(end)
        value = -math.expm1(epsilon - end) - max(0.0, expected * (1 - 1e-12) - 4e-15)
        if value > 0:
            total += value * (beyond * (1 + 1e-12) - left * (1 - 1e-12))
        start, beyond = end, left
    return total + beyond * (1 + 1e-12)


@lru_cache(maxsize=256)
def share_of_delta(epsilons: tuple[float, ...], delta: float) -> float:
    """Return a δ that every level may have alone, so that stopping at any level costs at most δ."""

    share = least = delta / len(epsilons)
    for _ in range(4):  # the bound is nearly proportional to the share
        cost = stopped_delta(epsilons, tuple(gaussian_mu(e, share) for e in epsilons))
        if cost <= delta:
            least = max(least, share)
        share = max(least, min(share * 0.999 * delta / cost, delta))
    return least


def _mills(x: float) -> float:
    """Return R(x) = Φ(−x)/φ(x) for x ≥ 0.

    Below 3 as √(π/2)·e^{z²}·erfc(z) with z = x/√2. The rounding of z changes this by less than
    2^{−52}, because it is the same z in both factors; z² < 4.5 is rounded, too. From 3 on by
    Laplace's continued fraction 1/(x + 1/(x + 2/(x + …))). Its convergents lie on both sides of R;
    the 79th and the 80th differ by less than a relative 10⁻¹⁸ (a test computes them exactly at 3;
    the larger x, the closer). All terms are positive, so that no rounding grows.
    """
    if x < 3:
        z = x / math.sqrt(2)
        return math.sqrt(math.pi / 2) * math.exp(z * z) * math.erfc(z)
    tail = x
    for number in range(_TERMS, 0, -1):
        tail = x + number / tail
    return 1 / tail


def _up(exponent: float) -> float:
    """Return e^exponent, rounded up also where floats are sparse."""
    return math.nextafter(math.exp(min(exponent, 1.0)), math.inf)


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
        return {"kind": self.kind, **{name: as_json(value) for name, value in values.items()}}

    def delta(self, epsilons: npt.ArrayLike) -> Floats:
        """Return an upper bound of δ(ε), at most 1, for each ε ≥ 0; infinity is allowed."""
        values = np.asarray(epsilons, dtype=float)
        if not np.all(values >= 0):
            raise InvalidGuarantee("epsilons", "…", "give numbers ≥ 0")
        return np.clip(self._delta(values.ravel()), 0.0, 1.0).reshape(values.shape)

    def _delta(self, epsilons: Floats) -> Floats:
        """The bound at each ε of a flat array; it may exceed 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class PureProfile(_Record):
    """The profile that (ε₀, δ₀)-DP implies: randomised response, and δ₀ for a full disclosure.

    No (ε₀, δ₀)-DP mechanism has a larger one (Kairouz, Oh and Viswanath 2015).
    """

    epsilon: float
    floor: float = 0.0
    kind: ClassVar[str] = "pure"
    accountant: ClassVar[str] = "(ε, δ)-DP"

    def __post_init__(self) -> None:
        set_fields(
            self, epsilon=check_loss(self.epsilon, "epsilon"), floor=check_loss(self.floor, "floor")
        )

    def _delta(self, epsilons: Floats) -> Floats:
        gap = np.maximum(self.epsilon - epsilons, 0.0)
        excess = (1 - self.floor) * -np.expm1(-gap) / (1 + math.exp(-self.epsilon))
        return np.where(excess > 0, (self.floor + excess) * (1 + _PAD), self.floor)


@dataclass(frozen=True)
class GaussianProfile(_Record):
    """The exact profile of μ-Gaussian DP (:func:`expost.privacy.profiles.gaussian_delta`)."""

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
    """The profile that a Rényi curve implies, by the tight conversion at the best order."""

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
    """The profile that ρ-zCDP implies, by the tight conversion at the best default order."""

    rho: float
    kind: ClassVar[str] = "zcdp"
    accountant: ClassVar[str] = "zCDP"

    def __post_init__(self) -> None:
        set_fields(self, rho=check_loss(self.rho, "rho"))

    def _delta(self, epsilons: Floats) -> Floats:
        return _curve_of_zcdp(self.rho).delta(epsilons)


@lru_cache(maxsize=256)
def _curve_of_zcdp(rho: float) -> RenyiProfile:
    """Return the profile of the curve of ρ-zCDP at the default orders."""
    curve = tuple(product_up(rho, order) for order in DEFAULT_ORDERS)
    return RenyiProfile(DEFAULT_ORDERS, curve)


@dataclass(frozen=True)
class DPSGDProfile(_Record):
    """The profile of DP-SGD with Poisson sampling, by its privacy loss distribution.

    The larger of both directions of add-remove neighbours, with all errors of the computation added
    (:mod:`expost.privacy.loss_distribution`).
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


_PROFILES = (PureProfile, GaussianProfile, ZCDPProfile, RenyiProfile, DPSGDProfile, LargestProfile)
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in _PROFILES}


def profile_from_dict(record: Mapping[str, Any]) -> Profile:
    """Read a profile that ``as_dict`` wrote; refuse what it would not write."""
    profile: Profile = read_kind(record, _KINDS, "profile")
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


def profile_epsilon(profile: Profile, delta: float, most: float) -> float:
    """Return the least ε, at most ``most``, at which the profile is certified to be at most δ."""
    low, high = 0.0, most
    if float(profile.delta(high)) > delta:
        return most
    if float(profile.delta(low)) <= delta:
        return low
    for _ in range(4):  # each round divides the interval by 2,000: δ is above at low, not at high
        grid, first = np.linspace(low, high, 2001), 0
        for step in (50, 1):
            last = grid[first + step : first + 50 * step + 1 : step]
            first += step * int(np.argmax(np.append(profile.delta(last[:-1]) <= delta, True)))
        low, high = float(grid[first]), float(grid[first + 1])
    return high
