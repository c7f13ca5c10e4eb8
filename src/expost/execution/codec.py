"""How checkpoints store outputs: plain values or NumPy arrays, as JSON.

Pickle is never used. For other outputs, write a codec of your own. Tests:
``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from expost.errors import InvalidInput
from expost.mechanisms.protocol import Estimate


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
    """Codec for numbers, strings, lists, tuples, dicts with string keys, fractions and estimates.

    Numbers include those of NumPy. Raises ``InvalidInput`` for other outputs.
    """

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
            return {"expost": kind, "value": [self.encode(each) for each in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {
                "expost": "dict",
                "value": {key: self.encode(each) for key, each in value.items()},
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
            return {key: self.decode(each) for key, each in value.items()}
        items = [self.decode(each) for each in value]
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
            arrays = [archive[f"arr_{place}"] for place in range(len(archive.files))]
        return (
            arrays[0]
            if stored["names"] is None
            else dict(zip(stored["names"], arrays, strict=True))
        )
