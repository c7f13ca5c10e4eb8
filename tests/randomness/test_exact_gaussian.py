"""Exact rounded Gaussians with NumPy: against the compiled engine, decimal arithmetic, the law."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from expost.randomness import samplers
from expost.randomness.samplers import add_gaussian, gaussian_bracket, lattice_for
from expost.randomness.source import Randomness, SimulationRandomness


class Words(Randomness):
    """A source whose words are given, and whose further digits are all zero or all one."""

    simulated = True

    def __init__(self, words: list[int], rest: int = 0) -> None:
        super().__init__()
        self.given = np.array(words, dtype=np.uint64)
        self.rest = rest

    def words(self, count: int) -> np.ndarray:
        taken, self.given = self.given[:count], self.given[count:]
        return taken

    def bits(self, count: int) -> int:
        return self.rest * (2**count - 1)


def test_bracket_contains_the_float_and_its_error_bound() -> None:
    source = SimulationRandomness(1)
    radii, angles = source.words(400), source.words(400)
    first, second, errors = samplers._scaled_pairs(radii, angles, 1.0)
    for place in range(400):
        for sine, found in ((False, first[place]), (True, second[place])):
            low, high = gaussian_bracket(
                int(radii[place]) << 256, int(angles[place]) << 256, 320, sine
            )
            assert low is not None
            assert high is not None
            assert abs(Decimal(float(found)) - low) <= Decimal(float(errors[place]))


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1, 2**63, 2**62 + 2**61, 2**61])
def test_extreme_words_give_finite_multiples_of_the_step(word: int) -> None:
    lattice = lattice_for(1.0)
    found = add_gaussian(np.array([0.3, -0.7]), lattice, Words([word, word], rest=1))
    assert np.isfinite(found).all()
    assert np.array_equal(found, np.floor(found / lattice.step) * lattice.step)


def test_undecided_numbers_are_decided_by_further_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A total whose noisy value lies at a rounding boundary, up to the error of floating point."""
    asked = []
    plain = samplers.decided_release

    def counted(total: float, *rest: Any) -> float:
        asked.append(total)
        return plain(total, *rest)

    monkeypatch.setattr(samplers, "decided_release", counted)
    lattice, words = lattice_for(1.0), [2**63, 2**61]
    noise = float(gaussian_bracket(2**63 << 256, 2**61 << 256, 320, False)[0] or 0)
    boundary = (math.floor(noise / lattice.step) + 0.5) * lattice.step - noise
    for total, doubtful in ((boundary, True), (boundary + lattice.step / 4, False)):
        found = add_gaussian(np.array([total]), lattice, Words(words))[0]
        assert (total in asked) == doubtful
        exact = (Fraction(total) + Fraction(noise)) / Fraction(lattice.step)
        assert abs(Fraction(float(found)) / Fraction(lattice.step) - exact) <= Fraction(501, 1000)


def test_both_gaussians_of_a_pair_continue_with_the_same_digits() -> None:
    """They are cosine and sine of one angle, and have one radius."""

    drawn: list[int] = []

    class Counted(Words):
        def bits(self, count: int) -> int:
            drawn.append(SimulationRandomness(len(drawn)).bits(count))
            return drawn[-1]

    lattice = lattice_for(1.0)
    found = add_gaussian(
        np.zeros(2), lattice, Counted([0, 2**61])
    )  # no leading digits: both undecided
    radius, angle = drawn  # not four numbers
    for sine, value in zip((False, True), found, strict=True):
        low, high = gaussian_bracket(radius, 2**61 << 256 | angle, 320, sine)
        assert low is not None
        assert high is not None
        assert float(low) - lattice.step <= value <= float(high) + lattice.step


def test_law_of_a_coarse_rounding() -> None:
    lattice = samplers.NoiseLattice(2.0, 1.0, 1.0, 2.0)  # unit steps
    found = add_gaussian(np.full(200_000, 0.25), lattice, SimulationRandomness(7))
    normal = NormalDist(0.25, 2.0)
    for value in range(-6, 7):
        expected = normal.cdf(value + 0.5) - normal.cdf(value - 0.5)
        share = float(np.mean(found == value))
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 200_000)


def test_bad_numbers_count_as_bounded_ones() -> None:
    lattice = lattice_for(1.0)
    found = add_gaussian(
        np.array([np.nan, np.inf, -np.inf, 1e300]), lattice, SimulationRandomness(3)
    )
    assert np.isfinite(found).all()
    assert abs(found[0]) < 10
