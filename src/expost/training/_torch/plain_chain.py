"""Chains of plain layers: which modules the native kernel and the chains on CUDA support.

A chain is a ``nn.Sequential``, also nested, of Conv2d, MaxPool2d, ReLU, Flatten and Linear layers
that ends in a Linear layer, with plain settings only. Other modules are refused with
:class:`UnsupportedChain`, and :mod:`expost.training._torch.modules` trains them.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


class UnsupportedChain(Exception):
    """A layer, or a setting of a layer, that chains do not support."""


def plain_layers(module: nn.Module, shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """Return the layers of a chain with their names, in the order of application."""
    if len(shape) not in (1, 3):
        raise UnsupportedChain("rows of this shape")
    layers, flat = list(_layers(module)), len(shape) == 1
    held = [id(parameter) for _, layer in layers for parameter in layer.parameters()]
    if len(set(held)) < len(held):
        raise UnsupportedChain("layers that share parameters")
    if not layers or type(layers[-1][1]) is not nn.Linear:
        raise UnsupportedChain("a chain that does not end in a Linear")
    for _, layer in layers:
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
        if hooks or not all(parameter.requires_grad for parameter in layer.parameters()):
            raise UnsupportedChain("hooks or frozen parameters")
        if not _plain(layer, flat):
            raise UnsupportedChain(type(layer).__name__)
        flat = flat or type(layer) is nn.Flatten
    return layers


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the layers of nested Sequentials with their full names."""
    if type(module) is not nn.Sequential:
        raise UnsupportedChain(type(module).__name__)
    for name, layer in module._modules.items():  # named_children skips a layer that occurs again
        if type(layer) is nn.Sequential:
            yield from _layers(layer, f"{prefix}{name}.")
        elif type(layer) is not nn.Identity:
            yield f"{prefix}{name}", layer


def _plain(layer: Any, flat: bool) -> bool:
    """Return whether the settings of a layer are those that are supported."""
    kind = type(layer)
    if kind is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if kind is nn.Linear:
        return flat and layer.bias is not None
    if kind is nn.MaxPool2d:
        plain = pair(layer.padding) == [0, 0] and not layer.ceil_mode and not layer.return_indices
    elif kind is nn.Conv2d:
        named = isinstance(layer.padding, str) or layer.padding_mode != "zeros"
        plain = layer.groups == 1 and layer.bias is not None and not named
    else:
        return kind is nn.ReLU
    return plain and not flat and pair(layer.dilation) == [1, 1]


def pair(value: Any) -> list[int]:
    """Return a setting for both axes."""
    return [int(value), int(value)] if isinstance(value, int) else [int(side) for side in value]
