"""End of a training step in the native kernels: noise, division by the expected batch, optimiser.

Noise is added to the sum of clipped gradients. :func:`settings_of` collects the numbers that stay
the same during a training. Tests: ``tests/training/test_linear.py`` and
``tests/training/test_modules.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel
from expost.training._native.keystream import Stream, gaussians
from expost.training.configuration import (
    BETA1,
    BETA2,
    OPTIMISERS,
    TINY,
    Configuration,
    TrainingPlan,
)


class StepSettings(NamedTuple):
    """Numbers of a configuration and its plan."""

    rate: float
    expected: float
    clip: float
    noise: float  # standard deviation of the noise on the sum
    learning_rate: float
    momentum: float
    optimiser: int  # index in OPTIMISERS


class State(NamedTuple):
    """Parameters, the two moments of the optimiser, and scratch; all float64 and flat."""

    parameters: Array
    first: Array
    second: Array
    total: Array
    noise: Array


def settings_of(configuration: Configuration, plan: TrainingPlan) -> StepSettings:
    """Return the numbers that a training needs in every step."""
    return StepSettings(
        plan.sampling_rate,
        float(configuration.batch_size),
        float(configuration.clip),
        float(configuration.clip) * plan.noise_multiplier,
        float(configuration.learning_rate),
        float(configuration.momentum),
        OPTIMISERS.index(configuration.optimiser),
    )


def state_of(parameters: Array) -> State:
    """Return the initial state of a training that begins at ``parameters`` (copied)."""
    return State(parameters.astype(np.float64), *(np.zeros(len(parameters)) for _ in range(4)))


@kernel
def finish_step(state: State, settings: StepSettings, source: Stream, step: int) -> None:
    """Add noise to ``state.total``, average, and update the parameters; ``step`` counts from 1."""
    parameters, first, second, total, noise = (
        state.parameters,
        state.first,
        state.second,
        state.total,
        state.noise,
    )
    if settings.noise > 0.0:
        gaussians(source, noise)
        for place in range(len(total)):
            total[place] += settings.noise * noise[place]
    scale, rate = 1.0 / settings.expected, settings.learning_rate
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
