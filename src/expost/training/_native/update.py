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
from expost.training._native.noise import add_lattice_noise, settle
from expost.training.configuration import (
    BETA1,
    BETA2,
    OPTIMISERS,
    TINY,
    Configuration,
    TrainingPlan,
)
from expost.training.exact_noise import Bound, NoiseLattice, clip_bound, lattice_of


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
