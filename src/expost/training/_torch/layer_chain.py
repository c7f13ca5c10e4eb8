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
from expost.training._torch.clipped_sums import VANISHED, ClippedSums, clip_factors, cut
from expost.training._torch.convolutions import (
    Convolution,
    ghost_square,
    kernels_of,
    pair,
    squared_norms,
)
from expost.training._torch.module_state import Parameters

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


class UnsupportedChain(Exception):
    """A layer, or a setting of a layer, that the chain does not support."""


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
        self.layers = list(_layers(module, X.shape[1:], kernels_of(device)))
        self.parameters = Parameters(module, factory, device)
        self.dtype, self.width, self.loss = self.parameters.dtype, self.parameters.width, loss
        if self.width != sum(layer.width for layer in self.layers):
            raise UnsupportedChain("parameters outside the layers")
        images = X if X.ndim == 4 else X.reshape(len(X), -1, 1, 1)
        self.X = torch.from_numpy(images).to(device, self.dtype).contiguous()
        self.y = self.targets(y, device)
        self.rows, self.classes = len(X), self.layers[-1].outputs  # type: ignore[attr-defined]
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
        x, total = self.X[:1][None] * 0, 2 * self.X[0].numel()
        blank = torch.zeros(1, self.width, dtype=self.dtype, device=device)
        for layer, parameters in self._each(blank):
            layer.kept = SimpleNamespace()
            x = layer.forward(x, parameters)
            total += 4 * x.numel()
            if isinstance(layer, Convolved):
                positions = layer.kept.positions
                total += (
                    4 * positions * layer.patch + 8 * positions**2
                    if layer.ghost
                    else 3 * layer.width
                )
                if layer.convolution.kernels is None:
                    total += 2 * positions * layer.patch
            if isinstance(layer, Connected):
                total += 4 * layer.inputs
        return total * self.X.element_size()

    def _each(self, parameters: Tensor) -> Iterator[tuple[Layer, Tensor]]:
        """Yield each layer with its part of the parameters."""
        first = 0
        for layer in self.layers:
            yield layer, parameters[:, first : first + layer.width]
            first += layer.width

    def chunk(self, parameters: Tensor, rows: Tensor, taken: Tensor, clips: Tensor) -> Tensor:
        steps = list(self._each(parameters.to(self.dtype)))
        for layer in self.layers:
            layer.kept = SimpleNamespace()
        x = self.X[rows]
        for layer, values in steps:
            x = layer.forward(x, values)
        slope = self.weighted(self._slope(x.flatten(2), self.y[rows]), self.y[rows])
        slope = slope[:, :, :, None, None]
        square = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
        for depth in range(len(steps) - 1, -1, -1):
            layer, values = steps[depth]
            before, more = layer.backward(slope, values, depth > 0)
            square = square if more is None else square + more
            slope = slope if before is None else before
        good = torch.isfinite(square)
        self.sound &= good.all()
        if self.careful:
            for layer in self.layers:
                layer.clear(good)
        factors = cut(clip_factors(square.sqrt(), clips[:, None]) * taken)
        clipped = torch.cat([layer.clipped(factors) for layer in self.layers], dim=1)
        for layer in self.layers:
            layer.kept = SimpleNamespace()
        return clipped

    def _slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of the loss at the outputs."""
        if self.loss == "squared":
            return 2.0 * (outputs - targets[:, :, None].to(self.dtype))
        if self.loss == "logistic":
            return torch.sigmoid(outputs) - targets[:, :, None].to(self.dtype)
        labels = functional.one_hot(targets.to(torch.int64), self.classes)
        return torch.softmax(outputs, dim=2) - labels.to(self.dtype)


def _layers(module: nn.Module, shape: tuple[int, ...], kernels: Any) -> Iterator[Layer]:
    """Yield the layers of the chain; refuse a chain that is not supported."""
    if len(shape) not in (1, 3):
        raise UnsupportedChain("rows of this shape")
    leaves = list(_leaves(module))
    held = [parameter for leaf in leaves for parameter in leaf.parameters()]
    if len({id(parameter) for parameter in held}) < len(held):
        raise UnsupportedChain("layers that share parameters")
    if not leaves or type(leaves[-1]) is not nn.Linear:
        raise UnsupportedChain("a chain that does not end in a Linear")
    flat, skip = len(shape) == 1, False
    for leaf, following in zip(leaves, [*leaves[1:], None], strict=True):
        _check_leaf(leaf, flat)
        if isinstance(leaf, nn.ReLU):
            skip = isinstance(following, nn.MaxPool2d)
            if not skip:
                yield Rectified()
        elif isinstance(leaf, nn.Flatten):
            flat = True
            yield Flattened()
        elif isinstance(leaf, nn.Linear):
            yield Connected(leaf)
        elif isinstance(leaf, nn.MaxPool2d):
            yield Pooled(leaf, skip, kernels)
            skip = False
        else:
            yield Convolved(leaf, kernels)


def _check_leaf(leaf: Any, flat: bool) -> None:
    """Refuse a layer whose settings are not exactly those that are computed here."""
    kind = type(leaf)
    if (
        leaf._forward_hooks
        or leaf._forward_pre_hooks
        or leaf._backward_hooks
        or not all(parameter.requires_grad for parameter in leaf.parameters())
    ):
        raise UnsupportedChain("hooks or frozen parameters")
    if kind in (nn.MaxPool2d, nn.Conv2d) and (flat or pair(leaf.dilation) != [1, 1]):
        raise UnsupportedChain(kind.__name__)
    known = (
        kind is nn.ReLU
        or (kind is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1))
        or (kind is nn.Linear and flat and leaf.bias is not None)
        or (
            kind is nn.MaxPool2d
            and pair(leaf.padding) == [0, 0]
            and not leaf.ceil_mode
            and not leaf.return_indices
        )
        or (
            kind is nn.Conv2d
            and leaf.groups == 1
            and leaf.bias is not None
            and leaf.padding_mode == "zeros"
            and not isinstance(leaf.padding, str)
        )
    )
    if not known:
        raise UnsupportedChain(kind.__name__)


def _leaves(module: nn.Module) -> Iterator[Any]:
    """Yield the layers of nested Sequentials in the order of application."""
    if type(module) is not nn.Sequential:
        raise UnsupportedChain(type(module).__name__)
    for layer in module._modules.values():  # children() skips a layer that occurs again
        if type(layer) is nn.Sequential:
            yield from _leaves(layer)
        elif type(layer) is not nn.Identity:
            yield layer
