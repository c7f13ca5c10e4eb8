"""Layers of a chain on a torch device, each for many models at once.

Fully connected layers are batched matrix products. Convolutions are in
:mod:`expost.training._torch.convolutions`.

Only the parts of the gradients that clipping needs are computed. The gradient of a fully connected
layer has the norm ‖input‖·‖slope‖. A convolution with few positions and many parameters computes
its norm from two small Gram matrices. A convolution with many positions stores its (small)
gradient. The clipped sum is one further product.

A "slope" is the gradient of the loss with respect to an activation. The chain of layers and the
clipping are in :mod:`expost.training._torch.layer_chain`, which also states the precision of the
arithmetic. Tests: ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.training._torch.clipping import VANISHED
from expost.training._torch.convolutions import Convolution, kernels_of, pair

Tensor = torch.Tensor
_MOST_CODES = 128  # the kernels store a place in a pooling window as int8


class Layer(ABC):
    """A layer on activations of shape models × examples × channels × height × width.

    Its parameters are in the order of torch.
    """

    width = 0
    kept: Any  # what backward and the sums need of the passes before; emptied after each call

    @abstractmethod
    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Return the output of the layer."""

    @abstractmethod
    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the slope at the input and the squared norm of each example's gradient.

        The slope is computed if ``further`` layers need it. The norm is that of the gradient of
        this layer's parameters.
        """

    def clipped(self, factors: Tensor) -> Tensor:
        """Return the sums of the examples' gradients times their factors: models × width."""
        return factors.new_empty(len(factors), 0)

    @property
    def summed(self) -> tuple[str, ...]:
        """Names of the parts of ``kept`` from which the sums are computed."""
        return ()

    def clear(self, good: Tensor) -> None:
        """Set the examples that are not ``good`` (models × examples) to zero.

        A factor of zero is not enough, as zero times infinity is not a number.
        """
        for name in self.summed:
            kept = getattr(self.kept, name)
            setattr(
                self.kept,
                name,
                torch.where(good[:, :, None], kept.reshape(*good.shape, -1), 0.0).view(kept.shape),
            )


class Rectified(Layer):
    """ReLU."""

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.out = out = functional.relu(x)
        return out

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        before: Tensor = torch.ops.aten.threshold_backward(slope, self.kept.out, 0)
        return before, None


class Flattened(Layer):
    """All axes of an example as one."""

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.shape = x.shape
        return x.reshape(*x.shape[:2], -1, 1, 1)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        return slope.reshape(self.kept.shape), None


class Pooled(Layer):
    """Max-pooling, together with a preceding ReLU if there is one: max(relu(x)) = relu(max(x))."""

    def __init__(self, layer: nn.MaxPool2d, rectify: bool, kernels: Any) -> None:
        self.kernel, self.stride = pair(layer.kernel_size), pair(layer.stride)
        self.rectify = rectify
        self.kernels = kernels if self.kernel[0] * self.kernel[1] < _MOST_CODES else None

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        images = x.flatten(0, 1)
        self.kept.shape = images.shape
        if self.kernels is not None:
            out, self.kept.codes = self.kernels.pool(
                images.contiguous(), self.kernel, self.stride, self.rectify
            )
        else:
            self.kept.x = images
            out, self.kept.places = functional.max_pool2d(
                images, self.kernel, self.stride, return_indices=True
            )
            self.kept.out = out = functional.relu(out) if self.rectify else out
        pooled: Tensor = out.unflatten(0, x.shape[:2])
        return pooled

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        given = slope.flatten(0, 1)
        if self.kernels is not None:
            slopes = self.kernels.unpool(
                given.contiguous(), self.kept.codes, self.kept.shape, self.kernel, self.stride
            )
        else:
            if self.rectify:
                given = torch.where(self.kept.out > 0, given, 0.0)
            slopes = torch.ops.aten.max_pool2d_with_indices_backward(
                given,
                self.kept.x,
                self.kernel,
                self.stride,
                [0, 0],
                [1, 1],
                False,
                self.kept.places,
            )
        before: Tensor = slopes.unflatten(0, slope.shape[:2])
        return before, None


class Connected(Layer):
    """Fully connected layer; parameters: weight (out × in), then bias."""

    def __init__(self, layer: nn.Linear) -> None:
        self.inputs, self.outputs = layer.in_features, layer.out_features
        self.width = self.outputs * (self.inputs + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.x = x.reshape(*x.shape[:2], self.inputs)
        bias = parameters[:, None, self.outputs * self.inputs :]
        outputs = torch.baddbmm(bias, self.kept.x, self._weight(parameters).transpose(1, 2))
        return outputs[:, :, :, None, None]

    def _weight(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        self.kept.slope = slope.reshape(*slope.shape[:2], self.outputs)
        steep = squared_norms(self.kept.slope) + self.outputs * VANISHED
        square = (squared_norms(self.kept.x) + 1.0) * steep
        if not further:
            return None, square
        return torch.bmm(self.kept.slope, self._weight(parameters))[:, :, :, None, None], square

    @property
    def summed(self) -> tuple[str, ...]:
        return "x", "slope"

    def clipped(self, factors: Tensor) -> Tensor:
        scaled = self.kept.slope * factors[:, :, None]
        weight = torch.bmm(scaled.transpose(1, 2), self.kept.x.to(factors.dtype))
        return torch.cat([weight.flatten(1), scaled.sum(1)], dim=1)


class Convolved(Layer):
    """Convolution; parameters: weight (out × in × height × width), then bias."""

    def __init__(self, layer: nn.Conv2d, kernels: Any) -> None:
        self.convolution = Convolution(layer, kernels)
        self.outputs, self.patch = self.convolution.outputs, self.convolution.patch
        self.width = self.outputs * (self.patch + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.x = x
        bias = parameters[:, self.outputs * self.patch :]
        out = self.convolution.forward(x, self._weight(parameters), bias)
        self.kept.positions = out.shape[3] * out.shape[4]
        return out

    def _weight(self, parameters: Tensor) -> Tensor:
        """Return the weight as models × outputs × terms of a patch."""
        return parameters[:, : self.outputs * self.patch].view(-1, self.outputs, self.patch)

    @property
    def ghost(self) -> bool:
        """Whether the norm is computed from Gram matrices."""
        return self.convolution.ghost(self.kept.x, self.kept.positions)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        models, examples = slope.shape[:2]
        self.kept.slope = slope
        self.kept.biases = slope.sum((3, 4))
        if self.ghost:
            self.kept.patches = self.convolution.patches(self.kept.x)
            patches, slopes = self.kept.patches.flatten(0, 1), slope.flatten(3).flatten(0, 1)
            square = ghost_square(
                torch.bmm(patches.transpose(1, 2), patches),
                torch.bmm(slopes.transpose(1, 2), slopes),
                self.patch,
                self.outputs,
            ).view(models, examples)
        else:
            self.kept.gradients = self.convolution.gradients(self.kept.x, slope)
            square = squared_norms(self.kept.gradients)
        square = square + squared_norms(self.kept.biases)
        if not further:
            return None, square
        size = self.kept.x.shape[3:]
        return self.convolution.slopes(slope, self._weight(parameters), size), square

    @property
    def summed(self) -> tuple[str, ...]:
        return ("patches", "slope", "biases") if self.ghost else ("gradients", "biases")

    def clipped(self, factors: Tensor) -> Tensor:
        models = len(factors)
        if self.ghost:
            # models × outputs × (examples · positions), and the same with the terms of a patch
            scaled = self.kept.slope.flatten(3) * factors[:, :, None, None]
            scaled = scaled.transpose(1, 2).flatten(2)
            patches = self.kept.patches.to(factors.dtype).transpose(1, 2).flatten(2)
            weight = torch.bmm(scaled, patches.transpose(1, 2)).view(models, -1)
        else:
            weight = self._weighted(self.kept.gradients, factors)
        return torch.cat([weight, self._weighted(self.kept.biases, factors)], dim=1)

    def _weighted(self, values: Tensor, factors: Tensor) -> Tensor:
        """Return the sum over the examples times their factors, in float64."""
        if self.convolution.kernels is not None:
            total: Tensor = self.convolution.kernels.weighted_sums(values, factors)
            return total
        return torch.bmm(factors[:, None], values.to(factors.dtype))[:, 0]


def ghost_square(patches: Tensor, slopes: Tensor, patch: int, outputs: int) -> Tensor:
    """Return ‖Σ_p slope_p ⊗ patch_p‖² from Gram matrices (examples × p × p), never too small.

    The terms may cancel, and the rounded result could then be far below the true norm. So the
    largest possible error of these sums is added: (number of operations)·u·(Σ_p
    ‖patch_p‖·‖slope_p‖)², where u is the precision. For products that underflow (below ``tiny``),
    tiny·(width of a patch)·(Σ_p ‖slope_p‖)² is added, and the same with patches and slopes
    exchanged. ``patch`` and ``outputs`` are the widths of patches and slopes.
    """
    positions, limits = patches.shape[1], torch.finfo(patches.dtype)
    operations = patch + outputs + positions**2 + 4
    lost = limits.tiny * patch, limits.tiny * outputs
    longs, steeps = (
        (gram.diagonal(dim1=1, dim2=2).to(torch.float64) + low).sqrt()
        for gram, low in zip((patches, slopes), lost, strict=True)
    )
    error = operations * limits.eps / 2 * (longs * steeps).sum(1).square()
    vanished = (
        lost[0] * steeps.sum(1).square()
        + lost[1] * longs.sum(1).square()
        + limits.tiny * positions**2
    )
    square: Tensor = (patches * slopes).sum((1, 2), dtype=torch.float64) + error + vanished
    return square


def squared_norms(values: Tensor) -> Tensor:
    """Return Σ x² over the last axis in float64, where no square of a float32 underflows."""
    kernels = kernels_of("cuda") if values.is_cuda and values.dtype == torch.float32 else None
    if kernels is not None:
        sums: Tensor = kernels.squares(values)
        return sums
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return norms.square()
