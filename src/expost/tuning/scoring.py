"""Scores of models: noisy on held-out rows, or exact on rows declared public.

Private scoring. The query is the number of held-out rows that are classified correctly, or the sum
of squared errors, each clipped to a public bound and rounded down to one of 2^16 steps. One row
changes the number by at most 1 and the sum by at most 2^16 steps. Both are integers, so there is no
further rounding. Discrete Gaussian noise makes the query ρ-zCDP.

The model was trained on other rows. If a person's row is in the training part, the score is
post-processing for this person. If the row is held out, the model does not depend on it. So
training and scoring together satisfy the pointwise maximum of the two Rényi curves (parallel
composition, adaptively; joint convexity is not needed since the split is public).

ρ is the largest value, rounded down, for which the curve αρ is nowhere above the curve of the
training. Then scoring adds no cost.

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
    """Return the largest ρ with αρ ≤ ε(α) at every listed order, rounded down.

    Parameters
    ----------
    training : RenyiDP
        Guarantee of the training.

    Returns
    -------
    float
        ρ of the score that adds no cost to the training.

    Raises
    ------
    InvalidInput
        If ε(α) is 0 at some order.
    """
    rho = round_down(
        min(
            Fraction(e) / Fraction(a)
            for a, e in zip(training.orders, training.epsilons, strict=True)
        )
    )
    if rho <= 0:
        raise InvalidInput(
            "guarantee",
            "a curve with ε = 0",
            "private scoring needs a training with ε > 0 at every order",
        )
    return rho


def with_scoring(training: RenyiDP, rho: float) -> RenyiDP:
    """Return the guarantee of training on one part of the rows and scoring on the other part.

    Parameters
    ----------
    training : RenyiDP
        Guarantee of the training.
    rho : float
        ρ of the score.

    Returns
    -------
    RenyiDP
        The pointwise maximum of the two curves.
    """
    return training.at_worst(ZCDP(rho, training.neighbours).to_renyi(training.orders))


@dataclass(frozen=True)
class Score:
    """Score of a model's decisions on the scoring rows. Larger is better.

    Parameters
    ----------
    goal : GoalSettings
        The metric and its clipping bound.
    rho : float or None
        The score is ρ-zCDP with this ρ. None means that the rows are public and no noise is added.
    """

    goal: GoalSettings
    rho: float | None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of the sum, in rows or in the metric's unit."""
        if self.rho is None:
            return 0.0
        unit = 1.0 if self.goal.loss_bound is None else self.goal.loss_bound
        return unit * float((1 / (2 * Fraction(self.rho))) ** Fraction(1, 2))

    @property
    def unit(self) -> float:
        """Smallest step of the noisy sum, in rows or in the metric's unit; 0 without noise."""
        if self.rho is None:
            return 0.0
        return 1.0 if self.goal.loss_bound is None else self.goal.loss_bound / _STEPS

    def __call__(self, decided: Array, truth: Array, randomness: Randomness) -> float:
        """Return the score of decisions.

        Parameters
        ----------
        decided, truth : ndarray
            Class numbers, or values in the target's unit.
        randomness : Randomness
            Source of the noise.

        Returns
        -------
        float
            The accuracy, or minus the mean squared error; noisy if ``rho`` is given.
        """
        if self.goal.metric == "accuracy":
            total, sensitivity, unit = int(np.count_nonzero(decided == truth)), 1, 1.0
        else:
            assert self.goal.loss_bound is not None
            with np.errstate(all="ignore"):
                losses = np.square(decided - truth) / self.goal.loss_bound
            losses = np.where(losses < 1, losses, 1.0)  # NaN counts as the largest error
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
