"""LSTM, GRU and RNN layers as products and element-wise operations.

``torch.func.vmap`` cannot vectorise torch's recurrent layers. So their forward pass is replaced by
this one, with the same parameters and the same result. The products are passed in: tapped ones
(:mod:`expost.training._torch.tapped_layers`), so that the gradients of a weight that is used at
every time step are computed at once.

Tests: ``tests/training/test_module_taps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.errors import InvalidInput

Tensor = torch.Tensor
Product = Callable[[Tensor], Tensor]
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def suffixes(layer: nn.RNNBase) -> list[str]:
    """Return the endings of the names of the parameters: one per layer and direction."""
    ends = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"l{depth}{end}" for depth in range(layer.num_layers) for end in ends]


def products_of(layer: nn.RNNBase) -> dict[str, dict[str, str]]:
    """Return the parameters of each product of the layer: names by role, by the product's name."""
    calls = {}
    for suffix in suffixes(layer):
        for kind in ("ih", "hh", *(["hr"] if layer.proj_size else [])):
            roles = {"weight": f"weight_{kind}_{suffix}"}
            if layer.bias and kind != "hr":
                roles["bias"] = f"bias_{kind}_{suffix}"
            calls[f"{kind}_{suffix}"] = roles
    return calls


def plain_products(layer: nn.RNNBase) -> dict[str, Product]:
    """Return the products with the parameters that the layer holds at the moment of a call."""
    return {
        name: partial(linear, layer, roles["weight"], roles.get("bias", ""))
        for name, roles in products_of(layer).items()
    }


def linear(layer: nn.Module, weight: str, bias: str, x: Tensor) -> Tensor:
    """Return the product with parameters that the layer holds at the moment of the call."""
    return functional.linear(x, getattr(layer, weight), getattr(layer, bias) if bias else None)


def make_batchable(module: nn.Module) -> None:
    """Replace the forward pass of recurrent layers by one that ``torch.func.vmap`` supports."""
    for layer in module.modules():
        if type(layer) in RECURRENT:
            assert isinstance(layer, nn.RNNBase)
            layer.__dict__["forward"] = recurrent_forward(layer, plain_products(layer))


def recurrent_forward(layer: Any, products: dict[str, Product]) -> Callable[..., Any]:
    """Return a forward pass of the layer that computes its products by ``products``."""

    def forward(input: Any, hx: Any = None) -> Any:
        if not isinstance(input, torch.Tensor):
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} on {type(input).__name__}",
                "pass sequences of one length as a tensor; pad shorter ones",
            )
        x = input.unsqueeze(1) if input.ndim == 2 else input
        if input.ndim == 3 and layer.batch_first:
            x = x.transpose(0, 1)
        pair = isinstance(layer, nn.LSTM)
        given = None if hx is None else (hx if pair else (hx,))
        if given is not None and input.ndim == 2:
            given = tuple(state.unsqueeze(1) for state in given)
        ends: list[tuple[Tensor, ...]] = []
        names = suffixes(layer)
        directions = 2 if layer.bidirectional else 1
        for first in range(0, len(names), directions):
            layers = []
            for index, suffix in enumerate(names[first : first + directions], first):
                start = None if given is None else tuple(state[index] for state in given)
                outputs, end = _run(layer, products, suffix, x, start)
                layers.append(outputs)
                ends.append(end)
            x = layers[0] if directions == 1 else torch.cat(layers, dim=2)
            if layer.dropout and first + directions < len(names):
                x = functional.dropout(x, layer.dropout, layer.training)
        states = tuple(torch.stack(states_of_layer) for states_of_layer in zip(*ends, strict=True))
        if input.ndim == 2:
            x, states = x.squeeze(1), tuple(state.squeeze(1) for state in states)
        elif layer.batch_first:
            x = x.transpose(0, 1)
        return x, states if pair else states[0]

    return forward


def _run(
    layer: Any, products: dict[str, Product], suffix: str, x: Tensor, start: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the outputs of one layer in one direction at all times, and its last state."""
    along, across = products[f"ih_{suffix}"](x), products[f"hh_{suffix}"]
    if start is None:
        wide = layer.proj_size or layer.hidden_size
        start = (x.new_zeros(x.shape[1], wide),)
        if isinstance(layer, nn.LSTM):
            start = (start[0], x.new_zeros(x.shape[1], layer.hidden_size))
    state: tuple[Tensor, ...] = start
    outputs: list[Tensor] = []
    times = range(len(x))
    for time in reversed(times) if suffix.endswith("_reverse") else times:
        state = _step(layer, along[time], across(state[0]), state)
        if layer.proj_size:
            state = (products[f"hr_{suffix}"](state[0]), *state[1:])
        outputs.append(state[0])
    if suffix.endswith("_reverse"):
        outputs.reverse()
    return torch.stack(outputs), state


def _step(
    layer: Any, along: Tensor, across: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the next state of a cell."""
    if isinstance(layer, nn.LSTM):
        taken, kept, new, shown = (along + across).chunk(4, dim=-1)
        cell = torch.sigmoid(kept) * state[1] + torch.sigmoid(taken) * torch.tanh(new)
        return torch.sigmoid(shown) * torch.tanh(cell), cell
    if isinstance(layer, nn.GRU):
        reset, update, new = along.chunk(3, dim=-1)
        reset_too, update_too, new_too = across.chunk(3, dim=-1)
        fresh = torch.tanh(new + torch.sigmoid(reset + reset_too) * new_too)
        share = torch.sigmoid(update + update_too)
        return ((1 - share) * fresh + share * state[0],)
    both = along + across
    return (torch.tanh(both) if layer.nonlinearity == "tanh" else torch.relu(both),)
