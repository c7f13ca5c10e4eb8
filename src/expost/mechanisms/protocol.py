"""The values ``FAILED`` and ``NOTHING``, which stand for an outcome without an output.

Both are false in a Boolean context, and unpickling gives back the same object.

What a mechanism is, and estimates with the distribution of their noise.

Tests: ``tests/mechanisms/test_discrete_noise.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Final, Protocol, runtime_checkable

from expost.errors import InvalidInput
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


@dataclass(frozen=True)
class Estimate:
    """A noisy number and the distribution of its noise.

    Parameters
    ----------
    value : int or Fraction
        The noisy number.
    scale : float
        The scale b of Laplace noise, or the standard deviation σ of Gaussian noise.
    law : str
        ``"laplace"`` or ``"gaussian"``.
    """

    value: int | Fraction
    scale: float
    law: str

    def __float__(self) -> float:
        return float(self.value)

    def half_width(self, confidence: float = 0.95) -> float:
        """Return half the width of a central interval of the noise.

        Parameters
        ----------
        confidence : float, default 0.95
            The probability of the interval, strictly between 0 and 1.

        Returns
        -------
        float
            Half the width, computed for the continuous limit of the noise.

        Raises
        ------
        InvalidInput
            If ``confidence`` is not between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")
        if self.law == "laplace":
            return -self.scale * math.log1p(-confidence)
        return self.scale * NormalDist().inv_cdf((1 + confidence) / 2)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold."""
        value = int(self.value) if self.value == int(self.value) else float(self.value)
        return {"value": value, "scale": self.scale, "law": self.law}
