"""Per-example gradients of any module, with rows that are independent by construction.

The forward pass is vectorised over examples by ``torch.func.vmap`` (and over models on CUDA). So an
example sees itself only, as a batch of one, whatever the module computes: a forward pass that looks
across its batch sees no other row. The backward pass is torch's autograd through the vectorised
forward pass; outputs of different rows have no operation in common.

Supported layers are tapped (:mod:`expost.training._torch.tapped_layers`): they record the inputs
and the slopes of all examples, from which the norms and the clipped sums of gradients are computed.
This is the gradient with respect to a zero perturbation that is added to the output of the layer.
All other parameters (used in another way, by several layers, or by a layer without a tapped
version) get a copy per example, so that autograd returns per-example gradients of just these.

Which parameters are used in another way is found by a pass with zeros, without data: a tapped
layer does not read the parameters that the module holds, so a gradient of those means another use.

**LSTM, GRU and RNN**, and their cells, are products and element-wise operations.
``torch.func.vmap`` cannot vectorise torch's own versions, or does so slowly. So their forward pass
is replaced by this one, with the same parameters and the same result. The products are passed in:
tapped ones (:mod:`expost.training._torch.tapped_layers`), so that the gradients of a weight that is
used at every time step are computed at once.

Tests: ``tests/training/test_module_taps.py``.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C import _functorch as wrapped
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.func import vmap
from torch.nn import functional

from expost.errors import InvalidInput
from expost.training._torch.clipped_sums import Part, Stored
from expost.training._torch.module_state import (
    OnlyRowwise,
    ReachableState,
    RowError,
    RowsApart,
    inside,
)
from expost.training._torch.plain_chain import pair
from expost.training._torch.tapped_layers import (
    TappedConvolution,
    TappedConvolutions,
    TappedEmbedding,
    TappedGroupNorm,
    TappedLayer,
    TappedLayerNorm,
    TappedLinear,
    Untappable,
)

Tensor = torch.Tensor


class ModuleTaps:
    """The taps of one module."""

    def __init__(
        self,
        module: nn.Module,
        names: Mapping[str, Tensor],
        blank: Tensor,
        *,
        exact: bool,
        kernels: Any = None,
    ) -> None:
        self.module, self.exact, self.kernels = module, exact, kernels
        self.state = ReachableState(module)
        self.errors: list[tuple[str, str]] | None = None  # of a pass over zeros
        self.anchor = torch.zeros((), device=blank.device, requires_grad=True)
        self.taps = _tapped(module, names, exact, kernels)
        self.rest = [name for name in names if name not in self._tapped_names()]
        self._recurrent: list[Any] = [
            layer for layer in module.modules() if type(layer) in RECURRENT
        ]
        # where the module holds each trained parameter, which may be in several layers
        self._places: dict[str, list[tuple[Any, str]]] = {
            name: [
                (layer._parameters, role)
                for layer in module.modules()
                for role, parameter in layer._parameters.items()
                if parameter is value
            ]
            for name, value in names.items()
        }
        self._levels: tuple[int, ...] = ()
        self._sizes = (1, 1)
        self._raised: list[tuple[str, str]] = []
        self._probe(names, blank)

    def _tapped_names(self) -> set[str]:
        return {name for tap in self.taps for name in tap.trained.values()}

    def outputs(
        self, X: Tensor, values: dict[str, Tensor], own: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the outputs of a batch, and the per-example copies of the other parameters.

        The caller sets ``state`` back when it needs nothing of the pass any more.

        ``X`` is models × examples × …, ``values`` are models × the shape of the parameter. Outputs
        are models × examples × outputs.
        """
        models, examples = X.shape[:2]
        for tap in self.taps:
            tap.begin(values, models, self.anchor)
        copies = {
            name: values[name]
            .detach()[:, None]
            .expand(-1, examples, *values[name].shape[1:])
            .requires_grad_()
            for name in self.rest
        }
        given = copies if own is None else own
        self._sizes = (models, examples)

        def one(x: Tensor, mine: dict[str, Tensor]) -> Tensor:
            level = wrapped.current_level()
            self._levels = (level,) if self.exact else (level - 1, level)
            with self._swapped(mine):
                out = self.module(x[None])
            if not isinstance(out, Tensor):
                raise InvalidInput(
                    "model",
                    f"a module that returns {type(out).__name__}",
                    "return one tensor: the outputs of each example",
                )
            return out.reshape(-1)

        shared = None if own is not None else 0
        per_example = vmap(one, in_dims=(0, shared), randomness="different")
        apart = RowsApart()
        with self._installed(), apart, torch.enable_grad():
            if self.exact:
                alone = {
                    name: value if own is not None else value[0] for name, value in given.items()
                }
                outputs = per_example(X[0], alone)[None]
            else:
                outputs = vmap(per_example, in_dims=(0, shared), randomness="different")(X, given)
        if self.errors is not None and apart.errors != self.errors:
            raise RowError
        self._raised = apart.errors
        return outputs, copies

    def gradients(self, outputs: Tensor, copies: dict[str, Tensor], slopes: Tensor) -> list[Part]:
        """Return the parts of the gradients of all parameters that are used."""
        leaves = [self.anchor, *copies.values()]
        gradients: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if outputs.requires_grad:
            with torch.enable_grad():  # given slopes, torch would load sympy
                weighted = (outputs * slopes).sum()
            gradients = torch.autograd.grad(weighted, leaves, allow_unused=True)
        parts: list[Part] = [
            Stored(name, value.flatten(2))
            for name, value in zip(copies, gradients[1:], strict=True)
            if value is not None
        ]
        for tap in self.taps:
            parts += tap.parts()
        return parts

    def _probe(self, names: Mapping[str, Tensor], blank: Tensor) -> None:
        """Find the parameters that are used in another way than by their tapped layer."""
        while True:
            X = blank.expand(1, 2, *blank.shape)
            values = {name: value.detach()[None] for name, value in names.items()}
            held = {name: value for name, value in names.items() if value.requires_grad}
            try:
                with self.state.kept():
                    with OnlyRowwise() as seen:  # type: ignore[no-untyped-call]
                        outputs = self.outputs(X, values, own={})[0]
                    if seen.refusal is not None:
                        raise seen.refusal
                    reached = _reached(outputs, held) & self._tapped_names()
                if not reached:
                    # with the copies of the other parameters, too
                    loose = _reached(self._repeated(X, values), held)
                    if loose:
                        raise InvalidInput(
                            "model",
                            f"the parameter {min(loose)!r}",
                            "its forward pass must read it from the layer that holds it, and not "
                            "from a list or another place",
                        )
            except Untappable as error:
                reached = set(error.layer.trained.values())
            except InvalidInput:
                raise
            except Exception as error:
                if not self.taps:
                    raise not_vectorised(self.module, error) from error
                reached = self._tapped_names()
            for tap in self.taps:
                tap.calls = []
            if not reached:
                self.errors, self.state.watching = self._raised, False
                return
            self.taps = [tap for tap in self.taps if not reached & set(tap.trained.values())]
            self.rest = [name for name in names if name not in self._tapped_names()]

    def _repeated(self, X: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Return the outputs of a pass that was made before; refuse a module if they differ."""
        outputs = []
        for _ in range(2):
            with torch.random.fork_rng(), self.state.kept():
                outputs.append(self.outputs(X, values)[0])
        before, after = (outputs.detach().nan_to_num() for outputs in outputs)
        least = 1e-3 if X.is_cuda else 0.0  # sums on CUDA may add in any order
        if before.shape != after.shape or not torch.allclose(before, after, rtol=least, atol=least):
            raise InvalidInput(
                "model",
                type(self.module).__name__,
                "its outputs change from one pass over zeros to the next, so it keeps a state that "
                "cannot be set back",
            )
        return outputs[1]

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Replace ``forward`` of tapped layers and recurrent layers."""
        replaced: dict[nn.Module, Callable[..., Any]] = {
            tap.layer: self._forward(tap) for tap in self.taps if type(tap.layer) not in RECURRENT
        }
        for layer in self._recurrent:
            replaced[layer] = _replacement(layer, self._products(layer))
        before = {layer: layer.__dict__.get("forward") for layer in replaced}
        try:
            for layer, forward in replaced.items():
                layer.__dict__["forward"] = forward
            yield
        finally:
            for layer, old in before.items():
                if old is None:
                    layer.__dict__.pop("forward", None)
                else:
                    layer.__dict__["forward"] = old

    @contextmanager
    def _swapped(self, values: dict[str, Tensor]) -> Iterator[None]:
        """Let the module hold other tensors in the place of these parameters."""
        before = [(held, role, held[role]) for name in values for held, role in self._places[name]]
        try:
            for name, value in values.items():
                for held, role in self._places[name]:
                    held[role] = value
            yield
        finally:
            for held, role, value in before:
                held[role] = value

    def _products(self, layer: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return the products of a recurrent layer, tapped where they can be."""
        tapped = {tap.held["weight"]: self._forward(tap) for tap in self.taps if tap.layer is layer}
        taps: dict[str, Callable[[Tensor], Tensor]] = {}
        for name, roles in products_of(layer).items():
            plain = partial(linear, layer, roles["weight"], roles.get("bias", ""))
            held: Any = layer._parameters[roles["weight"]]
            taps[name] = tapped.get(held, plain)
        return taps

    def _forward(self, tap: TappedLayer) -> Callable[[Tensor], Tensor]:
        """Return the forward pass of a tapped layer on a tensor inside ``vmap``."""

        def forward(input: Tensor) -> Tensor:
            if wrapped.current_level() != self._levels[-1]:
                raise Untappable(tap)  # inside a further transformation of the user's
            x = self._physical(input)
            with temporarily_clear_interpreter_stack(), torch._C.DisableTorchFunction():
                # Whether a call fails must not depend on a row: the output of a token outside the
                # vocabulary is NaN, so the norm is not finite, and the example adds nothing.
                tokens = isinstance(tap, TappedEmbedding)
                out = inside(x, tap.layer.num_embeddings, tap) if tokens else tap(x)
            if self.exact:
                out = out[0]
            for level in self._levels:
                out = wrapped._add_batch_dim(out, 0, level)
            return out

        return forward

    def _physical(self, x: Tensor) -> Tensor:
        """Return the tensor of all models and examples: models × examples × …."""
        axes: dict[int, int] = {}
        while wrapped.is_batchedtensor(x):
            axes[wrapped.maybe_get_level(x)] = wrapped.maybe_get_bdim(x)
            x = wrapped.get_unwrapped(x)
        levels = (-1, *self._levels) if self.exact else self._levels
        with temporarily_clear_interpreter_stack():
            for index, level in enumerate(levels):
                if level in axes:
                    x = x.movedim(axes[level] + index, index)
                else:
                    x = x.unsqueeze(index)
                    shape = list(x.shape)
                    shape[index] = self._sizes[index]
                    x = x.expand(shape)
        return x


def not_vectorised(module: nn.Module, error: Exception) -> InvalidInput:
    """Return the refusal of a module that raised on zeros inside ``vmap``."""
    if isinstance(error, InvalidInput):
        return error
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(Path(file).parts[-3:] == ("torch", "utils", "checkpoint.py") for file in frames):
        return InvalidInput(
            "model",
            "activation checkpointing",
            "batches are processed in chunks that fit the memory, so it is not needed: call the "
            "function itself (transformers: model.gradient_checkpointing_disable())",
        )
    return InvalidInput(
        "model",
        f"{type(module).__name__} ({type(error).__name__})",
        "its forward pass cannot be vectorised over examples by torch.func.vmap "
        f"(tried with zeros): {(str(error).splitlines() or [''])[0]}",
    )


def _reached(outputs: Tensor, held: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tensors on which the outputs depend."""
    if not outputs.requires_grad:
        return set()
    used = torch.autograd.grad(outputs.sum(), list(held.values()), allow_unused=True)
    return {name for name, value in zip(held, used, strict=True) if value is not None}


def _tapped(
    module: nn.Module, names: Mapping[str, Tensor], exact: bool, kernels: Any
) -> list[TappedLayer]:
    """Return the layers that can be tapped: each trained parameter belongs to one layer only."""
    owners = Counter(
        id(value)
        for layer in module.modules()
        for value in layer._parameters.values()
        if value is not None
    )
    known = {id(value): name for name, value in names.items()}
    tapped: list[TappedLayer] = []

    def add(layer: nn.Module, kind: type[TappedLayer], held: dict[str, Tensor]) -> None:
        trained = {role: known[id(value)] for role, value in held.items() if id(value) in known}
        if trained and all(owners[id(value)] == 1 for value in held.values()):
            tapped.append(kind(layer, held, trained, exact=exact, kernels=kernels))

    for layer in module.modules():
        held: Any = {
            role: parameter
            for role, parameter in layer._parameters.items()
            if parameter is not None
        }
        if "forward" in layer.__dict__:
            continue
        if type(layer) in RECURRENT:
            for roles in products_of(layer).values():
                add(layer, TappedLinear, {role: held[name] for role, name in roles.items()})
        kind = tap_of(layer, exact=exact)
        if kind is not None and "weight" in held and set(held) <= {"weight", "bias"}:
            add(layer, kind, held)
    return tapped


def tap_of(layer: nn.Module, *, exact: bool) -> type[TappedLayer] | None:
    """Return the tapped version of a layer, or None if its settings are not supported."""
    kind: Any = type(layer)
    settings: Any = layer
    if kind is nn.Linear:
        return TappedLinear
    if kind is nn.Embedding:
        plain = settings.max_norm is None and not settings.scale_grad_by_freq
        return TappedEmbedding if plain else None
    if kind is nn.LayerNorm:
        return TappedLayerNorm if settings.elementwise_affine else None
    if kind is nn.GroupNorm:
        return TappedGroupNorm if settings.affine else None
    if kind in (nn.Conv1d, nn.Conv2d):
        if settings.padding_mode != "zeros" or isinstance(settings.padding, str):
            return None
        if exact:
            return TappedConvolution
        whole = kind is nn.Conv2d and settings.groups == 1 and pair(settings.dilation) == [1, 1]
        return TappedConvolutions if whole else None
    return None


Product = Callable[[Tensor], Tensor]
CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN, *CELLS)


def suffixes(layer: nn.RNNBase) -> list[str]:
    """Return the endings of the names of the parameters: one per layer and direction."""
    ends = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"l{depth}{end}" for depth in range(layer.num_layers) for end in ends]


def products_of(layer: Any) -> dict[str, dict[str, str]]:
    """Return the parameters of each product of the layer: names by role, by the product's name."""
    calls = {}
    if isinstance(layer, CELLS):
        for kind in ("ih", "hh"):
            bias = {"bias": f"bias_{kind}"} if layer.bias else {}
            calls[kind] = {"weight": f"weight_{kind}", **bias}
        return calls
    for suffix in suffixes(layer):
        for kind in ("ih", "hh", *(["hr"] if layer.proj_size else [])):
            roles = {"weight": f"weight_{kind}_{suffix}"}
            if layer.bias and kind != "hr":
                roles["bias"] = f"bias_{kind}_{suffix}"
            calls[f"{kind}_{suffix}"] = roles
    return calls


def plain_products(layer: nn.Module) -> dict[str, Product]:
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
            layer.__dict__["forward"] = _replacement(layer, plain_products(layer))


def _replacement(layer: Any, products: dict[str, Product]) -> Callable[..., Any]:
    """Return a forward pass of a recurrent layer or cell that computes its products so."""
    make = _cell_forward if isinstance(layer, CELLS) else recurrent_forward
    return make(layer, products)


def _cell_forward(layer: Any, products: dict[str, Product]) -> Callable[..., Any]:
    """Return a forward pass of a cell: one step of a recurrent layer."""

    def forward(input: Tensor, hx: Any = None) -> Any:
        pair = isinstance(layer, nn.LSTMCell)
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], layer.hidden_size)
            hx = (zeros, zeros) if pair else zeros
        state = tuple(hx) if pair else (hx,)
        state = _step(layer, products["ih"](input), products["hh"](state[0]), state)
        return state if pair else state[0]

    return forward


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
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        taken, kept, new, shown = (along + across).chunk(4, dim=-1)
        cell = torch.sigmoid(kept) * state[1] + torch.sigmoid(taken) * torch.tanh(new)
        return torch.sigmoid(shown) * torch.tanh(cell), cell
    if isinstance(layer, nn.GRU | nn.GRUCell):
        reset, update, new = along.chunk(3, dim=-1)
        reset_too, update_too, new_too = across.chunk(3, dim=-1)
        fresh = torch.tanh(new + torch.sigmoid(reset + reset_too) * new_too)
        share = torch.sigmoid(update + update_too)
        return ((1 - share) * fresh + share * state[0],)
    both = along + across
    return (torch.tanh(both) if layer.nonlinearity == "tanh" else torch.relu(both),)
