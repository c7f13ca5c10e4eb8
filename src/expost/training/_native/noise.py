"""End of a training step in the native kernels: exact rounded Gaussian noise, then the optimiser.

:func:`add_lattice_noise` adds noise to a sum and rounds it to a lattice. Every coordinate is
decided from two words of the keystream in float64, with a proven bound on the error
(:mod:`expost.training.exact_noise` defines the release and has the proof). A coordinate that the
bound does not decide is left open: its sum stays as it is and ``open`` is set there. Then the
kernel returns to the host, where :func:`settle` finds the same words again and decides by exact
arithmetic with further digits from a reserved stream of the same key.

:func:`step_settings` collects the numbers that stay the same during a training.

Tests: ``tests/training/test_exact_noise.py``, ``tests/training/test_linear.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from expost.arrays import Array
from expost.randomness.samplers import (
    CONSTANT_ERROR,
    LAST,
    LENGTH_ERROR,
    RADIUS_ERROR,
    UNREAD,
    NoiseLattice,
    decided_release,
)
from expost.training._native.compiled import kernel, ordered
from expost.training._native.keystream import (
    WORDS,
    Stream,
    further_digits,
    logarithm,
    refill,
    turn,
)
from expost.training.configuration import (
    BETA1,
    BETA2,
    OPTIMISERS,
    TINY,
    Configuration,
    TrainingPlan,
)
from expost.training.exact_noise import Bound, clip_bound, lattice_of

_PAIRS = WORDS // 2  # pairs of coordinates per refill; 16 blocks of the keystream


@ordered
def scaled_pairs(
    radii: Array, angles: Array, deviation: float, first: Array, second: Array, errors: Array
) -> None:
    """Write both Gaussians of each pair, times ``deviation``, and the bound on their error."""
    for pair in range(len(errors)):
        u = np.float64(np.int64((radii[pair] >> np.uint64(1)) | np.uint64(1))) * LAST
        r = math.sqrt(-2.0 * logarithm(u))
        length, (x, y) = deviation * r, turn(angles[pair])
        first[pair], second[pair] = length * x, length * y
        rest = u - LAST  # 0 where all leading digits are 0: then the error is infinite
        unread = (LENGTH_ERROR * rest + UNREAD) / (rest * r)
        errors[pair] = deviation * (RADIUS_ERROR * r + unread) + CONSTANT_ERROR


@ordered
def _round(total: Array, noise: Array, errors: Array, scale: float, step: float, out: Array) -> int:
    """Write the rounded noisy sums; return whether a coordinate is not decided."""
    doubts = 0
    for index in range(len(total)):
        s = total[index] * scale
        whole = np.floor(s + 0.5)
        t = (s - whole) + noise[index]
        near = np.floor(t + 0.5)
        out[index] = (whole + near) * step
        doubts |= not (0.5 - abs(t - near) > errors[index])
    return doubts


@kernel
def _keep_decided(
    total: Array, noise: Array, errors: Array, scale: float, out: Array, open_: Array
) -> int:
    """Restore the sums that are not decided, and mark them; return their number."""
    count = 0
    for index in range(len(total)):
        s = total[index] * scale
        t = (s - np.floor(s + 0.5)) + noise[index]
        if not (0.5 - abs(t - np.floor(t + 0.5)) > errors[index]):
            out[index] = total[index]
            open_[index] = 1
            count += 1
    return count


@ordered
def _copy(source: Array, target: Array) -> None:
    """Copy; a slice assignment would look for overlaps and shapes first."""
    for index in range(len(target)):
        target[index] = source[index]


@kernel
def add_lattice_noise(source: Stream, total: Array, open_: Array, lattice: NoiseLattice) -> int:
    """Replace ``total`` by round((total + noise) / step)·step, except for open coordinates.

    Whole buffers are used; the unused words of the last one are discarded, so that no word is used
    twice. Return the number of open coordinates.
    """
    source.noise_state[:] = source.state
    source.noise_fast[:] = source.fast
    noise, errors, out = np.empty(WORDS), np.empty(_PAIRS), np.empty(_PAIRS)
    done, wanted, doubts = 0, len(total), 0
    while done < wanted:
        refill(source)
        pairs = min(_PAIRS, (wanted - done + 1) // 2)
        scaled_pairs(
            source.words[:pairs],
            source.words[_PAIRS : _PAIRS + pairs],
            lattice.deviation,
            noise[:pairs],
            noise[_PAIRS : _PAIRS + pairs],
            errors[:pairs],
        )
        for half in range(2):
            count = min(pairs, wanted - done)
            mine, drawn = total[done : done + count], noise[half * _PAIRS : half * _PAIRS + count]
            if _round(mine, drawn, errors[:count], lattice.scale, lattice.step, out[:count]):
                doubts += _keep_decided(
                    mine, drawn, errors[:count], lattice.scale, out, open_[done : done + count]
                )
            _copy(out[:count], mine)
            done += count
    source.used[0] = WORDS
    return doubts


@kernel
def _words_again(source: Stream, radii: Array, angles: Array) -> None:
    """Write the words of every coordinate's pair; ``source`` is at the beginning of the noise."""
    done, wanted = 0, len(radii)
    while done < wanted:
        refill(source)
        pairs = min(_PAIRS, (wanted - done + 1) // 2)
        for _ in range(2):
            count = min(pairs, wanted - done)
            radii[done : done + count] = source.words[:count]
            angles[done : done + count] = source.words[_PAIRS : _PAIRS + count]
            done += count


def settle(source: Stream, total: Array, open_: Array, lattice: NoiseLattice) -> None:
    """Decide the open coordinates of ``total`` exactly."""
    again = source._replace(
        words=np.zeros_like(source.words),
        used=np.full(1, WORDS, dtype=np.int64),
        state=source.noise_state.copy(),
        fast=source.noise_fast.copy(),
    )
    begun = int(again.state[12]) | int(again.state[13]) << 32
    radii, angles = np.empty(len(total), dtype=np.uint64), np.empty(len(total), dtype=np.uint64)
    _words_again(again, radii, angles)
    for index in np.flatnonzero(open_).tolist():
        buffer, inside = divmod(index, WORDS)
        pairs = min(_PAIRS, (len(total) - buffer * WORDS + 1) // 2)
        # a refill advances the counter by 16 blocks and holds 64 pairs
        number = 4 * begun + _PAIRS * buffer + inside % pairs

        def more(part: int, number: int = number) -> tuple[int, int]:
            return further_digits(source.state, number, part)

        words = int(radii[index]), int(angles[index])
        total[index] = decided_release(float(total[index]), lattice, words, inside >= pairs, more)
        open_[index] = 0


def make_steps(
    run: Callable[[int, int, bool], int], settle_now: Callable[[], None], done: int, steps: int
) -> None:
    """Call ``run(done, steps, resumed)`` until all steps are made; decide open ones in between."""
    end, resumed = done + steps, False
    while True:
        done = run(done, end - done, resumed)
        if done == end:
            return
        settle_now()
        resumed = True


class StepSettings(NamedTuple):
    """Numbers of a configuration and its plan."""

    rate: float
    expected: float
    bound: Bound
    lattice: NoiseLattice
    learning_rates: Array  # one per step, or a single one
    weight_decay: float
    momentum: float
    optimiser: int  # index in OPTIMISERS


class TrainingState(NamedTuple):
    """Parameters, the two moments of the optimiser, the sum, and its open coordinates; flat."""

    parameters: Array
    first: Array
    second: Array
    total: Array
    open: Array  # uint8: coordinates whose noise is not decided yet


def step_settings(
    configuration: Configuration, plan: TrainingPlan, width: int, rows: int
) -> StepSettings:
    """Return the numbers that a training of ``width`` parameters needs in every step."""
    return StepSettings(
        plan.sampling_rate,
        float(configuration.batch_size),
        clip_bound(float(configuration.clip), width, rows),
        lattice_of(float(configuration.clip), plan.noise_multiplier),
        configuration.learning_rates(plan.steps),
        float(configuration.weight_decay),
        float(configuration.momentum),
        OPTIMISERS.index(configuration.optimiser),
    )


def state_of(parameters: Array) -> TrainingState:
    """Return the initial state of a training that begins at ``parameters`` (copied)."""
    first, second, total = (np.zeros(len(parameters)) for _ in range(3))
    open_ = np.zeros(len(parameters), dtype=np.uint8)
    return TrainingState(parameters.astype(np.float64), first, second, total, open_)


@kernel
def noisy(state: TrainingState, settings: StepSettings, source: Stream) -> int:
    """Add noise to ``state.total``; return the number of coordinates that are left open."""
    if settings.lattice.noise == 0.0:
        return 0
    return add_lattice_noise(source, state.total, state.open, settings.lattice)


@kernel
def update(state: TrainingState, settings: StepSettings, step: int) -> None:
    """Average the noisy sum and update the parameters; ``step`` counts from 1."""
    parameters, first, second, total = (
        state.parameters,
        state.first,
        state.second,
        state.total,
    )
    rates = settings.learning_rates
    scale, rate = 1.0 / settings.expected, rates[min(step, len(rates)) - 1]
    if settings.weight_decay != 0.0:
        kept = 1.0 - rate * settings.weight_decay
        for index in range(len(parameters)):
            parameters[index] *= kept
    if settings.optimiser == 0:
        for index in range(len(total)):
            parameters[index] -= rate * scale * total[index]
    elif settings.optimiser == 1:
        for index in range(len(total)):
            first[index] = settings.momentum * first[index] + scale * total[index]
            parameters[index] -= rate * first[index]
    else:
        fade1, fade2 = 1.0 - BETA1**step, 1.0 - BETA2**step
        for index in range(len(total)):
            gradient = scale * total[index]
            first[index] = BETA1 * first[index] + (1.0 - BETA1) * gradient
            second[index] = BETA2 * second[index] + (1.0 - BETA2) * gradient * gradient
            parameters[index] -= (
                rate * (first[index] / fade1) / (math.sqrt(second[index] / fade2) + TINY)
            )


def settle_state(state: TrainingState, settings: StepSettings, source: Stream) -> None:
    """Decide the open coordinates of ``state.total`` exactly."""
    settle(source, state.total, state.open, settings.lattice)
