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

For the population the usable rows are taken as a random sample that is independent of the training
rows; "new rows" are usable ones, too. Let n be the public number of places, u the secret number of
usable rows, p = u/n, v̄ the mean over the usable rows, θ its expectation, and c what an empty place
counts for (:mod:`expost.tuning.scoring`), so that the score without noise is s = c + p·(v̄ − c).

- Noise: s ≥ L, the noisy score less its margin, except with probability β_t/(2R_t).
- Sampling: by Hoeffding's inequality v̄ ≤ θ + r·√(ln(2R_t/β_t)/(2u)) = θ + h/√p, except with
  probability β_t/(2R_t). Here r is the range of one row's value (1 for the accuracy, the weight of
  the rarest class for an accuracy weighted by class shares, the loss bound for a clipped loss), and
  h = r·√(ln(2R_t/β_t)/(2n)).

Together, with x = 1/√p ≥ 1: θ ≥ c + (L − c)·x² − h·x. p is not known, so the least value over all
x ≥ 1 is certified. If L > c it is at x = max(1, h/(2(L − c))): L − h where 2(L − c) ≥ h, otherwise
c − h²/(4(L − c)). If L ≤ c there is no bound; without any usable row s = c, so L > c is then an
error of the noise. This holds for every share of empty places. A bound that is not above the worst
value says nothing and is left out, and a metric that is not an average over rows (the area under
the ROC curve) has no such bound here.

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

from expost.selection.attempts import Schedule


@dataclass(frozen=True)
class Margins:
    """Margins of a job, attempt by attempt."""

    confidence: float
    runs: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, confidence: float, schedule: Schedule, runs: Sequence[float]) -> Margins:
        """Share the allowed error among the attempts as δ is shared."""
        return cls(
            confidence, tuple(runs), tuple(attempt.delta_share for attempt in schedule.attempts)
        )

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
        """Return h: how far a mean over ``rows`` rows may lie above its expectation.

        ``spread`` is the range of one row's value (:attr:`expost.tuning.metrics.Metric.spread`).
        Half of the allowed error is used.
        """
        return spread * math.sqrt(-math.log(self._allowed(attempt, 0.5)) / (2 * rows))


SECRET_ROWS = "the actual number of scoring rows is secret"
NOT_A_MEAN = "the metric is not an average over rows"
TOO_FEW = "too few scoring rows for a bound that holds however many of them can be used"


def population_bound(
    certain: float, empty: float, sampled: float, worst: float
) -> tuple[float | None, str | None]:
    """Bound the expected score of a usable row from below, or return None and why not."""
    lead = certain - empty
    if lead > 0:
        bound = certain - sampled if 2 * lead >= sampled else empty - sampled**2 / (4 * lead)
        if bound > worst:
            return bound, None
    return None, TOO_FEW


@dataclass(frozen=True)
class Bounds:
    """What is certified about a released model's score, in the direction where more is better."""

    confidence: float
    noisy: float
    on_scoring_rows: float
    on_population: float | None
    why_none: str | None = None

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
            "why_no_bound_on_population": self.why_none,
        }


def confidence_bounds(
    margins: Margins,
    attempt: int,
    noisy: float,
    deviation: float,
    unit: float,
    rows: int | str,
    spread: float,
    *,
    law: str = "gaussian",
    empty: float,
    worst: float,
    most: float = math.inf,
) -> Bounds:
    """Return the bounds of a model that attempt ``attempt`` released as passed."""
    population, why = None, rows if isinstance(rows, str) else None
    if not isinstance(rows, str):
        certain = noisy - margins.margin(attempt, deviation, unit, part=0.5, law=law)
        sampled = margins.sampling(attempt, rows, spread)
        population, why = population_bound(certain, empty, sampled, worst)
    return Bounds(
        margins.confidence,
        noisy,
        min(most, noisy - margins.margin(attempt, deviation, unit, law=law)),
        population,
        why,
    )
