"""The privacy loss distribution of DP-SGD is never below the truth, and close to it.

The truth: closed forms, 30-digit quadrature for one step, exact composition of finite laws, and
lower bounds (optimistic discretisation; dp_accounting on a fine lattice).
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest

from expost.privacy import loss_distribution
from expost.privacy.dpsgd import RENYI, calibrate_noise, dpsgd_curve
from expost.privacy.loss_distribution import (
    FINE,
    StepLoss,
    TrainingLoss,
    step_law,
    sum_near,
    tilted_sum,
)
from expost.privacy.profiles import DPSGDProfile, RenyiProfile, gaussian_delta


def exact_step(rate: float, noise: float, epsilon: float, *, removal: bool) -> mpmath.mpf:
    """δ of one step to 30 digits: the laws cross once, so it is a difference of tails."""
    with mpmath.workdps(30):
        q, s, e = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(epsilon)

        def mixture(x: mpmath.mpf, upper: bool) -> mpmath.mpf:
            sign = -1 if upper else 1
            return (1 - q) * mpmath.ncdf(sign * x / s) + q * mpmath.ncdf(sign * (x - 1) / s)

        if removal:
            cross = s**2 * mpmath.log((mpmath.exp(e) - 1 + q) / q) + mpmath.mpf(1) / 2
            return mixture(cross, True) - mpmath.exp(e) * mpmath.ncdf(-cross / s)
        if mpmath.exp(-e) <= 1 - q:
            return mpmath.mpf(0)
        cross = s**2 * mpmath.log((mpmath.exp(-e) - 1 + q) / q) + mpmath.mpf(1) / 2
        return mpmath.ncdf(cross / s) - mpmath.exp(e) * mixture(cross, False)


@pytest.mark.parametrize("removal", [True, False])
@pytest.mark.parametrize(
    ("rate", "noise"), [(0.3, 1.0), (0.01, 0.7), (0.001, 3.0), (0.9, 0.5), (0.05, 50.0)]
)
def test_one_step_is_never_below_the_exact_profile(
    rate: float, noise: float, removal: bool
) -> None:
    scale = math.log1p(rate * math.expm1(min(5.0, 2 / noise))) + rate / noise
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0]) * scale
    bounds = TrainingLoss(rate, noise, 1).delta(epsilons, removal=removal)
    for epsilon, bound in zip(epsilons.tolist(), bounds.tolist(), strict=True):
        exact = exact_step(rate, noise, epsilon, removal=removal)
        assert bound >= exact
        if exact > 1e-25 and bound < 1:
            assert bound <= float(exact) * 1.03


def test_the_masses_of_a_step_are_rounded_up_and_keep_both_laws() -> None:
    """Each law sums to 1, and so do the probabilities divided by e^loss, up to the padding."""
    for rate, noise in [(0.3, 1.0), (0.004, 0.8), (1e-4, 20.0), (0.99, 3.0)]:
        spacing = 2.0 ** math.floor(math.log2(rate / noise / 20))
        for law in step_law(rate, noise, spacing, 0.0, FINE, 1.0):
            losses = law.multiples * spacing
            assert 1 <= law.masses.sum() + law.beyond <= 1 + 1e-10
            other = float(law.masses @ np.exp(-losses))
            assert other == pytest.approx(1, abs=2e-3 if law.beyond == 0 else 1e-10)
            assert np.all(law.masses >= 0)
            assert len(set(law.multiples.tolist())) == len(law.multiples)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (5.0, 40), (20.0, 1000)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-14, 1e-28])
def test_almost_no_sampling_is_the_gaussian_mechanism(
    noise: float, steps: int, delta: float
) -> None:
    """q → 1: the closed form, for δ down to where no plain transform has a digit left."""
    mu = math.sqrt(steps) / noise
    grid = np.linspace(0, mu**2 / 2 + 14 * mu, 4001)
    exact = np.array([gaussian_delta(epsilon, mu) for epsilon in grid])
    epsilon = grid[int(np.argmax(exact < delta))]
    loss = TrainingLoss(1 - 1e-9, noise, steps)
    for removal in (True, False):
        bound = float(loss.delta(np.array([epsilon]), removal=removal)[0])
        assert bound >= gaussian_delta(float(epsilon), mu) * (1 - 1e-6)
        assert bound <= gaussian_delta(float(epsilon), mu) * (1.01 if removal else 1.06)
    assert DPSGDProfile(1.0, noise, steps).delta(epsilon) == pytest.approx(
        gaussian_delta(float(epsilon), mu), rel=1e-9
    )


LAWS = [
    ((-2, 0, 1, 5), (Fraction(1, 2), Fraction(1, 4), Fraction(3, 16), Fraction(1, 16))),
    ((-1, 3), (Fraction(7, 8), Fraction(1, 8))),
    ((-1, 0, 40), (Fraction(500, 1000), Fraction(499, 1000), Fraction(1, 1000))),
]


@pytest.mark.parametrize(("places", "masses"), LAWS)
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("tilt", [0.0, 1.0, 30.0])
def test_composition_of_a_finite_law_is_never_below_the_exact_one(
    places: tuple[int, ...], masses: tuple[Fraction, ...], steps: int, tilt: float
) -> None:
    """All sequences are enumerated; sums that leave the window are charged, not lost."""
    spacing = 2.0**-4
    sums: dict[int, Fraction] = {}
    for draws in product(range(len(places)), repeat=steps):
        total = sum(places[draw] for draw in draws)
        sums[total] = sums.get(total, Fraction(0)) + math.prod(
            (masses[d] for d in draws), start=Fraction(1)
        )
    step = StepLoss(np.array(places), np.array([float(m) for m in masses]), 0.0, 0.0)
    spread = spacing * math.sqrt(steps) * 5
    for low, high in ((-3.0 * spread, 6.0 * spread), (-40.0, 40.0), (-0.5, 0.5)):
        law = tilted_sum(step, spacing, steps, tilt, low, high)
        for epsilon in (0.0, 0.03, 0.0625, 0.3, 1.0, 2.6):
            exact = sum(
                (float(p) * max(0.0, -math.expm1(epsilon - spacing * k)) for k, p in sums.items()),
                0.0,
            )
            bound = float(law.delta(np.array([epsilon]))[0])
            assert bound >= exact * (1 - 1e-12)
            if high == 40.0 and tilt == 0.0:
                assert bound <= exact * (1 + 1e-9) + 5e-9


def test_a_mass_at_infinity_and_a_shift_are_charged() -> None:
    step = StepLoss(np.array([-1, 1]), np.array([0.5, 0.49]), 0.01, 0.0)
    bare = step._replace(beyond=0.0)
    near = np.array([0.1])
    extra = tilted_sum(step, 0.5, 3, 0.0, -9.0, 9.0).delta(near) - tilted_sum(
        bare, 0.5, 3, 0.0, -9.0, 9.0
    ).delta(near)
    assert extra[0] == pytest.approx(0.03, rel=1e-6)
    shifted = tilted_sum(bare._replace(shift=0.01), 0.5, 3, 0.0, -9.0, 9.0)
    assert shifted.delta(np.array([0.13]))[0] == pytest.approx(
        tilted_sum(bare, 0.5, 3, 0.0, -9.0, 9.0).delta(np.array([0.1]))[0], rel=1e-6
    )


TRAININGS = [
    (0.0043, 0.8, 2344),
    (0.0005, 0.6, 2000),
    (0.016, 1.0, 600),
    (0.1, 3.0, 100),
    (0.5, 2.0, 10),
    (0.01, 5.0, 1000),
    (0.2, 0.3, 3),
]


def optimistic(rate: float, noise: float, steps: int, epsilon: float, *, removal: bool) -> float:
    """A lower bound of δ: losses rounded down to a lattice, composed by repeated squaring."""
    spacing, mu = 0.01, 1 / noise
    t = np.linspace(-9, mu + 9, 200_001)
    middle, width = (t[1:] + t[:-1]) / 2, t[1] - t[0]
    density = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi) * width
    lower_end = np.log1p(rate * np.expm1(mu * t[:-1] - mu**2 / 2))
    upper_end = np.log1p(rate * np.expm1(mu * t[1:] - mu**2 / 2))
    if removal:
        masses, losses = density * np.exp(lower_end), lower_end
    else:
        masses, losses = density, -upper_end
    masses = masses * min(1.0, 1 / masses.sum()) * (1 - 1e-9)
    places = np.floor(losses / spacing).astype(int)
    base = places.min()
    law, total = np.bincount(places - base, weights=masses), np.array([1.0])
    start, times, offset = base, steps, 0
    while times:
        if times & 1:
            total, offset = np.convolve(total, law), offset + start
        law, start, times = np.convolve(law, law), 2 * start, times >> 1
        if len(law) > 30_000 or len(total) > 30_000:
            return 0.0
    points = (np.arange(len(total)) + offset) * spacing
    return float(total @ np.maximum(-np.expm1(np.minimum(epsilon - points, 700)), 0))


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.1, 3.0, 100), (0.5, 2.0, 10), (0.2, 0.3, 3)]
)
def test_the_bound_is_never_below_an_optimistic_estimate(
    rate: float, noise: float, steps: int
) -> None:
    loss = TrainingLoss(rate, noise, steps)
    epsilons = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
    for removal in (True, False):
        bounds = loss.delta(epsilons, removal=removal)
        lower = [optimistic(rate, noise, steps, float(e), removal=removal) for e in epsilons]
        assert np.all(bounds >= np.array(lower))
    assert max(lower) > 0


@pytest.mark.parametrize(("rate", "noise", "steps"), TRAININGS)
def test_it_is_at_most_the_renyi_profile_and_does_not_rise(
    rate: float, noise: float, steps: int
) -> None:
    curve = dpsgd_curve(sampling_rate=rate, noise_multiplier=noise, steps=steps)
    profile = DPSGDProfile(rate, noise, steps)
    renyi = RenyiProfile(curve.orders, curve.epsilons)
    for delta in (1e-3, 1e-6, 1e-12, 1e-20):
        epsilon = curve.to_approx(delta).epsilon
        assert profile.delta(epsilon) <= renyi.delta(epsilon)
    grid = np.linspace(0, curve.to_approx(1e-25).epsilon, 3001)
    assert np.all(np.diff(profile.delta(grid)) <= 0)
    assert profile.delta([1e9, math.inf])[-1] < 1e-20


def test_dp_accounting_agrees() -> None:
    """On a fine lattice of its own; where its transform has digits left."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    for rate, noise, steps in ((0.004, 3.2, 2344), (0.1, 3.0, 100)):
        theirs = pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=2e-5
        ).self_compose(steps)
        for delta in (1e-2, 1e-5, 1e-8):
            epsilon = theirs.get_epsilon_for_delta(delta)
            ours = float(DPSGDProfile(rate, noise, steps).delta(epsilon))
            assert 1 - 2e-3 <= ours / delta <= 1 + 3e-3


@pytest.mark.parametrize(
    ("rate", "noise", "steps"),
    [(1e-9, 0.01, 1), (1e-9, 1e6, 10**9), (1 - 1e-12, 0.01, 10**9), (0.5, 1e6, 1), (0.3, 0.02, 7)],
)
def test_extreme_settings_give_a_bound_and_no_failure(
    rate: float, noise: float, steps: int
) -> None:
    bounds = DPSGDProfile(rate, noise, steps).delta([0.0, 1e-6, 1.0, 1e3, math.inf])
    assert np.all((bounds >= 0) & (bounds <= 1))
    assert np.all(np.diff(bounds) <= 0)


# Calibration.

TARGETS = [(0.004266, 2344, 0.5), (0.0005333, 1875, 0.1), (0.1, 50, 4.0), (1.0, 10, 1.0)]


@pytest.mark.parametrize(("rate", "steps", "epsilon"), TARGETS)
def test_calibrated_noise_keeps_its_target_and_not_much_less_does(
    rate: float, steps: int, epsilon: float
) -> None:
    noise = float(calibrate_noise(sampling_rates=rate, steps=steps, epsilons=epsilon, delta=1e-6))
    renyi = float(
        calibrate_noise(
            sampling_rates=rate, steps=steps, epsilons=epsilon, delta=1e-6, accountant=RENYI
        )
    )
    assert DPSGDProfile(rate, noise, steps).delta(epsilon) <= 1e-6
    assert DPSGDProfile(rate, noise * (1 - 2e-4), steps).delta(epsilon) > 1e-6
    assert noise <= 0.97 * renyi


def test_noise_that_cannot_be_sharpened_is_that_of_renyi_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that does not end keeps what Rényi curves certify."""
    hopeless = TrainingLoss(0.5, 0.011, 10**6)
    assert hopeless.delta(np.array([1.0]), removal=True)[0] == 1
    least_noise = loss_distribution.least_noise.__wrapped__
    monkeypatch.setattr(TrainingLoss, "delta", lambda *_, **__: np.ones(1))
    assert least_noise(0.1, 50, 4.0, 1e-6, 2.5) == 2.5


def test_sums_are_sharp_near_their_delta() -> None:
    """Whatever the anchor, the bounds agree where both are sharp."""
    sums = [sum_near(0.01, 1.5, 1000, anchor, removal=True) for anchor in (1e-4, 1e-8)]
    first, second = (law.delta(np.array([1.0, 1.5])) for law in sums if law is not None)
    assert first == pytest.approx(second, rel=5e-3)
