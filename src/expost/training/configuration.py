"""How a model is trained, and the promise that follows from exactly that.

A step takes each of the n rows independently with probability q = batch_size / n; a training makes ⌈epochs · n / batch_size⌉ steps (the
ratio to the nearest double first, so that 0.1 epochs of ten batches are one step, not two). The promise is that of the steps made, under
add-remove neighbours (:mod:`expost.privacy.dpsgd`); n and all settings are public.
Tests: ``tests/training/test_configuration.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.dpsgd import calibrate_noise, dpsgd_curves
from expost.privacy.guarantees import RenyiDP
from expost.privacy.orders import INTEGER_ORDERS
from expost.rationals import Number, count_of, exact, exact_positive

OPTIMISERS = ("sgd", "momentum", "adam")
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam, as in torch
_LEAST, _MOST = 1e-100, 1e100


class TrainingPlan(NamedTuple):
    """What is executed: this many steps at this sampling rate with noise of this many clipping norms."""

    sampling_rate: float
    steps: int
    noise_multiplier: float


@dataclass(frozen=True)
class Configuration:
    """Public settings of one DP-SGD training.

    ``batch_size``        the *expected* batch size; also what the noisy sum is divided by
    ``clip``              the largest ℓ2 norm of an example's gradient, over all parameters
    ``noise_multiplier``  standard deviation of the noise on the sum, in clipping norms; or give
    ``epsilon, delta``    and the least noise that keeps (ε, δ)-DP is used
    ``optimiser``         "sgd"; "momentum": v ← momentum·v + g, w ← w − lr·v; "adam" with β = (0.9, 0.999), as in torch
    """

    learning_rate: float
    epochs: Number
    batch_size: Number
    clip: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    optimiser: str = "sgd"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for field in ("learning_rate", "epochs", "batch_size", "clip"):
            _in_range(exact_positive(getattr(self, field), field), getattr(self, field), field)
        if self.optimiser not in OPTIMISERS:
            raise InvalidInput("optimiser", self.optimiser, "give one of " + ", ".join(OPTIMISERS))
        if not 0 <= exact(self.momentum, "momentum") < 1:
            raise InvalidInput("momentum", self.momentum, "give a number with 0 ≤ momentum < 1")
        if self.noise_multiplier is not None:
            if self.epsilon is not None or self.delta is not None:
                raise InvalidInput(
                    "noise_multiplier",
                    self.noise_multiplier,
                    "give either it, or epsilon and delta",
                )
            noise = exact(self.noise_multiplier, "noise_multiplier")
            if noise < 0:
                raise InvalidInput("noise_multiplier", self.noise_multiplier, "give a number ≥ 0")
            if noise > 0:
                _in_range(noise, self.noise_multiplier, "noise_multiplier")
        elif self.epsilon is None or self.delta is None:
            raise InvalidInput(
                "noise_multiplier",
                None,
                "give a noise multiplier, or epsilon and delta to calibrate it",
            )
        else:
            _in_range(exact_positive(self.epsilon, "epsilon"), self.epsilon, "epsilon")
            if not 0 < exact(self.delta, "delta") < 1:
                raise InvalidInput("delta", self.delta, "give 0 < delta < 1")

    def plan(self, n: int) -> TrainingPlan:
        """Rate, steps and noise on ``n`` rows."""
        return plans([self], n)[0]

    def promise(self, n: int) -> RenyiDP:
        """The Rényi curve of :meth:`plan`; without noise there is none, and that is an error."""
        promise = promises([self.plan(n)])[0]
        if promise is None:
            raise InvalidInput(
                "noise_multiplier",
                self.noise_multiplier,
                "without noise nothing is promised; give more than 0",
            )
        return promise


def _in_range(value: Fraction, given: Number, field: str) -> None:
    """What is executed is float64: no setting, and no product of two, may vanish or overflow there (noise of 0 protects nothing)."""
    if not _LEAST <= value <= _MOST:
        raise InvalidInput(field, given, f"give a number from {_LEAST} to {_MOST}")


def plans(configurations: Sequence[Configuration], n: int) -> list[TrainingPlan]:
    """The plans of many trainings on ``n`` rows; noise is calibrated for all of them together."""
    rows = count_of(n, "n", at_least=1)
    schedule = [_schedule(configuration, rows) for configuration in configurations]
    noises = [configuration.noise_multiplier for configuration in configurations]
    for delta in {configuration.delta for configuration in configurations} - {None}:
        places = [
            place
            for place, configuration in enumerate(configurations)
            if configuration.delta == delta
        ]
        found = calibrate_noise(
            [schedule[place][0] for place in places],
            [schedule[place][1] for place in places],
            [float(configurations[place].epsilon or 0) for place in places],
            float(delta or 0),
        )
        for place, noise in zip(places, found.tolist(), strict=True):
            noises[place] = noise
    return [
        TrainingPlan(rate, steps, float(noise or 0))
        for (rate, steps), noise in zip(schedule, noises, strict=True)
    ]


def promises(planned: Sequence[TrainingPlan]) -> list[RenyiDP | None]:
    """The curve of each plan, None where there is no noise; equal plans share one object, and it is remembered."""
    missing = [
        plan for plan in dict.fromkeys(planned) if plan.noise_multiplier > 0 and plan not in _known
    ]
    if missing:
        rates, steps, noises = (list(column) for column in zip(*missing, strict=True))
        if len(_known) + len(missing) > _MOST_KNOWN:
            _known.clear()
            missing = [plan for plan in dict.fromkeys(planned) if plan.noise_multiplier > 0]
            rates, steps, noises = (list(column) for column in zip(*missing, strict=True))
        _known.update(zip(missing, map(_promise, dpsgd_curves(rates, noises, steps)), strict=True))
    return [_known[plan] if plan.noise_multiplier > 0 else None for plan in planned]


_MOST_KNOWN = 4096
_known: dict[TrainingPlan, RenyiDP] = {}


def _promise(curve: Floats) -> RenyiDP:
    finite = np.isfinite(curve)
    if not finite.any():
        raise InvalidInput(
            "noise_multiplier",
            "too small",
            "the divergence overflows at every order; give more noise",
        )
    return RenyiDP(
        tuple(np.asarray(INTEGER_ORDERS)[finite].tolist()), tuple(curve[finite].tolist())
    )


def _schedule(configuration: Configuration, n: int) -> tuple[float, int]:
    rate = exact(configuration.batch_size, "batch_size") / n
    if rate > 1:
        raise InvalidInput(
            "batch_size",
            configuration.batch_size,
            f"the expected batch of {n} rows is at most {n} (sampling rate > 1)",
        )
    return float(rate), math.ceil(float(exact(configuration.epochs, "epochs") / rate))
