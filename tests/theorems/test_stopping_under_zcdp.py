"""Stopping under zCDP: a search that stops at look i costs ρ_i at every order, by enumeration.

A path of Gaussian releases on a few cells and Gaussian counts on held-out rows decide together
where to stop. What is enumerated is finer than what leaves: all releases of the path and all noisy
counts up to the stop. The moment of order α, each outcome weighted by e^{−α(α−1)ρ_i}, must be at
most 1 for a person in the training rows and for a person in the held-out rows, in both directions.
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from expost.privacy.guarantees import ZCDP
from expost.selection.held_out import GaussianCounts
from expost.selection.noise_path import NoisePath, path_deviations, path_levels
from tests.oracle.audit import ZCDP_ORDERS

Floats = npt.NDArray[np.float64]
RHOS = (0.05, 0.11, 0.3)
CELLS = 9
ORDERS = (1.01, 1.2, *ZCDP_ORDERS)


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def cells(mean: float, deviation: float, edges: Floats) -> Floats:
    """The law of a Gaussian on cells; the outer cells have the tails."""
    scaled = [(float(edge) - mean) / deviation for edge in edges]
    lower = np.diff([0.0, *(normal_cdf(x) for x in scaled)])
    upper = -np.diff([*(normal_cdf(-x) for x in scaled), 0.0])
    # Each cell from its own side: a difference of numbers near 1 would lose the tail.
    return np.array(
        [*lower[:1], *np.where(np.array(scaled[1:]) < 0, lower[1:], upper[:-1]), upper[-1]]
    )


class Search:
    """The transcripts of a search: which cells the path released, and what was counted there."""

    def __init__(self, generator: np.random.Generator, steps: int = 1) -> None:
        path = NoisePath(len, 1, lambda values, scale: values)
        self.deviations = path_deviations(path_levels(path.levels(rhos=RHOS)))
        self.rule = GaussianCounts.for_levels(
            lambda output, data: 0, RHOS, goal=0, confidence=0.9, steps=steps
        )
        self.steps = steps
        #: The count at each look depends on all that the path has released so far.
        self.counts = [
            generator.integers(-6 * steps, 6 * steps, size=(CELLS,) * (look + 1))
            for look in range(len(RHOS))
        ]
        self.thresholds = generator.integers(-2 * steps, 6 * steps, size=len(RHOS))

    def path_law(self, statistic: float) -> list[Floats]:
        edges = np.linspace(-2.0, 2.0, CELLS - 1)
        return [cells(statistic, sigma, sigma * edges) for sigma in self.deviations]

    def count_law(self, look: int, count: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The law of the noisy count on whole numbers, and which of them pass."""
        sigma = self.rule.deviations[look]
        most = math.ceil(7 * sigma) + 6 * self.steps
        values = np.arange(-most, most + 1)
        edges = np.array([value + 0.5 for value in values[:-1]])
        return cells(count, sigma, edges), values >= self.thresholds[look]


def moment(one: Floats, two: Floats, order: float, rho: float = 0.0) -> Floats:
    """A^α A′^{1−α} e^{−α(α−1)ρ}, in one exponential: each part of it may overflow."""
    power = order * np.log(one) + (1 - order) * np.log(two)
    return np.exp(power - order * (order - 1) * rho)


def increments(rhos: tuple[float, ...]) -> list[float]:
    return [after - before for before, after in pairwise((0.0, *rhos))]


def training_moments(search: Search, order: float, moved: float) -> list[float]:
    """Per look, the weighted moment of "stopped here"; the last includes "nothing"."""
    one, two = search.path_law(0.0), search.path_law(moved)
    if moved < 0:
        one, two = two, one
    found, paid = [], increments(RHOS)
    reached = np.ones(())
    for look in range(len(RHOS)):
        reached = reached[..., None] * moment(one[look], two[look], order, paid[look])
        chance = passing(search, look)
        last = look == len(RHOS) - 1
        found.append(float((reached * (1.0 if last else chance)).sum()))
        reached = reached * (1 - chance)
    return found


def passing(search: Search, look: int) -> Floats:
    """The chance that a look passes, for all that the path may have released."""
    chances = {}
    for count in np.unique(search.counts[look]).tolist():
        law, passes = search.count_law(look, count)
        chances[count] = float(law[passes].sum())
    return np.vectorize(chances.__getitem__)(search.counts[look])


def held_out_moments(
    search: Search,
    order: float,
    moves: list[npt.NDArray[np.int64]],
    swapped: bool = False,
    rhos: tuple[float, ...] = RHOS,
) -> list[float]:
    """The same for a person in the held-out rows, who changes counts by ``moves``."""
    law = search.path_law(0.0)
    found, paid = [], increments(rhos)
    reached = np.ones(())

    @functools.cache
    def both(look: int, count: int, move: int) -> tuple[float, float]:
        """The moments of passing and of failing."""
        one, passes = search.count_law(look, count)
        two, _ = search.count_law(look, count + move)
        pair = (two, one) if swapped else (one, two)
        terms = moment(*pair, order, paid[look])
        return float(terms[passes].sum()), float(terms[~passes].sum())

    for look in range(len(RHOS)):
        reached = reached[..., None] * law[look]
        stopped, failed = np.vectorize(lambda *pair, look=look: both(look, *map(int, pair)))(
            search.counts[look], moves[look]
        )
        last = look == len(RHOS) - 1
        found.append(float((reached * (stopped + failed if last else stopped)).sum()))
        reached = reached * failed
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("moved", [1.0, -1.0])
def test_a_person_in_the_training_rows(seed: int, moved: float) -> None:
    search = Search(np.random.default_rng(seed))
    totals = [sum(training_moments(search, order, moved)) for order in ORDERS]
    assert max(totals) <= 1 + 1e-9
    assert max(totals) > 0.99  # near order 1 nothing is given away


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("swapped", [False, True])
def test_a_person_in_the_held_out_rows(seed: int, swapped: bool) -> None:
    """One person may raise some counts and lower others, by up to ``steps``."""
    generator = np.random.default_rng(seed)
    search = Search(generator, steps=1 + seed % 2)
    moves = [
        generator.choice([-search.steps, search.steps], size=counts.shape)
        for counts in search.counts
    ]
    for order in ORDERS:
        total = sum(held_out_moments(search, order, moves, swapped))
        assert total <= 1 + 1e-9
        assert total > (0.9 if order == 1.01 else 0.0)


def test_the_charge_is_nearly_reached_at_every_order() -> None:
    """Without rounding, looking to the end costs exactly ρ of the end: ρ cannot be smaller."""
    search = Search(np.random.default_rng(0))
    search.thresholds[:] = 10_000  # never passes
    moves = [np.ones(counts.shape, dtype=np.int64) for counts in search.counts]
    for order in (1.5, 2.0, 4.0):
        moments = held_out_moments(search, order, moves)
        assert moments[:2] == [0.0, 0.0]
        given_away = -math.log(moments[2]) / (order * (order - 1))
        assert 0 <= given_away < 0.05 * RHOS[-1]


def test_paying_for_the_last_look_only_would_be_wrong() -> None:
    """Counts of looks that failed cost ρ, too: the increments add up."""
    search = Search(np.random.default_rng(0))
    search.thresholds[:] = 10_000
    moves = [np.ones(counts.shape, dtype=np.int64) for counts in search.counts]
    last = (RHOS[0], RHOS[1] - RHOS[0], RHOS[2] - RHOS[1])
    assert sum(held_out_moments(search, 2.0, moves, rhos=last)) > 1.05


def test_an_ex_post_pure_cost_is_not_half_its_square() -> None:
    """Why noisy thresholds (Algorithm 1) are not used under zCDP.

    Two outcomes, of which the dear one is rarer under A: every ratio is e^{±ε̃}, and ε̃²/2 is too
    little near order 1.
    """
    cheap, dear = 0.1, 1.0
    share = (1 - math.exp(-dear)) / (math.exp(cheap) - math.exp(-dear))  # of the cheap one, A′
    one = {cheap: share * math.exp(cheap), dear: (1 - share) * math.exp(-dear)}
    two = {cheap: share, dear: 1 - share}
    assert sum(one.values()) == pytest.approx(1)
    assert all(abs(math.log(one[loss] / two[loss])) <= loss + 1e-12 for loss in one)
    order = 1.01
    total = sum(
        moment(np.array(one[loss]), np.array(two[loss]), order)
        * math.exp(-order * (order - 1) * loss**2 / 2)
        for loss in one
    )
    assert total > 1 + 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_the_epsilon_of_a_stop_at_its_own_order(seed: int) -> None:
    """Σ (A − e^{ε_i}A′)₊ ≤ δ with ε_i of ρ_i at δ/looks: each look may use its own order."""
    search = Search(np.random.default_rng(seed))
    delta = 0.06
    epsilons = [ZCDP(rho).to_approx(delta / len(RHOS)).epsilon for rho in RHOS]
    one, two = search.path_law(0.0), search.path_law(1.0)
    excess = 0.0
    reached_one, reached_two = np.ones(()), np.ones(())
    for look, epsilon in enumerate(epsilons):
        reached_one = reached_one[..., None] * one[look]
        reached_two = reached_two[..., None] * two[look]
        chance = passing(search, look)
        stop = 1.0 if look == len(RHOS) - 1 else chance
        excess += float((stop * np.maximum(0, reached_one - math.exp(epsilon) * reached_two)).sum())
        reached_one, reached_two = reached_one * (1 - chance), reached_two * (1 - chance)
    assert 0 < excess <= delta
