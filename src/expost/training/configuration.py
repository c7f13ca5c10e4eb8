"""Settings of a DP-SGD training, the guarantee that follows from them, and checks of its rows.

A step takes each of the n rows independently with probability q = batch_size / n. A training makes
⌈epochs · n / batch_size⌉ steps. The ratio is first rounded to the nearest double, so that 0.1
epochs of ten batches are one step, not two. The guarantee is that of the steps made
(:mod:`expost.privacy.dpsgd`). All settings and the number n are public.

Neighbours. If n is the number of places of the table, and an empty place contributes nothing, the
guarantee is for zero-out neighbours. If n is a public number that the caller gives, and sampling
rate, steps and exactness depend on it and never on the actual number of rows, the guarantee is for
add-remove neighbours; the actual number may be any. Then sums are exact for up to
:func:`exact_rows` rows in one step (2^24 at least). On CUDA, the slack below covers four times n.

On a CPU, one row moves the sum of a step by the clipping norm at most, exactly. On CUDA, sums are
made by matrix products, whose rounding can add a little
(:func:`expost.training.exact_noise.rounding_slack`). It is part of the plan: the guarantee is
computed for the larger sensitivity, and noise that is derived from epsilon and delta grows with it.

Weight decay and the learning-rate schedule are post-processing of the noisy sums: they depend on
the number of the step and on the parameters only. Class weights are part of the loss: the gradient
of a row is multiplied by the weight of its class and clipped afterwards, so a row still moves the
sum by the clipping norm at most. None of them changes the guarantee.

**Rows** are checked once, before anything is charged. :func:`check_training_data` is called by
every way to start a training. What it refuses depends on the type, the number type and the shape of
the arrays, never on the values in them: a refusal is not noisy, so it must not tell anything about
a row. Shape and number type are public; a list is first converted by NumPy, whose number type then
counts. The number of rows is public too, unless the caller gives a public number of its own: then
no number of rows is refused (:func:`with_a_row`).

A row that cannot be used does not count: a row with NaN or infinity, or with a target that is not
finite or not one of the public classes. Its features become 0 and its target NaN, and every engine
adds nothing for it. So it is like an absent row, and a data set of one class is no error.

Tests: ``tests/training/test_configuration.py``, ``tests/training/test_bad_input.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.privacy.dpsgd import calibrate_noise, dpsgd_curves
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, RenyiDP
from expost.privacy.profiles import DEFAULT_ORDERS, Profile, training_profile
from expost.rationals import Number, count_of, exact, exact_positive
from expost.training.exact_noise import rounding_slack

OPTIMISERS = ("sgd", "momentum", "adam")
SCHEDULES = ("constant", "cosine", "linear")
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam's constants, as in torch
_LEAST, _MOST = 1e-100, 1e100  # range of the settings
_LIGHTEST, _HEAVIEST = 1e-6, 1e6  # range of a class weight
_SPARE, _MANY_ROWS = 4, 1 << 24  # how far the actual number of rows may exceed the public one


class TrainingPlan(NamedTuple):
    """What a training executes."""

    sampling_rate: float
    steps: int
    noise_multiplier: float
    sensitivity: float = 1.0

    @property
    def charged_noise(self) -> float:
        """Noise in units of the sensitivity, rounded down: what the guarantee is computed for."""
        if self.sensitivity == 1.0:
            return self.noise_multiplier
        return math.nextafter(self.noise_multiplier / self.sensitivity, 0.0)


@dataclass(frozen=True)
class Configuration:
    """Public settings of one DP-SGD training.

    Pass either ``noise_multiplier``, or ``epsilon`` and ``delta``.

    Parameters
    ----------
    learning_rate : float
        Step size of the optimiser.
    epochs : number
        Expected number of passes over the data.
    batch_size : number
        *Expected* batch size. The noisy sum is divided by it.
    clip : float
        Clipping norm: the largest ℓ2 norm of the gradient of one example, over all parameters.
    noise_multiplier : float, optional
        Standard deviation of the noise on the sum, in clipping norms. 0 is for simulations only.
    epsilon, delta : float, optional
        The least noise that gives (ε, δ)-DP is used, by the privacy loss distribution of the
        training (:mod:`expost.privacy.loss_distribution`).
    optimiser : {"sgd", "momentum", "adam"}
        "momentum" is v ← momentum·v + g, w ← w − lr·v. "adam" has β = (0.9, 0.999), as in torch.
    momentum : float
        Momentum of the optimiser "momentum", with 0 ≤ momentum < 1.
    weight_decay : float
        Decoupled weight decay: in step t all parameters are first multiplied by
        1 − lr_t·weight_decay. At least 0, and at most 1 / ``learning_rate``.
    schedule : {"constant", "cosine", "linear"}
        Learning rate lr_t of step t = 1, …, T: "cosine" is lr·(1 + cos(π(t − 1)/T))/2, "linear" is
        lr·(1 − (t − 1)/T).
    class_weights : sequence of float, optional
        One public number from 1e-6 to 1e6 per class, by which the loss of a row of this class is
        multiplied, before clipping. For the losses "logistic" and "softmax" only.

    Raises
    ------
    InvalidInput
        If a setting is missing or not valid.
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
    weight_decay: float = 0.0
    schedule: str = "constant"
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("learning_rate", "epochs", "batch_size", "clip"):
            _in_range(exact_positive(getattr(self, field), field), getattr(self, field), field)
        if self.optimiser not in OPTIMISERS:
            raise InvalidInput("optimiser", self.optimiser, "pass one of " + ", ".join(OPTIMISERS))
        if not 0 <= exact(self.momentum, "momentum") < 1:
            raise InvalidInput("momentum", self.momentum, "pass a number with 0 ≤ momentum < 1")
        self._check_decay()
        if self.schedule not in SCHEDULES:
            raise InvalidInput("schedule", self.schedule, "pass one of " + ", ".join(SCHEDULES))
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", _weights(self.class_weights))
        if self.noise_multiplier is not None:
            if self.epsilon is not None or self.delta is not None:
                raise InvalidInput(
                    "noise_multiplier",
                    self.noise_multiplier,
                    "pass either noise_multiplier, or epsilon and delta",
                )
            noise = exact(self.noise_multiplier, "noise_multiplier")
            if noise < 0:
                raise InvalidInput("noise_multiplier", self.noise_multiplier, "pass a number ≥ 0")
            if noise > 0:
                _in_range(noise, self.noise_multiplier, "noise_multiplier")
        elif self.epsilon is None or self.delta is None:
            raise InvalidInput(
                "noise_multiplier",
                None,
                "pass noise_multiplier, or both epsilon and delta",
            )
        else:
            _in_range(exact_positive(self.epsilon, "epsilon"), self.epsilon, "epsilon")
            if not 0 < exact(self.delta, "delta") < 1:
                raise InvalidInput("delta", self.delta, "pass a number with 0 < delta < 1")

    def _check_decay(self) -> None:
        """Refuse a weight decay that is negative, out of range, or changes signs."""
        decay = exact(self.weight_decay, "weight_decay")
        if decay < 0:
            raise InvalidInput("weight_decay", self.weight_decay, "pass a number ≥ 0")
        if decay > 0:
            _in_range(decay, self.weight_decay, "weight_decay")
        if decay * exact(self.learning_rate, "learning_rate") > 1:
            raise InvalidInput(
                "weight_decay",
                self.weight_decay,
                "pass at most 1 / learning_rate: a step would change the sign of the parameters",
            )

    def learning_rates(self, steps: int) -> Floats:
        """Return the learning rates of a training.

        Parameters
        ----------
        steps : int
            Number of steps of the training.

        Returns
        -------
        ndarray
            One number per step, or a single number if the schedule is "constant".
        """
        rate = float(self.learning_rate)
        if self.schedule == "constant":
            return np.array([rate])
        past = np.arange(steps) / steps
        shares = 1.0 - past if self.schedule == "linear" else (1.0 + np.cos(np.pi * past)) / 2
        return np.asarray(rate * shares, dtype=np.float64)

    def plan(self, n: int, *, device: str = "cpu", neighbours: str = ZERO_OUT) -> TrainingPlan:
        """Return sampling rate, steps and noise of the training.

        Parameters
        ----------
        n : int
            Public number of rows.
        device : str
            Where the training is made: "cpu", "cuda" or "cuda:NUMBER".
        neighbours : {"zero-out", "add-remove"}
            "zero-out" if ``n`` is the number of places of the table, "add-remove" if the actual
            number of rows may differ from ``n``.

        Returns
        -------
        TrainingPlan

        Raises
        ------
        InvalidInput
            If the expected batch is larger than ``n``.
        """
        return plans([self], n, device=device, neighbours=neighbours)[0]

    def guarantee(self, n: int, *, device: str = "cpu", neighbours: str = ZERO_OUT) -> RenyiDP:
        """Return the privacy guarantee of the training.

        Parameters
        ----------
        n : int
            Public number of rows.
        device : str
            Where the training is made: "cpu", "cuda" or "cuda:NUMBER".
        neighbours : {"zero-out", "add-remove"}
            As in :meth:`plan`.

        Returns
        -------
        RenyiDP
            The Rényi curve of :meth:`plan`, with the privacy profile.

        Raises
        ------
        InvalidInput
            If there is no noise, and so no guarantee.
        """
        guarantee = guarantees_of([self.plan(n, device=device, neighbours=neighbours)], neighbours)[
            0
        ]
        if guarantee is None:
            raise InvalidInput(
                "noise_multiplier",
                self.noise_multiplier,
                "a training without noise has no privacy guarantee; pass a number > 0",
            )
        return guarantee


def _in_range(value: Fraction, given: Number, field: str) -> None:
    """Refuse a setting out of range.

    Training is in float64, where no setting and no product of two settings may underflow or
    overflow (noise of 0 protects nothing).
    """
    if not _LEAST <= value <= _MOST:
        raise InvalidInput(field, given, f"pass a number from {_LEAST} to {_MOST}")


def _weights(given: object) -> tuple[float, ...]:
    """Return checked class weights.

    They are bounded, so that a gradient whose square underflows stays far below any clipping norm.
    """
    valid = (
        f"pass a list of numbers from {_LIGHTEST} to {_HEAVIEST}, one per class; they are public "
        "and must not be computed from the labels"
    )
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or len(given) < 2:
        raise InvalidInput("class_weights", given, valid)
    weights = tuple(float(exact_positive(weight, "class_weights")) for weight in given)
    if not all(_LIGHTEST <= weight <= _HEAVIEST for weight in weights):
        raise InvalidInput("class_weights", given, valid)
    return weights


def check_class_weights(configurations: Sequence[Configuration], loss: str, outputs: int) -> None:
    """Refuse class weights that do not fit the loss and the number of outputs of the model."""
    classes = 2 if loss == "logistic" else outputs
    for configuration in configurations:
        if configuration.class_weights is None:
            continue
        if loss in ("squared", OWN):
            kind = "a regression" if loss == "squared" else "a loss of the module itself"
            raise InvalidInput(
                "class_weights", configuration.class_weights, f"omit them: {kind} has no classes"
            )
        if len(configuration.class_weights) != classes:
            raise InvalidInput(
                "class_weights",
                configuration.class_weights,
                f"pass {classes} numbers, one per class of the model",
            )


def exact_rows(n: int, neighbours: str) -> int:
    """Return how many rows a step can sum exactly, from the public number of rows alone."""
    return max(_SPARE * n, _MANY_ROWS) if neighbours == ADD_REMOVE else n


def plans(
    configurations: Sequence[Configuration],
    n: int,
    *,
    device: str = "cpu",
    neighbours: str = ZERO_OUT,
) -> list[TrainingPlan]:
    """Return the plans of many trainings on ``n`` rows; all noise is calibrated in one call."""
    rows = count_of(n, "n", at_least=1)
    if neighbours not in (ADD_REMOVE, ZERO_OUT):
        raise InvalidInput("neighbours", neighbours, "pass 'zero-out' or 'add-remove'")
    most = _SPARE * rows if neighbours == ADD_REMOVE else rows
    sensitivity = 1.0 if device == "cpu" else 1.0 + rounding_slack(most)
    schedule = [_schedule(configuration, rows) for configuration in configurations]
    noises = [configuration.noise_multiplier for configuration in configurations]
    for delta in {configuration.delta for configuration in configurations} - {None}:
        indices = [
            index
            for index, configuration in enumerate(configurations)
            if configuration.delta == delta
        ]
        deviations = calibrate_noise(
            sampling_rates=[schedule[index][0] for index in indices],
            steps=[schedule[index][1] for index in indices],
            epsilons=[float(configurations[index].epsilon or 0) for index in indices],
            delta=float(delta or 0),
        )
        for index, noise in zip(indices, deviations.tolist(), strict=True):
            noises[index] = noise if sensitivity == 1.0 else _up(noise * sensitivity)
    return [
        TrainingPlan(rate, steps, float(noise or 0), sensitivity)
        for (rate, steps), noise in zip(schedule, noises, strict=True)
    ]


def _up(noise: float) -> float:
    """Round up by more than a product and a later division round down."""
    return noise * (1.0 + 2.0**-50)


def guarantees_of(
    planned: Sequence[TrainingPlan], neighbours: str = ZERO_OUT
) -> list[RenyiDP | None]:
    """Return the Rényi curve and the profile of each plan, or None where there is no noise.

    ``neighbours`` is the relation for which the plans were made. Curves are cached, and equal plans
    share one object.
    """
    noisy = [plan for plan in dict.fromkeys(planned) if plan.noise_multiplier > 0]
    missing = [plan for plan in noisy if (plan, neighbours) not in _known]
    if missing:
        if len(_known) + len(missing) > _MOST_KNOWN:
            _known.clear()
            missing = noisy
        curves = dpsgd_curves(
            sampling_rates=[plan.sampling_rate for plan in missing],
            noise_multipliers=[plan.charged_noise for plan in missing],
            steps=[plan.steps for plan in missing],
        )
        for plan, curve in zip(missing, curves, strict=True):
            profile = training_profile(plan.sampling_rate, plan.charged_noise, plan.steps)
            _known[plan, neighbours] = _guarantee(curve, neighbours, profile)
    return [_known[plan, neighbours] if plan.noise_multiplier > 0 else None for plan in planned]


_MOST_KNOWN = 4096
_known: dict[tuple[TrainingPlan, str], RenyiDP] = {}


def _guarantee(curve: Floats, neighbours: str, profile: Profile | None) -> RenyiDP:
    """Return a curve as a guarantee at the orders where it is finite."""
    finite = np.isfinite(curve)
    if not finite.any():
        raise InvalidInput(
            "noise_multiplier",
            "too small",
            "the divergence overflows at every order; pass a larger number",
        )
    return RenyiDP(
        tuple(np.asarray(DEFAULT_ORDERS)[finite].tolist()),
        tuple(curve[finite].tolist()),
        neighbours,
        profile,
    )


def _schedule(configuration: Configuration, n: int) -> tuple[float, int]:
    """Return sampling rate and number of steps."""
    rate = exact(configuration.batch_size, "batch_size") / n
    if rate > 1:
        raise InvalidInput(
            "batch_size",
            configuration.batch_size,
            f"pass at most {n}, the number of rows (sampling rate > 1)",
        )
    return float(rate), math.ceil(float(exact(configuration.epochs, "epochs") / rate))


LOSSES = ("squared", "logistic", "softmax")
OWN = "own"
"""The loss of a module that returns the loss of each row as its first output."""
_CHUNK = 1 << 18  # values checked at a time; their flags stay in the cache


def check_training_data(
    X: Any, y: Any, loss: str, classes: int | None, *, dimensions: int | None
) -> tuple[Array, Array]:
    """Return rows and targets that every engine can train on."""
    rows = check_rows(X, dimensions=dimensions)
    targets = _targets(y, len(rows))
    usable = _finite_rows(rows) & _allowed(targets, loss, classes)
    if not usable.all():
        rows = np.where(usable.reshape(-1, *[1] * (rows.ndim - 1)), rows, rows.dtype.type(0))
        targets = np.where(usable, targets, np.nan)
    return np.ascontiguousarray(rows), targets


def with_a_row(X: Any, y: Any) -> tuple[Any, Any]:
    """Return rows and targets, with one row that does not count if there are none.

    For trainings with a public number of rows: there, no rows are no error.
    """
    shape = np.shape(X)
    if len(shape) < 2 or shape[0] != 0 or np.shape(y) != (0,):
        return X, y
    return np.zeros((1, *shape[1:])), np.full(1, np.nan)


def check_rows(X: Any, *, dimensions: int | None) -> Array:
    """Return ``X`` as a float32 or float64 array, whatever its values.

    ``dimensions`` is the required number of axes; None allows any number from 2 on.
    """
    try:
        rows = np.asarray(X)
        if rows.dtype not in (np.float32, np.float64):
            with np.errstate(over="ignore"):  # a number that is too large does not count
                rows = rows.astype(
                    np.float64, casting="same_kind" if rows.dtype.kind in "biuf" else "safe"
                )
    except (TypeError, ValueError, RuntimeError):  # torch tensors raise RuntimeError
        raise InvalidInput(
            "X", type(X).__name__, "pass an array of real numbers with one row per example"
        ) from None
    if rows.ndim < 2 or (dimensions is not None and rows.ndim != dimensions):
        wanted = "at least 2 axes" if dimensions is None else f"{dimensions} axes"
        raise InvalidInput(
            "X",
            f"an array of shape {rows.shape}",
            f"pass an array with {wanted}, the first over examples",
        )
    if rows.size == 0:
        raise InvalidInput(
            "X", f"an array of shape {rows.shape}", "pass at least one row and one column"
        )
    return rows


def _targets(y: Any, rows: int) -> Array:
    """Return ``y`` as a float64 array of one number per row, whatever its values."""
    try:
        targets = np.asarray(y)
        if targets.dtype.kind not in "biuf":
            raise TypeError
        with np.errstate(over="ignore"):
            targets = targets.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            "y", type(y).__name__, "pass an array of real numbers, one per example"
        ) from None
    if targets.shape != (rows,):
        raise InvalidInput(
            "y",
            f"an array of shape {targets.shape}",
            f"pass shape ({rows},), one number per example",
        )
    return targets


def _finite_rows(rows: Array) -> Array:
    """Return which rows hold finite numbers only."""
    step = max(1, _CHUNK // max(1, rows[0].size))
    finite = np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        fine = np.isfinite(part)
        finite[start : start + step] = fine.all() or fine.reshape(len(part), -1).all(axis=1)
    return finite


def _allowed(targets: Array, loss: str, classes: int | None) -> Array:
    """Return which targets are finite and, for a classifier, public classes."""
    fine = np.isfinite(targets)
    if loss in ("squared", OWN):
        return fine
    top = 2 if loss == "logistic" else classes or 0
    with np.errstate(invalid="ignore"):
        return np.asarray(
            fine & (targets >= 0) & (targets < top) & (targets == np.floor(targets)), dtype=bool
        )
