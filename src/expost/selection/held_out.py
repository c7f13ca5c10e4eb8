"""Stop a path by noisy counts on held-out rows: Algorithm 1 in stages.

The path is made of the training rows. The count f_i of look i (how many held-out rows the output of
level i gets right) is made of other rows. The looks are divided into stages. Look i of stage s
passes if f_i + y_i − k_s ≥ t_i, with one k_s ~ Geom(e^{−ε′_s/c}) for the stage, fresh y_i ~
Geom(e^{−q_i/c}), and public thresholds t_i. One person raises every count by between 0 and c, or
lowers every count by that much (``steps`` is c).

**Cost: none beyond the level.** q_i = ε_i − Σ_{t≤s} ε′_t. *A person in the training rows:* given
the path, the looks do not depend on this person, so the search is post-processing of the path and
costs ε_i (with the path's δ). *A person in the held-out rows:* the path does not depend on this
person. Given any path, let D′ have the additional person. *A stage in which nothing passes* costs
ε′_s: from D to D′ replace k_s by k_s + c, at a factor e^{ε′_s}; looks still fail, because counts
rise by at most c. From D′ to D keep k_s: counts do not rise. *The stage that passes at i with noisy
count v:* from D to D′ replace k_s by k_s + c; the noise of look i must be y_i + c − (f′_i − f_i),
which is larger by 0 to c, at a factor of at most e^{q_i}. From D′ to D keep k_s; y_i grows by at
most c. So that stage costs ε′_s + q_i (``theorem:at-classic-monotone`` with a rate per query).
Stages have independent coins, and pure costs add, so the outcome costs Σ_{t≤s} ε′_t + q_i = ε_i.
The two groups of rows are disjoint and the split is public, so together the outcome costs the
larger of both: ε_i. "Nothing" costs a held-out person Σ ε′_t, less than the last level.

**Counts that may rise and fall.** If one person may raise some counts and lower others, by at most
c (``monotone=False``), k_s + c serves in both directions and y_i grows by at most 2c. Then q_i =
(ε_i − Σ ε′_t)/2 (``theorem:at-classic``).

**Why stages.** One k for the whole search needs a small ε′ and then spoils every look if it is
large. A stage covers levels from l to 2l with ε′ = 0.28·l, so the sum of all ε′ stays below 0.56·l:
no look pays much, and no k outlives its stage.

**Confidence, with credit for k.** If f_i is below the bar b and t_i = b + m_i, look i passes only
if y_i ≥ m_i + 1 + k_s. The models do not depend on k or y, so this has probability
e^{−q_i(m_i+1)/c}·E[e^{−q_i k_s/c}] with E[e^{−qk/c}] = (1 − e^{−ε′/c})/(1 − e^{−(ε′+q)/c}). With
margins such that this is at most (1 − confidence)/looks for each look, the search passes an output
below the bar with probability at most 1 − confidence (a sum over all looks, made or not). The same
bound holds for "the exact count is below the noisy one less m_i", whatever the exact count is.

Tests: ``tests/selection/test_held_out.py`` (enumeration of the law; the confidence).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.randomness.coins import geometric
from expost.randomness.source import Randomness
from expost.rationals import count_of, exact, exact_positive

_SHARE = Fraction(28, 100)  # ε′ of a stage, as a share of its first level
_SPAN = 2  # the last level of a stage is below this many times its first


@dataclass(frozen=True)
class Seen:
    """An output and its noisy count on the held-out rows.

    Parameters
    ----------
    value : object
        The output of the level.
    count : int
        The noisy count f + y − k, in steps.
    threshold : int
        What the count had to reach.
    """

    value: Any
    count: int
    threshold: int

    def __float__(self) -> float:
        """Return how far the count lies above its threshold; the score of a look."""
        return float(self.count - self.threshold)


@dataclass(frozen=True)
class Stages:
    """Consecutive looks that share one noisy threshold. All of it is public.

    Parameters
    ----------
    firsts : tuple of int
        The first look of each stage; the first stage begins at look 0.
    overheads : tuple of Fraction
        ε′ of each stage.
    """

    firsts: tuple[int, ...]
    overheads: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.firsts, self.firsts[1:], strict=False))
        if not self.firsts or self.firsts[0] != 0 or not ascending:
            raise InvalidInput("stages", self.firsts, "give ascending looks that begin with 0")
        if len(self.overheads) != len(self.firsts):
            raise InvalidInput("overheads", len(self.overheads), "give one per stage")
        for overhead in self.overheads:
            exact_positive(overhead, "overhead")

    @classmethod
    def for_levels(cls, epsilons: Sequence[float]) -> Stages:
        """Return stages with ε′ = 0.28 of their first level that end before its double."""
        firsts: list[int] = []
        for look, epsilon in enumerate(epsilons):
            if not firsts or epsilon >= _SPAN * epsilons[firsts[-1]]:
                firsts.append(look)
        return cls(
            tuple(firsts), tuple(_SHARE * exact(epsilons[first], "epsilon") for first in firsts)
        )

    def stage(self, look: int) -> int:
        """Return the stage of a look."""
        return bisect_right(self.firsts, look) - 1

    def paid(self, look: int) -> Fraction:
        """Return what the thresholds cost up to a look."""
        return sum(self.overheads[: self.stage(look) + 1], Fraction(0))


@dataclass(frozen=True)
class HeldOut:
    """Counts on held-out rows that decide where a search stops.

    Parameters
    ----------
    count : callable
        ``count(output, data)`` returns a whole number. The rows that it reads must not be read by
        the statistic. One person changes it by at most ``steps``. It must not fail.
    stages : Stages
        Which looks share a noisy threshold, and what it costs.
    thresholds : tuple of int
        t_i: what the noisy count of each level must reach.
    steps : int, default 1
        The most that one person changes a count by.
    monotone : bool, default True
        Whether one person changes all counts in the same direction.
    report : callable, optional
        ``report(output, count, threshold, rate)`` is released for a look that passes, with q/steps
        of the look; ``float`` of it must be at least 0 iff the count reaches the threshold. By
        default a :class:`Seen`.
    rates : tuple of Fraction
        q_i of each level; :meth:`for_levels` sets them.
    """

    count: Callable[[Any, Any], int]
    stages: Stages
    thresholds: tuple[int, ...]
    steps: int = 1
    monotone: bool = True
    report: Callable[[Any, int, int, float], Any] | None = None
    rates: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.count):
            raise InvalidInput("count", type(self.count).__name__, "give a function")
        count_of(self.steps, "steps", at_least=1)
        if not self.thresholds or not all(isinstance(value, int) for value in self.thresholds):
            raise InvalidInput("thresholds", self.thresholds, "give one whole number per level")

    @classmethod
    def for_levels(
        cls,
        count: Callable[[Any, Any], int],
        epsilons: Sequence[float],
        *,
        bar: int,
        confidence: float,
        steps: int = 1,
        monotone: bool = True,
        report: Callable[[Any, int, int, float], Any] | None = None,
    ) -> HeldOut:
        """Return the rule whose wrong passes have probability at most 1 − ``confidence``.

        Parameters
        ----------
        count, steps, monotone, report
            As in the class.
        epsilons : sequence of float
            The levels.
        bar : int
            The count to certify, in steps.
        confidence : float
            With 0 < confidence < 1.
        """
        stages = Stages.for_levels(epsilons)
        rates = rates_of(epsilons, stages, monotone)
        margins = margins_of(rates, stages, confidence, steps)
        thresholds = tuple(bar + margin for margin in margins)
        return cls(count, stages, thresholds, steps, monotone, report, rates)

    def settings(self) -> dict[str, Any]:
        """Return the public settings in plain types."""
        return {
            "stages": list(self.stages.firsts),
            "overheads": [str(overhead) for overhead in self.stages.overheads],
            "steps": self.steps,
            "monotone": self.monotone,
            "thresholds": list(self.thresholds),
        }

    def check(self, promise: Guarantee, epsilons: Sequence[float]) -> None:
        """Refuse levels that the proof does not cover."""
        if promise.as_zcdp() is not None or promise.neighbours == "replace":
            raise InvalidInput(
                "held_out",
                f"{promise.kind}, {promise.neighbours}",
                "held-out rows need levels in ε, and neighbours of which one has a row more",
            )
        wanted = rates_of(epsilons, self.stages, self.monotone)
        if len(self.thresholds) != len(epsilons) or self.rates != wanted or min(wanted) <= 0:
            raise InvalidInput(
                "held_out",
                f"{len(self.thresholds)} thresholds",
                "use HeldOut.for_levels with these levels",
            )

    def draw(self, randomness: Randomness) -> list[int]:
        """Draw k of every stage, without looking at data."""
        return [geometric(overhead / self.steps, randomness) for overhead in self.stages.overheads]

    def look(
        self, index: int, output: Any, data: Any, drawn: Sequence[int], randomness: Randomness
    ) -> Any:
        """Return what is reported of a level: the output with its noisy count."""
        rate = self.rates[index] / self.steps
        noisy = int(self.count(output, data)) + geometric(rate, randomness)
        noisy -= drawn[self.stages.stage(index)]
        if self.report is None:
            return Seen(output, noisy, self.thresholds[index])
        return self.report(output, noisy, self.thresholds[index], float(rate))


def rates_of(
    epsilons: Sequence[float], stages: Stages, monotone: bool = True
) -> tuple[Fraction, ...]:
    """Return q_i of each level: ε_i less the thresholds, or half of it if counts rise and fall."""
    return tuple(
        (exact(epsilon, "epsilon") - stages.paid(look)) / (1 if monotone else 2)
        for look, epsilon in enumerate(epsilons)
    )


def margins_of(
    rates: Sequence[Fraction], stages: Stages, confidence: float, steps: int = 1
) -> list[int]:
    """Return the margin m_i of each level: P(y_i − k ≥ m_i + 1) ≤ (1 − confidence)/looks."""
    if not rates or min(rates) <= 0:
        raise InvalidInput("epsilons", "levels", "give ascending levels above 0")
    margins = []
    for look, rate in enumerate(rates):
        overhead = float(stages.overheads[stages.stage(look)]) / steps
        per_step = float(rate) / steps
        credit = math.expm1(-overhead) / math.expm1(-(overhead + per_step))
        allowed = math.log(len(rates) * credit / (1 - confidence)) + 1e-12
        margins.append(max(0, math.ceil(allowed * (1 + 1e-12) / per_step) - 1))
    return margins


def useful_levels(
    epsilons: Sequence[float],
    *,
    room: int,
    confidence: float,
    steps: int = 1,
    monotone: bool = True,
) -> tuple[float, ...]:
    """Return the levels at which a look can pass: those whose margin and usual k leave room.

    Looks that cannot pass cost nothing by themselves, but each widens the margins of the others.

    Parameters
    ----------
    epsilons : sequence of float
        Ascending levels.
    room : int
        The largest possible count less the bar, in steps.
    confidence, steps, monotone
        As in :meth:`HeldOut.for_levels`.
    """
    kept = tuple(epsilons)
    while kept:
        stages = Stages.for_levels(kept)
        rates = rates_of(kept, stages, monotone)
        margins = margins_of(rates, stages, confidence, steps)
        usual = [steps / float(stages.overheads[stages.stage(look)]) for look in range(len(kept))]
        fitting = tuple(
            epsilon
            for epsilon, margin, threshold in zip(kept, margins, usual, strict=True)
            if margin + 1.5 * threshold <= room
        )
        if len(fitting) == len(kept):
            return kept
        kept = fitting
    return kept
