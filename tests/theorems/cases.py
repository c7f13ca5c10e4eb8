"""Instances for the theorem tests: random batches, adversaries that reach a charge, and charges.

The charges are those of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
)
from expost.selection.selector import Selector
from tests.theorems import finite
from tests.theorems.finite import SLACK, Array, Dropping, Law, NoisePath, excess, random_pairs

INSTANCES = 2000
BATCH = 100
BAR = 1


def unused(data: object, randomness: object) -> object:
    raise AssertionError("pricing never runs a candidate")


@dataclass(frozen=True)
class Case:
    """A batch of neighbouring instances: laws on D and D′, guarantees, drop settings, order."""

    q: Array
    other: Array
    epsilon: Array
    settings: Dropping
    order: Sequence[int]

    def candidates(self, b: int) -> list[Candidate]:
        return [
            Candidate(
                unused,
                repeats=int(self.settings.copies[b, i]),
                guarantee=PureDP(float(self.epsilon[b, i])),
                drop_rate=float(self.settings.rates[b, i]),
                priority=-list(self.order).index(i),
            )
            for i in range(self.q.shape[1])
        ]

    def charges(self, selector_of: Callable[[Case, int], Selector]) -> tuple[Array, Array]:
        """What the library charges: (batch, candidate), and (batch,) for nothing."""
        tables = [selector_of(self, b).charges(self.candidates(b)) for b in range(len(self.q))]
        charge = np.array([[table[i].epsilon for i in range(len(table))] for table in tables])
        return charge, np.array([table.nothing.epsilon for table in tables])


def random_cases(seed: int, instances: int = INSTANCES) -> Iterator[Case]:
    """Batches of random instances; every second one drops at exactly the rate of the guarantee."""
    rng = np.random.default_rng(seed)
    for batch in range(instances // BATCH):
        shape = (BATCH, int(rng.integers(1, 5)))
        epsilon = np.exp(rng.uniform(np.log(0.05), np.log(3), shape))
        q, other = random_pairs(rng, epsilon, int(rng.integers(2, 5)))
        rates = epsilon * (1 + (batch % 2) * rng.exponential(size=shape))
        overhead = np.exp(rng.uniform(np.log(0.1), np.log(3), BATCH))
        settings = Dropping(
            overhead,
            rates,
            rng.choice([1, 1, 2, 5, 40], shape),
            least=int(rng.choice([0, 0, 1, 3])),
        )
        yield Case(q, other, epsilon, settings, rng.permutation(shape[1]).tolist())


def adversary(
    winner: float = 0.5,
    competitor: float = 1.0,
    overhead: float = 0.3,
    copies: int = 10**6,
    least: int = 0,
) -> Case:
    """A winner's output (score 1) grows by e^ε on D; its many competitors (score 2) shrink by e^ε.

    The competitors' factor on D′ at level k+1 is exactly that on D at level k. So the proof's
    inequalities are equalities except at the lowest level, which the many copies make negligible.
    """
    rare, beaten = 0.01, 0.01
    grow, shrink = np.exp(winner * (1 - 1e-12)), np.exp(competitor * (1 - 1e-12))
    q = np.array([[[1 - beaten, 0, beaten], [1 - rare * grow, rare * grow, 0]]])
    other = np.array([[[1 - beaten * shrink, 0, beaten * shrink], [1 - rare, rare, 0]]])
    epsilon = np.array([[competitor, winner]])
    return Case(
        q,
        other,
        epsilon,
        Dropping(np.array([overhead]), epsilon, np.array([[copies, 1]]), least),
        [0, 1],
    )


def check(law: Law, other: Law, charge: Array, nothing: Array) -> None:
    """The claim of every theorem here; a mutant must make this raise."""
    assert excess(law, other, charge, nothing) <= SLACK


def realised(law: Law, other: Law, candidate: int, output: int) -> float:
    """A lower bound of the log ratio at one outcome of the first instance."""
    return float(np.log(law.low[0, candidate, output] / other.high[0, candidate, output]))


# Each selector over mechanisms: how to build it for an instance, and the law it should have.

TNB_SHAPES = (-0.5, 0, 0.5, 1)


def _gamma(case: Case) -> Array:
    return np.exp(-3 * case.settings.overhead)


def _mean(case: Case) -> Array:
    return 5 * case.settings.overhead


def _dropping(case: Case, b: int, **options: object) -> Selector:
    return RandomDropping(
        float(case.settings.overhead[b]), minimum_drop_level=case.settings.least, **options
    )


def _repeat(shape: float) -> tuple[Callable[[Case, int], Selector], Callable[[Array, Case], Law]]:
    def law(q: Array, case: Case) -> Law:
        return finite.repeat_and_select(
            q, case.settings.copies, finite.truncated_negative_binomial(shape, _gamma(case))
        )

    return lambda case, b: RepeatAndSelect(
        TruncatedNegativeBinomial(shape, float(_gamma(case)[b]))
    ), law


SELECTORS: dict[str, tuple[Callable[[Case, int], Selector], Callable[[Array, Case], Law]]] = {
    "random dropping": (
        lambda case, b: _dropping(case, b, allow_nothing=True),
        lambda q, case: finite.random_dropping(q, case.settings),
    ),
    "random dropping, drawn again": (
        lambda case, b: _dropping(case, b),
        lambda q, case: finite.random_dropping(q, case.settings).given_something(),
    ),
    "random dropping, target": (
        lambda case, b: _dropping(case, b, at_least=BAR, allow_nothing=True),
        lambda q, case: finite.random_dropping_target(q, case.settings, BAR, case.order),
    ),
    "above threshold": (
        lambda case, b: AboveThreshold(
            float(case.settings.overhead[b]), at_least=BAR, minimum_drop_level=case.settings.least
        ),
        lambda q, case: finite.above_threshold(q, case.settings, BAR),
    ),
    "doubling": (
        lambda case, b: Doubling(BAR),
        lambda q, case: finite.doubling(q, case.settings.copies, BAR),
    ),
    "poisson": (
        lambda case, b: RepeatAndSelect(Poisson(float(_mean(case)[b]))),
        lambda q, case: finite.repeat_and_select(
            q, case.settings.copies, finite.poisson(_mean(case)), np.exp(-_mean(case))
        ),
    ),
} | {f"truncated negative binomial {shape}": _repeat(shape) for shape in TNB_SHAPES}


# Adversaries of the other selectors.


def doubling_adversary() -> Case:
    """Two candidates that fail e^ε times as often on D, then one that passes e^ε times as often."""
    epsilon = np.array([[0.5, 1.0, 2.0]])
    small = 0.01
    grown = small * np.exp(epsilon[0] * (1 - 1e-12))
    q = np.stack([np.array([g, 1 - g]) for g in grown])[None]
    other = np.stack([np.array([small, 1 - small])] * 3)[None]
    q[0, 2], other[0, 2] = q[0, 2][::-1], other[0, 2][::-1]
    return Case(q, other, epsilon, Dropping(np.ones(1), epsilon, np.ones((1, 3))), [0, 1, 2])


def repeat_adversary(top: float, own: float, epsilon: float = 1.0) -> Case:
    """One candidate: a rare output grows by e^ε on D below a top output that shrinks by e^ε."""
    grow = np.exp(epsilon * (1 - 1e-12))
    q = np.array([[[1 - top - own * grow, own * grow, top]]])
    other = np.array([[[1 - top * grow - own, own, top * grow]]])
    return Case(
        q, other, np.array([[epsilon]]), Dropping(np.ones(1), np.ones((1, 1)), np.ones((1, 1))), [0]
    )


def noise_adversary(*, coupled: bool) -> tuple[Law, Law]:
    """The coarse level fails on values ≥ 1, likelier on D (answer 1) than on D′ (answer 0)."""
    path = NoisePath([0.5, 1.0], coupled=coupled)
    values = np.arange(-15, 16)
    passes = np.stack([values < 1, values >= 1])[None]
    beyond = np.array([[False, True]])
    return finite.noise_reduction(path, 1, passes, beyond), finite.noise_reduction(
        path, 0, passes, beyond
    )


def noise_charges(epsilons: Sequence[float], sensitivity: int, rules: int) -> tuple[Array, Array]:
    query = Query(lambda data: 0, sensitivity=sensitivity)
    table = NoiseReduction(at_least=0).charges(
        [Candidate(DiscreteLaplace(query, each)) for each in epsilons]
    )
    return np.tile([table[i].epsilon for i in range(len(table))], (rules, 1)), np.full(
        rules, table.nothing.epsilon
    )


def query_charges(epsilon: Array, overhead: Array, *, monotone: bool) -> tuple[Array, Array]:
    query, tables = Query(lambda data: 0), []
    for promises, extra in zip(epsilon, overhead, strict=True):
        candidates = [Candidate(query, guarantee=PureDP(float(each))) for each in promises]
        tables.append(
            AboveThreshold(float(extra), at_least=0, monotone=monotone).charges(candidates)
        )
    charge = np.array([[table[i].epsilon for i in range(len(table))] for table in tables])
    return charge, np.array([table.nothing.epsilon for table in tables])
