"""What a module keeps, draws and looks up, and how it is kept from linking rows.

**State.** A forward pass may set attributes of the module or change its lists (a running mean, a
memory of earlier batches). In the next pass these would let the rows of one step act on those of
another, and no noise covers that. :func:`unchanged` sets a module back after a pass, so that every
pass starts from the same state. A buffer that is changed in place keeps the change, but
``torch.func.vmap`` refuses to write anything of a row there. State outside the module (global
variables, objects of one's own) is not seen.

**Draws.** Dropout gives its masks to the places of a batch. One row more moves the other rows to
other places. The proof of DP-SGD therefore needs masks that are independent of everything that is
released: given the masks, the sums of two neighbours could be far apart. The first parameters of a
model are drawn from torch's generator, whose seed on a CPU is 32 bits wide, so they may give it
away. Masks come from a state of their own (:func:`seed_draws`): 19,937 bits on a CPU and 64 on
CUDA, made by SHAKE-256 from the model's secret and the number of the step. torch's fast versions of
some distributions reduce the state to 31 bits, and :class:`WholeState` replaces these.

**Lookups.** ``vmap`` computes two operations on the tensors of all rows together without checking
indices per row: an index outside reads or writes the tensor of another row. :class:`RowsApart`
replaces both.

Tests: ``tests/training/test_module_state.py``.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor
SECRET_BITS = 256  # of the secret of a model
_WORDS, _FIRST = 624, 24  # words of the Mersenne Twister, and where torch's state holds them
STATE_BYTES = 4 * _WORDS
_CONTAINERS = (list, dict, set, deque)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Set the attributes of all layers, and the containers among them, back afterwards."""
    before = [(vars(layer), dict(vars(layer))) for layer in module.modules()]
    held = [
        (value, dict(value) if isinstance(value, dict) else list(value))
        for _, values in before
        for value in values.values()
        if isinstance(value, _CONTAINERS)
    ]
    try:
        yield
    finally:
        for container, items in (*before, *held):
            if not _same(container, items):
                container.clear()
                if isinstance(container, dict | set):
                    container.update(items)
                else:
                    container.extend(items)


def _same(container: Any, items: Any) -> bool:
    """Return whether a container holds the very objects of its copy, in the same order."""
    if len(container) != len(items):
        return False
    if isinstance(container, dict):
        return all(name in container and container[name] is items[name] for name in items)
    return all(one is other for one, other in zip(container, items, strict=True))


def seed_draws(secret: int, step: int, device: torch.device) -> None:
    """Set torch's generators for one step; an equal secret and step draw equal numbers."""
    given = secret.to_bytes(SECRET_BITS // 8, "little") + step.to_bytes(8, "little")
    made = hashlib.shake_256(given).digest(8 + STATE_BYTES)
    if device.type != "cpu":
        torch.cuda.manual_seed(int.from_bytes(made[:8], "little"))
    torch.random.set_rng_state(generator_state(made[8:]))


def generator_state(given: bytes) -> Tensor:
    """Return a state of torch's generator on a CPU whose words are all given: 2,496 bytes."""
    fresh = torch.Generator().manual_seed(0).get_state().numpy()
    words = np.frombuffer(given, dtype="<u4").astype(np.uint64)
    fresh[_FIRST : _FIRST + 8 * _WORDS] = words.view(np.uint8)
    return torch.from_numpy(fresh)


class WholeState(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws coins and exponential numbers on a CPU from uniform ones.

    torch's own versions start a generator of 31 bits on some processors.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace the three operations, and leave all others alone."""
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func in (aten.bernoulli.p, aten.bernoulli_.float) and args[0].device.type == "cpu":
            given = args[0]
            share = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            coins = torch.rand(given.shape, dtype=torch.float64) < share
            if func is aten.bernoulli_.float:
                return given.copy_(coins)
            return coins.to(given.dtype)
        if func is aten.exponential_.default and args[0].device.type == "cpu":
            given = args[0]
            rate = args[1] if len(args) > 1 else kwargs.get("lambd", 1.0)
            drawn = 1.0 - torch.rand(given.shape, dtype=torch.float64)
            return given.copy_(-torch.log(drawn) / rate)
        return func(*args, **kwargs)


class RowsApart(TorchFunctionMode):
    """Keeps lookups inside ``vmap`` to the tensors of their own row.

    A token outside an embedding gives NaN, so that its row adds nothing. ``index_fill`` ignores an
    index outside. Neither raises, as that would depend on a row.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace the two operations, and leave all others alone."""
        replaced = _REPLACED.get(func, func)
        return replaced(*args, **(kwargs or {}))


def inside(input: Tensor, number: int, look_up: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what ``look_up`` finds for tokens; NaN for those outside of 0 … ``number`` − 1."""
    outside = (input < 0) | (input >= number)
    made = look_up(torch.clamp(input, 0, number - 1))
    if not made.is_floating_point():
        return made
    return torch.where(outside.unsqueeze(-1), torch.nan, made)


def _embedding(input: Tensor, weight: Tensor, *others: Any, **named: Any) -> Tensor:
    def look_up(tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, weight, *others, **named)

    return inside(input, weight.shape[0], look_up)


def _plain_embedding(weight: Tensor, indices: Tensor, *others: Any, **named: Any) -> Tensor:
    def look_up(tokens: Tensor) -> Tensor:
        return torch.embedding(weight, tokens, *others, **named)

    return inside(indices, weight.shape[0], look_up)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    number = input.shape[dim]
    places = torch.arange(number, device=input.device)
    wanted = torch.where(index < 0, index + number, index).reshape(-1, 1)
    shape = [1] * input.ndim
    shape[dim] = number
    return torch.where((wanted == places).any(0).view(shape), value, input)


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    functional.embedding: _embedding,
    torch.embedding: _plain_embedding,
    torch.index_fill: _index_fill,
    Tensor.index_fill: _index_fill,
}
