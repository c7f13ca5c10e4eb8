"""A score that may be looked at: noisy on held-out rows, or exact on rows declared public.

*Private.* The query is the number of held-out rows classified correctly (one row changes it by at most 1), or the sum of squared errors,
each clipped to a public bound and rounded down to one of 2^16 steps (one row: 2^16 steps); both are whole numbers, so nothing is lost to
rounding. Discrete Gaussian noise makes it ρ-zCDP. The model was trained on other rows: whoever's row is in the training part sees a score
that is post-processing, whoever's row is held out sees a model that does not depend on them. So training and scoring together keep the
pointwise larger of the two Rényi curves (parallel composition, adaptively; joint convexity is not needed since the split is public).

ρ is the largest (rounded down) whose curve αρ nowhere exceeds the training's curve: then scoring costs nothing more.
Tests: ``tests/tuning/test_scoring.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.mechanisms.discrete_noise import DiscreteGaussian, Query
from expost.mechanisms.protocol import Estimate
from expost.privacy.guarantees import ZCDP, RenyiDP
from expost.randomness.source import Randomness
from expost.rationals import round_down
from expost.tuning.settings import GoalSettings

_STEPS = 1 << 16


def free_rho(training: RenyiDP) -> float:
    """The largest ρ with αρ ≤ ε(α) at every listed order, rounded down."""
    rho = round_down(
        min(
            Fraction(e) / Fraction(a)
            for a, e in zip(training.orders, training.epsilons, strict=True)
        )
    )
    if rho <= 0:
        raise InvalidInput(
            "guarantee",
            "a curve with a 0",
            "nothing is left for scoring; give a training that promises more than 0",
        )
    return rho


def with_scoring(training: RenyiDP, rho: float) -> RenyiDP:
    """The promise of training on one part and scoring on the other: the pointwise larger curve."""
    return training.at_worst(ZCDP(rho, training.neighbours).to_renyi(training.orders))


@dataclass(frozen=True)
class Score:
    """How a model's decisions on the scoring rows become a number; more is better. ``rho`` None: the rows are public."""

    goal: GoalSettings
    rho: float | None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on the sum, in rows (accuracy) or in the metric's unit."""
        if self.rho is None:
            return 0.0
        unit = 1.0 if self.goal.loss_bound is None else self.goal.loss_bound
        return unit * float((1 / (2 * Fraction(self.rho))) ** Fraction(1, 2))

    @property
    def unit(self) -> float:
        """The smallest step of the noisy sum, in rows or in the metric's unit; 0 without noise."""
        if self.rho is None:
            return 0.0
        return 1.0 if self.goal.loss_bound is None else self.goal.loss_bound / _STEPS

    def __call__(self, decided: Array, truth: Array, randomness: Randomness) -> float:
        """The score of decisions against the truth (class numbers, or values on the target's own scale)."""
        if self.goal.metric == "accuracy":
            total, sensitivity, unit = int(np.count_nonzero(decided == truth)), 1, 1.0
        else:
            assert self.goal.loss_bound is not None
            with np.errstate(all="ignore"):
                losses = np.square(decided - truth) / self.goal.loss_bound
            losses = np.where(losses < 1, losses, 1.0)  # NaN counts as the worst
            total, sensitivity, unit = (
                int(np.floor(losses * _STEPS).astype(np.int64).sum()),
                _STEPS,
                self.goal.loss_bound / _STEPS,
            )
        if self.rho is not None:
            noisy = DiscreteGaussian(Query(lambda whole: whole, sensitivity=sensitivity), self.rho)(
                total, randomness
            )
            assert isinstance(noisy, Estimate)
            total = int(noisy.value)
        mean = total * unit / len(truth)
        return mean if self.goal.metric == "accuracy" else -mean
