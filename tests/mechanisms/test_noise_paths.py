"""Noise paths: exact marginals, exact joint law, and the cost of all levels together.

All levels together cost what the last one costs.

The reference is the chain as the theorem states it, in mpmath at 50 digits: the finest noise is
discrete Laplace; going to the next coarser level keeps it with probability q, else adds fresh noise
of the coarser scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise, product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import exp, mpf
from reproduction.simulated_paths import simulate_gaussian_paths, simulate_laplace_paths
from scipy import stats

from expost import mechanisms
from expost.mechanisms import gaussian_path, keep_coin, laplace_path
from expost.randomness import coins, samplers
from expost.randomness.coins import KeepLaw
from expost.randomness.samplers import laplace_paths
from expost.randomness.source import Randomness, SimulationRandomness
from tests.randomness.bit_tree import assert_law, enumerate_law, rational
from tests.statistical.goodness import alike, pooled_p_value

FALSE_ALARM = 1e-6  # of each statistical test here; there are about 12
DIGITS = 50
REACH = 250  # e^{−rate·REACH} is below 1e-30 for every rate here

SCALES = [
    Fraction(3),
    Fraction(3, 2),
    Fraction(2, 3),
]  # coarse to fine: ε = 1/3, 2/3, 3/2 at sensitivity 1
EPSILONS = [1 / scale for scale in SCALES]


def real(value: Fraction) -> mpf:
    return mpf(value.numerator) / value.denominator


def laplace_mass(scale: Fraction, y: int) -> mpf:
    p = exp(-1 / real(scale))
    return (1 - p) / (1 + p) * p ** abs(y)


def keep_probability(coarse_rate: Fraction, fine_rate: Fraction) -> mpf:
    a, b = exp(-real(coarse_rate)), exp(-real(fine_rate))
    return (b / a) * ((1 - a) / (1 - b)) ** 2


def kernel(coarser: Fraction, finer: Fraction, step: int) -> mpf:
    """P(the coarser noise is the finer one + step)."""
    q = keep_probability(1 / coarser, 1 / finer)
    return q * (step == 0) + (1 - q) * laplace_mass(coarser, step)


def joint_mass(scales: Sequence[Fraction], path: Sequence[int]) -> mpf:
    """P(the noise is ``path``), both coarse to fine."""
    mass = laplace_mass(scales[-1], path[-1])
    for (coarser, finer), (outer, inner) in zip(pairwise(scales), pairwise(path), strict=True):
        mass *= kernel(coarser, finer, outer - inner)
    return mass


# The theorem, in high precision


@pytest.mark.parametrize(
    ("coarser", "finer"),
    [*pairwise(SCALES), (Fraction(3), Fraction(2, 3)), (Fraction(5), Fraction(49, 10))],
)
def test_each_level_is_discrete_laplace(coarser: Fraction, finer: Fraction) -> None:
    """Would catch a keep probability that is only right in the continuous limit.

    The marginal agrees to 1e-25.
    """
    with mpmath.workdps(DIGITS):
        steps = {step: kernel(coarser, finer, step) for step in range(-REACH, REACH + 1)}
        for y in range(-15, 16):
            mixed = mpmath.fsum(
                laplace_mass(finer, y - step) * mass for step, mass in steps.items()
            )
            assert abs(mixed - laplace_mass(coarser, y)) < mpf(10) ** -25


def test_the_continuous_keep_probability_would_not_do() -> None:
    """A test of the test.

    (ε_a/ε_b)² instead of the exact probability moves the marginal by more than 1e-3.
    """
    coarser, finer = SCALES[1], SCALES[2]
    q = real((finer / coarser) ** 2)
    with mpmath.workdps(DIGITS):
        mixed = q * laplace_mass(finer, 0) + (1 - q) * mpmath.fsum(
            laplace_mass(finer, y) * laplace_mass(coarser, -y) for y in range(-REACH, REACH + 1)
        )
        assert abs(mixed - laplace_mass(coarser, 0)) > mpf(10) ** -3


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_all_levels_cost_the_last_one(levels: int) -> None:
    """Would catch coarser levels that reveal more than the finest.

    On a window, the joint laws of the first ``levels`` outputs for the answers 0 and 1 never differ
    by more than e^{ε_levels}, and this is reached. Finer levels are summed out.
    """
    window = range(-4, 6)
    with mpmath.workdps(DIGITS):
        inner = {y: laplace_mass(SCALES[-1], y) for y in range(-80, 81)}
        for coarser, finer in reversed(
            list(pairwise(SCALES))[levels - 1 :]
        ):  # sum out, finest first
            steps = {step: kernel(coarser, finer, step) for step in range(-170, 171)}
            wanted = range(-80, 81) if coarser != SCALES[levels - 1] else range(-6, 7)
            inner = {
                y: mpmath.fsum(mass * steps[y - z] for z, mass in inner.items()) for y in wanted
            }

        def mass(outputs: Sequence[int], answer: int) -> mpf:
            noise = [output - answer for output in outputs]
            result = inner[noise[-1]]
            for (coarser, finer), (outer, near) in zip(
                pairwise(SCALES[:levels]), pairwise(noise), strict=True
            ):
                result *= kernel(coarser, finer, outer - near)
            return result

        ratios = [mass(outputs, 0) / mass(outputs, 1) for outputs in product(window, repeat=levels)]
        limit = exp(real(EPSILONS[levels - 1]))
        assert max(ratios) <= limit * (1 + mpf(10) ** -20)
        assert min(ratios) >= 1 / limit * (1 - mpf(10) ** -20)
        assert max(ratios) >= limit * (1 - mpf(10) ** -20)


# The code, exactly


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        (Fraction(1, 2), Fraction(1)),
        (Fraction(1, 3), Fraction(1, 2)),
        (Fraction(2), Fraction(5)),
        (Fraction(1), Fraction(1)),
    ],
)
def test_keep_coin(coarse: Fraction, fine: Fraction) -> None:
    """Would catch a missing square, a swapped pair of rates, or a loop that favours one side."""
    law = enumerate_law(lambda r: keep_coin(coarse, fine, r), 600, within=1e-8)
    assert_law(
        law,
        lambda kept: keep_probability(coarse, fine) if kept else 1 - keep_probability(coarse, fine),
        within=1e-8,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.fractions(Fraction(1, 10**6), 5, max_denominator=10**6),
    st.fractions(Fraction(1, 10**6), 5, max_denominator=10**6),
    st.integers(40, 70),
)
def test_keep_law(coarse: Fraction, more: Fraction, precision: int) -> None:
    """Would catch brackets of the keep probability that do not hold it, or do not sum to 1."""
    keep, drop = KeepLaw(coarse, coarse + more).masses(precision)
    with mpmath.workdps(120):
        truth = rational(keep_probability(coarse, coarse + more))
    assert Fraction(keep[0]) <= truth <= Fraction(keep[1])
    assert Fraction(drop[0]) <= 1 - truth <= Fraction(drop[1])
    assert Fraction(keep[1]) - Fraction(keep[0]) < Fraction(1, 10**20)


def test_laplace_path_of_two_levels() -> None:
    """Would catch levels in the wrong order, fresh noise of the finer scale, or noise that replaces
    the old noise instead of being added to it.
    """
    scales = [Fraction(3, 2), Fraction(1)]
    masses, undecided = enumerate_law(lambda r: tuple(laplace_path(scales, r)), 400, within=5e-4)
    assert_law(
        (masses, undecided),
        lambda path: joint_mass(scales, path),
        within=5e-4,
        outcomes=product(range(-2, 3), repeat=2),
    )


def test_laplace_path_of_one_level_is_plain_noise() -> None:
    """Would catch a path that adds noise to a single level."""
    masses, undecided = enumerate_law(
        lambda r: tuple(laplace_path([Fraction(1)], r)), 400, within=1e-6
    )
    assert_law((masses, undecided), lambda path: laplace_mass(Fraction(1), path[0]), within=1e-6)


def test_laplace_path_asks_for_the_right_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a path whose coins get other parameters than the theorem's (any number of
    levels).
    """
    asked: list[object] = []
    keeps = iter([True, False])
    noise = iter([10, 100, 1000])
    monkeypatch.setattr(
        mechanisms, "keep_coin", lambda a, b, _r: asked.append((a, b)) or next(keeps)
    )
    monkeypatch.setattr(
        coins, "discrete_laplace", lambda scale, _r: asked.append(scale) or next(noise)
    )
    assert laplace_path(SCALES, Randomness()) == [110, 10, 10]
    assert asked == [SCALES[2], (EPSILONS[1], EPSILONS[2]), (EPSILONS[0], EPSILONS[1]), SCALES[0]]


def joint_p_value(paths: Sequence[tuple[int, ...]]) -> float:
    """Chi-square of three-level paths against the joint law.

    A cell per path in [−2, 2]³, one for all others.
    """
    counts = Counter(paths)
    cells = list(product(range(-2, 3), repeat=3))
    masses = [float(joint_mass(SCALES, cell)) for cell in cells]
    seen = [counts[cell] for cell in cells]
    order = np.argsort(masses)[::-1]  # rare cells next to each other, where they are pooled
    observed = np.append(np.array(seen)[order], len(paths) - sum(seen))
    expected = np.append(np.array(masses)[order], 1 - sum(masses)) * len(paths)
    return pooled_p_value(observed, expected)


def test_laplace_path_of_three_levels() -> None:
    """Would catch a joint law that is wrong although each level looks right: 20,000 paths."""
    source = SimulationRandomness(501)
    assert joint_p_value([tuple(laplace_path(SCALES, source)) for _ in range(20_000)]) > FALSE_ALARM


def test_laplace_paths_many_at_once() -> None:
    """The same for the vectorised form: 500,000 paths."""
    paths = laplace_paths(SCALES, 500_000, SimulationRandomness(502))
    assert paths.shape == (3, 500_000)
    assert joint_p_value(list(zip(*paths.tolist(), strict=True))) > FALSE_ALARM


def test_independent_levels_are_told_from_a_path() -> None:
    """A test of the test: right marginals with independent levels are rejected."""
    source = SimulationRandomness(503)
    levels = [samplers.discrete_laplaces(scale, 20_000, source).tolist() for scale in SCALES]
    assert joint_p_value(list(zip(*levels, strict=True))) < FALSE_ALARM


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        (Fraction(1, 2), Fraction(1)),
        (Fraction(1, 10**6), Fraction(3, 10**6)),
        (Fraction(1), Fraction(30)),
    ],
)
def test_keep_coins_many_at_once(coarse: Fraction, fine: Fraction) -> None:
    """Would catch a table of the wrong coin, tiny rates (a fine grid) included."""
    kept = int(samplers.keep_coins(coarse, fine, 500_000, SimulationRandomness(504)).sum())
    with mpmath.workdps(DIGITS):
        probability = float(keep_probability(coarse, fine))
    assert stats.binomtest(kept, 500_000, probability).pvalue > FALSE_ALARM


# Gaussian


VARIANCES = [Fraction(9), Fraction(4), Fraction(3, 2)]


def test_gaussian_path_is_an_inverse_variance_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a wrong weight.

    With recorded releases, each level is Σ N_k/v_k divided by Σ 1/v_k = 1/T.
    """
    asked: list[Fraction] = []
    releases = [7, -3, 20]
    monkeypatch.setattr(
        coins,
        "discrete_gaussian",
        lambda variance, _r: asked.append(variance) or releases[len(asked) - 1],
    )
    path = gaussian_path(VARIANCES, Randomness())
    for level, variance in enumerate(VARIANCES):
        weights = [1 / v for v in asked[: level + 1]]
        assert (
            sum(weights) == 1 / variance
        )  # the precisions add up: ρ = Δ²/(2T) is what all releases so far cost
        assert path[level] == sum(w * n for w, n in zip(weights, releases, strict=False)) / sum(
            weights
        )


@given(
    st.lists(
        st.fractions(Fraction(1, 4), 30, max_denominator=20), min_size=1, max_size=4, unique=True
    ),
    st.integers(0, 2**32),
)
@settings(max_examples=50, deadline=None)
def test_gaussian_path_is_made_of_integer_releases(variances: list[Fraction], seed: int) -> None:
    """Would catch noise that is not a function of independent integer releases, for any levels."""
    variances = sorted(variances, reverse=True)
    path = gaussian_path(variances, SimulationRandomness(seed))
    before, precision = Fraction(0), Fraction(0)
    for noise, variance in zip(path, variances, strict=True):
        release = (noise / variance - before) / (1 / variance - precision)
        assert release.denominator == 1
        before, precision = noise / variance, 1 / variance


def assert_brownian(path: np.ndarray, variances: Sequence[float]) -> None:
    """Mean 0, variance T_n at level n, covariance T of the finer of two levels.

    Six standard errors each.
    """
    count = path.shape[1]
    covariance = np.cov(path)
    for i, first in enumerate(variances):
        assert abs(path[i].mean()) < 6 * (first / count) ** 0.5
        for j, second in enumerate(variances):
            finer = min(first, second)
            assert abs(covariance[i, j] - finer) < 6 * ((first * second + finer**2) / count) ** 0.5


def test_gaussian_path_covariance() -> None:
    """Would catch levels that are independent, or increments of the wrong variance.

    20,000 paths.
    """
    source = SimulationRandomness(505)
    path = np.array([[float(z) for z in gaussian_path(VARIANCES, source)] for _ in range(20_000)]).T
    assert_brownian(path, [float(v) for v in VARIANCES])


# Simulated paths


def test_simulated_gaussian_paths() -> None:
    """Would catch a simulation of another mechanism: Brownian covariance, normal increments."""
    variances = [9.0, 4.0, 1.5]
    path = simulate_gaussian_paths(variances, 200_000, np.random.default_rng(506))
    assert_brownian(path, variances)
    assert stats.kstest((path[0] - path[1]) / 5**0.5, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(path[2] / 1.5**0.5, "norm").pvalue > FALSE_ALARM


def test_simulated_laplace_paths() -> None:
    """Would catch a wrong keep probability or scale.

    Laplace at each level, kept with probability (fine/coarse)².
    """
    scales = [5.0, 3.0, 2.0]
    path = simulate_laplace_paths(scales, 200_000, np.random.default_rng(507))
    for level, scale in zip(path, scales, strict=True):
        assert stats.kstest(level, "laplace", (0, scale)).pvalue > FALSE_ALARM
    for coarse, fine in ((0, 1), (1, 2)):
        kept = int((path[coarse] == path[fine]).sum())
        assert (
            stats.binomtest(kept, 200_000, (scales[fine] / scales[coarse]) ** 2).pvalue
            > FALSE_ALARM
        )
        moved = path[coarse] != path[fine]
        assert (
            stats.kstest((path[coarse] - path[fine])[moved], "laplace", (0, scales[coarse])).pvalue
            > FALSE_ALARM
        )


@pytest.mark.parametrize(
    "view", [lambda p: p[0], lambda p: p[1], lambda p: p[0] - p[1], lambda p: 100 * (p[0] == p[1])]
)
def test_simulated_and_exact_laplace_paths_agree(view: Callable[[np.ndarray], np.ndarray]) -> None:
    """Would catch a simulation that is not of this mechanism.

    At scales 60 and 40 the grid hardly shows.
    """
    exact = laplace_paths([Fraction(60), Fraction(40)], 40_000, SimulationRandomness(508))
    simulated = simulate_laplace_paths([60.0, 40.0], 40_000, np.random.default_rng(509))
    cells = [
        np.floor_divide(view(np.rint(path)), 10).astype(np.int64) for path in (exact, simulated)
    ]
    assert alike(*cells) > FALSE_ALARM
