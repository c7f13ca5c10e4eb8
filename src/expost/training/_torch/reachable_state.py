"""Everything that a module can reach and change, and how it is set back after each pass.

The number of passes of a step depends on rows: on the size of a sample, and on a row on which the
module raises. A pass must therefore leave nothing behind: its result may depend on parameters, rows
and seeds only. :class:`ReachableState` walks from the module through attributes, containers,
tensors, arrays, closures, defaults and attributes of functions, and, in code that is not of an
installed package, through attributes of classes and the global names that functions use. It
remembers what it finds, and sets it back bit for bit. What it cannot set back (iterators, scripted
modules, objects of compiled code that it does not know) is refused when the module is read.

State that no object of Python holds (files, the clock, globals of installed packages) is not seen;
a module whose outputs change between two equal passes is refused for that
(:mod:`expost.training._torch.module_taps`). Tests: ``tests/training/test_reachable_state.py``.
"""

from __future__ import annotations

import array
import dis
import io
import operator
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from expost.errors import InvalidInput
from expost.training._torch import set_back

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")})
# packages whose objects hold nothing that a forward pass would keep
_OPAQUE = {"_abc", "_frozen_importlib", "ast", "importlib", "inspect", "logging", "typing"}
_OPAQUE |= {"decimal", "datetime", "fractions", "pathlib", "re", "uuid", "weakref", "expost"}


class ReachableState:
    """The state of all objects that a module can reach, as it was when this was made."""

    def __init__(self, module: nn.Module, *others: Any) -> None:
        self.objects: dict[int, Any] = {}
        self.changed: set[int] = set()
        self._seen: dict[int, Any] = {}
        self._memories: set[int] = set()
        self._restorers: list[tuple[int, Callable[[], bool]]] = []
        self._pending: list[tuple[Any, str]] = [
            (value, type(value).__name__) for value in (*others, module)
        ]
        while self._pending:
            self._visit(*self._pending.pop())
        self._generators: list[tuple[int, Callable[[], bool]]] = [
            (id(random), set_back.generator(random.getstate, random.setstate)),
            (id(np.random), set_back.generator(np.random.get_state, np.random.set_state)),
        ]
        self.watching = True  # whether passes are over zeros

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Set everything back afterwards, also after an exception."""
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Set everything back."""
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        for key, restored in self._restorers:
            if restored() and not capturing:
                self.changed.add(key)
        # Global generators are the whole program's. They are set back only if the module was seen
        # to draw from them in a pass over zeros: passes differ in rows only.
        for key, restored in self._generators:
            if (self.watching or key in self.changed) and restored():
                self.changed.add(key)

    def shares(self, other: ReachableState) -> bool:
        """Return whether two modules cannot be used by two threads at once.

        They can if they have no module in common, and no object that a pass has changed.
        """
        common = self.objects.keys() & other.objects.keys()
        changed = self.changed | other.changed
        return bool(changed & {id(random), id(np.random)}) or any(
            key in changed or isinstance(self.objects[key], nn.Module) for key in common
        )

    def _add(self, value: Any, restored: Callable[[], bool]) -> None:
        self.objects[id(value)] = value
        self._restorers.append((id(value), restored))

    def _walk(self, path: str, *values: Any) -> None:
        self._pending += [(value, path) for value in values]

    def _visit(self, value: Any, path: str) -> None:
        """Remember one object, and what it refers to."""
        kind = type(value)
        if id(value) in self._seen or kind is object or isinstance(value, _ATOMS):
            return
        if _top(kind) in _OPAQUE:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._add(value, set_back.tensor(value, self._memories))
            self._walk(f"{path}.grad", value.grad if value.is_leaf else None)
            if value.layout == torch.sparse_coo:
                self._walk(path, value._indices(), value._values())
        elif isinstance(value, np.ndarray):
            self._add(value, set_back.array(value))
            self._walk(path, *(value.ravel() if value.dtype == object else ()))
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self._walk(path, value.__self__, value.__func__)
        elif isinstance(value, partial):
            self._walk(path, value.func, value.args, value.keywords)
        elif isinstance(value, staticmethod | classmethod):
            self._walk(path, value.__func__)
        elif isinstance(value, property):
            self._walk(path, value.fget, value.fset)
        elif isinstance(value, type):
            if not _library_class(value):
                self._add(value, set_back.attributes(value))
                used = [member for name, member in vars(value).items() if name != "__init__"]
                self._walk(path, *value.__mro__[1:-1], *used)
        else:
            self._instance(value, kind, path)
        own = getattr(value, "__dict__", None)  # also of tensors, functions, kinds of containers
        if isinstance(own, dict) and not isinstance(value, type):
            self._add(own, set_back.container(own))
            for name, held in list(own.items()):
                self._walk(f"{path}.{name}", held)

    def _instance(self, value: Any, kind: type, path: str) -> None:
        """Remember an object that is neither a tensor nor a function nor a class."""
        known = True
        if isinstance(value, list | dict | set | deque | bytearray | array.array):
            self._add(value, set_back.container(value))
            self._walk(f"{path}[…]", *(value.values() if isinstance(value, dict) else value))
        elif isinstance(value, tuple | frozenset):
            self._walk(f"{path}[…]", *value)
        elif isinstance(value, torch.Generator):
            self._add(value, set_back.generator(value.get_state, value.set_state))
        elif isinstance(value, random.Random):
            self._add(value, set_back.generator(value.getstate, value.setstate))
        elif isinstance(value, np.random.Generator):
            self._walk(path, value.bit_generator)
        elif isinstance(value, np.random.RandomState | np.random.BitGenerator):
            self._add(value, set_back.generator(*set_back.numpy_state(value)))
        elif hasattr(kind, "cache_clear"):  # functools.lru_cache
            self._add(value, lambda: bool(value.cache_clear()))
        elif isinstance(value, types.MappingProxyType):
            self._walk(path, *value.values())
        elif isinstance(value, torch.jit.ScriptModule | threading.local | io.IOBase):
            known = False
        elif isinstance(value, nn.Module):
            self.objects[id(value)] = value
        else:
            known = hasattr(value, "__dict__") or _top(kind) in ("torch", "numpy")
        slots = [
            name
            for parent in kind.__mro__
            for name in _names(vars(parent).get("__slots__", ()))
            if name not in ("__dict__", "__weakref__")
        ]
        if slots:
            self._add(value, set_back.slots(value, slots))
            self._walk(path, *(getattr(value, name, None) for name in slots))
        elif not known or (hasattr(kind, "__next__") and not hasattr(value, "__dict__")):
            raise InvalidInput(
                "model",
                f"{path}, of type {kind.__name__}",
                "what a pass changes there cannot be set back, so the rows of one step could act "
                "on the next; use numbers, lists, tensors or arrays",
            )
        self._walk(path, kind)

    def _function(self, function: types.FunctionType, path: str) -> None:
        """Remember a function's cells, defaults, and the global names that its code uses."""
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                self._walk(path, cell.cell_contents)
            self._add(cell, set_back.cell(cell))
        self._walk(path, function.__defaults__, function.__kwdefaults__)
        ours = str(function.__module__).startswith("expost.")
        if ours or _in_library(function.__code__.co_filename):
            return
        names, attributes = _used(function.__code__)
        self._bindings(function.__globals__, names)
        for name in names:
            module = function.__globals__.get(name)
            if isinstance(module, types.ModuleType) and not _library_module(module):
                self._bindings(vars(module), attributes)

    def _bindings(self, table: dict[str, Any], names: set[str]) -> None:
        """Remember what these names of a table of globals stand for."""
        values = {name: table.get(name, set_back.MISSING) for name in names}
        self._restorers.append((id(table), set_back.rebind(table, values)))
        for name, value in values.items():
            if not isinstance(value, types.ModuleType):
                self._walk(name, value)


def _top(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _used(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the global names and the names of attributes in code and functions inside it."""
    inside = [
        _used(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    named = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith("_GLOBAL")
    }
    return (
        named.union(*(names for names, _ in inside)),
        set(code.co_names).union(*(names for _, names in inside)),
    )


def _in_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "-packages" in file or file.startswith("<frozen")


def _library_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
    return top in _OPAQUE or top in sys.stdlib_module_names or bool(file and _in_library(file))


def _library_class(kind: type) -> bool:
    if kind.__module__ == "__main__":
        return False
    module = sys.modules.get(kind.__module__)
    return module is not None and _library_module(module)


_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    types.BuiltinFunctionType,
    types.CodeType,
    types.ModuleType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GenericAlias,
    types.UnionType,
    type(Ellipsis),
    type(NotImplemented),
    type(threading.Lock()),
    type(threading.RLock()),
    operator.itemgetter,
    operator.attrgetter,
    np.generic,
    np.dtype,
    np.ufunc,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
)
