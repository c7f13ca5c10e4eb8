"""How single objects are set back to what they were: containers, tensors, arrays, generators.

Each function remembers an object and returns a function that sets it back, bit for bit, and tells
whether it was changed. What is remembered is decided in
:mod:`expost.training._torch.module_state`. Tests: ``tests/training/test_reachable_state.py``.
"""

from __future__ import annotations

import array as arrays
import types
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np
import torch

MISSING = object()  # a name that stands for nothing


def _same_items(one: Any, other: Any) -> bool:
    """Return whether two containers hold the very same objects, in the same order."""
    return len(one) == len(other) and all(map(is_, one, other))


def container(value: Any) -> Callable[[], bool]:
    """Return what sets a container back to its items."""
    if isinstance(value, dict):
        keys, values = list(value), list(value.values())

        def restored() -> bool:
            if _same_items(value, keys) and _same_items(value.values(), values):
                return False
            value.clear()
            value.update(zip(keys, values, strict=True))
            return True

        return restored
    if isinstance(value, bytearray | arrays.array):
        plain: Any = value[:]

        def written() -> bool:
            if value == plain:
                return False
            value[:] = plain
            return True

        return written
    items = list(value)

    def refilled() -> bool:
        if _same_items(value, items):
            return False
        value.clear()
        value.update(items) if isinstance(value, set) else value.extend(items)
        return True

    return refilled


def rebind(table: dict[str, Any], values: dict[str, Any]) -> Callable[[], bool]:
    """Return what lets names of a table stand for these values again."""

    def restored() -> bool:
        other = [name for name in values if table.get(name, MISSING) is not values[name]]
        for name in other:
            if values[name] is MISSING:
                del table[name]
            else:
                table[name] = values[name]
        return bool(other)

    return restored


def attributes(kind: type) -> Callable[[], bool]:
    """Return what sets the attributes of a class back."""
    before = dict(vars(kind))

    def restored() -> bool:
        now = vars(kind)
        new = [name for name in now if name not in before]
        other = [name for name in before if now.get(name, MISSING) is not before[name]]
        for name in new:
            delattr(kind, name)
        for name in other:
            setattr(kind, name, before[name])
        return bool(new or other)

    return restored


def slots(value: Any, names: list[str]) -> Callable[[], bool]:
    """Return what sets the slots of an object back."""
    before = {name: getattr(value, name, MISSING) for name in names}

    def restored() -> bool:
        other = [name for name in names if getattr(value, name, MISSING) is not before[name]]
        for name in other:
            if before[name] is MISSING:
                object.__delattr__(value, name)
            else:
                object.__setattr__(value, name, before[name])
        return bool(other)

    return restored


def cell(cell: types.CellType) -> Callable[[], bool]:
    """Return what sets a variable of a closure back."""

    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    before = content()

    def restored() -> bool:
        if content() is before:
            return False
        if before is MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = before
        return True

    return restored


def tensor(value: torch.Tensor, memories: set[int]) -> Callable[[], bool]:
    """Return what sets a tensor back: the bytes of its memory, and which memory it is.

    ``memories`` are the addresses of those that are remembered already, as views share theirs.
    """
    if value.layout != torch.strided or value.is_meta:
        return lambda: False  # its parts are walked
    alias, leaf = value.detach(), value.is_leaf
    where = _where(value)
    gradient, needed = (value.grad, value.requires_grad) if leaf else (None, False)
    memory = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
    if len(memory) % 8 == 0:
        memory = memory.view(torch.int64)  # compared eight bytes at a time
    if memory.data_ptr() in memories:
        memory = memory[:0]
    memories.add(memory.data_ptr())
    before, written = memory.clone(), False

    def restored() -> bool:
        nonlocal written
        changed = _where(value) != where
        if changed:
            value.data = alias
        if leaf and (value.grad is not gradient or value.requires_grad != needed):
            value.grad = gradient
            value.requires_grad_(needed)
            changed = True
        if memory.is_cuda and torch.cuda.is_current_stream_capturing():
            if written:  # nothing can be compared while a graph is recorded; passes are alike
                memory.copy_(before)
        elif not torch.equal(memory, before):
            memory.copy_(before)
            written = changed = True
        return changed

    return restored


def _where(value: torch.Tensor) -> tuple[Any, ...]:
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def array(value: np.ndarray[Any, Any]) -> Callable[[], bool]:
    """Return what sets an array back."""
    before, writeable = value.copy(), value.flags.writeable

    def restored() -> bool:
        if value.shape == before.shape and value.tobytes() == before.tobytes():
            return False
        value.flags.writeable = True
        if value.shape != before.shape:
            value.resize(before.shape, refcheck=False)
        value[...] = before
        value.flags.writeable = writeable
        return True

    return restored


def generator(get: Callable[[], Any], put: Callable[[Any], Any]) -> Callable[[], bool]:
    """Return what sets a generator of random numbers back."""
    before = get()

    def restored() -> bool:
        if _equal(get(), before):
            return False
        put(before)
        return True

    return restored


def numpy_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return what reads and what writes the state of a generator of NumPy."""
    if isinstance(value, np.random.RandomState):
        return value.get_state, value.set_state
    return lambda: value.state, lambda state: setattr(value, "state", state)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two states of a generator are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
