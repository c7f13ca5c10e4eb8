"""One δ for all looks: stopping a path costs at most its excesses over what the next look gains.

The claim is checked by enumeration on random finite paths, against the best of all stopping rules,
and the integrals for Gaussian paths against backward induction on a grid.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from expost.privacy.profiles import gaussian_delta, gaussian_mu, share_of_delta, stopped_delta
from expost.selection.noise_path import NoisePath, PathSearch
from tests.theorems.test_until_it_passes import STEPS, VALUES, Law, excess, prefix_laws


def bound_of_a_finite_path(one: list[Law], two: list[Law], epsilons: list[float]) -> float:
    """Σ_i Σ_prefix (excess at i − excess of the prefixes that continue it at i + 1)₊."""

    def at(look: int, prefix: tuple[int, ...]) -> float:
        ratio = math.exp(epsilons[look]) * two[look][prefix]
        return max(0.0, one[look][prefix] - ratio)

    total = 0.0
    for look in range(STEPS):
        for prefix in one[look]:
            later = 0.0
            if look + 1 < STEPS:
                later = sum(at(look + 1, (*prefix, value)) for value in range(VALUES))
            total += max(0.0, at(look, prefix) - later)
    return total


@pytest.mark.parametrize("seed", range(30))
def test_no_stopping_rule_costs_more(seed: int) -> None:
    """Every one of the 4,096 rules that stop by what was released, in both directions."""
    generator = np.random.default_rng(seed)
    one, two = prefix_laws(generator)
    epsilons = np.sort(generator.uniform(0.02, 0.6, STEPS)).tolist()
    prefixes = [key for law in one[:-1] for key in law]
    for a, b in ((one, two), (two, one)):
        worst = max(
            excess(a, b, epsilons, {key for key, stop in zip(prefixes, rule, strict=True) if stop})
            for rule in itertools.product((False, True), repeat=len(prefixes))
        )
        assert worst <= bound_of_a_finite_path(a, b, epsilons) + 1e-12


def best_stopping(epsilons: list[float], mus: list[float], points: int = 1201) -> float:
    """The largest E[(1 − e^{ε_τ − L_τ})₊] over stopping times, by backward induction on a grid."""
    grid = values = None
    squares = [mu**2 for mu in mus]
    for index in reversed(range(len(epsilons))):
        mean, deviation = squares[index] / 2, mus[index]
        losses = mean + np.linspace(-2, 9, points) * deviation
        value = np.maximum(0.0, -np.expm1(np.minimum(epsilons[index] - losses, 0.0)))
        if grid is not None and values is not None:
            value = np.maximum(
                value, _expected(losses, squares[index + 1] - squares[index], grid, values)
            )
        grid, values = losses, value
    assert grid is not None
    assert values is not None
    return float(_expected(np.zeros(1), squares[0], grid, values)[0])


def _expected(losses, variance, grid, values):  # type: ignore[no-untyped-def]
    middles = (grid[1:] + grid[:-1]) / 2
    reach = (losses[:, None] + variance / 2 - middles[None]) / math.sqrt(variance)
    return values[0] + ndtr(reach) @ np.diff(values)


@pytest.mark.parametrize("delta", [1e-6, 1e-2])
@pytest.mark.parametrize(
    ("low", "high", "growth"), [(0.05, 0.5, 1.12), (0.01, 3.0, 1.25), (0.5, 4.0, 1.05)]
)
def test_gaussian_paths(low: float, high: float, growth: float, delta: float) -> None:
    count = math.ceil(math.log(high / low) / math.log(growth))
    epsilons = [high / growth**step for step in range(count, -1, -1)]
    mus = [gaussian_mu(epsilon, delta / 10) for epsilon in epsilons]
    bound = stopped_delta(tuple(epsilons), tuple(mus))
    best = best_stopping(epsilons, mus)
    alone = sum(gaussian_delta(epsilon, mu) for epsilon, mu in zip(epsilons, mus, strict=True))
    assert best <= bound * 1.002  # the grid of the induction errs by less
    assert bound <= (1.35 if delta < 1e-4 else 1.8) * best  # the bound is not empty
    assert bound <= alone * (1 + 1e-8)
    assert bound >= max(map(gaussian_delta, epsilons, mus))


def test_the_share_of_a_level_is_larger_than_an_equal_part_and_costs_no_more() -> None:
    epsilons = tuple(0.01 * 1.12**step for step in range(40))
    share = share_of_delta(epsilons, 1e-6)
    assert share > 1.4e-6 / 40
    mus = tuple(gaussian_mu(epsilon, share) for epsilon in epsilons)
    assert stopped_delta(epsilons, mus) <= 1e-6
    assert share_of_delta((0.3,), 1e-6) == 1e-6


def test_a_search_charges_the_delta_that_was_asked_for() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0)
    epsilons = [0.05 * 1.12**step for step in range(20)]
    candidates = path.levels(epsilons, delta=1e-6)
    charges = PathSearch(at_least=1.0).charges(candidates)
    for charge in (*(charges[index] for index in range(20)), charges.nothing):
        assert charge.delta <= 1e-6
    added = sum(candidate.guarantee.delta for candidate in candidates)
    assert added > 1.3e-6  # plain addition would have to give every level less
