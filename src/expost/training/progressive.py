"""Train a linear model step by step with all rows, and pay for the steps that were made.

Step t releases S_t + N(0, (Δ/μ_t)²), where S_t = Σ_i clip(∇ℓ(w_t; x_i, y_i)) is the sum of the
clipped gradients of *all* training rows at the released weights w_t, and Δ bounds what one row
contributes. Everything else (weights, step lengths, averages) is computed from what was released.

**Claim** (docs/theory.md, "Training until it passes"). The first t steps together are √(μ_1² + … +
μ_t²)-Gaussian DP, because each is a Gaussian mechanism at a point that depends on the released
steps before it only. So a level that allows μ_i-Gaussian DP may make steps as long as their squared
μ add up to at most μ_i². Stopping at a level by any rule that uses what was released, and coins,
costs that level (:class:`expost.selection.noise_path.PathSearch`).

**Sums are exact.** Entries of rows are whole multiples of 2^{−15}, rounded towards zero, which
makes no row longer. Weights are rounded to a power of two so small that a product of a row and the
weights is exact in double precision in any order. Residuals are scaled to norm at most c·(1 −
2^{−30}), rounded towards zero to multiples of 2^{−24}. Products of both, and sums of 1,024 such
products (8,192 of compact rows), are whole numbers below 2^{53} times 2^{−39}; parts are added as
64-bit integers, and sums of more than 2^{23} rows as integers of any size. A row that is longer
than 1 counts as zero. So one row moves the exact sum by at most c, whatever the order of the rows
and the number of threads or machines. The conversion of the sum to floating point moves it by at
most 2^{−53} of itself per coordinate; the sensitivity contains this for 2^{30} rows in each of two
neighbouring data sets. Exponentials use only + − × ÷, so a row's residual is the same on every
machine. Rows of one person have shares that add up to 1, and each moves the sum by at most its
share of c, so together they move it by at most c (:mod:`expost.tuning.rows.job_columns`).

**The rule** has no learning rate to choose. With noise of standard deviation τ_t per coordinate of
the mean gradient, the weights follow the ridge problem g(w) + w/T_t = 0 whose time T_t grows as the
noise falls: T_t = a/(τ_t·√(κ/2))·max(1, s_t)^p. There τ_t·√(κ/2) is the noise of an average over
the last 1/κ steps, so that a is the noise in a prediction, and s_t is the measured ratio of signal
to noise of the gradient. A step has the length κ·T_t, up to a limit that follows the curvature
which consecutive gradients show, with momentum β. Constants were chosen on eight data sets and four
made-up tables (docs/progressive.md).

Tests: ``tests/training/test_progressive.py``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.randomness.samplers import add_gaussian, lattice_for
from expost.randomness.source import RunKey
from expost.rationals import count_of
from expost.training.lattice_rows import BLOCK, ROW_BITS, CompactRows, whole_rows

PART = 1024
RESIDUAL_BITS = 24
_PRODUCT_BITS = 53 - ROW_BITS  # bits of weights whose product with a row is exact
_SHORTER = 1 - 2.0**-30
_ROWS_AT_MOST = 2.0**30
_LONGEST = 64.0  # of the limit of a step
_ROWS_OF_64_BITS = 2**23  # rows whose sum is below 2^{63} in absolute value, whatever they are
_KEPT_BYTES = 2**30  # rows are kept as doubles up to this size, otherwise compact

CURVATURE = {"logistic": 0.25, "softmax": 0.5, "squared": 1.0}
"""A bound on the Hessian of the mean loss for rows of norm at most 1."""


@dataclass(frozen=True)
class Rule:
    """How weights follow the released gradients. All of it is public and free."""

    scale: float = 1.0
    growth: float = 0.25
    memory: float = 0.04
    momentum: float = 0.8
    limit: float = 7.0
    lengthening: float = 1.08


@dataclass(frozen=True)
class LinearTraining:
    """What is trained: a linear model on rows of norm at most 1. All of it is public."""

    loss: str
    width: int
    places: int
    classes: int = 2
    clip: float = 0.25
    class_weights: tuple[float, ...] | None = None
    rule: Rule = field(default_factory=Rule)

    def __post_init__(self) -> None:
        if self.loss not in CURVATURE:
            raise InvalidInput("loss", self.loss, "choose from " + ", ".join(CURVATURE))
        for name in ("width", "places"):
            count_of(getattr(self, name), name, at_least=1)
        count_of(self.classes, "classes", at_least=2)
        if not 2.0**-10 <= self.clip <= 1:
            raise InvalidInput("clip", self.clip, "give a number from 0.001 to 1")
        weights = self.class_weights
        if weights is not None and (
            self.loss == "squared"
            or len(weights) != self.classes
            or not all(0 <= weight <= 1 for weight in weights)
        ):
            raise InvalidInput("class_weights", weights, "give one number from 0 to 1 per class")

    @property
    def outputs(self) -> int:
        """Number of linear outputs."""
        return self.classes if self.loss == "softmax" else 1

    @property
    def dimension(self) -> int:
        """Number of weights."""
        return self.width * self.outputs

    @property
    def sensitivity(self) -> float:
        """How much one row, or one person, moves the sum of gradients that is released, in ℓ2.

        The clipping norm, and the rounding of two sums of 2^{30} rows to doubles.
        """
        rounding = 2 * _ROWS_AT_MOST * 2.0**-53 * math.sqrt(self.dimension)
        return (self.clip + rounding) * (1 + 2.0**-40)

    @property
    def first_square(self) -> float:
        """μ² of the first step: noise twice as large as any gradient."""
        return 0.25 * self.dimension / self.places**2

    def start(self, key: RunKey) -> Descent:
        """Return the weights before the first step: zero, whatever the key."""
        return Descent(self)

    def rows_of(
        self, rows: Array, targets: Array, device: str, shares: Floats | None = None
    ) -> TrainingRows:
        """Return rows in the form that is summed."""
        return TrainingRows.of(rows, targets, self, shares=shares, device=device)

    def exact_sum(self, rows: Any, descent: Descent, step: int) -> Floats:
        """Return the sum of the clipped gradients as numbers, of the shape of the weights."""
        total = rows.gradient_sum(descent.weights, self)
        return np.asarray(np.ldexp(total.astype(np.float64), -(ROW_BITS + RESIDUAL_BITS)))

    def residuals(self, outputs: Floats, targets: Floats, shares: Floats) -> Floats:
        """Return whole numbers of steps 2^{−24}: the clipped derivative of each row's loss.

        A row counts with its share of one unit of privacy, from 0 (absent) to 1.
        """
        if self.loss == "squared":
            errors = outputs - (targets[:, None] - 0.5)
        elif self.loss == "logistic":
            decay = exponential(-np.abs(outputs))
            upper = np.where(outputs > 0, 1.0, decay) / (1.0 + decay)
            errors = upper - targets[:, None]
        else:
            weights = exponential(outputs - outputs.max(axis=1, keepdims=True))
            total = weights[:, 0].copy()
            for output in range(1, weights.shape[1]):  # in one order, on every machine
                total += weights[:, output]
            errors = weights / total[:, None]
            errors[np.arange(len(errors)), targets.astype(np.int64)] -= 1.0
        if self.class_weights is not None:
            errors *= np.array(self.class_weights)[targets.astype(np.int64)][:, None]
        square = errors[:, 0] * errors[:, 0]
        for output in range(1, errors.shape[1]):
            square += errors[:, output] * errors[:, output]
        with np.errstate(divide="ignore"):
            factor = np.minimum(1.0, self.clip * _SHORTER / np.sqrt(square))
        factor = np.where(shares > 0, factor * shares, 0.0)
        return np.trunc(errors * factor[:, None] * 2.0**RESIDUAL_BITS)


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows:
    """Rows as whole numbers of steps 2^{−15}, with their targets."""

    parts: list[tuple[Any, Floats, Floats]]

    @classmethod
    def of(
        cls,
        rows: Array,
        targets: Array,
        training: LinearTraining,
        *,
        shares: Floats | None = None,
        compact: bool | None = None,
        device: str = "cpu",
    ) -> TrainingRows:
        """Round rows towards zero; longer ones than 1 are zero, and without a target absent.

        ``shares``: those of rows of one person add up to at most 1; by default all are 1.

        ``compact`` chooses the form; by default large tables are compact. Every form, and every
        device, gives the same sums.
        """
        block: Callable[[Floats], Any] = CompactRows.of
        if device != "cpu":
            from expost.training._torch.device_rows import DeviceRows

            compact, block = True, partial(DeviceRows, device=device)
        values = np.asarray(targets, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            if training.loss == "squared":
                present = (values >= 0) & (values <= 1)
            else:
                present = (values >= 0) & (values < training.classes) & (values == np.rint(values))
        clean = np.where(present, values, 0.0)
        counts = np.where(present, 1.0 if shares is None else shares, 0.0)
        if compact is None:
            compact = rows.size * 8 > _KEPT_BYTES
        parts: list[tuple[Any, Floats, Floats]] = []
        for start in range(0, len(rows), BLOCK if compact else PART):
            some = slice(start, start + (BLOCK if compact else PART))
            whole, goals, there = whole_rows(rows[some]), clean[some], counts[some]
            if compact:
                parts.append((block(whole), goals, there))
                continue
            missing = PART - len(whole)  # products of one shape
            goals, there = np.pad(goals, (0, missing)), np.pad(there, (0, missing))
            parts.append((np.pad(whole, ((0, missing), (0, 0))), goals, there))
        return cls(parts)

    def gradient_sum(self, weights: Floats, training: LinearTraining) -> Integers:
        """Return the sum of the clipped gradients in units of 2^{−39}; exact in any order."""
        total = np.zeros((training.width, training.outputs), dtype=np.int64)
        large: Integers | None = None  # beyond 64 bits: Python's integers
        counted = 0
        for rows, targets, shares in self.parts:
            if counted + len(rows) > _ROWS_OF_64_BITS:
                large = total.astype(object) if large is None else large + total
                total, counted = np.zeros_like(total), 0
            counted += len(rows)
            if not isinstance(rows, np.ndarray):
                outputs = rows.products(weights) * 2.0**-ROW_BITS
                total += rows.weighted_sum(training.residuals(outputs, targets, shares))
                continue
            # Exact, so in any form; these two are twice as fast as rows @ weights, rows.T @ …
            outputs = (weights.T @ rows.T).T * 2.0**-ROW_BITS
            residuals = training.residuals(outputs, targets, shares)
            total += (residuals.T @ rows).T.astype(np.int64)
        return total if large is None else large + total


def on_lattice(weights: Floats) -> Floats:
    """Return weights rounded so that their product with any row is exact in double precision.

    A row has at most 2^{15} steps in each entry and norm at most 1, so every partial sum of
    x·w is at most |w| in absolute value, and a multiple of 2^{−15} times the step of the weights.
    """
    norm = float(np.sqrt(np.square(weights).sum(axis=0).max()))
    if not 0 < norm < 2.0**200:
        return np.zeros_like(weights)
    # The norm may be rounded, and the weights may grow a little when they are rounded: two bits.
    step = math.ldexp(1.0, math.frexp(norm)[1] + 2 - _PRODUCT_BITS)
    return np.asarray(np.rint(weights / step) * step)


_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_TAYLOR = [1 / math.factorial(n) for n in range(13, 1, -1)]


def exponential(x: Floats) -> Floats:
    """Return e^x for x ≤ 0, by + − × ÷ only: the same bits on every machine.

    The relative error is below 2^{−50}. Nothing depends on it but the direction of a step.
    """
    low = np.maximum(np.where(np.isnan(x), -700.0, x), -700.0)
    power = np.rint(low * (1 / math.log(2)))
    rest = (low - power * _LN2_HIGH) - power * _LN2_LOW
    series = np.full_like(rest, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        series = series * rest + coefficient
    return np.asarray(np.ldexp(series * rest * rest + rest + 1.0, power.astype(np.int32)))


class Descent:
    """The weights, moved by released gradients. Reads nothing else."""

    def __init__(self, training: LinearTraining) -> None:
        shape = (training.width, training.outputs)
        self._training = training
        self._weights, self._velocity, self._mean = (
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
        )
        self._precision = self._spread = self._signal = 0.0
        self._limit, self._limited = training.rule.limit, False
        self._before, self._noise_before = np.zeros(shape), 0.0

    @property
    def weights(self) -> Floats:
        """The weights at which the next gradient is taken."""
        return on_lattice(self._weights)

    released = weights

    def move(self, gradient: Floats, noise: float) -> None:
        """Take a step."""
        rule, dimension = self._training.rule, self._training.dimension
        # The size of the gradient, from an average that is weighted by precision.
        share, precision = 0.8, noise**-2
        self._mean = share * self._mean + precision * gradient
        self._precision = share * self._precision + precision
        self._spread = share**2 * self._spread + precision
        average = self._mean / self._precision
        expected = self._spread / self._precision**2 * dimension
        measured = math.sqrt(max(0.0, float(np.square(average).sum()) - expected))
        self._signal = max(self._signal, measured)

        usual = noise * math.sqrt(rule.memory / 2)  # noise of an average over 1/κ steps
        ratio = max(1.0, self._signal / (usual * math.sqrt(dimension)))
        time = rule.scale / usual * ratio**rule.growth
        self._adapt(gradient, noise)
        longest = self._limit * 2 * (1 + rule.momentum) / CURVATURE[self._training.loss]
        length = min(rule.memory * time * (1 - rule.momentum), longest)
        self._limited = length == longest
        current = self.weights
        self._velocity = rule.momentum * self._velocity + gradient + current / time
        self._weights = current - length * self._velocity

    def _adapt(self, gradient: Floats, noise: float) -> None:
        """Adapt the longest step to the curvature that the released gradients show.

        Steps that are too long for a table make the weights jump to and fro along one direction, so
        consecutive gradients have a negative product. If their product is positive, beyond what
        noise explains, and steps are at their limit, they may grow.
        """
        rule, before, noise_before = self._training.rule, self._before, self._noise_before
        deviation = math.sqrt(
            noise**2 * float(np.square(before).sum())
            + noise_before**2 * float(np.square(gradient).sum())
            + (noise * noise_before) ** 2 * self._training.dimension
        )
        product = float((gradient * before).sum())
        if product < -3 * deviation:
            self._limit = max(1.0, 0.7 * self._limit)
        elif self._limited and product > deviation:
            self._limit = min(_LONGEST, rule.lengthening * self._limit)
        self._before, self._noise_before = gradient, noise


class Training(Protocol):
    """What can be trained step by step with all rows; everything in it is public."""

    @property
    def places(self) -> int:
        """The public number of training rows."""

    @property
    def sensitivity(self) -> float:
        """How much one row moves the sum of a step, in ℓ2."""

    @property
    def first_square(self) -> float:
        """μ² of the first step."""

    def start(self, key: RunKey) -> Any:
        """Return the weights before the first step: ``weights``, ``move`` and ``released``."""

    def rows_of(
        self, rows: Array, targets: Array, device: str, shares: Floats | None = None
    ) -> Any:
        """Return rows, each with its share of one unit of privacy, in the form that is summed."""

    def exact_sum(self, rows: Any, descent: Any, step: int) -> Floats:
        """Return the exact sum of the clipped gradients of all rows."""


@dataclass(frozen=True)
class ProgressivePath:
    """A training that can be stopped at any level, as a path for ``PathSearch``."""

    training: Training
    rows: Callable[[Any], Any]
    finish: Callable[[Floats], Any]
    neighbours: str
    steps_per_doubling: int = 14

    def __post_init__(self) -> None:
        if self.neighbours not in (ADD_REMOVE, ZERO_OUT):  # a replaced row moves a sum by 2c
            raise InvalidInput("neighbours", self.neighbours, "give add-remove or zero-out")

    def walk(self, levels: Sequence[Any], seed: bytes, simulated: bool) -> TrainingWalk:
        """Return the training whose looks are ``levels``; the noise comes from a secret seed."""
        return TrainingWalk(self, tuple(level.square() for level in levels), seed, simulated)

    def theorem(self, law: str) -> str:
        """Return the name of the result that the levels rest on."""
        return "Gaussian DP of the steps made, exact rounded Gaussians, one δ for all looks"


def step_squares(
    levels: Sequence[Fraction], first: float, steps_per_doubling: int
) -> list[list[Fraction]]:
    """Return μ² of every step, level by level; those up to level i add up to at most its μ².

    Between two levels, cumulated squares grow geometrically. Before the first level they start at
    ``first``, or at the level if that is less.
    """
    start = min(Fraction(first), levels[0])
    steps = [[start]]
    for number, (low, high) in enumerate(pairwise([start, *levels])):
        count = (
            max(1, round(math.log2(float(high / low)) * steps_per_doubling)) if high > low else 0
        )
        cumulated = [low, *(low * Fraction(2.0 ** (math.log2(float(high / low)) * part / count))
                            for part in range(1, count)), high]  # fmt: skip
        ascending = [max(low, min(high, value)) for value in cumulated] if count else []
        growths = [after - before for before, after in pairwise(ascending) if after > before]
        if number:
            steps.append(growths)
        else:
            steps[0] += growths
    return steps


class TrainingWalk:
    """The looks at one training. The noise of step t comes from the key and t alone.

    Threads take turns. Levels must be asked in ascending order to be cheap; an earlier one starts
    anew.
    """

    def __init__(
        self, path: ProgressivePath, squares: tuple[Fraction, ...], seed: bytes, simulated: bool
    ) -> None:
        self._path, self._squares, self._key = path, squares, RunKey(seed, simulated)
        training = path.training
        self._steps = step_squares(squares, training.first_square, path.steps_per_doubling)
        self._turn = threading.Lock()
        self._data: Any = None
        self._rows: Any = None
        self._restart()

    def _restart(self) -> None:
        """Go back to the state before the first step."""
        self._reached, self._made = -1, 0
        self._descent = self._path.training.start(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send nothing that was computed from data, and no noise, to a worker."""
        return TrainingWalk, (self._path, self._squares, self._key.key, self._key.simulated)

    def output(self, index: int, data: Any) -> Any:
        """Return the output of a level."""
        with self._turn:
            if self._rows is None or self._data is not data:
                self._restart()
                self._data = data
                rows = self._path.rows(data)
                if isinstance(rows, tuple):
                    device = getattr(data, "device", "cpu")
                    rows = self._path.training.rows_of(rows[0], rows[1], device, *rows[2:])
                self._rows = rows
            if index < self._reached:
                self._restart()
            for _ in self._until(index, self._rows):
                pass
            weights = self._descent.released
        return self._path.finish(weights)

    def _until(self, index: int, rows: Any) -> Iterator[None]:
        """Make the steps up to a level."""
        training = self._path.training
        for level in range(self._reached + 1, index + 1):
            for square in self._steps[level]:
                deviation = deviation_for(training.sensitivity, square)
                total = training.exact_sum(rows, self._descent, self._made)
                source = self._key.source(self._made)
                lattice = lattice_for(deviation)
                noisy = add_gaussian(total.ravel(), lattice, source).reshape(total.shape)
                self._descent.move(noisy / training.places, deviation / training.places)
                self._made += 1
                yield
            self._reached = level


def deviation_for(sensitivity: float, square: Fraction) -> float:
    """Return σ with (Δ/σ)² ≤ μ², rounded up."""
    wanted = Fraction(sensitivity) ** 2 / square
    deviation = math.sqrt(wanted)
    while Fraction(deviation) ** 2 < wanted:
        deviation = math.nextafter(deviation, math.inf)
    return deviation
