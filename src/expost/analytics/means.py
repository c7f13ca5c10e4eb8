"""Means: two sums on one path, and an interval for their ratio.

With public bounds low ≤ v ≤ high put A = Σ(v − low), B = Σ(high − v) and R = high − low, in grid
units. A user with at most r rows in a group changes (A, B) by (a, b) ≥ 0 with a + b ≤ r·R, so both
the ℓ1 and the ℓ2 sensitivity of the pair are r·R: both sums are released at the same level for the
price of one. The mean is low + R·A/(A + B).

Interval. If |Â − A| ≤ w and |B̂ − B| ≤ w, then A ≤ Â + w and B ≥ B̂ − w, and A/(A + B) grows in A and
falls in B; so A/(A + B) lies within w/(Â + B̂) of Â/(Â + B̂), as long as Â + B̂ > 0. The half-widths w
hold at all levels and for both sums at once (union bound), so the stop decision cannot hurt. Where
the level is decided by the other groups (``refinement``), they hold for both sums at this level.
Tests: ``tests/analytics/test_sums.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.intervals import half_width, simultaneous_half_width
from expost.analytics.refinement import Answer, Job, Refinement
from expost.randomness.source import Randomness


class MeanRefinement(Refinement):
    """A refinement whose answers are means, in grid units."""

    def __init__(
        self,
        job: Job,
        groups: Sequence[Any],
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
        randomness: Randomness,
        *,
        low: int,
        high: int,
        plus_minus: Fraction | None,
    ) -> None:
        super().__init__(job, groups, first, randomness)
        self._second = job.levels.estimates(second, randomness)
        self._low, self._range = low, high - low
        self._plus_minus = None if plus_minus is None else float(plus_minus)
        each = (1 + job.rule.confidence) / 2  # of the two sums
        self._widths = simultaneous_half_width(job.levels, each)
        self._alone = half_width(job.levels, each)

    def _mean(self, level: int, group: Any) -> tuple[Any, Any]:
        """Estimates of the mean and of A + B (at least 1 grid unit)."""
        whole = np.maximum(self._estimates[level, group] + self._second[level, group], 1.0)
        share = np.clip(self._estimates[level, group] / whole, 0.0, 1.0)
        return self._low + self._range * share, whole

    def _target(self, mean: Any) -> Any:
        """The half-width that is good enough for this mean."""
        if self._plus_minus is not None:
            return np.full_like(np.asarray(mean, dtype=float), self._plus_minus)
        return (self.job.rule.within or 0.0) * np.abs(mean)

    def _good(self, level: int, group: Any) -> Any:
        return self._within(self._widths[level], level, group)

    def _good_alone(self, level: int, group: Any) -> Any:
        return self._within(self._alone[level], level, group)

    def _within(self, width: float, level: int, group: Any) -> Any:
        """Whether this half-width of the two sums is good enough."""
        mean, whole = self._mean(level, group)
        return self._range * width / whole <= self._target(mean)

    def _reachable(self, level: int, group: Any, wanted: int) -> Any:
        mean, whole = self._mean(level, group)
        loose = self._range * self._widths[level] / whole
        most = np.minimum(np.abs(mean) + loose, max(abs(self._low), abs(self._low + self._range)))
        large = whole + 2 * self._widths[level]
        return self._range * self._widths[wanted] / large <= self._target(most)

    def _enough(self, level: int, group: int) -> int:
        mean, whole = self._mean(level, group)
        fits = self._range * self._widths / whole <= self._target(mean)
        return int(np.argmax(fits)) if bool(fits.any()) else len(self._widths)

    def _answer(self, group: int) -> Answer:
        level = int(self._charge.level[group])
        ends = float(self._low), float(self._low + self._range)
        if level < 0:
            return Answer(self.groups[group], math.nan, *ends, 0.0)
        mean, whole = (float(each) for each in self._mean(level, group))
        widths = self._alone if self._free[group] else self._widths
        width = self._range * float(widths[level]) / whole
        low, high = max(ends[0], mean - width), min(ends[1], mean + width)
        return Answer(self.groups[group], mean, low, high, self.job.levels.costs[level])
