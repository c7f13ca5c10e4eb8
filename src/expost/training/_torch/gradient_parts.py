"""Parts of per-example gradients: their squared norms and their clipped sums.

A part holds what is needed of the gradient of one parameter, for all examples of a batch and for
many models. The gradient itself is stored only where it is small:

- :class:`Stored`: the gradient of every example.
- :class:`Written`: the gradient is Σ_p slope_p ⊗ input_p. A kernel writes it twice, for some
  examples at a time: first for the norm, then for the sum. It writes the same bits, so the norm is
  that of the numbers that are summed, as if they had been stored.
- :class:`Outer`: the gradient is slope ⊗ input, with norm ‖slope‖·‖input‖.
- :class:`Positions`: the gradient is Σ_p slope_p ⊗ input_p, with few positions. Its norm is
  computed from two Gram matrices, and never too small.
- :class:`Tokens`: the gradient of an embedding, one row per different token of an example.

There are two ways to sum. :meth:`Part.add` makes exact sums in fixed point on a CPU
(:mod:`expost.training._native.gradient_sums`); all parts but :class:`Positions` have it.
:meth:`Part.total` makes float64 matrix products on any device; all but :class:`Written` have it.
The bound on their rounding is
:func:`expost.training.exact_noise.rounding_slack`. It holds because the terms of a row are those
whose norm was computed: equal tokens are added before the norm is taken, and the norm from Gram
matrices contains their error.

Tests: ``tests/training/test_gradient_parts.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from expost.arrays import Array
from expost.training._torch.clipped_sums import VANISHED, ClippedSums, clip_factors, cut
from expost.training._torch.convolutions import Convolution, ghost_square, squared_norms

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
        from expost.training._native.gradient_sums import add_stored

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
        from expost.training._native.gradient_sums import row_squares

        squares = np.empty(self.examples)
        for some, values in self._blocks(np.arange(self.examples)):
            row_squares(values, squares[some])
        return torch.from_numpy(squares)[None] + self.size * VANISHED

    def add(self, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
        from expost.training._native.gradient_sums import add_stored

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
        from expost.training._native.gradient_sums import write_products

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
        from expost.training._native.gradient_sums import add_outer

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
        from expost.training._native.gradient_sums import combine_tokens

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
        from expost.training._native.gradient_sums import add_tokens

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
