"""What a checkpoint knows of its selection: a fingerprint of data, mechanisms, scores and codecs.

A checkpoint must be refused if anything has changed that the output law depends on. Otherwise a
resumed selection would mix two mechanisms, or use a noise key again for another query. A name is
not enough: the sensitivity, the arguments of a ``functools.partial`` or the body of a function may
have changed under the same name.

Covered: numbers, texts, arrays, tensors, data frames and collections by content; an object's class
and fields; a function's code, defaults, closure, the functions and classes of its own module that
it calls, and the numbers, texts and arrays of that module that it reads; the code of an object's
class and of its base classes; arguments of ``functools.partial``; the receiver of a bound method.
What is not covered:

- installed packages and the standard library, known by name and version (expost by its version);
- module-level objects that are not functions, classes, numbers, texts or arrays, and functions
  of other modules of the caller: these are known by name;
- the state inside objects of compiled types, and files, environment variables and services that
  a mechanism reads when it runs;
- the ledger's content, and sources of randomness.

If the class of an object has a method ``checkpoint_identity()``, its value is used in place of the
fields. Only salted hashes are kept, in the checkpoint, and never released. A resume with another
version of Python is refused, because its compiled code is different.

Tests: ``tests/execution/test_identity.py``, ``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from numbers import Number as AnyNumber
from pathlib import PurePath
from typing import Any

import numpy as np

from expost.errors import InvalidInput


def fingerprint(data: Any, salt: bytes) -> str:
    """Return the SHA-256 of a salt and the content of arrays, frames, plain values, collections."""
    state = hashlib.sha256(salt)
    _feed(state, data)
    return state.hexdigest()


def _feed(state: Any, data: Any) -> None:
    """Add the content of ``data`` to the hash."""
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # a data frame
        data = {str(name): data[name].to_numpy() for name in data.columns}
    if isinstance(data, np.ndarray) and data.dtype != object:
        _tag(state, "array", f"{data.dtype.str}{data.shape}")
        state.update(np.ascontiguousarray(data).tobytes())
    elif data is None or isinstance(data, (str, bytes, bool, AnyNumber)):
        _tag(state, type(data).__name__, repr(data))
    elif isinstance(data, Mapping):
        _tag(state, "mapping", str(len(data)))
        for key, value in data.items():
            _tag(state, "key", repr(key))
            _feed(state, value)
    elif isinstance(data, Sequence) or (isinstance(data, np.ndarray) and data.ndim):
        _tag(state, "sequence", str(len(data)))
        for value in data:
            _feed(state, value)
    else:
        raise InvalidInput(
            "data",
            type(data).__name__,
            "no fingerprint for this type; pass data_fingerprint='a name for this version of the "
            "data'",
        )


def _tag(state: Any, kind: str, content: str) -> None:
    """Add a piece with its kind and length to the hash, so that pieces cannot run together."""
    encoded = content.encode("utf-8", "surrogatepass")
    state.update(f"{kind}:{len(encoded)}:".encode() + encoded)


_SCALARS = (bool, int, float, complex, str, bytes, Fraction, Decimal, PurePath, type(None))
_OPAQUE = ("expost.budget", "expost.randomness")
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_WRAPPERS = (staticmethod, classmethod)
_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
# Python writes these itself; copying an object adds "__slotnames__" to its class.
_BORING = {"__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__slotnames__"}


def identity_of(value: Any) -> str:
    """Return a hash of what identifies settings, mechanisms and functions; see the module."""
    walk = _Walk()
    walk.visit(value)
    return walk.state.hexdigest()


class _Walk:
    """One pass over a structure.

    Every object has a hash of its own, so that it makes no difference whether two equal objects
    are one. A reference back to an object that is being visited ends a cycle.
    """

    def __init__(self) -> None:
        self.state = hashlib.sha256()
        self.done: dict[int, str | None] = {}
        self.alive: list[Any] = []  # an id is only unique while its object exists

    def tag(self, kind: str, content: str = "") -> None:
        """Add a piece."""
        _tag(self.state, kind, content)

    def visit(self, value: Any) -> None:
        """Add a value."""
        if isinstance(value, Enum):
            self.tag("enum", f"{_name(type(value))}.{value.name}")
        elif isinstance(value, (*_SCALARS, np.generic)):
            text = hex(value) if type(value) is int else repr(value)
            self.tag(type(value).__name__, text)
        else:
            if id(value) not in self.done:
                self.done[id(value)] = None
                self.alive.append(value)
                outer, self.state = self.state, hashlib.sha256()
                self._object(value)
                self.done[id(value)] = self.state.hexdigest()
                self.state = outer
            self.tag("object", self.done[id(value)] or "being visited")

    def _object(self, value: Any) -> None:
        """Add an object that was not seen before."""
        if isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.tag("method")
            self._all((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self.tag("partial")
            self._all((value.func, value.args, value.keywords))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.ModuleType):
            self.tag("module", f"{value.__name__} {_version(value.__name__)}")
        elif isinstance(value, _BUILTINS):
            self.tag("builtin", _name(value))
            self.visit(getattr(value, "__self__", None))
        elif callable(own := getattr(type(value), "checkpoint_identity", None)):
            self.tag("own", _name(type(value)))
            self.visit(own(value))
        else:
            self._content(value)

    def _content(self, value: Any) -> None:
        """Add arrays and collections by content, other objects by class and fields."""
        array = _array(value)
        if array is not None and not array.dtype.hasobject:
            self.tag("array", f"{array.dtype.str}{array.shape}")
            self.state.update(np.ascontiguousarray(array).tobytes())
            return
        self.visit(type(value))
        if isinstance(value, np.ndarray):
            self.tag("objects", str(value.shape))
            self._all(value.ravel().tolist())
        elif hasattr(value, "to_numpy") and hasattr(value, "columns"):
            for name in value.columns:
                self.visit(str(name))
                self.visit(value[name].to_numpy())
        elif isinstance(value, Mapping):
            self.tag("mapping", str(len(value)))
            for key, item in value.items():
                self._all((key, item))
        elif isinstance(value, (list, tuple)):
            self.tag("sequence", str(len(value)))
            self._all(value)
        elif isinstance(value, Set):
            self.tag("set", str(len(value)))
            self._all(sorted(map(identity_of, value)))
        elif not type(value).__module__.startswith(_OPAQUE):
            self._fields(value)

    def _all(self, values: Iterable[Any]) -> None:
        """Add several values in turn."""
        for value in values:
            self.visit(value)

    def _fields(self, value: Any) -> None:
        """Add the fields of an object; values that Python has cached on it are left out."""
        fields = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    fields[name] = getattr(value, name)
            for name, member in kind.__dict__.items():
                if isinstance(member, functools.cached_property):
                    fields.pop(name, None)
        for name in sorted(fields):
            self.tag("field", name)
            self.visit(fields[name])
        if isinstance(value, property):
            self._all((value.fget, value.fset))
        elif isinstance(value, functools.cached_property):
            self.visit(value.func)
        elif isinstance(value, _WRAPPERS):
            self.visit(value.__func__)

    def _function(self, function: types.FunctionType) -> None:
        """Add a function: its name and, unless its package is installed, all that it is made of."""
        self.tag("function", _name(function))
        if _is_installed(function.__module__):
            self.tag("version", _version(function.__module__))
            self._all(_cells(function))
            return
        self._all((function.__code__, function.__defaults__, function.__kwdefaults__))
        self._all(_cells(function))
        self.visit(
            {name: member for name, member in vars(function).items() if name != "__wrapped__"}
        )
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, (*_SCALARS, np.generic, np.ndarray)):
                self.tag("global", name)
                self.visit(value)
            elif isinstance(value, (types.FunctionType, type)):
                self.tag("calls", f"{name} {_name(value)}")
                if value.__module__ == function.__module__:
                    self.visit(value)

    def _class(self, kind: type) -> None:
        """Add a class: its name and, unless its package is installed, its code and base classes."""
        self.tag("class", _name(kind))
        if _is_installed(kind.__module__):
            self.tag("version", _version(kind.__module__))
            return
        for name, value in sorted(vars(kind).items()):
            if name not in _BORING and not name.startswith(("_abc_", "__dataclass")):
                self.tag("field", name)
                self.visit(value)
        self._all(kind.__bases__)

    def _code(self, code: types.CodeType) -> None:
        """Add compiled code, without file names and line numbers."""
        self.tag("code", code.co_code.hex())
        self._all((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        self._all((code.co_flags, code.co_argcount, code.co_kwonlyargcount))
        for constant in code.co_consts:
            self.visit(constant)


def _cells(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure; an empty cell gives None."""
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(None)
    return contents


def _names(code: types.CodeType) -> set[str]:
    """Return the global names that code and the functions inside it may use."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or a tensor as an array; None for other values."""
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            return np.asarray(tensor.numpy())
        except TypeError:  # a type that NumPy does not have
            return np.asarray(tensor.float().numpy())
    return None


def _name(value: Any) -> str:
    """Return module and name of a function or class."""
    module = getattr(value, "__module__", None)
    return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _top(module: str | None) -> str:
    """Return the package of a module."""
    return (module or "builtins").partition(".")[0]


def _version(module: str | None) -> str:
    """Return the version that a package states; "" if it states none."""
    return str(getattr(sys.modules.get(_top(module)), "__version__", ""))


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Return whether a module belongs to expost, to an installed package or to Python."""
    package = _top(module)
    if package == "expost" or package in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is not None and str(file).startswith(_INSTALLED)
