"""What the mechanisms of Tables 1 and 2 share: the acceptance rule, and paying for the threads.

Simulations in floating point: for experiments, not for private releases.
Tests: ``tests/reproduction/test_counting_tables.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats

Generator = np.random.Generator

WITHIN = 0.1
LEAST = (2 + WITHIN) / WITHIN  # the σ-rule accepts ŷ ≥ σ·(2+w)/w
DELTA = 1e-6


@dataclass(frozen=True, eq=False)
class Result:
    """Per trial: the number of counts accepted and paid for, and how many are within 10 %."""

    answers: Floats
    right: Floats

    @classmethod
    def join(cls, parts: Sequence[Result]) -> Result:
        """Concatenate the trials of several results."""
        return cls(
            np.concatenate([part.answers for part in parts]),
            np.concatenate([part.right for part in parts]),
        )


Mechanism = Callable[[Floats, Generator], Result]
Attempt = tuple[Any, Any, Any, Any, Any]
"""Worst case, cost, level, estimate, good: each an array over trials."""


def tally(truth: Floats, estimates: Floats, costs: Floats, total: float) -> Result:
    """Count the threads that the budget pays for, in order.

    A thread that was never accepted has infinite cost.
    """
    paid = np.cumsum(costs, axis=1) <= total + 1e-12
    right = np.abs(estimates - truth) <= WITHIN * truth
    return Result(paid.sum(axis=1).astype(float), (paid & right).sum(axis=1).astype(float))


def first_accepted(
    noisy: Floats, scales: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the first level (axis 0) whose value the σ-rule accepts, and whether one exists."""
    accepted = np.asarray(noisy >= LEAST * scales[:, None, None])
    return np.asarray(accepted.argmax(axis=0)), np.asarray(accepted.any(axis=0))


def take(noisy: Floats, level: npt.NDArray[np.int64]) -> Floats:
    """Return the values at the chosen levels."""
    return np.asarray(np.take_along_axis(noisy, level[None], axis=0)[0])


def refining(
    truth: Floats,
    noise: Floats,
    grid: Floats,
    scales: Floats,
    price: Callable[[Any], Floats],
    total: float,
) -> Result:
    """Go from coarse to fine noise until the σ-rule accepts; pay the price of that level."""
    noisy = truth + noise.reshape(len(grid), *truth.shape)
    level, found = first_accepted(noisy, scales)
    return tally(truth, take(noisy, level), np.where(found, price(level), np.inf), total)


def one_shot(
    truth: Floats,
    kept: Any,
    noisy: Floats,
    scales: Floats,
    charges: Floats,
    nothing: float,
    total: float,
) -> Result:
    """Try each thread once.

    The cheapest good kept level wins, else the cheapest kept level. The next thread follows in any
    case.
    """
    good = kept & (noisy >= LEAST * scales)
    winner = np.where(good.any(axis=0), good.argmax(axis=0), kept.argmax(axis=0))
    costs = np.where(kept.any(axis=0), charges[winner], nothing)
    answered = (np.cumsum(costs, axis=1) <= total + 1e-12) & good.any(axis=0)
    right = answered & (np.abs(take(noisy, winner) - truth) <= WITHIN * truth)
    return Result(answered.sum(axis=1).astype(float), right.sum(axis=1).astype(float))


@dataclass(frozen=True, eq=False)
class Ladder:
    """A grid of levels (costs and noise scales) for threads that are tried one after another.

    The level that a thread needs is guessed from the last answer.
    """

    grid: Floats
    scales: Floats
    total: float

    def sequential(
        self,
        truth: Floats,
        generator: Generator,
        attempt: Callable[[Floats, Any, Generator], Attempt],
    ) -> Result:
        """Try one thread after another; ``attempt`` tries one, for all trials at once.

        The first guess is the coarsest level. A failed attempt is paid, and another one follows
        with a finer guess. A good attempt ends the thread and sets the next guess.
        """
        trials, threads = truth.shape
        guess, left = np.zeros(trials, dtype=int), np.full(trials, self.total)
        thread, answers, right = np.zeros(trials, dtype=int), np.zeros(trials), np.zeros(trials)
        running = np.ones(trials, dtype=bool)
        while running.any():
            sizes = truth[np.arange(trials), np.minimum(thread, threads - 1)]
            worst, cost, level, estimate, good = attempt(
                sizes, np.clip(guess, 0, len(self.grid) - 1), generator
            )
            # The filter checks the worst case, then pays the cost.
            running &= (worst <= left + 1e-12) & (thread < threads)
            left = np.where(running, left - cost, left)
            won = running & good
            answers += won
            right += won & (np.abs(estimate - sizes) <= WITHIN * sizes)
            thread = np.where(won, thread + 1, thread)
            guess = np.where(won, level, np.where(running, guess + 1, guess))
            running &= guess < len(self.grid)
        return Result(answers, right)


@dataclass(frozen=True)
class Tuning:
    """Settings of a private run of Algorithm 3 on one thread; see scripts/tune_counting.py."""

    overhead: float  # ε′ as a fraction of the first level's rate
    offsets: tuple[int, ...]  # levels tried, counted from the guess
    copies: tuple[int, ...]
    order: float = 32.0  # Rényi order of the filter (Table 2)


def dropped_runs(
    sizes: Floats,
    rates: Floats,
    overhead: Floats,
    scales: Floats,
    copies: Any,
    laplace: bool,
    generator: Generator,
) -> tuple[Any, Floats]:
    """Return which copies are kept (levels × copies × trials), and their noisy counts.

    Conditioned on at least one copy being kept.
    """
    most = int(copies.max())
    kept = np.zeros((len(rates), most, len(sizes)), dtype=bool)
    exists = np.arange(most)[None, :, None] < copies[:, None, None]
    empty: Any = np.ones(len(sizes), dtype=bool)
    while empty.any():
        drop = generator.exponential(1.0, len(sizes)) / overhead
        drop = np.floor(drop) if laplace else drop  # Geom(e^{−ε′}) is the floor of Exp(ε′)
        fresh = exists & (generator.random(kept.shape) < np.exp(-rates * drop)[:, None, :])
        kept = np.where(empty, fresh, kept)
        empty = ~kept.any(axis=(0, 1))
    noise = (
        generator.laplace(0.0, 1.0, kept.shape)
        if laplace
        else generator.normal(0.0, 1.0, kept.shape)
    )
    return kept, sizes + noise * scales[:, None, :]


def cheapest_good(
    kept: Any, noisy: Floats, levels: Any, scales: Floats, charges: Floats
) -> Attempt:
    """Return the first good kept copy in ascending order of level, else the first kept one."""
    good = kept & (noisy >= LEAST * scales[:, None, :])
    flat_kept, flat_good = kept.reshape(-1, kept.shape[-1]), good.reshape(-1, good.shape[-1])
    winner = np.where(flat_good.any(axis=0), flat_good.argmax(axis=0), flat_kept.argmax(axis=0))
    row = winner // kept.shape[1]
    trial = np.arange(kept.shape[-1])
    estimate = noisy.reshape(-1, kept.shape[-1])[winner, trial]
    return (
        charges.max(axis=0),
        charges[row, trial],
        levels[row, trial],
        estimate,
        flat_good.any(axis=0),
    )
