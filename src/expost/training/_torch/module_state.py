"""What a module draws, computes and can reach, and how it is kept from linking rows.

**Draws.** Dropout gives its masks to the places of a batch. One row more moves the other rows to
other places. The proof of DP-SGD therefore needs masks that are independent of everything that is
released: given the masks, the sums of two neighbours could be far apart. The first parameters of a
model are drawn from torch's generator, whose seed on a CPU is 32 bits wide, so they may give it
away. Masks come from a state of their own (:func:`seed_draws`): 19,937 bits on a CPU and 64 on
CUDA, made by SHAKE-256 from the model's secret and the number of the step. torch's fast versions of
some distributions reduce the state to 31 bits, and :class:`WholeState` replaces these.

**Operations.** ``vmap`` computes some operations on the tensors of all rows together, and not as
for each row: an index outside an embedding or ``index_fill`` reaches the tensor of another row, the
gradients of an embedding with ``padding_idx``, of ``select_scatter`` and of
``linear_cross_entropy`` in chunks mix rows, and ``grid_sample`` reads memory outside of its tensors
for numbers that are not finite. :class:`RowsApart` replaces them. They were found by comparing all
operations that torch tests with their gradients for single rows in float64
(``tests/training/test_additivity.py`` repeats that for a part).

**State.** The number of passes of a step depends on rows: on the size of a sample, and on a row on
which the module raises. A pass must therefore leave nothing behind: its result may depend on
parameters, rows and seeds only. :class:`ReachableState` walks from the module through attributes,
containers, tensors, arrays, closures, defaults and attributes of functions, and, in code that is
not of an installed package, through attributes of classes and the global names that functions use.
It remembers what it finds, and sets it back bit for bit. What it cannot set back (iterators,
scripted modules, objects of compiled code that it does not know) is refused when the module is
read. State that no object of Python holds (files, the clock, globals of installed packages) is not
seen; a module whose outputs change between two equal passes is refused for that
(:mod:`expost.training._torch.module_taps`).

Tests: ``tests/training/test_module_state.py``, ``tests/training/test_reachable_state.py``.

The trained parameters of a torch module as one flat vector per model, and back.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

import array
import dis
import hashlib
import io
import operator
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from expost.arrays import Array
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


Tensor = torch.Tensor
SECRET_BITS = 256  # of the secret of a model
_WORDS, _FIRST = 624, 24  # words of the Mersenne Twister, and where torch's state holds them
STATE_BYTES = 4 * _WORDS


def seed_draws(secret: int, step: int, device: torch.device) -> None:
    """Set torch's generators for one step; an equal secret and step draw equal numbers."""
    given = secret.to_bytes(SECRET_BITS // 8, "little") + step.to_bytes(8, "little")
    digest = hashlib.shake_256(given).digest(8 + STATE_BYTES)
    if device.type != "cpu":
        torch.cuda.manual_seed(int.from_bytes(digest[:8], "little"))
    torch.random.set_rng_state(generator_state(digest[8:]))


def seed_model(seed: int) -> None:
    """Seed torch's generators for a new model.

    ``torch.manual_seed`` would keep a trace of the stack per call where CUDA has not been used.
    """
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed % 2**63)


def generator_state(given: bytes) -> Tensor:
    """Return a state of torch's generator on a CPU whose words are all given: 2,496 bytes."""
    fresh = torch.Generator().manual_seed(0).get_state().numpy()
    words = np.frombuffer(given, dtype="<u4").astype(np.uint64)
    fresh[_FIRST : _FIRST + 8 * _WORDS] = words.view(np.uint8)
    return torch.from_numpy(fresh)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does not load torch's compiler, which takes 110 MB and seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class WholeState(_Mode):  # type: ignore[no-untyped-call]
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
    """Keeps operations inside ``vmap`` to the tensors of their own row.

    A token outside an embedding gives NaN, so that its row adds nothing. ``index_fill`` ignores an
    index outside. Neither raises, as that would depend on a row.

    ``errors`` are the operations that raised. A module may catch an error that one row causes, and
    then go another way for all rows. So a pass counts only if the same operations raised as in a
    pass over zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[tuple[str, str]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace some operations, and leave all others alone."""
        replaced = _REPLACED.get(func, func)
        try:
            return replaced(*args, **(kwargs or {}))
        except Exception as error:
            self.errors.append((getattr(func, "__name__", str(func)), type(error).__name__))
            raise


class RowError(Exception):
    """A row made an operation raise, and the module went another way than for zeros."""


class OnlyRowwise(_Mode):  # type: ignore[no-untyped-call]
    """Notes what ``vmap`` computes wrongly where :class:`RowsApart` does not see it (scripts)."""

    refusal: InvalidInput | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at all operations on the tensors of all rows."""
        padded = func is torch.ops.aten.embedding.default and [*args, *[-1] * 3][2] >= 0
        if padded or func in _NOT_ROWWISE:
            self.refusal = InvalidInput(
                "model",
                f"the operation {func}",
                "here it cannot be computed for each example on its own; call it from plain "
                "Python code (not from a script), or use another one",
            )
        return func(*args, **(kwargs or {}))


_NOT_ROWWISE = {
    torch.ops.aten.index_fill.int_Scalar,
    torch.ops.aten.index_fill_.int_Scalar,
    torch.ops.aten.index_fill.int_Tensor,
    torch.ops.aten.index_fill_.int_Tensor,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten._ctc_loss.default,  # reads outside its tensors, and may end the process
    torch.ops.aten._ctc_loss.Tensor,
}


def inside(input: Tensor, number: int, look_up: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what ``look_up`` finds for tokens; NaN for those outside of 0 … ``number`` − 1."""
    outside = (input < 0) | (input >= number)
    looked_up = look_up(torch.clamp(input, 0, number - 1))
    if not looked_up.is_floating_point():
        return looked_up
    return torch.where(outside.unsqueeze(-1), torch.nan, looked_up)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Look tokens up; the token ``padding_idx`` has no gradient.

    ``vmap`` looks up in the tables of all rows as one table, where it takes ``padding_idx`` for a
    token of the first row's. So the outputs of padding are detached instead. Gradients are dense.
    """

    def look_up(tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, weight, None, max_norm, norm_type, scale_grad_by_freq)

    looked_up = inside(input, weight.shape[0], look_up)
    if padding_idx is None:
        return looked_up
    padding = padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    return torch.where((input == padding).unsqueeze(-1), looked_up.detach(), looked_up)


def _plain_embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    padding = None if padding_idx < 0 else padding_idx
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq)


def _at(input: Tensor, dim: int, wanted: Tensor) -> Tensor:
    """Return which places of an axis are wanted, in a shape that fits ``input``."""
    shape = [1] * max(1, input.ndim)
    shape[dim] = -1
    positions = torch.arange(input.shape[dim] if input.ndim else 1, device=input.device)
    return (wanted.reshape(-1, 1) == positions).any(0).view(shape)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    number = input.shape[dim] if input.ndim else 1
    wanted = torch.where(index < 0, index + number, index)
    return torch.where(_at(input, dim, wanted), value, input).view(input.shape)


def _index_fill_in_place(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return input.copy_(_index_fill(input, dim, index, value))


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    input.select(dim, index)  # raises for an index outside, which is not of a row
    chosen = _at(input, dim, torch.tensor(index % input.shape[dim], device=input.device))
    return torch.where(chosen, src.unsqueeze(dim), input)


def _grid_sample(input: Tensor, grid: Tensor, *others: Any, **named: Any) -> Tensor:
    """Give NaN where the grid is not finite; torch would read any memory there."""
    odd = ~torch.isfinite(grid)
    sampled = functional.grid_sample(input, torch.where(odd, 0.0, grid), *others, **named)
    return torch.where(odd.any(-1).unsqueeze(1), torch.nan, sampled)


def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    odd = ~torch.isfinite(grid)
    settings = interpolation_mode, padding_mode, align_corners
    sampled = torch.grid_sampler(input, torch.where(odd, 0.0, grid), *settings)
    return torch.where(odd.any(-1).unsqueeze(1), torch.nan, sampled)


def _linear_cross_entropy(*given: Any, options: Any = None, **named: Any) -> Tensor:
    """Compute the loss without chunks: with them its gradient mixes rows."""
    loss: Tensor = functional.linear_cross_entropy(*given, **named)
    return loss


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    functional.embedding: _embedding,
    torch.embedding: _plain_embedding,
    torch.ops.aten.embedding: _plain_embedding,
    torch.ops.aten.embedding.default: _plain_embedding,
    torch.index_fill: _index_fill,
    Tensor.index_fill: _index_fill,
    Tensor.index_fill_: _index_fill_in_place,
    torch.select_scatter: _select_scatter,
    Tensor.select_scatter: _select_scatter,
    functional.grid_sample: _grid_sample,
    torch.grid_sampler: _grid_sampler,
    torch.grid_sampler_2d: _grid_sampler,
    torch.grid_sampler_3d: _grid_sampler,
}
if hasattr(functional, "linear_cross_entropy"):  # torch 2.13
    _REPLACED[functional.linear_cross_entropy] = _linear_cross_entropy


class Parameters:
    """Names, shapes and precision of the trained parameters of ``module``.

    ``factory`` makes further models of the same architecture.
    """

    def __init__(self, module: nn.Module, factory: Callable[[], Any], device: str) -> None:
        self.factory, self.device = factory, device
        self.trained = {
            name: value for name, value in module.named_parameters() if value.requires_grad
        }
        self.dtype = next(iter(self.trained.values())).dtype
        self.itemsize = next(iter(self.trained.values())).element_size()
        self.starts: dict[str, int] = {}  # where each parameter starts in the flat vector
        self.width = 0
        for name, value in self.trained.items():
            self.starts[name] = self.width
            self.width += value.numel()

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """Return the initial parameters of one new model per seed: models × width, float64."""
        starts = []
        for seed in seeds:
            seed_model(seed)
            starts.append(self._flat(self.factory()))
        return torch.stack(starts).to(self.device, torch.float64)

    def _flat(self, module: nn.Module) -> torch.Tensor:
        """Return the trained parameters of a module as one vector."""
        values = dict(module.named_parameters())
        if {name: value.shape for name, value in self.trained.items()} != {
            name: values[name].shape for name in self.trained if name in values
        }:
            raise InvalidInput(
                "model",
                "modules of different shapes",
                "pass a function that returns the same architecture at every call",
            )
        return torch.cat([values[name].detach().flatten().cpu() for name in self.trained])

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return flat parameters (… × width) by name, in the module's shapes and precision."""
        pieces = torch.split(
            flat.to(self.dtype), [value.numel() for value in self.trained.values()], dim=-1
        )
        shapes = [(*flat.shape[:-1], *value.shape) for value in self.trained.values()]
        return {
            name: piece.reshape(shape)
            for name, piece, shape in zip(self.trained, pieces, shapes, strict=True)
        }

    def arrays(self, flat: Array) -> dict[str, Array]:
        """Return the flat parameters of one model as arrays by name."""
        return {
            name: value.numpy().copy() for name, value in self.named(torch.from_numpy(flat)).items()
        }
