"""A file from which a selection can be resumed: its draws and its finished outputs.

After a crash the same call must finish the *same* selection: drawing again would be another
mechanism. So a header is written first, before the budget is reserved and before any run reads
data. It holds the draws, including the key of the runs' randomness, so that an unfinished run is
made again with the same noise; the id and the secret of the reservation; and a salted fingerprint
of the selection and its data. Then each finished output is appended as it comes, as JSON by a
codec: plain values or NumPy arrays, never pickles.

The content is secret (``docs/ledger.md``): only the owner can read the file, and a finished
selection erases it. Every write is synced to the disk. The header appears in one atomic step. An
incomplete last line, left by a crash during a write, is dropped when the file is opened.

**Fingerprints.** A checkpoint must be refused if anything has changed that the output law depends
on. Otherwise a resumed selection would mix two mechanisms, or use a noise key again for another
query. A name is not enough: the sensitivity, the arguments of a ``functools.partial`` or the body
of a function may have changed under the same name.

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

Tests: ``tests/execution/test_checkpoint.py``, ``tests/execution/test_identity.py``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import math
import os
import re
import secrets
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from numbers import Number as AnyNumber
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.calls import Raised, call_or_failure
from expost.files import lock_file
from expost.mechanisms import FAILED, Estimate


class Codec(Protocol):
    """Converts an output to something that JSON can hold, and back, without loss."""

    def encode(self, value: Any) -> Any:
        """Return ``value`` in a form that JSON can hold."""
        ...

    def decode(self, stored: Any) -> Any:
        """Return the output that :meth:`encode` was given."""
        ...


@dataclass(frozen=True)
class JsonCodec:
    """Codec for numbers, strings, lists, tuples, dicts with text keys, fractions and estimates."""

    def encode(self, value: Any) -> Any:
        """Return ``value`` in plain JSON types."""
        if isinstance(value, Estimate):
            return {
                "expost": "estimate",
                "value": self.encode(value.value),
                "scale": value.scale,
                "law": value.law,
            }
        if isinstance(value, Fraction):
            return {"expost": "fraction", "value": str(value)}
        if type(value) is float and not math.isfinite(value):
            return {"expost": "float", "value": repr(value)}
        if (
            isinstance(value, np.generic)
            and value.dtype.kind in "biuf"
            and value.dtype.itemsize <= 8
        ):
            return {"expost": "number", "value": self.encode(value.item()), "type": value.dtype.str}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"expost": kind, "value": [self.encode(item) for item in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {
                "expost": "dict",
                "value": {key: self.encode(item) for key, item in value.items()},
            }
        raise InvalidInput(
            "output",
            "a value of another type",
            "JSON cannot hold it without loss; pass a codec of your own to select",
        )

    def decode(self, stored: Any) -> Any:
        """Return the output that :meth:`encode` was given."""
        if not isinstance(stored, dict):
            return stored
        kind, value = stored["expost"], stored["value"]
        if kind == "estimate":
            return Estimate(self.decode(value), stored["scale"], stored["law"])
        if kind == "fraction":
            return Fraction(value)
        if kind == "float":
            return float(value)
        if kind == "number":
            return np.dtype(stored["type"]).type(self.decode(value))
        if kind == "dict":
            return {key: self.decode(item) for key, item in value.items()}
        items = [self.decode(item) for item in value]
        return items if kind == "list" else tuple(items)


@dataclass(frozen=True)
class NpzCodec:
    """Codec for a NumPy array, or a dict from names to arrays."""

    def encode(self, value: Any) -> Any:
        """Return the arrays as base64 text of an npz archive."""
        arrays = list(value.values()) if isinstance(value, dict) else [value]
        if not all(isinstance(array, np.ndarray) and not array.dtype.hasobject for array in arrays):
            raise InvalidInput(
                "output",
                "a value of another type",
                "give an array of numbers, or a dict from names to arrays",
            )
        buffer = io.BytesIO()
        np.savez(buffer, *arrays)  # pickles nothing, because no array holds objects
        return {
            "names": list(value) if isinstance(value, dict) else None,
            "npz": base64.b64encode(buffer.getvalue()).decode(),
        }

    def decode(self, stored: Any) -> Any:
        """Return the array or the dict of arrays that :meth:`encode` was given."""
        with np.load(io.BytesIO(base64.b64decode(stored["npz"])), allow_pickle=False) as archive:
            arrays = [archive[f"arr_{number}"] for number in range(len(archive.files))]
        return (
            arrays[0]
            if stored["names"] is None
            else dict(zip(stored["names"], arrays, strict=True))
        )


_SCHEMA = 3  # outputs with their candidates, identity by fields and code, reservation's secret


@dataclass(repr=False)
class Checkpoint:
    """An open checkpoint file, locked by its descriptor until it is closed or erased."""

    path: Path
    codec: Codec
    descriptor: int
    header: Mapping[str, Any]
    outputs: dict[int, tuple[int, Any]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        path: str | Path,
        codec: Codec,
        identify: Callable[[bytes], str],
        draw: Callable[[], Mapping[str, Any]],
    ) -> Checkpoint:
        """Resume the selection in ``path``, or start one there.

        ``identify`` returns the fingerprint of the selection for a salt, ``draw`` new secret draws.
        Raises CheckpointMismatch for a file of another selection, in use, damaged, or of another
        schema.
        """
        file = Path(path)
        if not file.exists():
            _create(file, identify, draw)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise InvalidInput(
                "checkpoint", str(file), f"cannot be opened: {error.strerror}"
            ) from None
        try:
            lock_file(descriptor)
            if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
                raise OSError  # another process erased the file before it was locked here
        except OSError:
            os.close(descriptor)
            raise CheckpointMismatch(f"{file} is in use by another process") from None
        try:
            header, records, whole = _read(file, descriptor)
            if header.get("schema") != _SCHEMA:
                raise CheckpointMismatch(
                    f"{file} has schema {header.get('schema')!r}; this version of expost reads "
                    f"schema {_SCHEMA}"
                )
            if header["identity"] != identify(bytes.fromhex(header["salt"])):
                raise CheckpointMismatch(
                    f"{file} belongs to another selection (other candidates, settings, data, or "
                    "ledger); use another file, or give up the old selection by deleting its "
                    "checkpoint: its reservation stays charged"
                )
            _sweep(file)
            # Only now: a file that is not a checkpoint of this selection must not be changed.
            os.ftruncate(descriptor, whole)
            opened = cls(file, codec, descriptor, header)
            for record in records:
                value = FAILED
                if not record["failed"]:
                    value = call_or_failure(codec.decode, record["output"])
                opened.outputs[record["run"]] = (
                    record["candidate"],
                    FAILED if isinstance(value, Raised) else value,
                )
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    def outputs_of(self, candidates: Sequence[int]) -> dict[int, Any]:
        """Return the finished outputs by run; refuse one of another candidate than its run's."""
        for run, (candidate, _) in self.outputs.items():
            if not 0 <= run < len(candidates) or candidates[run] != candidate:
                raise CheckpointMismatch(
                    f"{self.path} holds an output of another candidate; its selection cannot be "
                    "resumed and stays charged"
                )
        return {run: value for run, (_, value) in self.outputs.items()}

    def record(self, run: int, candidate: int, value: Any) -> Any:
        """Append the finished output of a run; it is on the disk when this returns.

        An output that the codec cannot store and read back gives a :class:`Raised`, and the run is
        recorded as failed: that depends on the data, so it must be an outcome and not an error.
        """
        # Encode and decode before writing: a record that cannot be read back would end the resume.
        stored: Any = None
        if value is not FAILED:
            stored = call_or_failure(self._stored, value)
            if isinstance(stored, Raised):
                value, stored = stored, None
        failed = value is FAILED or isinstance(value, Raised)
        record = {"run": run, "candidate": candidate, "failed": failed, "output": stored}
        _write(self.descriptor, _line(record))
        self.outputs[run] = (candidate, FAILED if failed else value)
        return value

    def _stored(self, value: Any) -> Any:
        """Return an output as the codec stores it; make sure that it can be read back."""
        stored = self.codec.encode(value)
        self.codec.decode(json.loads(json.dumps(stored, allow_nan=False)))
        return stored

    def close(self) -> None:
        """Close the file and release its lock; the file stays for the next call."""
        os.close(self.descriptor)

    def erase(self) -> None:
        """Remove the file of a finished or refused selection."""
        self.path.unlink(missing_ok=True)
        _sync_folder(self.path)
        self.close()


def _create(
    file: Path, identify: Callable[[bytes], str], draw: Callable[[], Mapping[str, Any]]
) -> None:
    """Write the header of a new checkpoint, unless another process is faster."""
    if not file.resolve().parent.is_dir():
        raise InvalidInput("checkpoint", str(file), "the folder does not exist")
    salt = secrets.token_bytes(16)
    header = {
        "schema": _SCHEMA,
        "salt": salt.hex(),
        "identity": identify(salt),
        "reservation": secrets.token_hex(16),
        "secret": secrets.token_hex(16),
        "draws": draw(),
    }
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise InvalidInput(
            "checkpoint", str(file), f"cannot be written: {error.strerror}"
        ) from None
    try:
        _write(descriptor, _line(header))
        # Like a rename, but it never replaces a checkpoint that appeared in the meantime.
        os.link(temporary, file)
    except (FileExistsError, FileNotFoundError):
        pass  # another process was faster (and may have removed the temporary file)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_folder(file)


def _sweep(file: Path) -> None:
    """Remove temporary files that crashes left behind.

    The caller holds the checkpoint's lock, so the checkpoint exists, and a process that still
    creates it is too late anyway.
    """
    for name in os.listdir(file.resolve().parent):
        if re.fullmatch(re.escape(f".{file.name}.") + "[0-9a-f]{16}", name):
            file.with_name(name).unlink(missing_ok=True)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of the content; it is on the disk when this returns."""
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    """Return a record with its checksum as one line."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n".encode()


def _read(path: Path, descriptor: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Return the header, the records, and the length of all complete lines.

    An incomplete last line is left out; any other damage is refused.
    """
    # A file object reads everything; a single os.read stops at 2 GiB.
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    lines = content.split(b"\n")
    whole = len(content) - len(lines.pop())
    records = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            raise CheckpointMismatch(
                f"{path} is damaged at line {number}; its selection cannot be resumed and stays "
                "charged"
            )
        records.append(json.loads(text))
    if not records:
        raise CheckpointMismatch(f"{path} is not a checkpoint")
    return records[0], records[1:], whole


def _sync_folder(file: Path) -> None:
    """Sync the folder of a file, so that creating or removing the file survives a crash."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(file.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
