"""Every selector and how to call it; the contract suites run over ``DOORS``.

Add one line for a new selector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

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
    Release,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.selection.selector import Selector

DATA = [3, 1, 2, 2, 9]
COUNT = Query(len)


def plain(epsilon: float, **settings: Any) -> Candidate:
    """A function with a guarantee: the count plus discrete Laplace noise."""
    noisy = DiscreteLaplace(COUNT, epsilon)
    return Candidate(
        lambda data, randomness: int(noisy(data, randomness).value),
        guarantee=PureDP(epsilon),
        **settings,
    )


def query(epsilon: float, **settings: Any) -> Candidate:
    return Candidate(COUNT, guarantee=PureDP(epsilon), **settings)


def laplace(epsilon: float, **settings: Any) -> Candidate:
    return Candidate(DiscreteLaplace(COUNT, epsilon), **settings)


def gaussian(rho: float, **settings: Any) -> Candidate:
    return Candidate(DiscreteGaussian(COUNT, rho), **settings)


@dataclass(frozen=True)
class Door:
    """A selector and how to make a candidate it takes."""

    selector: Selector
    make: Callable[..., Candidate] = plain

    def candidates(
        self, sizes: Sequence[float] = (0.25, 0.5, 1.0), **settings: Any
    ) -> list[Candidate]:
        return [self.make(size, params={"size": size}, **settings) for size in sizes]

    def select(
        self,
        seed: int,
        candidates: Sequence[Candidate] | None = None,
        data: Any = DATA,
        **options: Any,
    ) -> Release:
        source = SimulationRandomness(seed)
        return self.selector.select(
            candidates or self.candidates(), data, randomness=source, simulation=True, **options
        )


DOORS = {
    "random-dropping": Door(RandomDropping(0.5)),
    "random-dropping-nothing": Door(RandomDropping(0.5, allow_nothing=True, minimum_drop_level=1)),
    "random-dropping-target": Door(RandomDropping(0.5, at_least=5)),
    "above-threshold": Door(AboveThreshold(0.5, at_least=5)),
    "above-threshold-queries": Door(AboveThreshold(0.5, at_least=5), query),
    "above-threshold-monotone": Door(AboveThreshold(0.5, at_least=5, monotone=True), query),
    "doubling": Door(Doubling(5)),
    "geometric-runs": Door(RepeatAndSelect(TruncatedNegativeBinomial(1, 0.2))),
    "logarithmic-runs": Door(RepeatAndSelect(TruncatedNegativeBinomial(0, 0.2))),
    "poisson-runs": Door(RepeatAndSelect(Poisson(3))),
    "noise-reduction": Door(NoiseReduction(at_least=5), laplace),
    "noise-reduction-gaussian": Door(NoiseReduction(at_least=5), gaussian),
}
NOISE_REDUCTION = ("noise-reduction", "noise-reduction-gaussian")
OVER_QUERIES = ("above-threshold-queries", "above-threshold-monotone")

every_door = pytest.mark.parametrize("name", DOORS)
every_door_with_repeats = pytest.mark.parametrize(
    "name", [name for name in DOORS if name not in NOISE_REDUCTION]
)


def explode(*_: Any) -> Any:
    raise AssertionError("a price looked at data")


def never_dropped(mechanism: Callable[..., Any], **settings: Any) -> Candidate:
    """Return a candidate of ε = 0, for tests about ranking.

    Its drop rate is 0, which makes Algorithm 3 deterministic.
    """
    return Candidate(mechanism, guarantee=PureDP(0), **settings)


def returning(value: Any) -> Candidate:
    return never_dropped(lambda data, randomness: value)
