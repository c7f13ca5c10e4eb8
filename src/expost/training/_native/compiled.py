"""Decorators that compile the native kernels, and the imports of files that emit LLVM instructions.

All kernels are compiled with the same options. numba caches a compiled kernel under the date of its
own file: after a change to a kernel that is called from another file, delete ``__pycache__``.
"""

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
    """Compile a function that runs without the interpreter lock.

    Sums may be reordered and fused. NaN and infinity keep their meaning. Results are reproducible
    on one machine for any number of threads. Another processor may round sums differently.
    """
    return cast(
        Function,
        numba.njit(nogil=True, cache=True, fastmath=_REORDERED, error_model="numpy")(function),
    )


def ordered(function: Function) -> Function:
    """Compile the same way but keep the order of sums; products and sums may still be fused."""
    return cast(
        Function,
        numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")(function),
    )
