"""Native kernels: one decorator, so that every kernel is compiled alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from expost.errors import MissingExtra

try:
    import numba
    from llvmlite import ir
    from numba import extending
    from numba.core import cgutils
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


def _prefetch(typing: Any, array: Any, row: Any) -> Any:

    utilities: Any = cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        matrix = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = builder.extract_value(matrix.strides, 0)
        byte = ir.IntType(8).as_pointer()
        start = builder.gep(builder.bitcast(matrix.data, byte), [builder.mul(arguments[1], stride)])
        hint = ir.FunctionType(ir.VoidType(), [byte, ir.IntType(32), ir.IntType(32), ir.IntType(32)])
        function = utilities.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        flags = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]  # read, keep, data
        for line in range(0, 512, 64):
            builder.call(function, [builder.gep(start, [ir.Constant(ir.IntType(64), line)]), *flags])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), generate


prefetch: Any = extending.intrinsic(_prefetch)
"""Ask for the cache lines of a row of a matrix (its first 512 bytes) before it is needed; changes no result."""
