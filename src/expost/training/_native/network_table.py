"""Translate a torch module into the table of the native network kernel.

The kernel trains chains (``nn.Sequential``, also nested) of Conv2d, MaxPool2d, ReLU, Flatten and
Linear layers that end in a Linear layer, with plain settings only. Other modules are refused with
:class:`Unsupported`, and torch trains them. The columns of the table are defined in
:mod:`expost.training._native.network_layers`.

Tests: ``tests/training/test_modules.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._native.network_layers import (
    BLOCK,
    CONVOLUTION,
    FLATTEN,
    LINEAR,
    POOLING,
    RELU,
    Scratch,
)
from expost.training._native.vector_products import VECTOR


class Unsupported(Exception):
    """A layer, or a setting of a layer, that the native kernel does not support."""


class Network:
    """Table of a chain of layers, for examples of one shape."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        self._shape = (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape[-1])
        if len(shape) not in (1, 3):
            raise Unsupported("rows of this shape")
        self.channels_last = len(shape) == 3
        self.double = any(value.dtype == torch.float64 for value in module.parameters())
        here, values, parameters, winners, patches, outer = (
            self._shape,
            int(np.prod(self._shape)),
            0,
            0,
            1,
            1,
        )
        rows, source = [], 0
        # names and shapes in torch, in the order of the kernel
        self._pieces: list[tuple[str, tuple[int, ...]]] = []
        flat = len(shape) == 1
        for name, layer in _chain(module):
            kind, after, window = _describe(layer, here, flat)
            flat = flat or kind == FLATTEN
            size, width = int(np.prod(after)), window[0] * window[1] * here[2]
            extra, bordered = (
                winners,
                int(np.prod([here[axis] + 2 * window[4 + axis] for axis in (0, 1)])) * here[2],
            )
            if kind == CONVOLUTION:
                extra = values if bordered > np.prod(here) else source
                values += bordered if bordered > np.prod(here) else 0
                patches = max(patches, after[0] * after[1] * width)
            target = source if kind == RELU else values
            rows.append([kind, source, target, parameters, extra, *here, *after, *window])
            if kind in (CONVOLUTION, LINEAR):
                parameters += after[2] * (width + 1)
                self._pieces += [
                    (f"{name}.weight", tuple(layer.weight.shape)),
                    (f"{name}.bias", tuple(layer.bias.shape)),
                ]
            if kind == LINEAR:
                outer = max(outer, BLOCK * (width + VECTOR + after[2]))
            winners += size if kind == POOLING else 0
            source, values, here = target, values + (0 if kind == RELU else size), after
        if not rows or rows[-1][0] != LINEAR:
            raise Unsupported("a chain that does not end in a Linear")
        self.table = np.array(rows, dtype=np.int64)
        self.width, self._sizes = parameters, (values, winners, patches, outer)
        self.work = 3 * sum(
            row[8] * row[9] * row[10] * row[11] * row[12] * row[7]
            for row in rows
            if row[0] in (CONVOLUTION, LINEAR)
        )

    def scratch(self, dtype: Any) -> Scratch:
        """Allocate the memory of one thread."""
        values, winners, patches, outer = self._sizes
        lanes, block = VECTOR // np.dtype(dtype).itemsize, BLOCK
        return Scratch(
            values=np.zeros((block, values + lanes), dtype=dtype),
            slopes=np.zeros((block, values + lanes), dtype=dtype),
            patch_slopes=np.zeros(patches, dtype=dtype),
            winners=np.zeros((block, winners), dtype=np.int32),
            gradient=np.zeros(self.width, dtype=dtype),
            parameters=np.zeros(self.width + lanes, dtype=dtype),
            turned=np.zeros(self.width + lanes, dtype=dtype),
            squares=np.zeros(block),
            outer=np.zeros(outer),
            zeros=np.zeros(lanes, dtype=dtype),
        )

    def rows(self, X: Array) -> Array:
        """Return the examples as flat rows, channels last."""
        ordered = X.transpose(0, 2, 3, 1) if self.channels_last else X
        return np.ascontiguousarray(ordered).reshape(len(X), -1)

    def flat(self, module: nn.Module) -> Array:
        """Return the parameters of a module as a flat array in the order of the kernel."""
        named = {name: value.detach().numpy() for name, value in module.named_parameters()}
        if [(name, named[name].shape) for name, _ in self._pieces if name in named] != self._pieces:
            raise InvalidInput(
                "model", "modules of different shapes", "return the same architecture at every call"
            )
        pieces = [named[name] for name, _ in self._pieces]
        return np.concatenate(
            [(p.transpose(2, 3, 1, 0) if p.ndim == 4 else p).ravel() for p in pieces]
        ).astype(np.float64)

    def named(self, flat: Array, dtype: Any = np.float64) -> dict[str, Array]:
        """Return flat parameters under the names and in the shapes of torch."""
        found, start = {}, 0
        for name, shape in self._pieces:
            piece = flat[start : start + int(np.prod(shape))]
            start += piece.size
            if len(shape) == 4:
                piece = piece.reshape(shape[2], shape[3], shape[1], shape[0]).transpose(3, 2, 0, 1)
            found[name] = np.ascontiguousarray(piece.reshape(shape), dtype=dtype)
        return found


def _chain(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the layers of nested Sequentials with their full names, in the order of application.

    Layers that share parameters are refused. ``named_children`` is not used because it skips a
    layer that occurs again, such as one ReLU that is used twice.
    """
    if type(module) is not nn.Sequential:
        raise Unsupported(type(module).__name__)
    if not prefix and sum(1 for _ in module.named_parameters(remove_duplicate=False)) > sum(
        1 for _ in module.parameters()
    ):
        raise Unsupported("layers that share parameters")
    for name, layer in module._modules.items():
        if type(layer) is nn.Sequential:
            yield from _chain(layer, f"{prefix}{name}.")
        elif type(layer) is not nn.Identity:
            yield f"{prefix}{name}", layer


def _describe(
    layer: Any, here: tuple[int, int, int], flat: bool
) -> tuple[int, tuple[int, int, int], list[int]]:
    """Return kind, output shape, and kernel, stride and padding of a layer.

    ``here`` is the shape of its input: height, width, channels.
    """
    kind = {
        nn.Conv2d: CONVOLUTION,
        nn.MaxPool2d: POOLING,
        nn.ReLU: RELU,
        nn.Flatten: FLATTEN,
        nn.Linear: LINEAR,
    }.get(type(layer))
    if kind is None or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        raise Unsupported(type(layer).__name__)
    if not all(parameter.requires_grad for parameter in layer.parameters()):
        raise Unsupported("a frozen layer")
    if kind == RELU:
        return kind, here, [1, 1, 1, 1, 0, 0]
    if kind == FLATTEN:
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise Unsupported("Flatten of some axes")
        return kind, (1, 1, here[0] * here[1] * here[2]), [1, 1, 1, 1, 0, 0]
    if kind == LINEAR:
        if not flat or layer.bias is None or layer.in_features != here[2]:
            raise Unsupported("Linear")
        return kind, (1, 1, layer.out_features), [1, 1, 1, 1, 0, 0]
    kernel, stride, padding, dilation = (
        _pair(getattr(layer, name)) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    plain = not flat and dilation == [1, 1]
    if kind == POOLING:
        plain = plain and padding == [0, 0] and not layer.ceil_mode and not layer.return_indices
        channels = here[2]
    else:
        plain = (
            plain
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and layer.bias is not None
            and layer.in_channels == here[2]
        )
        channels = layer.out_channels
    if not plain:
        raise Unsupported(type(layer).__name__)
    after = [(here[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)]
    if min(after) < 1:
        raise Unsupported("an input smaller than the kernel")
    return kind, (after[0], after[1], channels), [*kernel, *stride, *padding]


def _pair(value: Any) -> list[int]:
    """Return a setting for both axes."""
    if isinstance(value, str):
        raise Unsupported("padding by name")
    return [int(value), int(value)] if isinstance(value, int) else [int(each) for each in value]
