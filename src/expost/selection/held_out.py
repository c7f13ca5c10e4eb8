"""Stop a noise path by a noisy count on held-out rows: Algorithm 1 on rows that trained nothing.

The path is made of the training rows. The count f_i of look i (how many held-out rows the output
of level i gets right) is made of other rows. Look i passes if f_i + y_i − k ≥ t_i with one
k ~ Geom(e^{−ε′/s}) for the whole search, fresh y_i ~ Geom(e^{−q_i/s}), q_i = ε_i − ε′, and public
thresholds t_i. One person raises every count by between 0 and s, or lowers every count by that
much.

**Cost: none beyond the level.** *A person in the training rows:* given the path, the looks do not
depend on this person, so the search is post-processing of the path and costs ε_i (with the path's
δ). *A person in the held-out rows:* the path does not depend on this person. Given any path,
let the outcome be "first pass at i, with noisy count v", and let D′ have the additional person.
From D to D′: replace k by k + s, at a factor e^{ε′}. Earlier looks still fail, because f_j rises
by at most s. The noise of look i must be y_i + s − (f′_i − f_i), which is larger by 0 to s, at a
factor of at most e^{q_i}. From D′ to D: keep k. Earlier counts do not rise, so they fail; y_i grows
by at most s. So the outcome costs at most q_i + ε′ = ε_i under pure DP, whatever the other q_j are
(``theorem:at-classic-monotone`` with a rate per query). The two groups of rows are disjoint and the
split is public, so together the outcome costs the larger of both: ε_i, and "nothing" costs at most
the last level.

**Counts that may rise and fall.** If one person may raise some counts and lower others, by at most
s (``monotone=False``), k + s serves in both directions and y_i grows by at most 2s. Then q_i =
(ε_i − ε′)/2 (``theorem:at-classic``).

The thresholds may differ because they are public: subtracting t_i from f_i changes no difference.
A noisy score of its own per level, in place of one noisy threshold, would have to share the level's
cost with all looks before it; docs/noise-reduction.md compares both.

**Confidence.** If f_i is below the bar b and t_i = b + m_i, look i passes only if y_i ≥ m_i + 1,
because k ≥ 0. This has probability e^{−q_i(m_i+1)/s}. With margins such that this is at most β_i,
the search passes an output below the bar with probability at most Σ β_i.

Tests: ``tests/selection/test_held_out.py`` (enumeration of the law; the confidence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.randomness.coins import geometric
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact, exact_positive


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
class HeldOut:
    """A count on held-out rows that decides where a search stops.

    Parameters
    ----------
    count : callable
        ``count(output, data)`` returns a whole number. The rows that it reads must not be read by
        the statistic. One person changes it by at most ``steps``. It must not fail.
    overhead : number
        ε′ > 0, the parameter of the noisy threshold. Every level must be larger.
    thresholds : tuple of int
        t_i: what the noisy count of each level must reach.
    steps : int, default 1
        The most that one person changes a count by.
    monotone : bool, default True
        Whether one person changes all counts in the same direction.
    report : callable, optional
        ``report(output, count, threshold)`` is released for a look that passes; ``float`` of it
        must be at least 0 iff the count reaches the threshold. By default a :class:`Seen`.
    rates : tuple of Fraction
        q_i of each level; :meth:`for_levels` sets them.
    """

    count: Callable[[Any, Any], int]
    overhead: Number
    thresholds: tuple[int, ...]
    steps: int = 1
    monotone: bool = True
    report: Callable[[Any, int, int], Any] = Seen
    rates: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.count):
            raise InvalidInput("count", type(self.count).__name__, "give a function")
        exact_positive(self.overhead, "overhead")
        count_of(self.steps, "steps", at_least=1)
        if not self.thresholds or not all(isinstance(each, int) for each in self.thresholds):
            raise InvalidInput("thresholds", self.thresholds, "give one whole number per level")

    @classmethod
    def for_levels(
        cls,
        count: Callable[[Any, Any], int],
        epsilons: Sequence[float],
        *,
        overhead: Number,
        bar: int,
        confidence: float,
        steps: int = 1,
        monotone: bool = True,
        report: Callable[[Any, int, int], Any] = Seen,
    ) -> HeldOut:
        """Return the rule whose wrong passes have probability at most 1 − ``confidence``.

        Parameters
        ----------
        count, overhead, steps, monotone, report
            As in the class.
        epsilons : sequence of float
            The levels.
        bar : int
            The count to certify, in steps.
        confidence : float
            With 0 < confidence < 1.
        """
        rates = rates_of(epsilons, overhead, monotone)
        margins = margins_of(rates, confidence, steps)
        thresholds = tuple(bar + margin for margin in margins)
        return cls(count, overhead, thresholds, steps, monotone, report, rates)

    def settings(self) -> dict[str, Any]:
        """Return the public settings in plain types."""
        return {
            "overhead": float(self.overhead),
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
        wanted = rates_of(epsilons, self.overhead, self.monotone)
        if len(self.thresholds) != len(epsilons) or self.rates != wanted or min(wanted) <= 0:
            raise InvalidInput(
                "held_out",
                f"{len(self.thresholds)} thresholds",
                "use HeldOut.for_levels with these levels, each larger than the overhead",
            )

    def draw(self, randomness: Randomness) -> int:
        """Draw k, without looking at data."""
        return geometric(exact(self.overhead, "overhead") / self.steps, randomness)

    def look(self, index: int, output: Any, data: Any, level: int, randomness: Randomness) -> Any:
        """Return what is reported of a level: the output with its noisy count."""
        noise = geometric(self.rates[index] / self.steps, randomness)
        noisy = int(self.count(output, data)) + noise - level
        return self.report(output, noisy, self.thresholds[index])


def rates_of(
    epsilons: Sequence[float], overhead: Number, monotone: bool = True
) -> tuple[Fraction, ...]:
    """Return q_i of each level: ε_i − ε′, or half of it if counts may rise and fall."""
    least = exact(overhead, "overhead")
    return tuple((exact(each, "epsilon") - least) / (1 if monotone else 2) for each in epsilons)


def margins_of(rates: Sequence[Fraction], confidence: float, steps: int = 1) -> list[int]:
    """Return the margin m_i of each level: P(y_i ≥ m_i + 1) ≤ (1 − confidence)/levels."""
    if not rates or min(rates) <= 0:
        raise InvalidInput("epsilons", "levels", "give levels that are larger than the overhead")
    allowed = math.log(len(rates) / (1 - confidence)) * (1 + 1e-12)
    return [max(0, math.ceil(allowed * steps / float(each)) - 1) for each in rates]
