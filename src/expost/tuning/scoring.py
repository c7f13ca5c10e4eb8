"""Scores of models: noisy on held-out rows, or exact on rows declared public.

Private scoring. The query is the number of held-out rows that are classified correctly, or the sum
of squared errors, each clipped to a public bound and rounded down to one of 2^16 steps. One row
changes the number by at most 1 and the sum by at most 2^16 steps. Both are integers, so there is no
further rounding. Discrete Gaussian noise makes the query ρ-zCDP. An empty place counts as wrong, at
the largest loss.

Secret number of rows. With add-remove neighbours the sum must not be divided by the actual number
of rows. It is centred: each row adds its metric minus c, where c is the bar rounded to 2^{−16} of
the range, against the model (the middle of the range if there is no bar), and the score is the bar
plus sum / rows with the public number of rows. A row adds an integer between −C and 2^16 − C steps,
where C is c in steps; a row that is not there adds 0. So one row moves the sum by at most
max(C, 2^16 − C). If the public number is wrong, the distance of the score from the bar is wrong by
a factor, but a score above the bar still means that the mean over the actual rows is above the bar.

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
from math import ceil, floor

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
    centred : bool
        Whether the actual number of rows is secret, so that the sum is centred at the bar.
    """

    goal: GoalSettings
    rho: float | None
    centred: bool = False

    @property
    def centre(self) -> int:
        """What each row's metric is compared with, in steps; 0 if the sum is not centred."""
        if not self.centred:
            return 0
        if self.goal.bar is None:
            return _STEPS // 2
        steps = Fraction(self.goal.bar) / Fraction(self.goal.loss_bound or 1) * _STEPS
        return ceil(steps) if self.goal.metric == "accuracy" else floor(steps)

    @property
    def _base(self) -> float:
        """The score of a sum of 0."""
        if self.centred and self.goal.bar is not None:
            return self.goal.bar
        return self.centre * self.step

    @property
    def sensitivity(self) -> int:
        """The most by which one row moves the sum, in units of :attr:`unit`."""
        if self.centred:
            return max(self.centre, _STEPS - self.centre)
        return 1 if self.goal.loss_bound is None else _STEPS

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of the sum, in rows or in the metric's unit."""
        if self.rho is None:
            return 0.0
        return (
            self.sensitivity * self.unit * float((1 / (2 * Fraction(self.rho))) ** Fraction(1, 2))
        )

    @property
    def unit(self) -> float:
        """Smallest step of the noisy sum, in rows or in the metric's unit; 0 without noise."""
        return 0.0 if self.rho is None else self.step

    @property
    def step(self) -> float:
        """Step of the sum, in rows or in the metric's unit."""
        if self.goal.loss_bound is None:
            return 1.0 / _STEPS if self.centred else 1.0
        return self.goal.loss_bound / _STEPS

    def __call__(
        self, decided: Array, truth: Array, randomness: Randomness, rows: int | None = None
    ) -> float:
        """Return the score of decisions.

        Parameters
        ----------
        decided, truth : ndarray
            Class numbers, or values in the target's unit. The truth is NaN at an empty place.
        randomness : Randomness
            Source of the noise.
        rows : int, optional
            Public number of rows, required if the sum is centred; by default that of ``truth``.

        Returns
        -------
        float
            The accuracy, or minus the mean squared error; noisy if ``rho`` is given.
        """
        if self.centred and rows is None:
            raise InvalidInput("rows", None, "give the public number of scoring rows")
        total = self.total(decided, truth) - self.centre * len(truth)
        if self.rho is not None:
            query = Query(lambda whole: whole, sensitivity=self.sensitivity)
            noisy = DiscreteGaussian(query, self.rho)(total, randomness)
            assert isinstance(noisy, Estimate)
            total = int(noisy.value)
        mean = self._base + total * self.step / (rows or len(truth))
        return mean if self.goal.metric == "accuracy" else -mean

    def total(self, decided: Array, truth: Array) -> int:
        """Return the number of correct decisions or the sum of losses, in steps."""
        if self.goal.metric == "accuracy":
            correct = int(np.count_nonzero(decided == truth))
            return correct * _STEPS if self.centred else correct
        assert self.goal.loss_bound is not None
        with np.errstate(all="ignore"):
            losses = np.square(decided - truth) / self.goal.loss_bound
        losses = np.where(losses < 1, losses, 1.0)  # NaN counts as the largest error
        rounding = np.ceil if self.centred else np.floor  # against the model where it is centred
        return int(rounding(losses * _STEPS).astype(np.int64).sum())
