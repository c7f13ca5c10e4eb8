"""A bar with confidence: by how much a noisy score must clear the bar.

A model is released as passed only if its noisy score, less a margin, reaches the bar. Of the runs
of attempt t, R_t are scored on average (those that are kept; their number does not depend on the
data), and a model below the bar passes with probability at most Φ(−z_t) each. With
z_t = Φ⁻¹(1 − β_t/R_t) and Σ β_t = 1 − confidence, the probability that the job certifies any
model whose score on the scoring rows is below the bar is at most 1 − confidence, over noise,
selection and all attempts (Markov's inequality on the number of such runs; whether an attempt is
made depends on earlier outcomes only, and each has its own draw and its own noise).

The noise is a discrete Gaussian. Its upper tail at m is at most that of the continuous Gaussian at
m − 1 (Canonne, Kamath and Steinke 2020, Proposition 25), so one unit of the count is added to the
margin. The same argument makes "score less margin" a lower confidence bound for the score on the
scoring rows of whatever is released.

For the population the rows are taken as a random sample that is independent of the training rows:
by Hoeffding's inequality the empirical score of a fixed model exceeds its expectation by more than
range·√(ln(R_t/β_t)/(2n)) with probability at most β_t/R_t, where the range is that of one row's
value: 1 for the accuracy, the weight of the rarest class for a balanced accuracy with public
shares, the loss bound for a clipped loss. An empty place has the worst value, which only lowers the
score. Half of 1 − confidence then goes to the noise and half to the sampling. A metric that is no
mean over rows (the area under the ROC curve) has no such bound here.

If the actual number of scoring rows is secret, the score is the bar plus sum/m with a public
number m, and the sum is centred at the bar. A margin then bounds sum/m. If the actual number is
above m, the mean lies nearer to the bar than sum/m says. So only "at least the bar" is certified,
and nothing about the population, since its bound would need the actual number.

Comparing is post-processing of a private score: margins cost no privacy.
Tests: ``tests/tuning/test_confidence.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from expost.selection.attempts.schedule import Schedule


@dataclass(frozen=True)
class Margins:
    """Margins of a job, attempt by attempt.

    Parameters
    ----------
    confidence : float
        Over the whole job.
    runs : tuple of float
        Expected number of scored runs of each attempt, if it is made.
    shares : tuple of float
        Share of 1 − confidence that each attempt may use; they sum to at most 1.
    """

    confidence: float
    runs: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, confidence: float, schedule: Schedule, runs: Sequence[float]) -> Margins:
        """Share the allowed error among the attempts as δ is shared."""
        return cls(confidence, tuple(runs), tuple(each.delta_share for each in schedule.attempts))

    def deviations(self, attempt: int, *, part: float = 1.0) -> float:
        """Return z_t: how many standard deviations of its noise a score must clear the bar by."""
        return max(0.0, NormalDist().inv_cdf(1 - min(self._allowed(attempt, part), 0.5)))

    def margin(
        self,
        attempt: int,
        deviation: float,
        unit: float,
        *,
        part: float = 1.0,
        law: str = "gaussian",
    ) -> float:
        """Return the margin of a score whose smallest step is ``unit``.

        ``deviation`` is the standard deviation of Gaussian noise, or the scale b of discrete
        Laplace noise (``law="laplace"``), whose upper tail at m is at most e^{−m/b}. Without noise
        (public scoring) the margin is 0.
        """
        if deviation == 0:
            return 0.0
        if law == "laplace":
            return -math.log(min(self._allowed(attempt, part), 1.0)) * deviation
        return self.deviations(attempt, part=part) * deviation + unit

    def _allowed(self, attempt: int, part: float) -> float:
        """Return β_t/R_t: the probability of a wrong pass that one scored run may have."""
        return part * (1 - self.confidence) * self.shares[attempt] / max(self.runs[attempt], 1.0)

    def sampling(self, attempt: int, rows: int, spread: float) -> float:
        """Return how far a score on ``rows`` rows may lie above its expectation.

        ``spread`` is the range of one row's value (:attr:`expost.tuning.metrics.Metric.spread`).
        Half of the allowed error is used.
        """
        return spread * math.sqrt(-math.log(self._allowed(attempt, 0.5)) / (2 * rows))


@dataclass(frozen=True)
class Bounds:
    """What is certified about a released model's score, in the direction where more is better.

    Parameters
    ----------
    confidence : float
        Each bound holds with this probability.
    noisy : float
        The score that was looked at.
    on_scoring_rows : float
        Lower bound for the score on the scoring rows, without noise.
    on_population : float or None
        Lower bound for the expected score on new rows of the same population; None if there is no
        proven one.
    """

    confidence: float
    noisy: float
    on_scoring_rows: float
    on_population: float | None

    def as_dict(self, *, larger_is_better: bool) -> dict[str, Any]:
        """Return the bounds in the metric's own direction (a squared error has upper bounds)."""
        sign = 1.0 if larger_is_better else -1.0
        return {
            "confidence": self.confidence,
            "noisy_score": sign * self.noisy,
            "bound_on_scoring_rows": sign * self.on_scoring_rows,
            "bound_on_population": (
                None if self.on_population is None else sign * self.on_population
            ),
        }


def bounds_of(
    margins: Margins,
    attempt: int,
    noisy: float,
    deviation: float,
    unit: float,
    rows: int | None,
    spread: float,
    most: float = math.inf,
) -> Bounds:
    """Return the bounds of a model that attempt ``attempt`` released as passed.

    Parameters
    ----------
    margins : Margins
        Of the job.
    attempt : int
        Number of the attempt.
    noisy, deviation, unit : float
        The score, the standard deviation of its noise, and its smallest step.
    rows : int or None
        Number of scoring rows; None if there is no bound for the population.
    spread : float
        The range of one row's value.
    most : float
        The most that can be certified for the scoring rows: the bar, if their number is secret.
    """
    population = None
    if rows is not None:
        sampled = margins.sampling(attempt, rows, spread)
        population = noisy - margins.margin(attempt, deviation, unit, part=0.5) - sampled
    return Bounds(
        margins.confidence,
        noisy,
        min(most, noisy - margins.margin(attempt, deviation, unit)),
        population,
    )
