"""The exact output laws of selectors without dropping.

Over tables: doubling, and repeat and select. Over queries: Algorithm 1, and Laplace noise
reduction. Arrays, brackets and rounding are as in :mod:`tests.oracle.dropping_laws`.
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.selection.baselines import Poisson, RunCount, TruncatedNegativeBinomial
from tests.oracle.dropping_laws import ROUNDING, OutputLaw

Truths = npt.NDArray[np.bool_]


def doubling(q: Floats, copies: Floats, bar: int) -> OutputLaw:
    """Return the law of doubling: every copy in order, until an output at ``bar`` or above."""
    passes, fails = q[..., bar:].sum(-1), q[..., :bar].sum(-1)
    with np.errstate(divide="ignore"):
        none = np.where(
            passes < 0.5, copies * np.log1p(-np.minimum(passes, 0.5)), copies * np.log(fails)
        )
    before = np.concatenate([np.zeros_like(none[..., :1]), np.cumsum(none, axis=-1)], axis=-1)
    found = np.divide(-np.expm1(none), passes, out=np.zeros_like(none), where=passes > 0)
    good = np.where(np.arange(q.shape[-1]) >= bar, q, 0.0)
    return OutputLaw.exactly(
        (np.exp(before[..., :-1]) * found)[..., None] * good, np.exp(before[..., -1])
    )


class _Generating(Protocol):
    """Differences of the generating function f of the number of runs."""

    def __call__(self, from_here: Floats, mass: Floats) -> Floats:
        """Return f(mass up to an outcome) − f(mass below it).

        The arguments are 1 − (mass below) and the mass of the outcome.
        """
        ...


def generating(runs: RunCount) -> tuple[_Generating, float]:
    """Return the differences of the generating function, and the probability of no run at all."""
    if isinstance(runs, Poisson):
        mean = float(runs.expected)
        return lambda from_here, mass: np.exp(-mean * from_here) * np.expm1(mean * mass), math.exp(
            -mean
        )
    if not isinstance(runs, TruncatedNegativeBinomial):
        raise InvalidInput(
            "runs",
            type(runs).__name__,
            "the exact law is known for TruncatedNegativeBinomial and Poisson",
        )
    shape, gamma = float(runs.shape), float(runs.gamma)

    def difference(from_here: Floats, mass: Floats) -> Floats:
        """Use f(q) = ((1−(1−γ)q)^{−η} − 1)/(γ^{−η} − 1), or ln(1−(1−γ)q)/ln γ for η = 0."""
        start = gamma + (1 - gamma) * from_here
        fall = np.log1p(-np.minimum((1 - gamma) * mass / start, 1 - 1e-16))
        if shape == 0:
            return np.asarray(fall / math.log(gamma))
        return np.asarray(
            start**-shape * np.expm1(-shape * fall) / math.expm1(-shape * math.log(gamma))
        )

    return difference, 0.0


def repeat_and_select(q: Floats, copies: Floats, runs: RunCount) -> OutputLaw:
    """Return the law of the best of a random number of runs; each run picks a random copy."""
    difference, nothing = generating(runs)
    base = q * (copies / copies.sum())[:, None]
    ascending = np.swapaxes(base[..., ::-1, :], -1, -2)  # worst first: by score, then higher index
    flat = ascending.reshape(*ascending.shape[:-2], -1)
    from_here = np.minimum(np.cumsum(flat[..., ::-1], axis=-1)[..., ::-1], 1.0)
    chances = np.swapaxes(difference(from_here, flat).reshape(ascending.shape), -1, -2)[
        ..., ::-1, :
    ]
    return OutputLaw.exactly(chances, np.full(q.shape[:-2], nothing))


def above_threshold_queries(
    answers: Sequence[int], epsilons: Floats, overhead: float, bar: int, outputs: int
) -> OutputLaw:
    """Return the law of Algorithm 1.

    Outcome (i, o) is the number bar + o, released for query i; the last output includes all larger
    ones. From the largest answer on, the probabilities fall by the factor e^{−ε_i} per step, so
    adding them up hides no ratio. Levels are summed one by one until every answer is far below the
    moving bar. From there, a probability divided by e^{−ε_i·k} increases with k, at most to its
    value without competitors.
    """
    answer, rate = np.array(answers, dtype=float)[:, None, None], epsilons[:, None, None]
    last = (
        math.ceil(max(0.0, float(answer.max()) - bar) + 30.0 / min(float(epsilons.min()), overhead))
        + 1
    )
    k = np.arange(last + 1.0)
    # Query, output, level: the noise that gives bar + o.
    needed = bar + k - answer + np.arange(float(outputs))[:, None]
    reached = np.exp(-rate * np.maximum(needed, 0.0))  # P(noise ≥ needed)
    exactly = np.where(needed >= 0, -np.expm1(-rate) * reached, 0.0)
    exactly[:, -1] = reached[:, -1]
    # Query, level: P(noise < what the goal needs).
    below = -np.expm1(-rate[:, 0] * np.maximum(needed[:, 0], 0.0))
    before = np.concatenate([np.ones((1, len(k))), np.cumprod(below, axis=0)])
    chance = -math.expm1(-overhead) * np.exp(-overhead * k)
    tail = (chance[-1] / -np.expm1(-(overhead + epsilons)))[:, None] * exactly[..., -1]
    body = np.einsum("iok,ik,k->io", exactly[..., :-1], before[:-1, :-1], chance[:-1])
    nothing, beyond = float(before[-1, :-1] @ chance[:-1]), math.exp(-overhead * last)
    return OutputLaw(
        (body + tail * before[:-1, -1:]) * (1 - ROUNDING),
        (body + tail) * (1 + ROUNDING),
        np.asarray(nothing + beyond * before[-1, -1]) * (1 - ROUNDING),
        np.asarray(nothing + beyond) * (1 + ROUNDING),
    )


@dataclass(frozen=True, eq=False)
class NoisePath:
    """Coupled discrete Laplace noise at rates r_1 < … < r_n (coarse to fine), within a window.

    Outcomes are listed for the middle of the window; ``margin`` values are left out at each end. A
    coarser level may lie outside the window, where it is not known whether it passed. This widens
    the brackets of values near the ends. :meth:`unseen` bounds the probability of the rest.
    """

    rates: Sequence[float]
    values: Floats  # consecutive whole numbers
    margin: int

    @property
    def listed(self) -> Floats:
        """Return the values whose outcomes are listed."""
        return self.values[self.margin : len(self.values) - self.margin]

    def noise(self, level: int, centre: float) -> Floats:
        """Return P(value) at a level when the answer is ``centre``."""
        ratio = math.exp(-self.rates[level])
        return np.asarray(
            (1 - ratio) / (1 + ratio) * np.exp(-self.rates[level] * np.abs(self.values - centre))
        )

    def outside(self, level: int, centre: Floats, margin: int = 0) -> Floats:
        """Return P(value outside the window, or within ``margin`` of its ends), for each centre."""
        below, above = centre - self.values[margin] + 1, self.values[-1 - margin] - centre + 1
        powers = np.exp(-self.rates[level] * below) + np.exp(-self.rates[level] * above)
        return np.asarray(powers / (1 + math.exp(-self.rates[level])))

    def keep(self, level: int) -> float:
        """Return the probability that the next coarser level keeps the noise of this level.

        See :mod:`expost.mechanisms`.
        """
        fine, coarse = math.exp(-self.rates[level]), math.exp(-self.rates[level - 1])
        return fine / coarse * ((1 - coarse) / (1 - fine)) ** 2

    def law(self, answer: int, passes: Truths) -> OutputLaw:
        """Return the law of the first level whose value passes; ``passes`` is level × value."""
        # P(all coarser levels failed), given the value at this level.
        low = high = np.ones(len(self.values))
        chances: tuple[list[Floats], list[Floats]] = ([], [])
        for level in range(len(self.rates)):
            if level:
                low, high = self._failed(level, low, high, ~passes[level - 1])
            here = self.noise(level, answer)
            for side, before in zip(chances, (low, high), strict=True):
                chance = np.where(passes[level], here * before, 0.0)
                side.append(chance[self.margin : len(chance) - self.margin])
        nothing = [float((here * before * ~passes[-1]).sum()) for before in (low, high)]
        lost = float(self.outside(len(self.rates) - 1, np.array(float(answer))))
        down, up = 1 - ROUNDING, 1 + ROUNDING
        least, most = np.asarray(nothing[0] * down), np.asarray((nothing[1] + lost) * up)
        return OutputLaw(np.stack(chances[0]) * down, np.stack(chances[1]) * up, least, most)

    def unseen(self, answer: int) -> float:
        """Return an upper bound of the probability that the released value is not listed."""
        return sum(
            float(self.outside(level, np.array(float(answer)), self.margin))
            for level in range(len(self.rates))
        )

    def _failed(
        self, level: int, low: Floats, high: Floats, failing: Truths
    ) -> tuple[Floats, Floats]:
        """Go one level finer: P(all coarser levels failed), given the value at this level."""
        keep, ratio = self.keep(level), math.exp(-self.rates[level - 1])
        distance = np.abs(self.values[:, None] - self.values)
        fresh = (1 - keep) * (1 - ratio) / (1 + ratio) * np.exp(-self.rates[level - 1] * distance)
        lost = (1 - keep) * self.outside(level - 1, self.values)  # it may fail or pass outside
        failed = [keep * failing * each + fresh @ (failing * each) for each in (low, high)]
        return failed[0], np.minimum(failed[1] + lost, 1.0)
