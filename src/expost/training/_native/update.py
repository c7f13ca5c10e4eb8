"""End of a training step in the native kernels: noise, division by the expected batch, optimiser.

Noise is added to the sum of clipped gradients (:mod:`expost.training._native.noise`).
:func:`settings_of` collects the numbers that stay the same during a training. Tests:
``tests/training/test_linear.py`` and
``tests/training/test_modules.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel
from expost.training._native.keystream import Stream
from expost.training._native.noise import add_noise, settle
from expost.training.configuration import (
    BETA1,
    BETA2,
    OPTIMISERS,
    TINY,
    Configuration,
    TrainingPlan,
)
from expost.training.exact_noise import Bound, Lattice, clip_bound, lattice_of


class StepSettings(NamedTuple):
    """Numbers of a configuration and its plan."""

    rate: float
    expected: float
    bound: Bound
    lattice: Lattice
    learning_rates: Array  # one per step, or a single one
    weight_decay: float
    momentum: float
    optimiser: int  # index in OPTIMISERS


class State(NamedTuple):
    """Parameters, the two moments of the optimiser, the sum, and its open coordinates; flat."""

    parameters: Array
    first: Array
    second: Array
    total: Array
    open: Array  # uint8: coordinates whose noise is not decided yet


def settings_of(
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


def state_of(parameters: Array) -> State:
    """Return the initial state of a training that begins at ``parameters`` (copied)."""
    first, second, total = (np.zeros(len(parameters)) for _ in range(3))
    open_ = np.zeros(len(parameters), dtype=np.uint8)
    return State(parameters.astype(np.float64), first, second, total, open_)


@kernel
def noisy(state: State, settings: StepSettings, source: Stream) -> int:
    """Add noise to ``state.total``; return the number of coordinates that are left open."""
    if settings.lattice.noise == 0.0:
        return 0
    return add_noise(source, state.total, state.open, settings.lattice)


@kernel
def update(state: State, settings: StepSettings, step: int) -> None:
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
        for place in range(len(parameters)):
            parameters[place] *= kept
    if settings.optimiser == 0:
        for place in range(len(total)):
            parameters[place] -= rate * scale * total[place]
    elif settings.optimiser == 1:
        for place in range(len(total)):
            first[place] = settings.momentum * first[place] + scale * total[place]
            parameters[place] -= rate * first[place]
    else:
        fade1, fade2 = 1.0 - BETA1**step, 1.0 - BETA2**step
        for place in range(len(total)):
            gradient = scale * total[place]
            first[place] = BETA1 * first[place] + (1.0 - BETA1) * gradient
            second[place] = BETA2 * second[place] + (1.0 - BETA2) * gradient * gradient
            parameters[place] -= (
                rate * (first[place] / fade1) / (math.sqrt(second[place] / fade2) + TINY)
            )


def settle_state(state: State, settings: StepSettings, source: Stream) -> None:
    """Decide the open coordinates of ``state.total`` exactly."""
    settle(source, state.total, state.open, settings.lattice)
