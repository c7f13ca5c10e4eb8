"""What a mechanism is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Protocol, runtime_checkable

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness

Call = Callable[[Any, Randomness], Any]
"""A mechanism without its guarantee: ``(data, randomness) -> output``."""


@runtime_checkable
class Mechanism(Protocol):
    """A promise and a call. Data and randomness are arguments, never fields.

    The output's law on neighbouring data must keep ``guarantee``. Noise comes from ``randomness`` (or from a source of the
    mechanism's own that is at least as good), and every call is independent of the others.
    """

    @property
    def guarantee(self) -> Guarantee: ...

    def __call__(self, data: Any, randomness: Randomness) -> Any: ...


@dataclass(frozen=True)
class Estimate:
    """A noisy number and the law of its noise: ``laplace`` of scale b, or ``gaussian`` of standard deviation σ."""

    value: int | Fraction
    scale: float
    law: str

    def __float__(self) -> float:
        return float(self.value)

    def half_width(self, confidence: float = 0.95) -> float:
        """Half the width of a central interval of the noise (of its continuous limit) with this probability."""
        if not 0 < confidence < 1:
            raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")
        if self.law == "laplace":
            return -self.scale * math.log1p(-confidence)
        return self.scale * NormalDist().inv_cdf((1 + confidence) / 2)

    def as_dict(self) -> dict[str, Any]:
        """A JSON form."""
        value = int(self.value) if self.value == int(self.value) else float(self.value)
        return {"value": value, "scale": self.scale, "law": self.law}
