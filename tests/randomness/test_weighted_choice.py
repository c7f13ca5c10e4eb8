"""Exact draws of an index with probability ∝ mass·e^{−rate·distance}."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from expost import SimulationRandomness
from expost.randomness import samplers as module
from expost.randomness.coins import invert
from expost.randomness.samplers import ExponentialLaw, choice_of_logs, weighted_choice


class Words:
    """A source whose next word and bits are given."""

    def __init__(self, word: int, bits: int = 0) -> None:
        self.word, self.more, self.asked = word, bits, 0

    def words(self, count: int) -> np.ndarray:
        return np.array([self.word], dtype=np.uint64)

    def bits(self, count: int) -> int:
        self.asked += 1
        return self.more & ((1 << count) - 1)


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_the_law_is_the_exponential_mechanism() -> None:
    masses, distances, rate = [3, 0, 5, 1], [2, 0, 1, 7], Fraction(1, 3)
    weights = [m * math.exp(-d / 3) for m, d in zip(masses, distances, strict=True)]
    law = ExponentialLaw(masses, distances, rate)
    for (low, high), weight in zip(law.masses(30), weights, strict=True):
        assert float(low) == pytest.approx(weight / sum(weights), rel=1e-12)
        assert low <= high
        assert float(high - low) < 1e-25


@pytest.mark.parametrize("seed", range(3))
def test_fast_draws_are_those_of_the_exact_inversion(seed: int) -> None:
    """The same word leads to the same outcome, whichever way is taken."""
    chosen = np.random.default_rng(seed)
    masses = chosen.integers(0, 50, 40) + np.eye(1, 40, 7, dtype=np.int64)[0]
    distances = chosen.integers(0, 30, 40)
    law = ExponentialLaw(masses.tolist(), distances.tolist(), Fraction(2, 7))
    for word in chosen.integers(0, 2**63, 60, dtype=np.uint64) * np.uint64(2):
        fast = weighted_choice(masses, distances, Fraction(2, 7), Words(int(word)))
        slow = invert(law, Words(0), prefix=int(word), prefix_bits=64)
        assert fast == slow
        assert masses[fast] > 0


@pytest.mark.parametrize("error", [0.0, 1e-10, -1e-10])
def test_draws_from_inexact_logarithms_are_those_of_the_exact_inversion(error: float) -> None:
    """Words next to every boundary; catches a margin smaller than the stated error of the logs."""
    chosen = np.random.default_rng(11)
    masses, distances, rate = chosen.integers(1, 50, 12), chosen.integers(0, 30, 12), 2 / 7
    law = ExponentialLaw(masses.tolist(), distances.tolist(), Fraction(2, 7))
    logs = np.log(masses) - rate * distances + error * (-1.0) ** np.arange(12)
    ends = np.cumsum([float(low) for low, _ in law.masses(40)])[:-1]
    near = [int(end * 2**64) + off for end in ends for off in (-(2**34), -(2**30), 0, 2**30, 2**34)]
    far = [int(word) * 2 for word in chosen.integers(0, 2**63, 60)]
    for word in near + far:
        fast = choice_of_logs(logs, lambda: law, Words(word))
        assert fast == invert(law, Words(0), prefix=word, prefix_bits=64)


@pytest.mark.parametrize(("word", "outcome"), [(2**63 - 1, 0), (2**63, 1)])
def test_a_word_at_a_boundary_is_decided_by_the_exact_inversion(word: int, outcome: int) -> None:
    source = Words(word, bits=5)
    assert weighted_choice(array(1, 1), array(4, 4), Fraction(1), source) == outcome
    assert source.asked > 0  # brackets do not decide a half with finitely many digits


def test_far_outcomes_do_not_overflow_and_empty_ones_are_never_drawn() -> None:
    source = SimulationRandomness(1)
    masses, distances = array(0, 2**32, 2**32), array(0, 10**15, 10**15 + 1)
    drawn = {weighted_choice(masses, distances, Fraction(1, 10), source) for _ in range(200)}
    assert drawn == {1, 2}


def test_frequencies() -> None:
    """Deviation of 5.5 σ or more; with this seed the test always does the same."""
    source, trials = SimulationRandomness(3), 4000
    masses, distances = array(1, 2, 3), array(0, 1, 2)
    weights = masses * np.exp(-0.7 * distances)
    drawn = [weighted_choice(masses, distances, Fraction(7, 10), source) for _ in range(trials)]
    for outcome, share in enumerate(weights / weights.sum()):
        deviation = math.sqrt(trials * share * (1 - share))
        assert abs(drawn.count(outcome) - trials * share) < 5.5 * deviation


def test_the_stated_error_covers_that_of_the_sums() -> None:
    """Cumulative weights against exact brackets: the error is far below what is allowed."""
    chosen = np.random.default_rng(5)
    masses, distances = chosen.integers(1, 2**31, 500), chosen.integers(0, 4000, 500)
    upto = np.cumsum(masses * np.exp(-0.1 * (distances - distances.min())))
    law = ExponentialLaw(masses.tolist(), distances.tolist(), Fraction(0.1))
    exact = np.cumsum([(low + high) / 2 for low, high in law.masses(60)])
    for cumulative, probability in zip(upto / upto[-1], exact, strict=True):
        assert abs(cumulative - float(probability)) < module._ERROR * module._ALWAYS / 4
