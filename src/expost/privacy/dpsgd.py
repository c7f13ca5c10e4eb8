"""Rényi curves of DP-SGD, for one training or for many at once, and the noise that a target needs.

One step takes each example independently with probability q, clips and sums the gradients, and adds
Gaussian noise with a standard deviation of σ times the clipping norm (σ is ``noise_multiplier``).
At a whole order α its divergence under add-remove neighbours is ln(A_α)/(α−1) with

    A_α = Σ_k C(α,k)(1−q)^{α−k} q^k e^{k(k−1)/(2σ²)}

(Mironov, Talwar and Zhang 2019, §3.3). The divergences of the steps add up. At other orders
A_α − 1 = E[R^α − 1 − α(R − 1)] with R = 1 − q + q·e^{t/σ − 1/(2σ²)} and t standard normal, summed
by the trapezoidal rule with step h. The integrand is analytic for |Im t| ≤ a = πσ/2, where
|R(t + ia)| ≤ R(t), so the rule errs by at most 2M/(e^{2πa/h} − 1) with M = e^{a²/2}·(A_α + 2α + 1)
(Trefethen and Weideman 2014, Theorem 5.1); this is added, and so are the tails. The results are
those of dp_accounting, padded up by 2^{−40} of themselves, and by 2^{−50} per step for a logarithm
near 0.

Tests: ``tests/privacy/test_dpsgd.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats, Integers
from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, RenyiDP
from expost.privacy.loss_distribution import covers, least_noise
from expost.privacy.profiles import DEFAULT_ORDERS, INTEGER_ORDERS, gaussian_mu, training_profile

LOSS_DISTRIBUTION, RENYI = "loss-distribution", "renyi"
"""The accountants of :func:`calibrate_noise`."""

_PAD = 1 + 2.0**-40
_COARSE = 6  # every sixth order is enough to find where the best order lies
_WINDOW = 7  # orders on either side of the best one that are examined closely
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e6
_FAR = 13.0  # beyond so many standard deviations a normal law has less than 1e-37


def dpsgd_curve(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    orders: Sequence[float] = DEFAULT_ORDERS,
) -> RenyiDP:
    """Return the guarantee of one training under add-remove neighbours.

    Parameters
    ----------
    sampling_rate : float
        Probability q, 0 < q ≤ 1, with which a step takes each example (Poisson sampling).
    noise_multiplier : float
        Standard deviation of the Gaussian noise divided by the clipping norm, > 0.
    steps : int
        Number of steps, ≥ 1.
    orders : sequence of float, optional
        Orders > 1. Orders at which the divergence overflows are left out of the curve.

    Returns
    -------
    RenyiDP
        The curve, padded up, with the privacy profile of the training.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or the divergence overflows at every order.
    """
    curve = dpsgd_curves(
        sampling_rates=[sampling_rate],
        noise_multipliers=[noise_multiplier],
        steps=[steps],
        orders=orders,
    )[0]
    finite = np.isfinite(curve)
    if not finite.any():
        raise InvalidInput(
            "noise_multiplier",
            noise_multiplier,
            "give more noise: the divergence overflows at every order",
        )
    listed = np.asarray(orders, dtype=float)[finite]
    profile = training_profile(float(sampling_rate), float(noise_multiplier), int(steps))
    return RenyiDP(tuple(listed.tolist()), tuple(curve[finite].tolist()), profile=profile)


def dpsgd_curves(
    *,
    sampling_rates: npt.ArrayLike,
    noise_multipliers: npt.ArrayLike,
    steps: npt.ArrayLike,
    orders: Sequence[float] = DEFAULT_ORDERS,
) -> Floats:
    """Return the Rényi curves of many trainings at once.

    Parameters
    ----------
    sampling_rates, noise_multipliers, steps : array_like
        As in :func:`dpsgd_curve`, one per training; they are broadcast against each other.
    orders : sequence of float, optional
        Orders > 1.

    Returns
    -------
    ndarray
        Divergences of shape (trainings, orders), padded up; infinite where they overflow.
    """
    rates, noises, counts = _checked(sampling_rates, noise_multipliers, steps)
    listed = _checked_orders(orders)
    return (
        np.stack([_step_divergence(rates, noises, order) for order in listed], axis=1)
        * counts[:, None]
        * _PAD
    )


def _step_divergence(rates: Floats, noises: Floats, order: float) -> Floats:
    """ln(A_α)/(α−1) of one step for each (q, σ), padded up for rounding errors."""
    if order == int(order):
        return _at_whole_order(rates, noises, int(order))
    return np.array(
        [
            _at_fraction(rate, noise, order)
            for rate, noise in zip(rates.tolist(), noises.tolist(), strict=True)
        ]
    )


@lru_cache(maxsize=1 << 16)
def _at_fraction(rate: float, noise: float, order: float) -> float:
    """ln(A_α)/(α−1) of one step at a fractional order, by the trapezoidal rule, padded up."""
    mu = 1 / noise
    strip = min(math.pi * noise / 2, 4.0)
    step = 2 * math.pi * strip / (64 + strip**2 / 2)
    highest = order * mu + _FAR
    if not highest < 1e4 or not order**2 * mu**2 < 1400:
        return math.inf
    t = np.arange(-math.ceil(_FAR / step), math.ceil(highest / step) + 1) * step
    exponent = mu * t - mu**2 / 2
    small = exponent < 30
    excess = rate * np.expm1(np.where(small, exponent, 0.0))  # R − 1
    with np.errstate(over="ignore"):
        near = np.expm1(order * np.log1p(excess)) - order * excess
    log_ratio = np.logaddexp(
        math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + exponent
    )
    density = -(t**2) / 2 + math.log(step / math.sqrt(2 * math.pi))
    far = np.exp(np.where(small, -math.inf, density + order * log_ratio))  # drops what is negative
    weight = np.exp(density)
    total = float(weight @ np.where(small, near, 0.0) + far.sum())
    moment = math.exp(order * (order - 1) * mu**2 / 2)  # A_α ≤ 1 + this: R ≤ max(1, e^l)
    rounding = 2.0**-48 * (float(weight @ np.abs(np.where(small, excess, 0.0))) * order + total)
    quadrature = 4 * math.exp(-64.0) * (1 + moment + 2 * order + 1)
    tails = 1e-36 * (1 + moment)
    return math.log1p(max(total, 0.0) + rounding + quadrature + tails) * _PAD / (order - 1)


def _at_whole_order(rates: Floats, noises: Floats, order: int) -> Floats:
    """ln(A_α)/(α−1) of one step for each (q, σ), padded up for rounding errors.

    The padding is 2^{−50} of the terms in those exponents that contribute to the sum.
    """
    k = np.arange(order + 1, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_q, log_rest = np.log(rates)[:, None], np.log1p(-rates)[:, None]
        falling = k * log_q + np.where(
            order - k == 0, 0.0, (order - k) * log_rest
        )  # 0·ln 0 = 0 at q = 1
        rising = _log_binomials(order) + k * (k - 1) / (2 * noises[:, None] ** 2)
        exponent = rising + falling
        peak = exponent.max(axis=1)
        shares = np.exp(exponent - peak[:, None])
        total = shares.sum(axis=1)
        doubt = np.einsum("ij,ij->i", shares, np.where(shares > 0, rising - falling, 0.0)) / total
        log_moment = np.log(total) + peak + 2.0**-50 * (1 + doubt)
    return np.asarray(np.maximum(log_moment, 0.0) / (order - 1))


@lru_cache(maxsize=512)
def _log_binomials(order: int) -> Floats:
    """ln C(α, k) for k = 0, …, α, each computed from the exact integer."""
    logs, coefficient = np.empty(order + 1), 1
    for k in range(order // 2 + 1):
        logs[k] = logs[order - k] = math.log(coefficient)
        coefficient = coefficient * (order - k) // (k + 1)
    return logs


def calibrate_noise(
    *,
    sampling_rates: npt.ArrayLike,
    steps: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    delta: float,
    orders: Sequence[float] = INTEGER_ORDERS,
    accountant: str = LOSS_DISTRIBUTION,
) -> Floats:
    """Return the least noise multiplier with which each training is (ε, δ)-DP.

    Parameters
    ----------
    sampling_rates, steps : array_like
        As in :func:`dpsgd_curve`; they and ``epsilons`` are broadcast against each other.
    epsilons : array_like
        The ε of each training, finite and > 0.
    delta : float
        The δ, 0 < δ < 1, the same for all trainings.
    orders : sequence of float, optional
        Orders of the Rényi curves.
    accountant : {"loss-distribution", "renyi"}
        "loss-distribution" starts from the noise that Rényi curves ask for, and needs less
        (:mod:`expost.privacy.loss_distribution`).

    Returns
    -------
    ndarray
        Noise multipliers, never too small: accurate to 1e-9 (relative) for Rényi curves, to some
        1e-4 for loss distributions.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or no noise multiplier up to 1e6 is enough.

    Notes
    -----
    All trainings are solved together, and equal ones only once. Orders far from the best one are
    left out after a coarse search, which can only overstate ε.
    """
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")
    if accountant not in (LOSS_DISTRIBUTION, RENYI):
        raise InvalidInput("accountant", accountant, f"give {LOSS_DISTRIBUTION!r} or {RENYI!r}")
    rates, targets, counts = np.broadcast_arrays(
        *(np.asarray(x, dtype=float) for x in (sampling_rates, epsilons, steps))
    )
    shape = rates.shape
    table = np.stack([rates.ravel(), targets.ravel(), counts.ravel()], axis=1)
    distinct, back = np.unique(table, axis=0, return_inverse=True)
    solved = _solve(distinct[:, 0], distinct[:, 1], distinct[:, 2], delta, _checked_orders(orders))
    if accountant == LOSS_DISTRIBUTION:
        together = np.column_stack([distinct, solved]).tolist()
        solved = np.array(
            [_sharper(rate, int(count), aim, delta, noise) for rate, aim, count, noise in together]
        )
    return solved[back.ravel()].reshape(shape)


def _sharper(rate: float, steps: int, epsilon: float, delta: float, enough: float) -> float:
    """The noise that the loss distribution asks for; ``enough`` is what Rényi curves ask for."""
    if not covers(rate, enough, steps):
        return enough
    if rate < 1:
        return least_noise(rate, steps, epsilon, delta, enough)
    noise = math.sqrt(steps) / gaussian_mu(epsilon, delta) * (1 + 2.0**-36)
    return min(enough, max(noise, 0.01))


def _solve(
    rates: Floats, targets: Floats, counts: Floats, delta: float, orders: list[float]
) -> Floats:
    """Solve distinct problems: a coarse search over all orders, then a close one near the best."""
    _checked(rates, np.ones_like(rates), counts)
    if not np.all((targets > 0) & np.isfinite(targets)):
        raise InvalidInput("epsilon", targets.tolist(), "give finite numbers > 0")
    problem = _Calibration(rates, counts, delta, orders)
    low, high = (
        np.full(len(rates), math.log(_LEAST_NOISE)),
        np.full(len(rates), math.log(_MOST_NOISE)),
    )
    every = np.broadcast_to(
        np.arange(0, len(orders), _COARSE), (len(rates), len(range(0, len(orders), _COARSE)))
    )
    if np.any(problem.epsilon(high, every)[0] > targets):
        raise InvalidInput(
            "epsilon",
            float(targets.min()),
            f"give a larger ε: no noise multiplier up to {_MOST_NOISE:g} reaches it "
            "with these orders",
        )
    low, high, best = _narrow(problem, every, targets, low, high, 0.02)
    centre = every[0][best]
    while True:  # follow the best order if it moves to the edge of the window
        window = np.clip(centre[:, None] + np.arange(-_WINDOW, _WINDOW + 1), 0, len(orders) - 1)
        low = high - 0.1
        while np.any(short := problem.epsilon(low, window)[0] <= targets):
            low = np.where(short, low - 0.2, low)
        _, high, best = _narrow(problem, window, targets, low, high, 1e-10)
        moved = window[np.arange(len(best)), best]
        at_edge = (
            np.isin(best, (0, 2 * _WINDOW))
            & (moved > 0)
            & (moved < len(orders) - 1)
            & (moved != centre)
        )
        if not at_edge.any():
            return np.asarray(np.exp(high) * (1 + 1e-12))
        centre = np.where(at_edge, moved, centre)


def _narrow(
    problem: _Calibration,
    order_indices: Integers,
    targets: Floats,
    low: Floats,
    high: Floats,
    width: float,
) -> tuple[Floats, Floats, Integers]:
    """Shrink [low, high] in ln σ around ε(σ) = target by bisection with secant steps.

    ε(high) ≤ target always holds.
    """
    top, best = problem.epsilon(high, order_indices)
    bottom, _ = problem.epsilon(low, order_indices)
    for turn in range(200):
        if np.all(high - low <= width):
            break
        middle = (low + high) / 2
        if turn % 3:  # ln ε falls almost linearly in ln σ
            with np.errstate(all="ignore"):
                slope = (np.log(bottom) - np.log(top)) / (high - low)
                guess = high - (np.log(targets) - np.log(top)) / slope
            inside = np.isfinite(guess) & (guess > low) & (guess < high)
            nudge = np.where(turn % 3 == 1, 1.0, -1.0) * np.maximum(
                1e-3 * (high - low), 0.2 * width
            )
            middle = np.where(inside, np.clip(guess + nudge, low, high), middle)
        value, order_index = problem.epsilon(middle, order_indices)
        enough = value <= targets
        high, top, best = (
            np.where(enough, middle, high),
            np.where(enough, value, top),
            np.where(enough, order_index, best),
        )
        low, bottom = np.where(enough, low, middle), np.where(enough, bottom, value)
    return low, high, best


class _Calibration:
    """Computes ε at a noise level for each training; each training has its own list of orders."""

    def __init__(self, rates: Floats, counts: Floats, delta: float, orders: list[float]) -> None:
        self.rates, self.counts, self.orders = rates, counts, orders
        order = np.array(orders, dtype=float)
        self.conversion = np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)

    def epsilon(self, log_noises: Floats, order_indices: Integers) -> tuple[Floats, Integers]:
        """The least ε over the listed orders, padded up like a guarantee, and its position."""
        noises = np.exp(log_noises)
        values = np.full(order_indices.shape, np.inf)
        for index in np.unique(order_indices):
            rows, columns = np.nonzero(order_indices == index)
            divergence = (
                _step_divergence(self.rates[rows], noises[rows], self.orders[index])
                * self.counts[rows]
                * _PAD
            )
            values[rows, columns] = divergence * (1 + 2.0**-42) + self.conversion[index] + 2.0**-42
        best = values.argmin(axis=1)
        return values[np.arange(len(best)), best], best


def _checked_orders(orders: Sequence[float]) -> list[float]:
    """The orders as floats; those that are not > 1 are refused."""
    listed = [float(order) for order in orders]
    if not listed or not all(1 < order < math.inf for order in listed):
        raise InvalidInput("orders", orders, "give finite orders > 1")
    return listed


def _checked(
    sampling_rates: npt.ArrayLike, noise_multipliers: npt.ArrayLike, steps: npt.ArrayLike
) -> tuple[Floats, Floats, Floats]:
    """The settings as arrays of one shape, with their ranges checked."""
    rates, noises, counts = (
        np.atleast_1d(np.asarray(x, dtype=float))
        for x in (sampling_rates, noise_multipliers, steps)
    )
    if not np.all((rates > 0) & (rates <= 1)):
        raise InvalidInput("sampling_rate", rates.tolist(), "give numbers with 0 < rate ≤ 1")
    if not np.all((noises > 0) & np.isfinite(noises)):
        raise InvalidInput("noise_multiplier", noises.tolist(), "give finite numbers > 0")
    if not np.all((counts >= 1) & (counts == np.floor(counts))):
        raise InvalidInput("steps", counts.tolist(), "give whole numbers ≥ 1")
    rates, noises, counts = np.broadcast_arrays(rates, noises, counts)
    return rates, noises, counts


def gaussian_for(epsilon: float, delta: float, neighbours: str = ADD_REMOVE) -> ZCDP:
    """Return the zCDP guarantee of a Gaussian mechanism that is calibrated to (ε, δ).

    Parameters
    ----------
    epsilon, delta : float
        The ε > 0 and the δ to guarantee: finite, and 0 < δ < 1.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.

    Returns
    -------
    ZCDP
        The largest ρ that the tight conversion admits, to within 1e-9; it never exceeds (ε, δ).
    """
    if not 0 < epsilon < float("inf"):
        raise InvalidInput("epsilon", epsilon, "give a finite number > 0")
    return ZCDP(_gaussian_rho(epsilon, delta), neighbours)


@lru_cache(maxsize=256)
def _gaussian_rho(epsilon: float, delta: float) -> float:
    """The largest ρ that bisection finds within (ε, δ); every count asks for it."""
    low, high = 0.0, epsilon
    while ZCDP(high).to_approx(delta).epsilon <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if not low < middle < high:  # neighbouring floats, among the subnormal ones
            break
        if ZCDP(middle).to_approx(delta).epsilon <= epsilon:
            low = middle
        else:
            high = middle
    return low
