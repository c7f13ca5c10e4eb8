"""Attempts in sequence: the composition lemma by enumeration, and Algorithm 2 twice.

The lemma (docs/theory.md, "Attempts in sequence"): if M₁ is ex-post (ε̃₁, δ₁)-DP and M₂, which may
depend on the first outcome, is ex-post (ε̃₂, δ₂)-DP for every first outcome, then the pair is
ex-post (ε̃₁ + ε̃₂, δ₁ + δ₂)-DP. Laws here are finite, and every δ is the exact one.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from expost import AboveThreshold, Candidate, PureDP
from expost.selection.attempts import Attempt, Schedule, candidates_of

INSTANCES = 2_000
SLACK = 1e-12


def excess(law: np.ndarray, other: np.ndarray, loss: np.ndarray) -> float:
    """Σ_o (A(o) − e^{ε̃(o)}·A′(o))₊: the least δ for these losses."""
    return float(np.maximum(law - np.exp(loss) * other, 0.0).sum())


def composed(
    first: np.ndarray, second: list[np.ndarray], first_loss: np.ndarray, losses: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The law of the pair and its losses; an empty second law ends with the first outcome."""
    law, loss = [], []
    for chance, later, mine, theirs in zip(first, second, first_loss, losses, strict=True):
        if len(later) == 0:
            law.append([chance])
            loss.append([mine])
        else:
            law.append(chance * later)
            loss.append(mine + theirs)
    return np.concatenate(law), np.concatenate(loss)


class Pair:
    """Two finite mechanisms on two data sets; the second is chosen by the first outcome."""

    def __init__(self, generator: np.random.Generator) -> None:
        outcomes = int(generator.integers(2, 5))
        self.first = [generator.dirichlet(np.ones(outcomes)) for _ in range(2)]
        self.first_loss = generator.exponential(0.7, outcomes)
        self.second: list[list[np.ndarray]] = [[], []]
        self.losses: list[np.ndarray] = []
        for _ in range(outcomes):
            size = 0 if generator.random() < 0.4 else int(generator.integers(2, 5))
            for side in self.second:
                side.append(generator.dirichlet(np.ones(size)) if size else np.array([]))
            self.losses.append(generator.exponential(0.7, size))

    def deltas(self) -> tuple[float, float]:
        later = [
            excess(a, b, loss)
            for a, b, loss in zip(*self.second, self.losses, strict=True)
            if len(a)
        ]
        return excess(*self.first, self.first_loss), max(later, default=0.0)

    def realised(self, first_loss: np.ndarray, losses: list[np.ndarray]) -> float:
        law, loss = composed(self.first[0], self.second[0], first_loss, losses)
        other, _ = composed(self.first[1], self.second[1], first_loss, losses)
        return excess(law, other, loss)


def test_the_lemma_on_random_pairs() -> None:
    generator = np.random.default_rng(13)
    tightest = 0.0
    for _ in range(INSTANCES):
        pair = Pair(generator)
        claimed = sum(pair.deltas())
        realised = pair.realised(pair.first_loss, pair.losses)
        assert realised <= claimed + SLACK
        if claimed > 1e-6:
            tightest = max(tightest, realised / claimed)
    assert tightest > 0.9  # random instances come close to equality


def reveal(delta: float) -> tuple[np.ndarray, np.ndarray]:
    """A mechanism that tells the data set with probability δ, and otherwise nothing."""
    return np.array([1 - delta, delta, 0.0]), np.array([1 - delta, 0.0, delta])


def test_an_instance_near_equality_and_the_mutant_that_counts_delta_once() -> None:
    """Two attempts that each reveal the data with probability δ: together nearly 2δ."""
    delta = 1e-3
    law, other = reveal(delta)
    none = np.zeros(3)
    both = composed(law, [law, np.array([]), np.array([])], none, [none] * 3)
    there = composed(other, [other, np.array([]), np.array([])], none, [none] * 3)
    realised = excess(both[0], there[0], both[1])
    assert 0.999 * 2 * delta < realised <= 2 * delta + SLACK
    assert realised > delta  # δ counted once is false


class TwoAttempts:
    """Algorithm 2 twice under pure DP, over candidates that pass with some probability.

    The law is written down from the algorithm, not from the library: a level k ~ Geom(e^{−ε′}),
    a copy kept with probability e^{−ε·k}, the first kept copy that passes released.
    """

    LEVELS = np.arange(4_000)

    def __init__(
        self, epsilons: list[float], passing: list[tuple[float, float]], overheads: list[float]
    ) -> None:
        self.epsilons, self.passing, self.overheads = epsilons, passing, overheads

    def law(self, overhead: float, side: int) -> np.ndarray:
        mass = -math.expm1(-overhead) * np.exp(-overhead * self.LEVELS)
        going_on, wins = np.ones(len(self.LEVELS)), []
        for epsilon, chances in zip(self.epsilons, self.passing, strict=True):
            hit = np.exp(-epsilon * self.LEVELS) * chances[side]
            wins.append(float((mass * going_on * hit).sum()))
            going_on = going_on * (1 - hit)
        return np.array([*wins, float((mass * going_on).sum())])

    def charges(self, overhead: float) -> np.ndarray:
        candidates = [
            Candidate(lambda data, randomness: 0, {}, guarantee=PureDP(epsilon))
            for epsilon in self.epsilons
        ]
        table = AboveThreshold(overhead=overhead, at_least=0).charges(candidates)
        return np.array(
            [*(float(table[k].size) for k in range(len(table))), float(table.nothing.size)]
        )

    def worst(self, miss: float = 1.0, later: float = 1.0) -> float:
        """The largest log-ratio above the charges; mutants weigh a miss or a later overhead."""
        first, second = self.overheads
        one, two = self.charges(first), self.charges(second)
        laws = [[self.law(each, side) for each in self.overheads] for side in (0, 1)]
        worst = -math.inf
        for a, b in ((0, 1), (1, 0)):
            for k in range(len(self.epsilons)):
                ratio = math.log(laws[a][0][k] / laws[b][0][k])
                worst = max(worst, ratio - one[k])
                ratio = math.log(laws[a][0][-1] * laws[a][1][k] / (laws[b][0][-1] * laws[b][1][k]))
                worst = max(worst, ratio - miss * one[-1] - (two[k] - (1 - later) * second))
            ratio = math.log(laws[a][0][-1] * laws[a][1][-1] / (laws[b][0][-1] * laws[b][1][-1]))
            worst = max(worst, ratio - miss * one[-1] - later * two[-1])
        return worst


def test_two_attempts_of_algorithm_2_cost_the_sum() -> None:
    generator = np.random.default_rng(14)
    for _ in range(300):
        epsilons = list(generator.choice([0.1, 0.3, 0.8, 1.5], int(generator.integers(1, 4))))
        passing = []
        for epsilon in epsilons:
            p = generator.random()
            low = max(p * math.exp(-epsilon), 1 - (1 - p) * math.exp(epsilon))
            high = min(p * math.exp(epsilon), 1 - (1 - p) * math.exp(-epsilon))
            passing.append((p, float(generator.choice([low, high]))))
        overheads = list(generator.choice([0.05, 0.2, 0.7], 2))
        assert TwoAttempts(epsilons, passing, overheads).worst() <= 1e-9


def adversary() -> TwoAttempts:
    """Many strong competitors that pass more often on the other data set: a miss tells a lot."""
    return TwoAttempts([1.5] * 40, [(0.02, 0.02 * math.exp(1.5))] * 40, [0.3, 0.3])


def test_an_instance_that_uses_the_price_of_a_miss() -> None:
    assert -0.35 < adversary().worst() <= 1e-9


def test_the_mutant_that_charges_a_miss_nothing_is_rejected() -> None:
    assert adversary().worst(miss=0.0) > 1e-3


def test_the_mutant_that_forgets_the_overhead_of_a_later_attempt_is_rejected() -> None:
    assert adversary().worst(later=0.0) > 1e-3


def test_shares_of_delta_sum_to_at_most_one() -> None:
    attempts = (Attempt(0.1, 0, 1, 0.7), Attempt(0.2, 0, 1, 0.31))
    with pytest.raises(ValueError, match="sum to at most 1"):
        Schedule(attempts)
    ok = Schedule((Attempt(0.1, 0, 1, 0.7), Attempt(0.2, 1, 2, 0.3)))
    assert sum(Fraction(each.delta_share) for each in ok.first(1).attempts) <= 1
    candidates = [
        Candidate(lambda d, r: 0, {"epsilon": e}, guarantee=PureDP(e)) for e in (2.0, 1.0)
    ]
    chosen = candidates_of(candidates, (1.0, 2.0), ok.attempts[1], pure=True)
    assert [(each.params["epsilon"], each.repeats) for each in chosen] == [(2.0, 2)]
