"""Simulated selections against the enumerated laws of ``tests.theorems.finite``: chi-square.

Each test makes 20,000 seeded selections (8,000 where coins are dropped, which takes half a
millisecond each) and rejects at 1e-5, so a correct library fails one of the 20-odd tests about once
in 5,000 changes of all seeds.

They would catch a wrong tie rule, a wrong drop rate, a redraw that is none, copies that are not
independent, and any other way in which the code is not the algorithm that the theorems are about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from scipy import stats

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteGaussian,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.randomness.source import Randomness
from expost.selection import selector as selectors
from expost.selection.selector import Selector
from tests.theorems import finite
from tests.theorems.finite import Array, Dropping, Law, NoisePath

SELECTIONS = 20_000
COSTLY_SELECTIONS = 8_000
FALSE_ALARM = 1e-5

Q = np.array(
    [[[0.2, 0.3, 0.5], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]]
)  # scores tie often: the tie rule matters
EPSILON = np.array([[0.5, 1.0, 0.5]])
OVERHEAD = 0.6
COPIES = (1, 4, 2)


def sampler(law: Sequence[float]) -> Callable[[Any, Randomness], int]:
    """A mechanism that draws a score from ``law`` with the randomness it is given."""
    bounds = [int(bound * 2**48) for bound in accumulate(law)][:-1]

    def draw(data: Any, randomness: Randomness) -> int:
        return bisect_right(bounds, randomness.bits(48))

    return draw


def candidates(
    copies: Sequence[int] = (1, 1, 1), rates: Array = EPSILON, order: Sequence[int] | None = None
) -> list[Candidate]:
    return [
        Candidate(
            sampler(Q[0, i]),
            repeats=copies[i],
            guarantee=PureDP(EPSILON[0, i]),
            drop_rate=rates[0, i],
            priority=None if order is None else -order.index(i),
        )
        for i in range(len(copies))
    ]


def settings(copies: Sequence[int] = (1, 1, 1), rates: Array = EPSILON, least: int = 0) -> Dropping:
    return Dropping(np.array([OVERHEAD]), rates, np.array([copies]), least=least)


def p_value(selector: Selector, given: Sequence[Candidate], law: Law, seed: int) -> float:
    """The p-value of seeded selections against a law."""
    chances = {
        (i, o): law.low[0, i, o] for i in range(law.low.shape[1]) for o in range(law.low.shape[2])
    }
    costly = isinstance(selector, RandomDropping | AboveThreshold)
    seen = outcomes(selector, given, seed, COSTLY_SELECTIONS if costly else SELECTIONS)
    return chi_square(seen, chances | {None: law.nothing_low[0]})


def outcomes(
    selector: Selector,
    given: Sequence[Candidate],
    seed: int,
    count: int = SELECTIONS,
    **options: Any,
) -> Counter[Any]:
    """How often each (candidate, number) was released, and nothing (None)."""
    source, seen = SimulationRandomness(seed), Counter()
    with priced_once(selector, given):
        for _ in range(count):
            release = selector.select(given, None, randomness=source, simulation=True, **options)
            seen[
                None
                if release.index is None
                else (release.index, getattr(release.value, "value", release.value))
            ] += 1
    return seen


@contextmanager
def priced_once(selector: Selector, given: Sequence[Candidate]) -> Iterator[None]:
    """Compute once what a selection makes of public facts alone.

    These are the charges, the grid of the certificate and the digest for the ledger: half the time
    of a selection. Draws, runs and the choice among them are as always.
    """
    charges = selector.charges(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(selector), "_price", lambda self, candidates: charges)
        patch.setattr(Selector, "_request", lambda self, candidates: "")
        patch.setattr(selectors, "grid_of", lambda selector, candidates: None)
        yield


def chi_square(seen: Counter[Any], chances: dict[Any, float]) -> float:
    """The p-value of the counts; outcomes expected fewer than 10 times are pooled."""
    count = seen.total()
    common = [outcome for outcome, chance in chances.items() if chance * count >= 10]
    observed = np.array([seen[outcome] for outcome in common])
    expected = np.array([chances[outcome] for outcome in common]) * count
    rest = count - expected.sum()
    if rest >= 10:
        observed, expected = np.append(observed, count - observed.sum()), np.append(expected, rest)
    else:
        assert count - observed.sum() <= 60  # fewer than 10 expected: P(Poisson(10) > 60) < 1e-25
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, len(expected) - 1))


@dataclass(frozen=True)
class Variant:
    """A selector, what it selects from, and the law it must have."""

    selector: Selector
    given: list[Candidate]
    law: Law


FASTER = EPSILON * np.array([[1.8, 1.0, 1.0]])
ORDER = [2, 0, 1]
MANY = np.array([COPIES])


def _dropping(**options: Any) -> RandomDropping:
    return RandomDropping(OVERHEAD, **options)


VARIANTS = {
    "random dropping": Variant(
        _dropping(), candidates(), finite.random_dropping(Q, settings()).given_something()
    ),
    "random dropping, repeats": Variant(
        _dropping(),
        candidates(COPIES),
        finite.random_dropping(Q, settings(COPIES)).given_something(),
    ),
    "random dropping, nothing allowed": Variant(
        _dropping(allow_nothing=True), candidates(), finite.random_dropping(Q, settings())
    ),
    "random dropping, minimum level": Variant(
        _dropping(allow_nothing=True, minimum_drop_level=2),
        candidates(COPIES),
        finite.random_dropping(Q, settings(COPIES, least=2)),
    ),
    "random dropping, faster drop rate": Variant(
        _dropping(allow_nothing=True),
        candidates(rates=FASTER),
        finite.random_dropping(Q, settings(rates=FASTER)),
    ),
    "random dropping, target": Variant(
        _dropping(at_least=2),
        candidates(COPIES, order=ORDER),
        finite.random_dropping_target(Q, settings(COPIES), 2, ORDER).given_something(),
    ),
    "random dropping, target, cheapest first": Variant(
        _dropping(at_least=2, allow_nothing=True),
        candidates(),
        finite.random_dropping_target(Q, settings(), 2, [0, 2, 1]),
    ),
    "above threshold": Variant(
        AboveThreshold(OVERHEAD, at_least=2),
        candidates(COPIES),
        finite.above_threshold(Q, settings(COPIES), 2),
    ),
    "above threshold, minimum level": Variant(
        AboveThreshold(OVERHEAD, at_least=1, minimum_drop_level=1),
        candidates(),
        finite.above_threshold(Q, settings(least=1), 1),
    ),
    "doubling": Variant(Doubling(2), candidates(COPIES), finite.doubling(Q, MANY, 2)),
    "poisson": Variant(
        RepeatAndSelect(Poisson(3)),
        candidates(COPIES),
        finite.repeat_and_select(Q, MANY, finite.poisson(np.array([3.0])), np.exp([-3.0])),
    ),
} | {
    f"truncated negative binomial {shape}": Variant(
        RepeatAndSelect(TruncatedNegativeBinomial(shape, 0.2)),
        candidates(COPIES),
        finite.repeat_and_select(
            Q, MANY, finite.truncated_negative_binomial(shape, np.array([0.2]))
        ),
    )
    for shape in (-0.5, 0, 0.5, 1)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_selections_have_the_enumerated_law(name: str) -> None:
    variant = VARIANTS[name]
    assert p_value(variant.selector, variant.given, variant.law, seed=len(name)) > FALSE_ALARM


class NeverDrops(RandomDropping):
    """The mutant behind the paper's table: the drop coin never drops."""

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> dict[str, Any]:
        return {
            "kept": [index for index, each in enumerate(candidates) for _ in range(each.repeats)]
        }


def test_a_selector_that_never_drops_is_found_out() -> None:
    """Test of the test."""
    variant = VARIANTS["random dropping, repeats"]
    assert p_value(NeverDrops(OVERHEAD), variant.given, variant.law, seed=1) < FALSE_ALARM


def test_another_tie_rule_would_be_found_out() -> None:
    """Test of the test: the law with ties to the higher index is rejected."""
    backwards = finite.repeat_and_select(
        Q[:, ::-1], MANY[:, ::-1], finite.poisson(np.array([3.0])), np.exp([-3.0])
    )
    other = Law.exactly(backwards.low[:, ::-1], backwards.nothing_low)
    variant = VARIANTS["poisson"]
    assert p_value(variant.selector, variant.given, other, seed=2) < FALSE_ALARM


# Algorithm 1 and noise reduction: their candidates are queries.


@pytest.mark.slow
@pytest.mark.parametrize("monotone", [False, True])
def test_above_threshold_over_queries_has_the_enumerated_law(monotone: bool) -> None:
    answers, epsilon = [-2, 0, 1], [0.5, 1.0, 0.7]
    given = [
        Candidate(Query(lambda data, answer=answer: answer), guarantee=PureDP(e))
        for answer, e in zip(answers, epsilon, strict=True)
    ]
    law = finite.above_threshold_queries(
        np.array([answers]), np.array([epsilon]), np.array([OVERHEAD]), bar=1, outputs=40
    )
    shifted = {(i, 1 + o): law.low[0, i, o] for i in range(3) for o in range(40)}
    selector = AboveThreshold(OVERHEAD, at_least=1, monotone=monotone)
    assert (
        chi_square(
            outcomes(selector, given, seed=3 + monotone), shifted | {None: law.nothing_low[0]}
        )
        > FALSE_ALARM
    )


LEVELS = (0.3, 0.7, 1.5)
ANSWER = 2


def _levels(mechanism: Callable[..., Any], sizes: Sequence[float]) -> list[Candidate]:
    query = Query(lambda data: ANSWER)
    return [Candidate(mechanism(query, size)) for size in sizes]


@pytest.mark.slow
def test_laplace_noise_reduction_has_the_enumerated_law() -> None:
    """A stop rule that passes some values only, other ones at each level."""
    given = _levels(DiscreteLaplace, LEVELS)
    passes = np.random.default_rng(4).random((1, 3, 31)) < 0.3
    law = finite.noise_reduction(NoisePath(LEVELS), ANSWER, passes, np.zeros((1, 3), dtype=bool))
    scales = [candidate.mechanism.output_scale for candidate in given]

    def score(estimate: Any) -> float:
        place = int(estimate.value) + 15
        return float(0 <= place < 31 and passes[0, scales.index(estimate.scale), place])

    chances = {(i, o - 15): law.low[0, i, o] for i in range(3) for o in range(31)}
    seen = outcomes(NoiseReduction(at_least=1), given, seed=5, score=score)
    assert chi_square(seen, chances | {None: law.nothing_low[0]}) > FALSE_ALARM


@cache
def _refined(
    mechanism: Callable[..., Any], sizes: Sequence[float], seed: int
) -> Counter[tuple[Any, ...]]:
    given, source, seen = _levels(mechanism, sizes), SimulationRandomness(seed), Counter()
    for _ in range(COSTLY_SELECTIONS):
        releases = NoiseReduction().refine(given, None, randomness=source, simulation=True)
        seen[tuple(release.value.value for release in releases)] += 1
    return seen


@pytest.mark.slow
def test_laplace_levels_have_the_joint_law_of_the_coupling() -> None:
    path = NoisePath(LEVELS[:2])
    joint = path.noise(1, 0)[:, None] * path.to_coarser(1)  # (fine, coarse)
    near = range(-12, 13)
    chances = {
        (c + ANSWER, f + ANSWER): joint[f + path.reach, c + path.reach] for f in near for c in near
    }
    assert chi_square(_refined(DiscreteLaplace, LEVELS[:2], seed=6), chances) > FALSE_ALARM


@pytest.mark.slow
def test_independent_levels_would_be_found_out() -> None:
    """Test of the test: the same counts against independent noises."""
    path = NoisePath(LEVELS[:2])
    near = range(-12, 13)
    chances = {
        (c + ANSWER, f + ANSWER): path.noise(1)[f + path.reach] * path.noise(0)[c + path.reach]
        for f in near
        for c in near
    }
    assert chi_square(_refined(DiscreteLaplace, LEVELS[:2], seed=6), chances) < FALSE_ALARM


@pytest.mark.slow
def test_gaussian_levels_have_the_joint_law_of_the_average() -> None:
    """Level 2 is (z₁/T₁ + z₂·(1/T₂−1/T₁))·T₂ for independent discrete Gaussians z₁, z₂.

    Here T = 4, 1, so z₂ has variance 4/3.
    """
    z = np.arange(-20, 21)
    first, second = (np.exp(-(z**2) / (2 * variance)) for variance in (4.0, 4 / 3))
    first, second = first / first.sum(), second / second.sum()
    seen = _refined(DiscreteGaussian, (1 / 8, 1 / 2), seed=7)
    pairs = Counter(
        {(a - ANSWER, (4 * (b - ANSWER) - (a - ANSWER)) / 3): n for (a, b), n in seen.items()}
    )
    chances = {(int(a), int(b)): first[a + 20] * second[b + 20] for a in z for b in z}
    assert chi_square(pairs, chances) > FALSE_ALARM
