"""DP-SGD's curves and calibration against dp_accounting, against 60-digit arithmetic, and against
closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.integrations.dp_accounting import dpsgd_guarantee, event_guarantee
from expost.privacy import dpsgd
from expost.privacy.dpsgd import RENYI, calibrate_noise, dpsgd_curve, dpsgd_curves, gaussian_for
from expost.privacy.profiles import DEFAULT_ORDERS, INTEGER_ORDERS, DPSGDProfile

accounting = pytest.importorskip("dp_accounting")

TRAININGS = [
    (0.01, 1.0, 1000),
    (0.05, 3.0, 2000),
    (0.1, 10.0, 500),
    (0.5, 1.5, 50),
    (0.001, 0.6, 10_000),
    (0.2, 0.8, 1),
]


def accountant_curve(rate: float, noise: float, steps: int, orders: list[float]) -> np.ndarray:
    accountant = accounting.rdp.RdpAccountant(orders=orders)
    step = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise))
    accountant.compose(accounting.SelfComposedDpEvent(step, steps))
    return np.asarray(accountant._rdp)


@pytest.mark.parametrize(("rate", "noise", "steps"), TRAININGS)
def test_curve_is_that_of_dp_accounting_and_never_below(
    rate: float, noise: float, steps: int
) -> None:
    curve = dpsgd_curve(
        sampling_rate=rate, noise_multiplier=noise, steps=steps, orders=INTEGER_ORDERS
    )
    theirs = accountant_curve(rate, noise, steps, list(curve.orders))
    ratio = np.array(curve.epsilons) / theirs
    assert len(curve.orders) > 100
    assert np.all(ratio >= 1)
    assert np.all(ratio <= 1 + 1e-9)


def exact_curve(rate: float, noise: float, steps: int, order: int) -> Decimal:
    """steps·ln(A_α)/(α−1) to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        q, twice_variance = Decimal(rate), 2 * Decimal(noise) ** 2
        terms = (
            Decimal(math.comb(order, k))
            * (1 - q) ** (order - k)
            * q**k
            * (Decimal(k * (k - 1)) / twice_variance).exp()
            for k in range(order + 1)
        )
        return steps * sum(terms, Decimal(0)).ln() / (order - 1)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"),
    [*TRAININGS, (0.001, 5.0, 10**5), (1e-4, 20.0, 10**6), (1e-5, 1.0, 10**7), (0.1, 1e4, 100)],
)
def test_curve_is_never_below_the_exact_one(rate: float, noise: float, steps: int) -> None:
    """Where a step's divergence is 1e-10, ln(1 + 1e-10) has few digits left.

    A relative pad alone would not cover that.
    """
    orders = [2, 3, 8, 64, 256]
    for order, loss in zip(
        orders,
        dpsgd_curve(
            sampling_rate=rate, noise_multiplier=noise, steps=steps, orders=orders
        ).epsilons,
        strict=True,
    ):
        exact = exact_curve(rate, noise, steps, order)
        assert Decimal(loss) >= exact
        assert loss <= float(exact) * (1 + 1e-10) + steps * 3e-15


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 1.0), (0.001, 0.6), (0.1, 5.0), (0.5, 0.8), (1e-5, 20.0), (1.0, 3.0)]
)
def test_fractional_orders_are_never_below_the_exact_divergence(rate: float, noise: float) -> None:
    """30-digit quadrature; whole orders agree with the sum."""
    with mpmath.workdps(30):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)

        def ratio(t: mpmath.mpf) -> mpmath.mpf:
            return q * mpmath.expm1(t / s - 1 / (2 * s * s))  # less 1

        for order in (1.05, 1.3, 1.9, 2.4, 4.5):
            curve = dpsgd_curve(sampling_rate=rate, noise_multiplier=noise, steps=1, orders=[order])
            points = [-25, -8, -3, 0, 3, 8, *(order / noise + x for x in (-2, 2, 8, 25))]
            moment = mpmath.quad(
                lambda t, a=order: mpmath.npdf(t) * ((1 + ratio(t)) ** a - 1 - a * ratio(t)),
                sorted(points),
            )
            exact = mpmath.log1p(moment) / (mpmath.mpf(order) - 1)
            assert curve.epsilons[0] >= exact
            assert curve.epsilons[0] <= float(exact) * (1 + 1e-6)
    for order in (2, 3, 5):
        summed = dpsgd._at_whole_order(np.array([rate]), np.array([noise]), order)[0]
        assert dpsgd._at_fraction(rate, noise, float(order)) == pytest.approx(
            summed, rel=1e-9, abs=1e-15
        )


def test_fractional_orders_sharpen_large_losses() -> None:
    """dp_accounting's own orders are 12 to 33 % below whole orders at ε ≈ 10."""
    for rate, noise, steps in ((0.0043, 0.5, 2344), (0.001, 0.35, 10_000), (0.05, 0.8, 500)):
        curves = [
            replace(
                dpsgd_curve(sampling_rate=rate, noise_multiplier=noise, steps=steps, orders=orders),
                profile=None,
            )
            for orders in (DEFAULT_ORDERS, INTEGER_ORDERS)
        ]
        ours, whole = (curve.to_approx(1e-6).epsilon for curve in curves)
        theirs = accounting.rdp.RdpAccountant()
        step = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise))
        theirs.compose(accounting.SelfComposedDpEvent(step, steps))
        assert ours < 0.95 * whole
        assert ours <= theirs.get_epsilon(1e-6) * 1.01


@pytest.mark.parametrize("noise", [0.7, 4.0, 100.0])
def test_without_sampling_it_is_the_gaussian_mechanism(noise: float) -> None:
    """q = 1: α·steps/(2σ²), with nothing lost to 0·ln 0."""
    curve = dpsgd_curve(sampling_rate=1.0, noise_multiplier=noise, steps=20)
    gaussian = np.array(curve.orders) * 20 / (2 * noise**2)
    assert np.array(curve.epsilons) == pytest.approx(gaussian, rel=1e-9)
    assert np.all(np.array(curve.epsilons) >= gaussian)


def test_many_curves_at_once_are_the_single_ones() -> None:
    rates, noises, steps = (np.array(column) for column in zip(*TRAININGS, strict=True))
    table = dpsgd_curves(sampling_rates=rates, noise_multipliers=noises, steps=steps)
    for row, (rate, noise, count) in zip(table, TRAININGS, strict=True):
        single = dpsgd_curve(sampling_rate=rate, noise_multiplier=noise, steps=count)
        assert tuple(row[np.isfinite(row)]) == single.epsilons


def test_orders_that_overflow_are_left_out() -> None:
    curve = dpsgd_curve(sampling_rate=0.5, noise_multiplier=2e-154, steps=1, orders=[2, 64])
    assert curve.orders == (2,)
    with pytest.raises(InvalidInput, match="more noise"):
        dpsgd_curve(sampling_rate=0.5, noise_multiplier=1e-160, steps=1, orders=[2, 64])


def test_integration_is_dp_accounting_itself() -> None:
    """The very numbers, at fractional orders too."""
    orders = [1.25, 1.5, 2.0, 3.7, 16.0, 64.0]
    promise = dpsgd_guarantee(0.01, 1.1, 700, orders)
    assert promise.orders == tuple(orders)
    assert promise.epsilons == tuple(accountant_curve(0.01, 1.1, 700, orders).tolist())
    gaussian = event_guarantee(accounting.GaussianDpEvent(2.0), orders)
    assert gaussian.epsilons == pytest.approx([order / 8 for order in orders], rel=1e-12)


# Calibration.

SOME_ORDERS = INTEGER_ORDERS[::3]
TARGETS = [
    (0.01, 1000, 1.0, 1e-5),
    (0.001, 5000, 0.1, 1e-6),
    (0.05, 200, 8.0, 1e-5),
    (0.02, 500, 0.3, 1e-7),
]


@pytest.mark.parametrize(("rate", "steps", "epsilon", "delta"), TARGETS)
def test_noise_is_that_of_dp_accounting(
    rate: float, steps: int, epsilon: float, delta: float
) -> None:
    noise = float(
        calibrate_noise(
            sampling_rates=rate,
            steps=steps,
            epsilons=epsilon,
            delta=delta,
            orders=SOME_ORDERS,
            accountant=RENYI,
        )
    )
    theirs = accounting.calibrate_dp_mechanism(
        lambda: accounting.rdp.RdpAccountant(orders=list(SOME_ORDERS)),
        lambda sigma: accounting.SelfComposedDpEvent(
            accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(sigma)), steps
        ),
        epsilon,
        delta,
        bracket_interval=accounting.ExplicitBracketInterval(noise * 0.98, noise * 1.03),
        tol=1e-8,
    )
    assert noise == pytest.approx(theirs, rel=1e-6)


def random_targets(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20)
    rates, steps = 10 ** rng.uniform(-3.5, -0.3, count), np.round(10 ** rng.uniform(0, 4.5, count))
    return rates, steps, 10 ** rng.uniform(-1.3, 1.5, count)


@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-2])
def test_noise_never_overshoots_and_is_the_least(delta: float) -> None:
    """The curve with this noise converts to at most ε, to the last bit.

    With a millionth less it does not.
    """
    rates, steps, targets = random_targets(25)
    noises = calibrate_noise(
        sampling_rates=rates, steps=steps, epsilons=targets, delta=delta, accountant=RENYI
    )

    def converted(rate: float, noise: float, count: float) -> float:
        curve = dpsgd_curve(
            sampling_rate=rate, noise_multiplier=noise, steps=int(count), orders=INTEGER_ORDERS
        )
        return replace(curve, profile=None).to_approx(delta).epsilon

    for rate, count, target, noise in zip(rates, steps, targets, noises, strict=True):
        assert converted(rate, noise, count) <= target
        assert converted(rate, noise * (1 - 1e-6), count) > target


def test_the_promise_of_calibrated_noise_keeps_the_target() -> None:
    """By the loss distribution: the guarantee converts to at most ε, and ε is nearly used."""
    rates, steps, targets = random_targets(12)
    noises = calibrate_noise(sampling_rates=rates, steps=steps, epsilons=targets, delta=1e-6)
    for rate, count, target, noise in zip(rates, steps, targets, noises, strict=True):
        promise = dpsgd_curve(sampling_rate=rate, noise_multiplier=noise, steps=int(count))
        assert promise.to_approx(1e-6).epsilon <= target
        less = DPSGDProfile(rate, noise * (1 - 3e-4), int(count))
        assert less.delta(target) > 1e-6


@pytest.mark.parametrize("orders", [[2], [2, 3], [64], [512]])
def test_few_orders_do_not_overshoot_either(orders: list[int]) -> None:
    """With a single order the conversion dwarfs the divergence.

    A pad on the divergence alone would be too small.
    """
    for delta in (1e-10, 1e-3):
        for target in (24.0, 30.0):
            noise = float(
                calibrate_noise(
                    sampling_rates=0.01,
                    steps=1000,
                    epsilons=target,
                    delta=delta,
                    orders=orders,
                    accountant=RENYI,
                )
            )
            curve = dpsgd_curve(
                sampling_rate=0.01, noise_multiplier=noise, steps=1000, orders=orders
            )
            assert replace(curve, profile=None).to_approx(delta).epsilon <= target


def test_a_grid_is_calibrated_like_its_points() -> None:
    rates, epsilons = np.array([0.01, 0.05]), np.array([0.5, 1.0, 4.0])
    grid = calibrate_noise(
        sampling_rates=rates[:, None], steps=300, epsilons=epsilons[None, :], delta=1e-5
    )
    assert grid.shape == (2, 3)
    for i, rate in enumerate(rates):
        for j, epsilon in enumerate(epsilons):
            assert grid[i, j] == pytest.approx(
                float(
                    calibrate_noise(sampling_rates=rate, steps=300, epsilons=epsilon, delta=1e-5)
                ),
                rel=1e-8,
            )
    assert np.all(np.diff(grid, axis=1) < 0)
    assert np.all(grid[0] < grid[1])


def test_equal_trainings_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    solve = dpsgd._solve
    monkeypatch.setattr(
        dpsgd, "_solve", lambda rates, *rest: sizes.append(len(rates)) or solve(rates, *rest)
    )
    noises = calibrate_noise(sampling_rates=0.02, steps=100, epsilons=[1.0, 2.0] * 50, delta=1e-5)
    assert sizes == [2]
    assert noises.shape == (100,)
    assert len(set(noises.tolist())) == 2
    assert noises[0] > noises[1]


BAD: dict[str, Callable[[], object]] = {
    "rate 0": lambda: dpsgd_curve(sampling_rate=0.0, noise_multiplier=1.0, steps=10),
    "rate above 1": lambda: dpsgd_curve(sampling_rate=1.01, noise_multiplier=1.0, steps=10),
    "rate not a number": lambda: dpsgd_curve(
        sampling_rate=math.nan, noise_multiplier=1.0, steps=10
    ),
    "noise 0": lambda: dpsgd_curve(sampling_rate=0.1, noise_multiplier=0.0, steps=10),
    "noise infinite": lambda: dpsgd_curve(sampling_rate=0.1, noise_multiplier=math.inf, steps=10),
    "no steps": lambda: dpsgd_curve(sampling_rate=0.1, noise_multiplier=1.0, steps=0),
    "half a step": lambda: dpsgd_curve(sampling_rate=0.1, noise_multiplier=1.0, steps=1.5),
    "order 1": lambda: dpsgd_curve(
        sampling_rate=0.1, noise_multiplier=1.0, steps=10, orders=[1, 2]
    ),
    "no orders": lambda: dpsgd_curve(sampling_rate=0.1, noise_multiplier=1.0, steps=10, orders=[]),
    "calibrating at rate 0": lambda: calibrate_noise(
        sampling_rates=0.0, steps=10, epsilons=1.0, delta=1e-5
    ),
    "calibrating no steps": lambda: calibrate_noise(
        sampling_rates=0.1, steps=0, epsilons=1.0, delta=1e-5
    ),
    "epsilon 0": lambda: calibrate_noise(sampling_rates=0.1, steps=10, epsilons=0.0, delta=1e-5),
    "epsilon negative": lambda: calibrate_noise(
        sampling_rates=0.1, steps=10, epsilons=[1.0, -1.0], delta=1e-5
    ),
    "epsilon infinite": lambda: calibrate_noise(
        sampling_rates=0.1, steps=10, epsilons=math.inf, delta=1e-5
    ),
    "epsilon out of reach": lambda: calibrate_noise(
        sampling_rates=0.1, steps=10, epsilons=1e-6, delta=1e-9
    ),
    "delta 0": lambda: calibrate_noise(sampling_rates=0.1, steps=10, epsilons=1.0, delta=0.0),
    "delta 1": lambda: calibrate_noise(sampling_rates=0.1, steps=10, epsilons=1.0, delta=1.0),
    "an order below 1 to calibrate with": lambda: calibrate_noise(
        sampling_rates=0.1, steps=10, epsilons=1.0, delta=1e-5, orders=[0.5]
    ),
    "an unknown accountant": lambda: calibrate_noise(
        sampling_rates=0.1, steps=10, epsilons=1.0, delta=1e-5, accountant="moments"
    ),
    "a Gaussian for 0": lambda: gaussian_for(0.0, 1e-6),
    "a Gaussian for infinity": lambda: gaussian_for(math.inf, 1e-6),
    "a Gaussian at delta 0": lambda: gaussian_for(1.0, 0.0),
    "a Gaussian at delta 1": lambda: gaussian_for(1.0, 1.0),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        BAD[name]()


@pytest.mark.parametrize("name", ["rate 0", "rate above 1", "rate not a number"])
def test_a_bad_rate_is_named_before_anything_is_computed(name: str) -> None:
    with pytest.raises(InvalidInput, match="sampling_rate") as refused:
        BAD[name]()
    assert "0 < rate ≤ 1" in str(refused.value)


@pytest.mark.parametrize("function", [calibrate_noise, dpsgd_curve, dpsgd_curves])
def test_arguments_are_given_by_name(function: Callable[..., object]) -> None:
    """Rate, noise, steps and ε are all numbers: in the wrong places they would be accepted."""
    with pytest.raises(TypeError, match="positional"):
        function(0.1, 10, 1.0, 1e-5)


# The Gaussian mechanism for a target.


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_gaussian_for_meets_its_target_from_below(epsilon: float, delta: float) -> None:
    promise = gaussian_for(epsilon, delta, "replace")
    assert promise.neighbours == "replace"
    reached = promise.to_approx(delta).epsilon
    assert epsilon * (1 - 1e-8) <= reached <= epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_gaussian_for_is_never_above_a_loose_target(epsilon: float) -> None:
    for delta in (Fraction(3, 10), Fraction(9, 10)):
        assert gaussian_for(epsilon, float(delta)).to_approx(delta).epsilon <= epsilon
