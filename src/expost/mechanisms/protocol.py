"""What a mechanism is; ``FAILED`` and ``NOTHING``, which stand for an outcome without an output.

Both are false in a Boolean context, and unpickling gives back the same object.

Tests: ``tests/mechanisms/test_discrete_noise.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness


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


Call = Callable[[Any, Randomness], Any]
"""A mechanism without its guarantee: ``(data, randomness) -> output``."""


@runtime_checkable
class Mechanism(Protocol):
    """A privacy guarantee and a call ``(data, randomness) -> output``.

    Data and randomness are arguments, never fields. The implementer ensures three things. The
    distributions of the output on neighbouring data satisfy ``guarantee``. Noise comes from
    ``randomness``, or from the mechanism's own source if that is at least as good. Every call is
    independent of the others.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that one call satisfies."""
        ...

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        """Return the output of one independent run."""
        ...
