"""Decorators that compile the native kernels, and the imports of files that emit LLVM instructions.

All kernels are compiled with the same options. numba keeps compiled kernels on disk. By itself it
recognises a change by the date of a kernel's own file only, and would go on using an old sampler
that was compiled into a kernel of another file. So the cache is keyed by :func:`source_stamp`: a
hash of all files of this folder, of the files whose constants the kernels use, and of the versions
of expost and llvmlite. If numba does not let the key be set, nothing is cached.

Tests: ``tests/training/test_compiled.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from expost._version import __version__
from expost.errors import MissingExtra

try:
    import llvmlite
    import numba
    from llvmlite import ir
    from numba import extending, types
    from numba.core import cgutils
except ImportError:
    raise MissingExtra("numba", "native") from None

__all__ = ["cgutils", "extending", "ir", "kernel", "ordered", "types"]

Function = TypeVar("Function", bound=Callable[..., object])

_REORDERED = {"reassoc", "contract", "nsz"}


@cache
def source_stamp() -> str:
    """Return the hash of everything that compiled kernels are made from."""
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{__version__} {llvmlite.__version__}".encode())
    others = here.parent / "configuration.py", here.parents[1] / "randomness" / "samplers.py"
    for path in [*sorted(here.glob("*.py")), *others]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def kernel(function: Function) -> Function:
    """Compile a function that runs without the interpreter lock.

    Sums may be reordered and fused. NaN and infinity keep their meaning. Results are reproducible
    on one machine for any number of threads. Another processor may round sums differently.
    """
    return _compiled(function, _REORDERED)


def ordered(function: Function) -> Function:
    """Compile the same way but keep the order of sums; products and sums may still be fused."""
    return _compiled(function, {"contract"})


def _compiled(function: Function, fastmath: set[str]) -> Function:
    """Compile, with a cache that is keyed by the hash of all sources."""
    compiled: Any = numba.njit(nogil=True, cache=True, fastmath=fastmath, error_model="numpy")(
        function
    )
    try:
        cache_file = compiled._cache._cache_file
        _ = cache_file._source_stamp, cache_file._version  # raises if numba has changed
        # The version is read before the index is unpickled, which may name types that are gone.
        cache_file._source_stamp = source_stamp()
        cache_file._version = f"{cache_file._version} {source_stamp()}"
    except AttributeError:
        compiled = numba.njit(nogil=True, fastmath=fastmath, error_model="numpy")(function)
    return cast(Function, compiled)
