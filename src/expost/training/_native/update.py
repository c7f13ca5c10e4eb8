"""A step's end: noise on the clipped sum, division by the expected batch, and the optimiser. Native kernels.

``settings`` holds what stays the same over a training (:func:`settings_of`).
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
    """A configuration and its plan as plain numbers."""

    rate: float
    expected: float
    clip: float
    noise: float  # standard deviation on the sum
    learning_rate: float
    momentum: float
    optimiser: int  # place in OPTIMISERS


class State(NamedTuple):
    """Parameters, the optimiser's two moments, and scratch, all float64 and flat."""

    parameters: Array
    first: Array
    second: Array
    total: Array
    noise: Array


def settings_of(configuration: Configuration, plan: TrainingPlan) -> StepSettings:
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
    """A training's start at ``parameters`` (copied)."""
    return State(parameters.astype(np.float64), *(np.zeros(len(parameters)) for _ in range(4)))


@kernel
def finish_step(state: State, settings: StepSettings, source: Stream, step: int) -> None:
    """Noise the sum in ``state.total``, average, and move the parameters; ``step`` counts from 1."""
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
