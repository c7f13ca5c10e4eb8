"""Native kernels: one decorator, so that every kernel is compiled alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from expost.errors import MissingExtra

try:
    import numba
except ImportError:
    raise MissingExtra("numba", "torch") from None

Function = TypeVar("Function", bound=Callable[..., object])

_REORDERED = {"reassoc", "contract", "nsz"}


def kernel(function: Function) -> Function:
    """Compiled without the interpreter lock; sums may be reordered and fused, NaN and infinity keep their meaning.

    Results repeat on one machine, whatever the number of threads; another processor may round sums differently.
    """
    return cast(Function, numba.njit(nogil=True, cache=True, fastmath=_REORDERED, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """The same for a small function that is copied into its callers."""
    return cast(
        Function, numba.njit(nogil=True, cache=True, fastmath=_REORDERED, error_model="numpy", inline="always")(function)
    )
