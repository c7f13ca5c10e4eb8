"""A fingerprint of data, to notice that a checkpoint belongs to other data.

It is salted, written to the checkpoint only, and never released. Tests:
``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from numbers import Number as AnyNumber
from typing import Any

import numpy as np

from expost.errors import InvalidInput


def fingerprint(data: Any, salt: bytes) -> str:
    """Return the SHA-256 hash of a salt and the content of ``data``, as hexadecimal digits.

    Parameters
    ----------
    data : object
        Arrays, data frames, numbers, strings, bytes, None, and sequences and mappings of them.
    salt : bytes
        Secret random bytes.

    Raises
    ------
    InvalidInput
        The data has another type.
    """
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
    encoded = content.encode()
    state.update(f"{kind}:{len(encoded)}:".encode() + encoded)
