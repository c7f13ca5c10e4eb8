"""A further noisy score of a model that missed, on the held-out rows (``privacy.tell``).

The released model w is known, so the count f(w) of the held-out rows is a statistic of one number:
discrete Laplace noise of scale c/ε, where one person changes the count by at most c, makes it
ε-DP. It is asked only if every request of the job missed and a model was released. The score of the
last look, which is paid with its level, is noisy at the rate of the last step of the levels; this
one has noise of its own ε, and an interval.

**Price.** The held-out rows and the training rows are disjoint people. A person who trains pays the
paths, Σ ε_m of their last levels, and nothing for the score, which does not read this person's row.
A held-out person pays for having stopped the paths, which is Σ ε_m, too, and ε of the score. So the
score adds ε to the charge of the job. Proof: docs/theory.md, "A miss". Tests:
``tests/theorems/test_until_it_passes.py``, ``tests/tuning/test_missed.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from expost.privacy.guarantees import ADD_REMOVE, Guarantee, PureDP
from expost.randomness.coins import discrete_laplace
from expost.randomness.source import Randomness
from expost.rationals import exact
from expost.selection.candidate import Candidate
from expost.selection.job_selectors import Tell
from expost.selection.noise_path import PathSearch
from expost.selection.release import Release
from expost.tuning.candidates import ScoredModel
from expost.tuning.noise_reduction import HeldOutCount
from expost.tuning.run_attempts import Step
from expost.tuning.settings import GoalSettings


@dataclass(frozen=True, eq=False)
class TellScore:
    """Mechanism: the score of one model on the held-out rows, with discrete Laplace noise."""

    epsilon: float
    count: HeldOutCount
    rows: int
    neighbours: str
    fitted: ScoredModel | None = None

    @property
    def guarantee(self) -> PureDP:
        """What the score satisfies."""
        return PureDP(self.epsilon, self.neighbours)

    @property
    def scale(self) -> Fraction:
        """Scale of the noise of the count: one person changes it by at most the sensitivity."""
        return self.count.score.sensitivity / exact(self.epsilon, "tell")

    def __call__(self, data: Any, randomness: Randomness) -> ScoredModel:
        assert self.fitted is not None
        noisy = self.count(self.fitted, data) + discrete_laplace(self.scale, randomness)
        score = self.count.score.of_sum(noisy, self.rows)
        return ScoredModel(self.fitted.parameters, score)

    def half_width(self, confidence: float) -> float | None:
        """Return h: the score is within ±h of the noisy one with this confidence.

        P(|noise| > m) = 2p^{m+1}/(1 + p) with p = e^{−1/scale}. None where the actual number of
        rows is secret, because the score is then a ratio of which only the sum is known.
        """
        if self.neighbours == ADD_REMOVE:
            return None
        rate = 1 / float(self.scale)
        # m + 1 ≥ ln(2/((1 + p)(1 − confidence)))·scale; the factors keep the rounding safe.
        tail = math.log(2 / ((1 + math.exp(-rate)) * (1 - confidence))) + 1e-12
        most = max(0, math.ceil(tail * (1 + 1e-12) / rate) - 1)
        return most * self.count.score.step / self.rows


def tell_step(epsilon: float, ways: Sequence[Step], rows: int) -> Step:
    """Return the priced request that follows the misses of all ways; its model is not known yet."""
    paid = ways[0].charges.nothing
    curve = paid.as_renyi()
    mechanism = TellScore(epsilon, _count(ways[0]), rows, paid.neighbours)
    candidates = (Candidate(mechanism, {"tell": epsilon}),)
    selector = Tell(paid.kind, None if curve is None else curve.orders)
    return Step(selector, candidates, selector.charges(candidates), 1.0, ways[0].recipe)


def with_model(step: Step, way: Step, fitted: ScoredModel) -> Step:
    """Return the request for the score of the model that a way released as missed."""
    (candidate,) = step.candidates
    assert isinstance(candidate.mechanism, TellScore)
    mechanism = replace(candidate.mechanism, count=_count(way), fitted=fitted)
    return replace(step, candidates=(Candidate(mechanism, candidate.params),), recipe=way.recipe)


def _count(way: Step) -> HeldOutCount:
    """Return the sum over the held-out rows by which a way was stopped."""
    assert isinstance(way.selector, PathSearch)
    assert way.selector.held_out is not None
    count = way.selector.held_out.count
    assert isinstance(count, HeldOutCount)
    return count


@dataclass(frozen=True, eq=False)
class Told:
    """A further noisy score of a model that missed."""

    score: float | None
    low: float | None
    high: float | None
    confidence: float
    epsilon: float
    spent: Guarantee
    release: Release | None = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain JSON types, without the certificate."""
        return {
            "score": self.score,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "epsilon": self.epsilon,
            "spent": self.spent.as_dict(),
        }


def told_of(goal: GoalSettings, step: Step, release: Release | None) -> Told:
    """Return the noisy score of a model that missed, in the metric's direction and range."""
    mechanism = step.candidates[0].mechanism
    assert isinstance(mechanism, TellScore)
    confidence = goal.confidence
    value = None if release is None else release.value
    score: float | None = None
    ends: list[float] | None = None
    if isinstance(value, ScoredModel):
        sign = 1.0 if goal.larger_is_better else -1.0
        low, high = sorted([goal.measure.worst, goal.measure.best])
        score = min(max(sign * value.score, low), high)
        half = mechanism.half_width(confidence)
        if half is not None:
            ends = [min(max(sign * value.score + way * half, low), high) for way in (-1, 1)]
    spent = step.charges.worst_case if release is None else release.spent
    first, last = ends or (None, None)
    return Told(score, first, last, confidence, mechanism.epsilon, spent, release)
