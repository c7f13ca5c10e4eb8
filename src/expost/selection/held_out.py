"""Stop a path by noisy counts on held-out rows: fresh noise at every look.

The path is made of the training rows, the count f_i of look i (how many held-out rows the output of
level i gets right) of other rows. Look i passes if f_i + y_i ≥ t_i, with public thresholds t_i and
fresh noise y_i = u_i − d_i, u_i ~ Geom(e^{−a_i/c}) and d_i ~ Geom(e^{−b_i/c}), for counts that one
person changes by at most c (``steps``). The noisy count of the look at which the search ends is
released with its output, passed or not: a miss is a stop at the last look.

**Cost: none beyond the level** (docs/theory.md, "Stopping by held-out rows"). If one person moves
all counts the same way, a_i = ε_i and b_1 + … + b_i = ε_i. It is the larger of both that is paid,
not the sum: who makes it likelier to pass now has made it less likely to have failed before. If
counts may rise and fall (``monotone=False``), the costs add: a_i + b_1 + … + b_{i−1} = ε_i, and
b_i ≤ a_i. Each person is in one of the two groups of rows, whose split is public.

**Confidence.** If f_i is below the goal and t_i = goal + m_i, look i passes with probability
e^{−a_i(m_i+1)/c}·(1 − e^{−b_i/c})/(1 − e^{−(a_i+b_i)/c}). The margins m_i make it at most
(1 − confidence)/looks. The same bounds "the exact count is below the noisy one less m_i".

**Levels in ρ.** Under zCDP and at Rényi orders an ex-post pure cost ε̃ is *not* ε̃²/2, so
:class:`GaussianCounts` adds Gaussian noise to every count: look i is (ρ_i − ρ_{i−1})-zCDP for a
person in the held-out rows (docs/theory.md, "Stopping under zCDP").

Tests: ``tests/selection/test_held_out.py`` (enumeration of the law; the confidence),
``tests/theorems/test_stopping_under_zcdp.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.randomness.coins import geometric
from expost.randomness.samplers import add_gaussian, lattice_for
from expost.randomness.source import Randomness
from expost.rationals import count_of, exact_positive, root_up

SHARES = 2**12
"""The shares of a person's rows add up to this, where persons are counted and not rows."""
_FAILING = Fraction(45, 100)  # share of ε_i for all failures up to look i if counts rise and fall


@dataclass(frozen=True)
class Seen:
    """An output and its noisy count on the held-out rows."""

    value: Any
    count: int
    threshold: int

    def __float__(self) -> float:
        """Return how far the count lies above its threshold; the score of a look."""
        return float(self.count - self.threshold)


@dataclass(frozen=True)
class Rates:
    """How fast the noise of one look falls above and below 0, for counts of sensitivity 1."""

    above: Fraction
    below: Fraction


Report = Callable[[Any, int, int, int], Any]
"""Makes what a look reports of an output, its noisy count, its threshold and a wider margin."""


@dataclass(frozen=True)
class HeldOut:
    """Counts on held-out rows that decide where a search with levels in ε stops."""

    count: Callable[[Any, Any], int]
    thresholds: tuple[int, ...]
    steps: int = 1
    monotone: bool = True
    report: Report | None = None
    rates: tuple[Rates, ...] = ()

    def __post_init__(self) -> None:
        _check_counts(self.count, self.steps, self.thresholds)

    @property
    def theorem(self) -> str:
        """The result that a person in the held-out rows rests on."""
        kind = "" if self.monotone else " that rise and fall"
        return f"fresh noise on held-out counts{kind}"

    @classmethod
    def for_levels(
        cls,
        count: Callable[[Any, Any], int],
        epsilons: Sequence[float],
        *,
        goal: int,
        confidence: float,
        steps: int = 1,
        monotone: bool = True,
        report: Report | None = None,
    ) -> HeldOut:
        """Return the rule whose wrong passes have probability at most 1 − ``confidence``."""
        rates = rates_of(epsilons, monotone)
        thresholds = tuple(goal + margin for margin in margins_of(rates, confidence, steps))
        return cls(count, thresholds, steps, monotone, report, rates)

    def settings(self) -> dict[str, Any]:
        """Return the public settings in plain types."""
        return {"steps": self.steps, "monotone": self.monotone, "thresholds": list(self.thresholds)}

    def check(self, guarantee: Guarantee, epsilons: Sequence[float]) -> None:
        """Refuse levels that the proof does not cover."""
        _check_levels(guarantee, guarantee.as_zcdp() is None, "held-out rows need levels in ε")
        wanted = rates_of(epsilons, self.monotone)
        if len(self.thresholds) != len(wanted) or self.rates != wanted:
            raise InvalidInput("held_out", "levels", "use HeldOut.for_levels with these levels")

    def look(self, index: int, output: Any, data: Any, randomness: Randomness) -> Any:
        """Return what is reported of a level: the output with its noisy count."""
        above, below = self.rates[index].above / self.steps, self.rates[index].below / self.steps
        noise = geometric(above, randomness) - geometric(below, randomness)
        noisy = int(self.count(output, data)) + noise
        if self.report is None:
            return Seen(output, noisy, self.thresholds[index])
        # Half the chance of a wrong pass: P(y ≥ m + w) ≤ P(y ≥ m)/2 for w = ln 2 / rate.
        wider = math.ceil(math.log(2) / float(above))
        return self.report(output, noisy, self.thresholds[index], wider)


@dataclass(frozen=True)
class GaussianCounts:
    """Counts with Gaussian noise that decide where a search with levels in ρ stops."""

    count: Callable[[Any, Any], int]
    thresholds: tuple[int, ...]
    steps: int = 1
    report: Report | None = None
    confidence: float = 0.9
    deviations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_counts(self.count, self.steps, self.thresholds)

    @property
    def theorem(self) -> str:
        """The result that a person in the held-out rows rests on."""
        return "Gaussian noise on held-out counts, ρ of the looks made"

    @classmethod
    def for_levels(
        cls,
        count: Callable[[Any, Any], int],
        rhos: Sequence[float],
        *,
        goal: int,
        confidence: float,
        steps: int = 1,
        report: Report | None = None,
    ) -> GaussianCounts:
        """Return the rule whose wrong passes have probability at most 1 − ``confidence``."""
        deviations = look_deviations(rhos, steps)
        thresholds = tuple(goal + margin for margin in gaussian_margins(deviations, confidence))
        return cls(count, thresholds, steps, report, confidence, deviations)

    def settings(self) -> dict[str, Any]:
        """Return the public settings in plain types."""
        return {"noise": "gaussian", "steps": self.steps, "thresholds": list(self.thresholds)}

    def check(self, guarantee: Guarantee, rhos: Sequence[float]) -> None:
        """Refuse levels that the proof does not cover."""
        _check_levels(
            guarantee, guarantee.as_zcdp() is not None, "Gaussian counts need levels in ρ"
        )
        wanted = look_deviations(rhos, self.steps)
        if len(self.thresholds) != len(wanted) or self.deviations != wanted:
            raise InvalidInput(
                "held_out", "levels", "use GaussianCounts.for_levels with these levels"
            )

    def look(self, index: int, output: Any, data: Any, randomness: Randomness) -> Any:
        """Return what is reported of a level: the output with its noisy count."""
        deviation, threshold = self.deviations[index], self.thresholds[index]
        # The noise is added before anything is rounded: round(f + σz), not f + round(σz).
        exact = min(max(int(self.count(output, data)), -(2**53)), 2**53)  # moves no count further
        counted = np.array([exact], dtype=np.float64)
        lattice = lattice_for(deviation)
        noisy = math.floor(float(add_gaussian(counted, lattice, randomness)[0]) + 0.5)
        if self.report is None:
            return Seen(output, noisy, threshold)
        wrong = (1 - self.confidence) / len(self.thresholds)
        (longer,) = gaussian_margins([deviation], 1 - wrong / 2)
        (margin,) = gaussian_margins([deviation], 1 - wrong)
        return self.report(output, noisy, threshold, longer - margin)


def _check_counts(count: Any, steps: int, thresholds: Sequence[int]) -> None:
    """Refuse what is no rule for counts."""
    if not callable(count):
        raise InvalidInput("count", type(count).__name__, "give a function")
    count_of(steps, "steps", at_least=1)
    if not thresholds or not all(isinstance(value, int) for value in thresholds):
        raise InvalidInput("thresholds", thresholds, "give one whole number per level")


def _check_levels(guarantee: Guarantee, fits: bool, need: str) -> None:
    """Refuse levels in another unit, and "replace" neighbours: a count would change by 2."""
    if not fits or guarantee.neighbours == "replace":
        given = f"{guarantee.kind}, {guarantee.neighbours}"
        raise InvalidInput("held_out", given, f"{need}, and neighbours of which one has a row more")


def look_deviations(rhos: Sequence[float], steps: int = 1) -> tuple[float, ...]:
    """Return σ_i of each look, rounded up: c²/(2σ_i²) ≤ ρ_i − ρ_{i−1} holds exactly."""
    return tuple(root_up(Fraction(steps**2) / (2 * (b - a))) for a, b in _steps_of(rhos, "rho"))


def gaussian_margins(deviations: Sequence[float], confidence: float) -> list[int]:
    """Return the margin m_i of each look: P(noise ≥ m_i + 1) ≤ (1 − confidence)/looks.

    The noisy count is rounded to a lattice of step at most 2^{−16}σ, then to a whole number, so
    that it exceeds the count by m + 1 only if σz ≥ m + ½ − 2^{−17}σ.
    """
    quantile = -NormalDist().inv_cdf((1 - confidence) / len(deviations)) + 2.0**-16
    return [max(0, math.ceil(deviation * quantile - 0.5)) for deviation in deviations]


def useful_rhos(
    rhos: Sequence[float], *, room: int, confidence: float, steps: int = 1
) -> tuple[float, ...]:
    """Return the levels in ρ at which a look can pass: those whose margin leaves room."""
    kept: tuple[float, ...] = ()
    allowed = 1 - (1 - confidence) / max(1, len(rhos))  # the margins of fewer looks are narrower
    for rho in rhos:
        (margin,) = gaussian_margins(look_deviations((*kept[-1:], rho), steps)[-1:], allowed)
        if margin <= room:
            kept = (*kept, rho)
    return kept


def rates_of(epsilons: Sequence[float], monotone: bool = True) -> tuple[Rates, ...]:
    """Return the rates of each look, from its level and the one before it."""
    levels = _steps_of(epsilons, "epsilon")
    if monotone:  # Σ_{j≤i} b_j = ε_i
        return tuple(Rates(level, level - before) for before, level in levels)
    # a_i + Σ_{j<i} b_j = ε_i
    return tuple(
        Rates(level - _FAILING * before, _FAILING * (level - before)) for before, level in levels
    )


def _steps_of(levels: Sequence[float], field: str) -> list[tuple[Fraction, Fraction]]:
    """Return each level with the one before it, 0 before the first; refuse other orders."""
    steps = list(pairwise([Fraction(0), *(exact_positive(level, field) for level in levels)]))
    if not steps or any(a >= b for a, b in steps):
        raise InvalidInput(f"{field}s", "levels", "give ascending levels above 0")
    return steps


def margins_of(rates: Sequence[Rates], confidence: float, steps: int = 1) -> list[int]:
    """Return the margin m_i of each level: P(y_i ≥ m_i + 1) ≤ (1 − confidence)/looks."""
    margins = []
    for rate in rates:
        above, below = float(rate.above) / steps, float(rate.below) / steps
        upwards = math.expm1(-below) / math.expm1(-(above + below))  # P(y_i ≥ 0)
        allowed = math.log(len(rates) * upwards / (1 - confidence)) + 1e-12
        margins.append(max(0, math.ceil(allowed * (1 + 1e-12) / above) - 1))
    return margins


def useful_levels(
    epsilons: Sequence[float],
    *,
    room: int,
    confidence: float,
    steps: int = 1,
    monotone: bool = True,
) -> tuple[float, ...]:
    """Return the levels at which a look can pass: those whose margin leaves room.

    Looks that cannot pass cost nothing by themselves, but each widens the margins of the others.
    """
    kept = tuple(epsilons)
    while kept:
        rates = rates_of(kept, monotone)
        margins = margins_of(rates, confidence, steps)
        fitting = tuple(
            epsilon
            for epsilon, margin, rate in zip(kept, margins, rates, strict=True)
            if margin + steps / float(rate.above) <= room
        )
        if len(fitting) == len(kept):
            return kept
        kept = fitting
    return kept
