"""Five ways to break a privacy guarantee, each with the honest version.

An audit must detect the broken versions and must not accuse the honest ones. ``scripts/audit.py``
audits all of them for docs/audit.md; ``tests/audit/test_empirical.py`` does so with fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from expost import Candidate, Charges, DiscreteLaplace, PureDP, Query, RandomDropping, Release
from expost.budget.ledger import Ledger
from expost.privacy.dpsgd import dpsgd_curve
from expost.privacy.guarantees import REPLACE, Guarantee
from expost.randomness.source import Randomness

NO, YES = (
    np.array([0]),
    np.array([1]),
)  # the data of the selections: one person's answer, and the other answer


@dataclass(frozen=True)
class Suspect:
    """What to give to ``audit``."""

    subject: Any
    data: Any
    neighbour: Any
    runs: int
    options: dict[str, Any]


# Selections: candidates that meet the charges of theorem:max-score almost with equality.


@dataclass(frozen=True)
class Told:
    """Randomised response with the probability that ε-DP allows.

    ``values`` are the releases for no and for yes.
    """

    epsilon: float
    values: tuple[float, float]

    @property
    def guarantee(self) -> Guarantee:
        return PureDP(self.epsilon, REPLACE)

    def __call__(self, data: Any, randomness: Randomness) -> float:
        truth = bool(data[0])
        keep = randomness.bits(53) / 2**53 < 1 / (1 + math.exp(-self.epsilon))
        return self.values[truth if keep else not truth]


OVERHEAD = 0.5
CROWD = [Candidate(Told(0.1, (1, 1))), *(Candidate(Told(2.0, (0, 2))) for _ in range(5))]
"""The first candidate wins if five others all say no.

This is far more likely on NO than on YES, unless random dropping decides who competes.
"""

RIVALS = [Candidate(Told(1.0, (1.5, 1))), Candidate(Told(3.0, (0, 2)), repeats=4)]
"""The first candidate loses to any of four that say yes, and releases its own answer too.

Its charge of 2ε + ε′ is nearly attained.
"""


@dataclass(frozen=True)
class NoDropping(RandomDropping):
    """Algorithm 3 that keeps every copy, at the charges of the real one."""

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> dict[str, Any]:
        return {
            "kept": [place for place, each in enumerate(candidates) for _ in range(each.repeats)]
        }


@dataclass(frozen=True)
class Undercharging(RandomDropping):
    """Algorithm 3 that charges ε + ε′ instead of 2ε + ε′."""

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        levels = [
            PureDP(each.guarantee.size + Fraction(self.overhead), REPLACE) for each in candidates
        ]
        return Charges.from_list(levels, PureDP(0, REPLACE))


# Noise: the low-order bits of a float.


@dataclass(frozen=True)
class TextbookLaplace:
    """Laplace noise by inverting the distribution function of a double (Mironov 2012)."""

    epsilon: float

    @property
    def guarantee(self) -> Guarantee:
        return PureDP(self.epsilon)

    def __call__(self, data: Any, randomness: Randomness) -> float:
        u = (randomness.bits(53) + 1) / 2**53
        sign = 1 - 2 * randomness.bits(1)
        return float(np.sum(data)) + sign * math.log(u) / self.epsilon


EXACT_LAPLACE = DiscreteLaplace(Query(lambda data: int(np.sum(data)), grid=Fraction(1, 2**60)), 1.0)


def fine_bits(output: Any) -> bool:
    """Noise in floating point: near zero a double has finer bits than near one.

    0 + noise may use these bits and 1 + noise may not.
    """
    value = Fraction(getattr(output, "value", output))
    return bool(abs(value) < Fraction(1, 2) and (value * 2**53).denominator != 1)


# The ledger.


class HalvingLedger(Ledger):
    """A ledger that settles half of what an outcome costs."""

    def settle(self, reservation: Any, outcome: object) -> Guarantee:
        from expost.budget import ledger

        real: Callable[..., Any] = ledger.charge_of
        with patch.object(
            ledger, "charge_of", lambda *given: PureDP(real(*given).size / 2, REPLACE)
        ):
            return super().settle(reservation, outcome)


@dataclass(frozen=True)
class Request:
    """A whole request: reserve, select, settle; the release's cost is what the ledger settled.

    (The selection is simulated in tests and a simulation is not charged, so it cannot hold the
    ledger itself.)
    """

    ledger: Ledger

    def __call__(self, data: Any, randomness: Randomness) -> Release:
        selector = RandomDropping(OVERHEAD)
        reservation = self.ledger.reserve(selector.charges(RIVALS))
        release = selector.select(
            RIVALS, data, randomness=randomness, simulation=randomness.simulated
        )
        return replace(release, spent=self.ledger.settle(reservation, release.index))


# Training.


@dataclass(frozen=True)
class Trainer:
    """DP-SGD on logistic regression as in Opacus, or the same without noise.

    Poisson batches, clipped gradients, noise on their sum.
    """

    noise_multiplier: float
    noise: bool = True
    rate: float = 0.25
    steps: int = 8

    @property
    def guarantee(self) -> Guarantee:
        return dpsgd_curve(
            sampling_rate=self.rate, noise_multiplier=self.noise_multiplier, steps=self.steps
        )

    def __call__(self, data: Any, randomness: Randomness) -> np.ndarray[Any, Any]:
        rows, labels = data[:, :-1], data[:, -1]
        generator = np.random.Generator(np.random.Philox(randomness.bits(128)))
        weights = np.zeros(rows.shape[1])
        for _ in range(self.steps):
            batch = generator.random(len(rows)) < self.rate
            x, y = rows[batch], labels[batch]
            gradients = ((1 / (1 + np.exp(-x @ weights)) - y)[:, None]) * x
            norms = np.maximum(1.0, np.linalg.norm(gradients, axis=1))
            noise = (
                self.noise_multiplier * generator.standard_normal(len(weights))
                if self.noise
                else 0.0
            )
            weights = weights - ((gradients / norms[:, None]).sum(axis=0) + noise) / (
                self.rate * 40
            )
        return weights


def canary(weights: np.ndarray[Any, Any]) -> float:
    """The direction that nobody but the canary uses."""
    return float(weights[-1])


def training_data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Forty rows, and the same with a canary: far out in a direction of its own."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((40, 4))
    rows[:, -1] = 0
    without = np.column_stack([rows, generator.integers(0, 2, 40)])
    return without, np.vstack([without, [0, 0, 0, 10, 1]])


def suspects(folder: Path) -> dict[str, tuple[Suspect, Suspect]]:
    """The broken and the honest version of each, by name; ledgers are made in ``folder``."""
    honest, rivals, ones = (
        RandomDropping(OVERHEAD),
        {"candidates": RIVALS},
        (np.array([0]), np.array([0, 1])),
    )
    without, with_canary = training_data()
    trained = {"events": canary, "delta": 1e-5}
    budget = PureDP(10**6, REPLACE)
    return {
        "Algorithm 3 without dropping": (
            Suspect(NoDropping(OVERHEAD), NO, YES, 600, {"candidates": CROWD}),
            Suspect(honest, NO, YES, 1000, {"candidates": CROWD}),
        ),
        "charging ε + ε′": (
            Suspect(Undercharging(OVERHEAD), NO, YES, 1500, rivals),
            Suspect(honest, NO, YES, 1500, rivals),
        ),
        "Laplace noise in floating point": (
            Suspect(TextbookLaplace(1.0), *ones, 600, {"events": fine_bits}),
            Suspect(EXACT_LAPLACE, *ones, 2000, {"events": fine_bits}),
        ),
        "a ledger that settles half": (
            Suspect(
                Request(HalvingLedger.create(folder / "halving.db", budget, "a")), NO, YES, 500, {}
            ),
            Suspect(Request(Ledger.create(folder / "honest.db", budget, "a")), NO, YES, 200, {}),
        ),
        "a trainer with its noise off": (
            Suspect(Trainer(2.0, noise=False), without, with_canary, 1000, trained),
            Suspect(Trainer(2.0), without, with_canary, 4000, trained),
        ),
    }
