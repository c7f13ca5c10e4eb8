"""Native kernels: the decorators, so that every kernel is compiled alike, and what files that write LLVM instructions need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from expost.errors import MissingExtra

try:
    import numba
    from llvmlite import ir
    from numba import extending, types
    from numba.core import cgutils
except ImportError:
    raise MissingExtra("numba", "native") from None

__all__ = ["cgutils", "extending", "ir", "kernel", "ordered", "types"]

Function = TypeVar("Function", bound=Callable[..., object])

_REORDERED = {"reassoc", "contract", "nsz"}


def kernel(function: Function) -> Function:
    """Compiled without the interpreter lock; sums may be reordered and fused, NaN and infinity keep their meaning.

    Results repeat on one machine, whatever the number of threads; another processor may round sums differently.
    """
    return cast(
        Function,
        numba.njit(nogil=True, cache=True, fastmath=_REORDERED, error_model="numpy")(function),
    )


def ordered(function: Function) -> Function:
    """The same, but sums are taken in the order they are written in; multiplications and additions may be fused."""
    return cast(
        Function,
        numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")(function),
    )
