"""Values that stand for an outcome instead of an output: ``FAILED`` and ``NOTHING``."""

from __future__ import annotations

from typing import Final


class _Sentinel:
    """A value that stands for an outcome, not for data."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return self._name


NOTHING: Final = _Sentinel("NOTHING")
"""The outcome ⊥: no candidate was kept, or none passed."""

FAILED: Final = _Sentinel("FAILED")
"""The output of a candidate that raised; it ranks below every score."""
