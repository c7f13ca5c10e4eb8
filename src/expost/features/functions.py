"""Features by a function of one row, by a frozen module, on top of others, or from a file.

The function gets one row at a time, so it cannot compute from several rows, unless it keeps
something between calls; that it does not is assumed. If it raises, or returns something else than
``width`` finite numbers, the row is one that cannot be read.

A file that describes such features holds the name of the function, not its code, and reading it
imports nothing: pass the function again (:func:`features_from_dict`).

Random Fourier features are cosines and sines of random directions from a public seed.

Tests: ``tests/features/test_functions.py``, ``tests/features/test_fourier.py``,
``tests/features/test_choice.py``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256, shake_256
from math import ceil, log2, pi, prod, sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput, MissingExtra
from expost.execution.calls import call_or_failure
from expost.features.columns import Columns, EncodedColumns
from expost.features.feature_map import (
    Cells,
    Features,
    is_real,
    json_parameter,
    number_block,
    row_count,
    unit,
    whole_number,
)
from expost.features.texts_and_pictures import HashedText, OrientedGradients

_INPUT_BITS = 24
_LEAST_BITS = 6
_MOST_ENTRIES = 10**8
_LARGEST_NORMAL = 6.0  # of a sum of twelve uniforms
# Coefficients of sin(2πu) = u·Σ c_k u^{2k}; the error is below 1e-9 for |u| ≤ 1/4.
_SINE = [2 * pi]
for _order in range(1, 8):
    _SINE.append(-_SINE[-1] * (2 * pi) * (2 * pi) / (2 * _order * (2 * _order + 1)))


@dataclass(eq=False)
class RandomFourier(Features):
    """Cosines and sines of x·w for random directions w: a linear model on them is a kernel model.

    The directions are normal with the given scale and come from a public seed; they are the same on
    every machine and in every version.

    Parameters
    ----------
    dimension : int
        Number of features, even: a cosine and a sine for each direction.
    scale : float
        Standard deviation of each entry of a direction. For rows of norm 1, from 1 to 3.
    seed : int, default=0
        Public seed.
    constant, norm
        As in :class:`Features`.

    Notes
    -----
    Values of a row are clipped to [−1, 1]: put features of another kind before
    (:class:`Chain`), or scale first. They are rounded to 24 bits, and the directions to as many
    bits as make all products and sums exact, so that a fast matrix product gives the same bits for
    every batch. Directions are sums of twelve uniform numbers.

    References
    ----------
    A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
    """

    kind: ClassVar[str] = "random_fourier"
    dimension: int = 1000
    scale: float = 1.5
    seed: int = 0

    def _check(self) -> None:
        if whole_number(self.dimension, "dimension", 2, 10**6) % 2:
            raise InvalidInput("dimension", self.dimension, "give an even number")
        whole_number(self.seed, "seed", 0, 2**63 - 1)
        if not (is_real(self.scale) and 1e-3 <= self.scale <= 1e3):
            raise InvalidInput("scale", self.scale, "give a number from 0.001 to 1000")

    def _width(self, columns: int) -> int:
        return self.dimension

    def _bound(self, columns: int) -> float:
        # cos² + sin² is 1 up to the error of the polynomials.
        return sqrt(self.dimension / 2) * (1 + 2.0**-20)

    def _values(self, cells: Cells) -> Floats:
        rows = np.clip(number_block(cells), -1.0, 1.0)
        unreadable = np.isnan(rows).any(axis=1)
        rows[unreadable] = 0.0
        rows = np.rint(rows * 2.0**_INPUT_BITS) * 2.0**-_INPUT_BITS
        directions = _directions(rows.shape[1], self.dimension // 2, float(self.scale), self.seed)
        turns = rows @ directions  # exact, by the choice of the bits
        turns -= np.rint(turns)
        waves = np.concatenate([_cosine(turns), _cosine(turns - 0.25)], axis=1)
        waves[unreadable] = np.nan
        return waves

    def _names(self, names: Sequence[str]) -> list[str]:
        half = range(self.dimension // 2)
        return [f"{name}{index}" for name in ("cos", "sin") for index in half]

    def _words(self) -> str:
        return (
            f"{self.dimension} random Fourier features (scale {self.scale:g}, public seed "
            f"{self.seed})"
        )


@lru_cache(maxsize=8)
def _directions(columns: int, count: int, scale: float, seed: int) -> Floats:
    """Return random directions in turns (divided by 2π), rounded to whole multiples of 2^{−b}.

    With |x_i| ≤ 1 in multiples of 2^{−24}, all products are multiples of 2^{−24−b}, and all sums
    are at most columns·6·scale/2π in absolute value. b is such that this is below 2^{53−24−b}.
    """
    largest = columns * _LARGEST_NORMAL * scale / (2 * pi)
    bits = 53 - _INPUT_BITS - 1 - ceil(log2(largest))
    if bits < _LEAST_BITS or columns * count > _MOST_ENTRIES:
        raise InvalidInput(
            "X",
            f"rows of {columns} values",
            "give fewer columns, a lower dimension or a lower scale",
        )
    source = shake_256(b"expost random Fourier features %d" % seed)
    words = np.frombuffer(source.digest(columns * count * 24), dtype="<u2")
    sums = words.reshape(12, columns, count).sum(axis=0, dtype=np.int64)
    normal = sums * 2.0**-16 - 6.0
    return np.asarray(np.rint(normal * (scale / (2 * pi) * 2.0**bits)) * 2.0**-bits)


def _cosine(turns: Floats) -> Floats:
    """Return cos(2πt), by a polynomial: library cosines may differ between batches."""
    offset = 0.25 - np.abs(turns - np.rint(turns))
    square = offset * offset
    sine = np.full_like(offset, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        sine *= square
        sine += coefficient
    return np.asarray(sine * offset)


@dataclass(eq=False)
class Function(Features):
    """Features by a function of one row.

    Parameters
    ----------
    function : callable or str
        A function of one row that returns ``dimension`` numbers, or its name ``"module:function"``.
    dimension : int
        Number of features that it returns.
    shape : tuple of int, optional
        Shape of one row. Then the function gets an array of finite numbers of this shape. By
        default it gets the list of the row's cells as they are.
    constant, norm
        As in :class:`Features`. What the function returns is scaled to norm 1 first.
    """

    kind: ClassVar[str] = "function"
    function: Any
    dimension: int
    shape: Any = None

    def _check(self) -> None:
        whole_number(self.dimension, "dimension", 1, 2**24)
        named = isinstance(self.function, str) or callable(self.function)
        module, _, name = self._name.rpartition(":")
        if not (named and module and name):
            raise InvalidInput("function", self.function, 'give a function or "module:function"')
        if self.shape is not None:
            if not isinstance(self.shape, (list, tuple)) or not self.shape:
                raise InvalidInput("shape", self.shape, "give the shape of one row")
            for side in self.shape:
                whole_number(side, "shape", 1, 2**24)

    @property
    def _name(self) -> str:
        """Public name of the function."""
        if isinstance(self.function, str):
            return self.function
        named = getattr(self.function, "func", self.function)  # functools.partial
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}:{named.__qualname__}"

    @cached_property
    def _loaded(self) -> Any:
        """The function, imported by its name if only that was given."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.rpartition(":")
        try:
            loaded: Any = importlib.import_module(module)
            for part in name.split("."):
                loaded = getattr(loaded, part)
        except Exception as error:  # the module can raise anything; no data is near
            raise InvalidInput(
                "function", self.function, f"it cannot be imported ({type(error).__name__})"
            ) from None
        if not callable(loaded):
            raise InvalidInput("function", self.function, "it is not a function")
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was imported: another process imports it again."""
        return {name: value for name, value in vars(self).items() if name[:1] != "_"}

    @property
    def columns(self) -> int | None:
        """Number of values of a row; None if no shape is given."""
        return None if self.shape is None else prod(self.shape)

    def _width(self, columns: int) -> int:
        return self.dimension

    def _bound(self, columns: int) -> float:
        return 1.0

    def _values(self, cells: Cells) -> Floats:
        function = self._loaded
        outputs = np.full((self.dimension, row_count(cells)), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for index, row in enumerate(self._rows(cells)):
                values = None if row is None else call_or_failure(_result, function, row)
                if isinstance(values, np.ndarray) and values.shape == (self.dimension,):
                    outputs[:, index] = values
        return unit(outputs).T

    def _rows(self, cells: Cells) -> list[Any]:
        """Return each row as the function gets it; None if it cannot be read."""
        if self.shape is None:
            if isinstance(cells, np.ndarray):
                return list(cells.tolist())
            return [list(row) for row in zip(*(column.tolist() for column in cells), strict=True)]
        block = number_block(cells)
        return [row.reshape(self.shape).copy() if np.isfinite(row).all() else None for row in block]

    def _words(self) -> str:
        return f"{self.dimension} numbers by the function {self._name}"

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold, with the name of the function."""
        parameters = {**self.get_params(), "function": self._name}
        return {
            "features": self.kind,
            **{name: json_parameter(p) for name, p in parameters.items()},
        }


@dataclass(eq=False)
class Encoder(Function):
    """Features by a frozen torch module that was trained on public data.

    Parameters
    ----------
    function : torch.nn.Module, callable or str
        The module; or a function without arguments that returns it, or its name
        ``"module:function"``.
    dimension : int
        Number of values that the module returns for a row.
    shape : tuple of int
        Shape of one row. The module gets a batch of one row, of this shape, in single precision.
    digest : str, optional
        SHA-256 of the module's parameters, as a saved description has it. Another module is
        refused.
    constant, norm
        As in :class:`Features`.

    Notes
    -----
    The module is used in evaluation mode, without gradients and with one thread, and every row is a
    batch of its own: the rows of a larger batch may be rounded differently. That is slow for large
    modules; transform once and keep the result. Needs torch: ``pip install 'expost[torch]'``.
    """

    kind: ClassVar[str] = "encoder"
    digest: str | None = None

    def _check(self) -> None:
        super()._check()
        if self.shape is None:
            raise InvalidInput("shape", None, "give the shape of one row")

    @cached_property
    def _loaded(self) -> Any:
        torch = _torch()
        given = self.function
        if not isinstance(given, torch.nn.Module):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                given = Function(given, self.dimension)._loaded()
        if not isinstance(given, torch.nn.Module):
            raise InvalidInput("function", self._name, "it must return a torch module")
        if self.digest not in (None, _digest(given)):
            raise InvalidInput("function", self._name, "its parameters are not those of the file")
        outputs = call_or_failure(_result, _OneRow(given), np.zeros(self.shape))  # no data is near
        if not isinstance(outputs, np.ndarray) or outputs.shape != (self.dimension,):
            raise InvalidInput(
                "function", self._name, f"for zeros it does not return {self.dimension} numbers"
            )
        return _OneRow(given)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold, with the name and a hash of the module."""
        return {**super().as_dict(), "digest": _digest(self._loaded.module)}

    def _words(self) -> str:
        return f"{self.dimension} outputs of the public encoder {self._name}"


@dataclass(frozen=True)
class _OneRow:
    """Apply a torch module to one row."""

    module: Any

    def __call__(self, row: Array) -> Any:
        torch = _torch()
        threads, training = torch.get_num_threads(), self.module.training
        like = next(iter(self.module.parameters()), torch.zeros(0))
        try:
            torch.set_num_threads(1)
            self.module.eval()
            with torch.no_grad():
                batch = torch.from_numpy(row[None]).to(like.dtype).to(like.device)
                return self.module(batch).flatten().double().cpu().numpy()
        finally:
            torch.set_num_threads(threads)
            self.module.train(training)


def _torch() -> Any:
    """Return torch."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch", "an encoder") from None
    return torch


def _digest(module: Any) -> str:
    """Return a hash of the parameters and buffers of a module."""
    digest = sha256()
    for name, value in module.state_dict().items():
        numbers = value.detach().cpu().double().numpy()
        digest.update(repr((name, numbers.shape)).encode())
        digest.update(np.ascontiguousarray(numbers).tobytes())
    return digest.hexdigest()


def _result(function: Callable[[Any], Any], row: Any) -> Floats:
    """Return what a function makes of a row, as a flat array."""
    return np.asarray(function(row), dtype=np.float64).ravel()


@dataclass(eq=False)
class Chain(Features):
    """Features of features: each step gets the rows that the step before it returned.

    Parameters
    ----------
    steps : sequence of Features
        The steps in order. Rows between steps are scaled and have a constant column. The scaling of
        the last step is that of the result.

    Examples
    --------
    >>> from expost.features import Chain, OrientedGradients, RandomFourier
    >>> Chain([OrientedGradients("28x28"), RandomFourier(2000, 2.0, seed=1)]).width()
    2001
    """

    kind: ClassVar[str] = "chain"
    steps: Any

    def _check(self) -> None:
        steps = self.steps
        if (
            not isinstance(steps, (list, tuple))
            or not steps
            or not all(isinstance(step, Features) for step in steps)
        ):
            raise InvalidInput("steps", type(steps).__name__, "give a list of features")
        if steps[0].columns is not None:
            self.width()

    @property
    def columns(self) -> int | None:
        """Number of values of a row of the first step."""
        return self.steps[0].columns  # type: ignore[no-any-return]

    def _width(self, columns: int) -> int:
        for step in self.steps:
            if columns != (step.columns or columns):
                raise InvalidInput("steps", step.kind, f"it takes rows of {step.columns} values")
            columns = step._width(columns) + 1
        return columns - 1

    def _bound(self, columns: int) -> float:
        for step in self.steps[:-1]:
            columns = step._width(columns) + 1
        return self.steps[-1]._bound(columns)  # type: ignore[no-any-return]

    def _read(self, X: Any) -> Cells:
        return self.steps[0]._read(X)  # type: ignore[no-any-return]

    def _values(self, cells: Cells) -> Floats:
        for step in self.steps[:-1]:
            rows = step.transform_cells(cells)
            rows[rows[:, -1] == 0] = float("nan")  # a row that cannot be read stays so
            cells = rows
        return self.steps[-1]._values(cells)  # type: ignore[no-any-return]

    def _names(self, names: Sequence[str]) -> list[str]:
        for step in self.steps:
            names = [*step._names(names), "constant"]
        return list(names[:-1])

    def _words(self) -> str:
        return ", then ".join(step._words() for step in self.steps)


_KINDS: dict[str, type[Features]] = {
    features.kind: features
    for features in (
        Chain,
        Columns,
        EncodedColumns,
        Encoder,
        Function,
        HashedText,
        OrientedGradients,
        RandomFourier,
    )
}


def features_from_dict(
    record: Mapping[str, Any], functions: Mapping[str, Any] | None = None
) -> Features:
    """Return the features that ``as_dict`` described. Nothing is imported and no code runs.

    Parameters
    ----------
    record : mapping
        What :meth:`Features.as_dict` returned, perhaps read from JSON.
    functions : mapping of str to callable, optional
        The functions and encoders that the features use, by the names in the record. A record
        holds no code, and a name in it is never imported.

    Returns
    -------
    Features
        Equal features.

    Raises
    ------
    InvalidInput
        If it does not describe features that this version knows, or a function is not given.
    """
    kind = record.get("features") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput("features", kind, "this version knows " + ", ".join(_KINDS))
    known = functions or {}
    absent = sorted(function_names(record) - set(known))
    if absent:
        pairs = ", ".join(f"{name!r}: …" for name in absent)
        raise InvalidInput(
            "functions",
            sorted(known) or None,
            f"the features use {', '.join(map(repr, absent))}, and a file holds no code: pass "
            f"functions={{{pairs}}}",
        )
    parameters = {
        name: _given(value, functions) for name, value in record.items() if name != "features"
    }
    if "function" in parameters:
        parameters["function"] = known[str(parameters["function"])]
    try:
        return _KINDS[kind](**parameters)
    except TypeError:
        raise InvalidInput("features", "a record", "it has other parameters") from None


def function_names(record: Any) -> set[str]:
    """Return the names of the functions and encoders in a record of features, at any depth."""
    if isinstance(record, Mapping):
        inner = [function_names(value) for name, value in record.items() if name != "function"]
        own = {str(record["function"])} if "function" in record else set()
        return own.union(*inner)
    if isinstance(record, (list, tuple)):
        return set().union(*map(function_names, record))
    return set()


def _given(value: Any, functions: Mapping[str, Any] | None) -> Any:
    """Return a parameter from its JSON form."""
    if isinstance(value, Mapping):
        return features_from_dict(value, functions)
    if isinstance(value, (list, tuple)):
        return tuple(_given(item, functions) for item in value)
    return value
