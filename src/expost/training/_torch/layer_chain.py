"""Clipped sums of chains of layers, for many models at once on a torch device.

The layers are in :mod:`expost.training._torch.layers`; the clip factors are in
:mod:`expost.training._torch.clipping`.

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

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.arrays import Array
from expost.training._torch.clipping import ClippedSums, clip_factors, cut
from expost.training._torch.convolutions import kernels_of, pair
from expost.training._torch.layers import (
    Connected,
    Convolved,
    Flattened,
    Layer,
    Pooled,
    Rectified,
)
from expost.training._torch.module_state import Parameters

Tensor = torch.Tensor


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
