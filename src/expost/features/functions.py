"""Features by a function of one row, or by a frozen torch module: an encoder.

The function gets one row at a time, so it cannot compute from several rows, unless it keeps
something between calls; that it does not is assumed. If it raises, or returns something else than
``width`` finite numbers, the row is one that cannot be read.

A file that describes such features holds the name of the function, not its code, and reading it
imports nothing: pass the function again (:func:`features_from_dict`).

Tests: ``tests/features/test_functions.py``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput, MissingExtra
from expost.execution.calls import call_or_failure
from expost.features.feature_map import (
    Cells,
    Features,
    json_parameter,
    number_block,
    row_count,
    unit,
    whole_number,
)


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
