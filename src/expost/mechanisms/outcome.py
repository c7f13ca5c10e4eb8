"""The values ``FAILED`` and ``NOTHING``, which stand for an outcome without an output.

Both are false in a Boolean context, and unpickling gives back the same object.
"""

from __future__ import annotations

from typing import Final


class _Sentinel:
    """A value that stands for an outcome and holds no data."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return self._name


NOTHING: Final = _Sentinel("NOTHING")
"""The outcome ⊥: no candidate was kept, or no candidate passed."""

FAILED: Final = _Sentinel("FAILED")
"""The output of a candidate that raised an exception; it ranks below every score."""
