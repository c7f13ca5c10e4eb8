"""Layers of a chain on a torch device, each for many models at once.

Convolutions and fully connected layers are batched matrix products. A convolution gathers its
patches (channels last) and makes one product per model for a whole batch.

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

Tensor = torch.Tensor
_MOST_CODES = 128  # the kernels store a place in a pooling window as int8


class Layer(ABC):
    """A layer on activations of shape models × examples × height × width × channels.

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
    """All axes of an example as one, in the order of torch (channels first)."""

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.shape = x.shape
        return x.permute(0, 1, 4, 2, 3).reshape(*x.shape[:2], 1, 1, -1)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        models, examples, height, width, channels = self.kept.shape
        return slope.reshape(models, examples, channels, height, width).permute(0, 1, 3, 4, 2), None


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
            self.kept.x = images.permute(0, 3, 1, 2)
            out, self.kept.places = functional.max_pool2d(
                self.kept.x, self.kernel, self.stride, return_indices=True
            )
            out = (functional.relu(out) if self.rectify else out).permute(0, 2, 3, 1)
            self.kept.out = out
        pooled: Tensor = out.unflatten(0, x.shape[:2])
        return pooled

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        given = slope.flatten(0, 1)
        if self.kernels is not None:
            found = self.kernels.unpool(
                given.contiguous(), self.kept.codes, self.kept.shape, self.kernel, self.stride
            )
        else:
            if self.rectify:
                given = torch.where(self.kept.out > 0, given, 0.0)
            found = torch.ops.aten.max_pool2d_with_indices_backward(
                given.permute(0, 3, 1, 2),
                self.kept.x,
                self.kernel,
                self.stride,
                [0, 0],
                [1, 1],
                False,
                self.kept.places,
            ).permute(0, 2, 3, 1)
        before: Tensor = found.unflatten(0, slope.shape[:2])
        return before, None


class Connected(Layer):
    """Fully connected layer; parameters: weight (out × in), then bias."""

    def __init__(self, layer: nn.Linear) -> None:
        self.inputs, self.outputs = layer.in_features, layer.out_features
        self.width = self.outputs * (self.inputs + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.x = x.reshape(*x.shape[:2], self.inputs)
        bias = parameters[:, None, self.outputs * self.inputs :]
        return torch.baddbmm(bias, self.kept.x, self._weight(parameters).transpose(1, 2))[
            :, :, None, None
        ]

    def _weight(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        self.kept.slope = slope.reshape(*slope.shape[:2], self.outputs)
        steep = squares(self.kept.slope) + self.outputs * VANISHED
        square = (squares(self.kept.x) + 1.0) * steep
        before = (
            torch.bmm(self.kept.slope, self._weight(parameters))[:, :, None, None]
            if further
            else None
        )
        return before, square

    @property
    def summed(self) -> tuple[str, ...]:
        return "x", "slope"

    def clipped(self, factors: Tensor) -> Tensor:
        scaled = self.kept.slope * factors[:, :, None]
        weight = torch.bmm(scaled.transpose(1, 2), self.kept.x.to(factors.dtype))
        return torch.cat([weight.flatten(1), scaled.sum(1)], dim=1)


class Convolved(Layer):
    """Convolution; parameters: weight (out × in × height × width), then bias.

    Patches and products have the channels last.
    """

    def __init__(self, layer: nn.Conv2d, kernels: Any) -> None:
        self.kernel, self.stride, self.padding = (
            pair(layer.kernel_size),
            pair(layer.stride),
            pair(layer.padding),
        )
        self.inputs, self.outputs, self.kernels = layer.in_channels, layer.out_channels, kernels
        self.patch = self.kernel[0] * self.kernel[1] * self.inputs
        self.width = self.outputs * (self.patch + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        models, examples = x.shape[:2]
        self.kept.shape = (models * examples, *x.shape[2:])
        patches = self._gathered(x.flatten(0, 1))
        self.kept.out = patches.shape[1:3]
        self.kept.positions = patches.shape[1] * patches.shape[2]
        self.kept.patches = patches.reshape(models, examples * self.kept.positions, self.patch)
        bias = parameters[:, None, self.outputs * self.patch :]
        made = torch.baddbmm(bias, self.kept.patches, self._weight(parameters).transpose(1, 2))
        return made.view(models, examples, *self.kept.out, self.outputs)

    def _gathered(self, images: Tensor) -> Tensor:
        """Return images × out height × out width × kernel height × kernel width × channels."""
        (top, left), (kh, kw), (sh, sw) = self.padding, self.kernel, self.stride
        if self.kernels is not None:
            found: Tensor = self.kernels.gather_patches(
                images.contiguous(), self.kernel, self.stride, self.padding
            )
            return found
        padded = functional.pad(images, (0, 0, left, left, top, top))
        return padded.unfold(1, kh, sh).unfold(2, kw, sw).permute(0, 1, 2, 4, 5, 3)

    def _weight(self, parameters: Tensor) -> Tensor:
        """Return the weight as models × out × patch, in the order of the patches."""
        given = parameters[:, : self.outputs * self.patch].view(
            -1, self.outputs, self.inputs, *self.kernel
        )
        return given.permute(0, 1, 3, 4, 2).reshape(-1, self.outputs, self.patch)

    @property
    def ghost(self) -> bool:
        """Whether the two Gram matrices are much smaller than the gradient.

        In float64 the gradient is stored always: the bound on the rounding of sums
        (:func:`expost.training.exact_noise.rounding_slack`) rests on the error of float32.
        """
        small = 16 * self.kept.positions**2 < self.patch * self.outputs
        return bool(small and self.kept.patches.dtype == torch.float32)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        models, examples = slope.shape[:2]
        self.kept.slope = slope.reshape(models, examples * self.kept.positions, self.outputs)
        each = self.kept.slope.view(models * examples, self.kept.positions, self.outputs)
        patches = self.kept.patches.view(models * examples, self.kept.positions, self.patch)
        self.kept.biases = each.sum(1).view(models, examples, self.outputs)
        if self.ghost:
            square = ghost_square(
                torch.bmm(patches, patches.transpose(1, 2)),
                torch.bmm(each, each.transpose(1, 2)),
                self.patch,
                self.outputs,
            )
        else:
            self.kept.gradients = torch.bmm(each.transpose(1, 2), patches)
            square = squares(self.kept.gradients.flatten(1))
        before = (
            self._scattered(torch.bmm(self.kept.slope, self._weight(parameters)))
            if further
            else None
        )
        return before, square.view(models, examples) + squares(self.kept.biases)

    def _scattered(self, patch_slopes: Tensor) -> Tensor:
        """Return the slope of each pixel: the sum over the patches that contain it."""
        images, height, width, channels = self.kept.shape
        (kh, kw), (sh, sw), (oh, ow), (top, left) = (
            self.kernel,
            self.stride,
            self.kept.out,
            self.padding,
        )
        given = patch_slopes.view(images, oh, ow, kh, kw, channels)
        if self.kernels is not None:
            found: Tensor = self.kernels.scatter_patches(
                given, self.kept.shape, self.stride, self.padding
            )
        else:
            size = (images, height + 2 * top, width + 2 * left, channels)
            found = torch.zeros(size, dtype=given.dtype, device=given.device)
            for i in range(kh):
                for j in range(kw):
                    found[:, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw] += (
                        given[:, :, :, i, j]
                    )
            found = found[:, top : top + height, left : left + width].contiguous()
        return found.view(patch_slopes.shape[0], -1, height, width, channels)

    @property
    def summed(self) -> tuple[str, ...]:
        return ("patches", "slope", "biases") if self.ghost else ("gradients", "biases")

    def clipped(self, factors: Tensor) -> Tensor:
        models, examples = factors.shape
        if self.ghost:
            scaled = (self.kept.slope.view(models, examples, -1) * factors[:, :, None]).view(
                models, -1, self.outputs
            )
            weight = torch.bmm(scaled.transpose(1, 2), self.kept.patches.to(factors.dtype))
        else:
            weight = self._weighted(self.kept.gradients.view(models, examples, -1), factors)
        ordered = weight.view(models, self.outputs, *self.kernel, self.inputs).permute(
            0, 1, 4, 2, 3
        )
        return torch.cat([ordered.flatten(1), self._weighted(self.kept.biases, factors)], dim=1)

    def _weighted(self, values: Tensor, factors: Tensor) -> Tensor:
        """Return the sum over the examples times their factors, in float64."""
        if self.kernels is not None:
            found: Tensor = self.kernels.weighted_sums(values, factors)
            return found
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


def squares(values: Tensor) -> Tensor:
    """Return Σ x² over the last axis in float64, where no square of a float32 underflows."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return norms.square()


def pair(value: Any) -> list[int]:
    """Return a setting for both axes."""
    return [int(value), int(value)] if isinstance(value, int) else [int(each) for each in value]


def kernels_of(device: str) -> Any:
    """Return the module of fused CUDA kernels, or None where it is not available."""
    if device == "cpu":
        return None
    try:
        from expost.training._torch import layer_kernels
    except ImportError:
        return None
    return layer_kernels
