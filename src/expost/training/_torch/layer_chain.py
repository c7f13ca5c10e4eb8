"""Clipped sums of chains of layers, for many models at once on a torch device.

Fully connected layers are batched matrix products. Convolutions are in
:mod:`expost.training._torch.convolutions`.

Only the parts of the gradients that clipping needs are computed. The gradient of a fully connected
layer has the norm ‖input‖·‖slope‖. A convolution with few positions and many parameters computes
its norm from two small Gram matrices. A convolution with many positions stores its (small)
gradient. The clipped sum is one further product.

A "slope" is the gradient of the loss with respect to an activation. The clip
factors are in :mod:`expost.training._torch.clipped_sums`.

As everywhere, an example whose norm is not finite adds nothing. This is rare. So a stretch of steps
is first made without removing such examples. If one occurred, the stretch is repeated with care
(:mod:`expost.training._torch.model_group`).

Arithmetic is in the precision of the parameters: usually float32, never TF32 alone, whose rounding
would affect what clipping bounds. Squared norms, clip factors and the sums over examples are
float64. So the gradient that is added is the gradient whose norm was computed. A sum in float32
could move by many clipping norms because of one example, as its rounding depends on everything that
was added before.

Tests: ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.arrays import Array
from expost.training._torch.clipped_sums import (
    ClippedSums,
    Outer,
    Part,
    Stored,
    clipped_totals,
    convolution_part,
    slopes_of,
)
from expost.training._torch.convolutions import Convolution, kernels_of
from expost.training._torch.module_state import Parameters
from expost.training._torch.plain_chain import UnsupportedChain, pair, plain_layers

Tensor = torch.Tensor
_MOST_CODES = 128  # the kernels store a place in a pooling window as int8


class Layer(ABC):
    """A layer on activations of shape models × examples × channels × height × width.

    Its parameters are in the order of torch.
    """

    width = 0
    kept: Any  # what backward needs of the pass before; emptied after each call
    parts: Sequence[Part] = ()

    @abstractmethod
    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Return the output of the layer."""

    @abstractmethod
    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
        """Return the slope at the input, if ``further`` layers need it.

        ``parts`` are then the gradients of the parameters, in their order.
        """


class Rectified(Layer):
    """ReLU."""

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.out = out = functional.relu(x)
        return out

    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
        before: Tensor = torch.ops.aten.threshold_backward(slope, self.kept.out, 0)
        return before


class Flattened(Layer):
    """All axes of an example as one."""

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.shape = x.shape
        return x.reshape(*x.shape[:2], -1, 1, 1)

    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
        return slope.reshape(self.kept.shape)


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

    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
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
        return before


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

    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
        slopes = slope.reshape(*slope.shape[:2], self.outputs)
        self.parts = [Outer("weight", self.kept.x, slopes), Stored("bias", slopes)]
        if not further:
            return None
        return torch.bmm(slopes, self._weight(parameters))[:, :, :, None, None]


class Convolved(Layer):
    """Convolution; parameters: weight (out × in × height × width), then bias."""

    def __init__(self, layer: nn.Conv2d, kernels: Any) -> None:
        self.convolution = Convolution(layer, kernels)
        self.outputs, self.patch = self.convolution.outputs, self.convolution.patch
        self.width = self.outputs * (self.patch + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.x = x
        bias = parameters[:, self.outputs * self.patch :]
        return self.convolution.forward(x, self._weight(parameters), bias)

    def _weight(self, parameters: Tensor) -> Tensor:
        """Return the weight as models × outputs × terms of a patch."""
        return parameters[:, : self.outputs * self.patch].view(-1, self.outputs, self.patch)

    def backward(self, slope: Tensor, parameters: Tensor, further: bool) -> Tensor | None:
        weight = convolution_part("weight", self.convolution, [(self.kept.x, slope)])
        self.parts = [weight, Stored("bias", slope.sum((3, 4)))]
        if not further:
            return None
        size = self.kept.x.shape[3:]
        return self.convolution.slopes(slope, self._weight(parameters), size)


class ChainSums(ClippedSums):
    """Sums of clipped gradients of models that are chains of supported layers."""

    fixed = True
    sound: Tensor

    def __init__(
        self,
        module: nn.Module,
        factory: Callable[[], Any],
        X: Array,
        y: Array,
        loss: str,
        device: str,
    ) -> None:
        self.kernels = kernels_of(device)
        self.layers = list(_layers(module, X.shape[1:], self.kernels))
        self.parameters = Parameters(module, factory, device)
        self.dtype, self.width, self.loss = self.parameters.dtype, self.parameters.width, loss
        if self.width != sum(layer.width for layer in self.layers):
            raise UnsupportedChain("parameters outside the layers")
        images = X if X.ndim == 4 else X.reshape(len(X), -1, 1, 1)
        self.X = torch.from_numpy(images).to(device, self.dtype).contiguous()
        self.y = self.targets(y, device)
        self.rows = len(X)
        self.sound = torch.ones((), dtype=torch.bool, device=device)
        self._bytes = self._measure(device)

    def start(self, seeds: Sequence[int]) -> Tensor:
        return self.parameters.start(seeds)

    def arrays(self, flat: Array) -> dict[str, Array]:
        return self.parameters.arrays(flat)

    def bytes_per_example(self) -> int:
        return self._bytes

    def _measure(self, device: str) -> int:
        """Return the bytes of what the layers return and keep for one example."""
        blank = torch.zeros(1, self.width, dtype=self.dtype, device=device)
        passed = self._passed(blank, self.X[:1][None] * 0)
        total = 2 * self.X[0].numel() + 4 * sum(out.numel() for out in passed)
        self._turned(blank, torch.zeros_like(passed[-1]))
        for layer in self.layers:
            total += 4 * sum(part.held for part in layer.parts)
            if isinstance(layer, Convolved) and layer.convolution.kernels is None:
                total += 2 * layer.kept.x.numel() * layer.patch
        self._forget()
        return total * self.X.element_size()

    def _passed(self, parameters: Tensor, x: Tensor) -> list[Tensor]:
        """Return the outputs of all layers."""
        outputs = [x]
        for layer, values in self._each(parameters):
            layer.kept = SimpleNamespace()
            outputs.append(layer.forward(outputs[-1], values))
        return outputs

    def _turned(self, parameters: Tensor, slope: Tensor) -> list[Part]:
        """Return the gradients of all parameters, in their order."""
        for depth, (layer, values) in reversed(list(enumerate(self._each(parameters)))):
            slope = layer.backward(slope, values, depth > 0)  # type: ignore[assignment]
        return [part for layer in self.layers for part in layer.parts]

    def _forget(self) -> None:
        for layer in self.layers:
            layer.kept, layer.parts = SimpleNamespace(), ()

    def _each(self, parameters: Tensor) -> Iterator[tuple[Layer, Tensor]]:
        """Yield each layer with its part of the parameters."""
        first = 0
        for layer in self.layers:
            yield layer, parameters[:, first : first + layer.width]
            first += layer.width

    def chunk(self, parameters: Tensor, rows: Tensor, taken: Tensor, clips: Tensor) -> Tensor:
        values = parameters.to(self.dtype)
        outputs = self._passed(values, self.X[rows])[-1].flatten(2)
        slope = self.weighted(slopes_of(outputs, self.y[rows], self.loss), self.y[rows])
        parts = self._turned(values, slope[:, :, :, None, None])
        clipped = clipped_totals(self, parts, rows, taken, clips, self.kernels)
        self._forget()
        return torch.cat(clipped, dim=1)


def _layers(module: nn.Module, shape: tuple[int, ...], kernels: Any) -> Iterator[Layer]:
    """Yield the layers of the chain; refuse a chain that is not supported."""
    skip, leaves = False, [leaf for _, leaf in plain_layers(module, shape)]
    for leaf, following in zip(leaves, [*leaves[1:], None], strict=True):
        if isinstance(leaf, nn.ReLU):
            skip = isinstance(following, nn.MaxPool2d)
            if not skip:
                yield Rectified()
        elif isinstance(leaf, nn.Flatten):
            yield Flattened()
        elif isinstance(leaf, nn.Linear):
            yield Connected(leaf)
        elif isinstance(leaf, nn.MaxPool2d):
            yield Pooled(leaf, skip, kernels)
            skip = False
        else:
            yield Convolved(leaf, kernels)
