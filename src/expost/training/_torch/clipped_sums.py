"""Gradient clipping of DP-SGD on a torch device: clip factors and sums of clipped gradients.

:func:`clip_factors` computes min(1, clip / norm). :class:`ClippedSums` is the base class of the
sums that a step computes for many models at once; :class:`LinearSums` is its version for linear
models. The equivalent for native kernels is :mod:`expost.training._native.linear`.

Models with one expected batch size and one optimiser train together. Each has its own Poisson
sample and its own noise (:mod:`expost.training._torch.device_keystream`). The step itself is in
:mod:`expost.training._torch.model_group`. Samples are padded to a common size and padding has
weight 0; no sample is truncated.

Parameters, noise, optimiser and the sums over a batch are float64. In float32, one example would
affect the rounding of everything that is added after it, and so move a sum by many clipping norms.
On a CPU, :class:`expost.training._torch.modules.ModuleSums` rounds contributions to a grid, so that
its sums are exact. On CUDA, all sums are matrix products of at most 4,096 rows; the bound on their
rounding is :func:`expost.training.exact_noise.rounding_slack`, and the guarantee is computed with
it.

A row that does not count has the target NaN (:mod:`expost.training.configuration`). It is treated
as not taken. Class weights multiply the gradient at the outputs, so they are part of the gradient
whose norm is computed.

**Parts.** A part holds what is needed of the gradient of one parameter, for all examples of a batch
and for many models. The gradient itself is stored only where it is small:

- :class:`Stored`: the gradient of every example.
- :class:`Written`: the gradient is Σ_p slope_p ⊗ input_p. A kernel writes it twice, for some
  examples at a time: first for the norm, then for the sum. It writes the same bits, so the norm is
  that of the numbers that are summed, as if they had been stored.
- :class:`Outer`: the gradient is slope ⊗ input, with norm ‖slope‖·‖input‖.
- :class:`Positions`: the gradient is Σ_p slope_p ⊗ input_p, with few positions. Its norm is
  computed from two Gram matrices, and never too small.
- :class:`Tokens`: the gradient of an embedding, one row per different token of an example.

There are two ways to sum. :meth:`Part.add` makes exact sums in fixed point on a CPU
(:mod:`expost.training._native.fixed_point`); all parts but :class:`Positions` have it.
:meth:`Part.total` makes float64 matrix products on any device; all but :class:`Written` have it.
The bound on their rounding is
:func:`expost.training.exact_noise.rounding_slack`. It holds because the terms of a row are those
whose norm was computed: equal tokens are added before the norm is taken, and the norm from Gram
matrices contains their error.

Tests: ``tests/training/test_clipping.py``, ``tests/training/test_gradient_parts.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from expost.arrays import Array
from expost.training._torch.convolutions import Convolution, ghost_square, squared_norms
from expost.training.configuration import OWN
from expost.training.exact_noise import MOST_ROWS

# from this sampling rate and number of models on, products over all rows beat gathering the rows
_DENSE_RATE = 1 / 40
_DENSE_MODELS = 16
_LEAST = 2.0**-120  # smaller factors are replaced by 0
VANISHED = 2.0**-1021  # per term: the most that squares below the least double lose


class ClippedSums(ABC):
    """Sums of clipped per-example gradients of many models of one architecture.

    Each model has ``width`` parameters.
    """

    width: int
    rows: int
    exact_rows: int | None = None  # how many rows a step must sum exactly; None: ``rows``
    fixed = False  # whether a step is a fixed list of operations, which a CUDA graph can hold
    careful = True  # if False, an example without a finite norm spoils a sum and clears ``sound``
    sound: torch.Tensor | None = None
    valid: torch.Tensor | None = None  # which rows count; None if all do
    class_weights: torch.Tensor | None = None  # models × classes; None if no model has any

    def weigh(self, class_weights: Sequence[Sequence[float] | None], device: Any) -> None:
        """Set the class weights of the models that train next; None is 1 for all classes."""
        known = [len(class_weight) for class_weight in class_weights if class_weight is not None]
        self.class_weights = (
            torch.tensor(
                [
                    [1.0] * known[0] if class_weight is None else list(class_weight)
                    for class_weight in class_weights
                ],
                dtype=torch.float64,
                device=device,
            )
            if known
            else None
        )

    def weighted(self, slopes: torch.Tensor, targets: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the slopes (models × rows × outputs) times the weights of the rows' classes.

        ``first`` is the number of the first of these models.
        """
        if self.class_weights is None:
            return slopes
        weights = self.class_weights[first : first + len(slopes)].gather(1, targets.to(torch.int64))
        return slopes * weights[:, :, None].to(slopes.dtype)

    def targets(self, y: Array, device: str) -> torch.Tensor:
        """Return the targets, 0 where a row does not count, and note which rows count."""
        missing = np.isnan(y)
        self.valid = torch.from_numpy(~missing).to(device) if missing.any() else None
        return torch.from_numpy(np.where(missing, 0.0, y)).to(device)

    def before_step(self, step: int) -> None:  # noqa: B027  (nothing to prepare by default)
        """Prepare step number ``step``; called before the step, also when it is repeated."""

    @abstractmethod
    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """Return the initial parameters of one model per seed: models × width, float64."""

    @abstractmethod
    def bytes_per_example(self) -> int:
        """Return the scratch memory that one example of one model needs, in bytes."""

    @abstractmethod
    def chunk(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the sums over these rows (models × rows; only ``taken`` ones): models × width."""

    def __call__(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        """Return the sums over whole batches, computed in chunks that fit ``memory`` bytes.

        The sum over an empty batch is 0.
        """
        if rows.shape[1] == 0:
            return torch.zeros_like(parameters)
        if self.valid is not None:
            taken = taken & self.valid[rows]
        return self.batch(parameters, rows, taken, clips, memory)

    def batch(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        """Return the sums over a batch that is not empty."""
        columns = max(1, memory // (self.bytes_per_example() * len(parameters)))
        columns = min(columns, MOST_ROWS)
        if columns >= rows.shape[1]:
            return self.chunk(parameters, rows, taken, clips)
        total = torch.zeros_like(parameters)
        for first in range(0, rows.shape[1], columns):
            part = slice(first, first + columns)
            total += self.chunk(parameters, rows[:, part], taken[:, part], clips)
        return total


class LinearSums(ClippedSums):
    """Closed form for linear models, as in :mod:`expost.training._native.linear`.

    The sums are two batched matrix products over gathered rows. If many models sample a large part
    of few rows, gathering costs more than it saves. Then two plain products over all rows are made,
    and the second one has zeros for the rows that a model did not sample.
    """

    fixed = True

    def __init__(self, X: Array, y: Array, loss: str, outputs: int, device: str) -> None:
        self.X, self.y = torch.from_numpy(X).to(device), self.targets(y, device)
        self.norms = torch.sqrt(self.X.to(torch.float64).square().sum(1) + 1.0)
        self.loss, self.outputs = loss, outputs
        self.rows, self.width = len(X), outputs * (X.shape[1] + 1)

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        return torch.zeros(len(seeds), self.width, dtype=torch.float64, device=self.X.device)

    def bytes_per_example(self) -> int:
        return (self.X.element_size() + 8) * self.X.shape[1] + 8 * 8 * self.outputs

    def batch(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        models = len(parameters)
        many = models >= _DENSE_MODELS and _DENSE_RATE * self.rows <= rows.shape[1] <= MOST_ROWS
        if many and 3 * 8 * models * self.outputs * self.rows + 8 * self.X.numel() < memory:
            return self.dense(parameters, rows, taken, clips)
        return super().batch(parameters, rows, taken, clips, memory)

    def chunk(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        table = parameters.view(len(parameters), self.outputs, -1)
        gathered = self.X[rows]
        weights = table[:, :, :-1].to(gathered.dtype).transpose(1, 2)
        logits = torch.bmm(gathered, weights).to(torch.float64) + table[:, None, :, -1]
        residuals = self._clipped(logits, rows, taken, clips)
        sums = torch.bmm(residuals.transpose(1, 2), gathered.to(torch.float64))
        return torch.cat([sums, residuals.sum(1)[:, :, None]], dim=2).flatten(1)

    def dense(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the same sums by products over all rows."""
        models = len(parameters)
        table = parameters.view(models, self.outputs, -1)
        weights = table[:, :, :-1].to(self.X.dtype).flatten(0, 1)
        everywhere = torch.mm(weights, self.X.T).view(models, self.outputs, self.rows)
        columns = rows[:, None, :].expand(-1, self.outputs, -1)
        logits = (
            everywhere.gather(2, columns).transpose(1, 2).to(torch.float64) + table[:, None, :, -1]
        )
        residuals = self._clipped(logits, rows, taken, clips)
        spread = torch.zeros(
            models, self.outputs, self.rows + 1, dtype=torch.float64, device=self.X.device
        )
        # padding is written to a separate last column
        outside = torch.where(taken[:, None, :], columns, self.rows)
        spread.scatter_(2, outside, residuals.transpose(1, 2))
        sums = torch.mm(
            spread[:, :, :-1].reshape(models * self.outputs, self.rows), self.X.to(torch.float64)
        )
        both = [sums.view(models, self.outputs, -1), residuals.sum(1)[:, :, None]]
        return torch.cat(both, dim=2).flatten(1)

    def _clipped(
        self, logits: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the clipped residuals, models × rows × outputs; 0 where a row is not taken."""
        residuals = self.weighted(slopes_of(logits, self.y[rows], self.loss), self.y[rows])
        lengths = residuals.norm(dim=2) + 2.0**-500  # more than squares that vanished
        factors = clip_factors(lengths * self.norms[rows], clips[:, None]) * taken
        return cut(torch.where(factors[:, :, None] > 0, residuals * factors[:, :, None], 0.0))


def slopes_of(outputs: torch.Tensor, targets: torch.Tensor, loss: str) -> torch.Tensor:
    """Return the gradient of each example's loss at its outputs: models × examples × outputs."""
    outputs = outputs.detach()
    if loss == OWN:  # the first output is the loss; others are told, not trained
        slopes = torch.zeros_like(outputs)
        slopes[..., 0] = 1.0
        return slopes
    goals = targets[:, :, None].to(outputs.dtype)
    if loss == "squared":
        return 2.0 * (outputs - goals)
    if loss == "logistic":
        return torch.sigmoid(outputs) - goals
    labels = functional.one_hot(targets.to(torch.int64), outputs.shape[2])
    return torch.softmax(outputs, dim=2) - labels.to(outputs.dtype)


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 inside the context, whatever the caller's script allows.

    Ten bits of precision are too few for norms, and cuDNN allows TF32 by default.
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    new = hasattr(matmul, "fp32_precision")
    settings = [matmul, cudnn.conv, cudnn.rnn] if new else [matmul, cudnn]
    name, plain = ("fp32_precision", "ieee") if new else ("allow_tf32", False)
    before = [getattr(setting, name) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, name, plain)
        yield
    finally:
        for setting, old in zip(settings, before, strict=True):
            setattr(setting, name, old)


def clip_factors(norms: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return min(1, clip / norm), or 0 where the norm is not finite: that example adds nothing."""
    return torch.where(torch.isfinite(norms), torch.clamp(clips / norms, max=1.0), 0.0)


def cut(factors: torch.Tensor) -> torch.Tensor:
    """Replace tiny factors by 0, so that no product with a factor is close to underflow."""
    return torch.where(factors.abs() >= _LEAST, factors, 0.0)


Tensor = torch.Tensor
_BLOCK = 1 << 20  # numbers of gradients that are written at a time


class Part(ABC):
    """The gradient of one parameter for models × examples; ``size`` numbers per model."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        # rearranges a sum, where the inputs have another order than the parameter
        self.order: Callable[[Tensor], Tensor] | None = None

    @abstractmethod
    def square(self) -> Tensor:
        """Return the squared norm of each example's gradient: models × examples, float64."""

    def clear(self, good: Tensor) -> None:
        """Set the examples that are not ``good`` (models × examples) to zero.

        A factor of zero is not enough, as zero times infinity is not a number.
        """
        raise NotImplementedError("this part is for exact sums only")

    def total(self, factors: Tensor, kernels: Any) -> Tensor:
        """Return the sum of the gradients times their factors: models × size, float64."""
        raise NotImplementedError("this part is for exact sums only")

    def summed(self, factors: Tensor, kernels: Any) -> Tensor:
        """Return :meth:`total` in the order of the parameter."""
        total = self.total(factors, kernels)
        return total if self.order is None else self.order(total)

    @property
    @abstractmethod
    def held(self) -> int:
        """Return how many numbers the part holds."""

    def add_summed(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        """Do :meth:`add` in the order of the parameter."""
        if self.order is None:
            self.add(rows, factors, anchor, sums)
            return
        own = np.zeros_like(sums)
        self.add(rows, factors, anchor, own)
        sums += self.order(torch.from_numpy(own)[None])[0].numpy()

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        """Add the gradients of these rows of the only model to ``sums``, in steps of the grid."""
        raise NotImplementedError("this part is for matrix products only")


class Stored(Part):
    """Per-example gradients: models × examples × size."""

    def __init__(self, name: str, values: Tensor) -> None:
        super().__init__(name, values.shape[2])
        self.values = values

    @property
    def held(self) -> int:
        return self.values.numel()

    def square(self) -> Tensor:
        return squared_norms(self.values) + self.size * VANISHED

    def clear(self, good: Tensor) -> None:
        self.values = torch.where(good[:, :, None], self.values, 0.0)

    def total(self, factors: Tensor, kernels: Any) -> Tensor:
        if kernels is not None:
            total: Tensor = kernels.weighted_sums(self.values.contiguous(), factors)
            return total
        return torch.bmm(factors[:, None], self.values.to(factors.dtype))[:, 0]

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        from expost.training._native.fixed_point import add_stored

        add_stored(_array(self.values[0]), rows, factors, anchor, sums)


class Products(NamedTuple):
    """One call of a layer whose gradient is Σ_p slope_p ⊗ input_p, as the kernel reads it."""

    images: Array  # with the channels last, flat
    slopes: Array  # the same, with padding at the end
    shape: tuple[int, int, int]  # height, width and channels of an image
    out_shape: tuple[int, int, int]  # the same of the slopes
    kernel: tuple[int, int]
    stride: tuple[int, int]
    times: int  # images per example


class Written(Part):
    """Gradients of one model that are written whenever they are needed."""

    def __init__(self, name: str, calls: Sequence[Products], examples: int) -> None:
        first = calls[0]
        super().__init__(name, math.prod(first.kernel) * first.shape[2] * first.out_shape[2])
        self.calls, self.examples = calls, examples

    @property
    def held(self) -> int:
        return sum(len(call.images) + len(call.slopes) for call in self.calls)

    def stored(self) -> Stored:
        """Return the same part, with all gradients."""
        values = self._empty(self.examples)
        self._write(np.arange(self.examples), values)
        part = Stored(self.name, torch.from_numpy(values)[None])
        part.order = self.order
        return part

    def square(self) -> Tensor:
        from expost.training._native.fixed_point import row_squares

        squares = np.empty(self.examples)
        for some, values in self._blocks(np.arange(self.examples)):
            row_squares(values, squares[some])
        return torch.from_numpy(squares)[None] + self.size * VANISHED

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        from expost.training._native.fixed_point import add_stored

        for some, values in self._blocks(rows):
            add_stored(values, np.arange(len(values)), factors[some], anchor, sums)

    def _blocks(self, rows: Array) -> Iterator[tuple[slice, Array]]:
        """Yield the gradients of some rows at a time, in memory that is used again."""
        count = max(1, _BLOCK // self.size)
        values = self._empty(min(count, len(rows)))
        for first in range(0, len(rows), count):
            some = slice(first, min(first + count, len(rows)))
            self._write(rows[some], values[: some.stop - first])
            yield some, values[: some.stop - first]

    def _empty(self, rows: int) -> Array:
        return np.empty((rows, self.size), dtype=self.calls[0].images.dtype)

    def _write(self, rows: Array, out: Array) -> None:
        from expost.training._native.fixed_point import write_products

        for index, call in enumerate(self.calls):
            write_products(*call, rows, index > 0, out)


class Outer(Part):
    """Inputs (models × examples × width) and slopes (models × examples × outputs)."""

    def __init__(self, name: str, inputs: Tensor, slopes: Tensor) -> None:
        super().__init__(name, inputs.shape[2] * slopes.shape[2])
        self.inputs, self.slopes = inputs, slopes

    @property
    def held(self) -> int:
        return self.inputs.numel() + self.slopes.numel()

    def square(self) -> Tensor:
        long = squared_norms(self.inputs) + self.inputs.shape[2] * VANISHED
        return long * (squared_norms(self.slopes) + self.slopes.shape[2] * VANISHED)

    def clear(self, good: Tensor) -> None:
        self.inputs = torch.where(good[:, :, None], self.inputs, 0.0)
        self.slopes = torch.where(good[:, :, None], self.slopes, 0.0)

    def total(self, factors: Tensor, kernels: Any) -> Tensor:
        scaled = self.slopes * factors[:, :, None]
        return torch.bmm(scaled.transpose(1, 2), self.inputs.to(factors.dtype)).flatten(1)

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        from expost.training._native.fixed_point import add_outer

        add_outer(_array(self.inputs[0]), _array(self.slopes[0]), rows, factors, anchor, sums)


class Positions(Part):
    """Inputs (models × examples × positions × width) and slopes (the same with outputs).

    Only for float32 (see :func:`expost.training._torch.convolutions.ghost_square`) and matrix
    products.
    """

    def __init__(self, name: str, inputs: Tensor, slopes: Tensor) -> None:
        super().__init__(name, inputs.shape[3] * slopes.shape[3])
        self.inputs, self.slopes = inputs, slopes

    @property
    def held(self) -> int:
        return self.inputs.numel() + self.slopes.numel()

    def square(self) -> Tensor:
        inputs, slopes = self.inputs.flatten(0, 1), self.slopes.flatten(0, 1)
        square = ghost_square(
            torch.bmm(inputs, inputs.transpose(1, 2)),
            torch.bmm(slopes, slopes.transpose(1, 2)),
            inputs.shape[2],
            slopes.shape[2],
        )
        return square.view(self.inputs.shape[:2])

    def clear(self, good: Tensor) -> None:
        self.inputs = torch.where(good[:, :, None, None], self.inputs, 0.0)
        self.slopes = torch.where(good[:, :, None, None], self.slopes, 0.0)

    def total(self, factors: Tensor, kernels: Any) -> Tensor:
        scaled = (self.slopes * factors[:, :, None, None]).flatten(1, 2)
        inputs = self.inputs.to(factors.dtype).flatten(1, 2)
        return torch.bmm(scaled.transpose(1, 2), inputs).flatten(1)


class Tokens(Part):
    """Gradients of an embedding: tokens (models × examples × places) and slopes (… × width).

    Slopes of equal tokens of an example are added up at the token's first place.
    A token −1 is ignored.
    """

    def __init__(self, name: str, tokens: Tensor, slopes: Tensor, number: int) -> None:
        super().__init__(name, number * slopes.shape[3])
        if tokens.is_cuda:
            same = (tokens[:, :, :, None] == tokens[:, :, None, :]) & (tokens >= 0)[:, :, None]
            earlier = torch.tril(same, diagonal=-1).any(3)
            first = ~earlier & (tokens >= 0)
            added = torch.matmul(same.to(slopes.dtype), slopes)
            self.tokens = torch.where(first, tokens, -1)
            self.slopes = torch.where(first[:, :, :, None], added, 0.0)
            return
        from expost.training._native.fixed_point import combine_tokens

        self.tokens, self.slopes = tokens.contiguous().clone(), slopes.contiguous().clone()
        for mine, their in zip(self.tokens, self.slopes, strict=True):
            combine_tokens(_array(mine), _array(their))
        # places that were combined, or are ignored, hold nothing
        self.slopes = torch.where((self.tokens >= 0)[:, :, :, None], self.slopes, 0.0)

    @property
    def held(self) -> int:
        return 2 * self.slopes.numel() + self.tokens.shape[2] ** 2

    def square(self) -> Tensor:
        return squared_norms(self.slopes.flatten(2)) + self.slopes[0, 0].numel() * VANISHED

    def clear(self, good: Tensor) -> None:
        self.slopes = torch.where(good[:, :, None, None], self.slopes, 0.0)

    def total(self, factors: Tensor, kernels: Any) -> Tensor:
        models, width = len(factors), self.slopes.shape[3]
        scaled = (self.slopes * factors[:, :, None, None]).flatten(0, 2)
        number = self.size // width
        table = torch.zeros(models * number, width, dtype=torch.float64, device=factors.device)
        offsets = torch.arange(models, device=factors.device)[:, None, None] * number
        slots = self.tokens.clamp(min=0) + offsets
        return table.index_add_(0, slots.flatten(), scaled).view(models, -1)

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        from expost.training._native.fixed_point import add_tokens

        add_tokens(_array(self.tokens[0]), _array(self.slopes[0]), rows, factors, anchor, sums)


def convolution_part(
    name: str, convolution: Convolution, calls: Sequence[tuple[Tensor, Tensor]]
) -> Part:
    """Return the gradient of the weight of a convolution, from images and slopes of its calls."""
    positions = sum(slope.shape[3] * slope.shape[4] for _, slope in calls)
    if not convolution.ghost(calls[0][0], positions):
        gradients = [convolution.gradients(x, slope) for x, slope in calls]
        return Stored(name, added(gradients))
    inputs = joined([convolution.patches(x).transpose(2, 3) for x, _ in calls])
    return Positions(name, inputs, joined([slope.flatten(3).transpose(2, 3) for _, slope in calls]))


def added(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of the gradients of several calls."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def joined(values: Sequence[Tensor]) -> Tensor:
    """Join the positions of several calls."""
    return values[0] if len(values) == 1 else torch.cat(list(values), dim=2)


def clipped_totals(
    sums: ClippedSums,
    parts: Sequence[Part],
    rows: Tensor,
    taken: Tensor,
    clips: Tensor,
    kernels: Any,
) -> list[Tensor]:
    """Return the clipped sum of every part by matrix products: models × size each."""
    square = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
    for part in parts:
        square = square + part.square()
    good = torch.isfinite(square)
    if sums.sound is not None:
        sums.sound &= good.all()
    if sums.careful:
        for part in parts:
            part.clear(good)
    factors = cut(clip_factors(square.sqrt(), clips[:, None]) * taken)
    return [part.summed(factors, kernels) for part in parts]


def _array(values: Tensor) -> Array:
    """Return a tensor of the CPU as a contiguous array."""
    return np.asarray(values.contiguous().numpy())
