"""Any OpenDP measurement as a mechanism: its privacy map gives the promise.

What is assumed: the measurement's input metric at distance ``d_in`` is the neighbouring relation the caller names.
OpenDP draws its own (float-safe) noise. Tests: ``tests/integrations/test_opendp.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from expost.errors import InvalidInput, MissingExtra
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP
from expost.randomness.source import Randomness

__all__ = ["OpenDPMechanism", "from_opendp"]


@dataclass(frozen=True)
class OpenDPMechanism:
    """An OpenDP measurement with the promise its map makes at one input distance."""

    measurement: Any
    guarantee: Guarantee

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        return self.measurement(data)


def from_opendp(measurement: Any, d_in: Any = 1, neighbours: str = ADD_REMOVE) -> OpenDPMechanism:
    """A mechanism from a measurement; ``d_in`` is how far neighbouring data sets lie apart in its input metric."""
    try:
        from opendp.mod import Measurement
    except ImportError:
        raise MissingExtra("opendp", "opendp") from None
    if not isinstance(measurement, Measurement):
        raise InvalidInput("measurement", type(measurement).__name__, "give an opendp Measurement")
    measure, loss = str(measurement.output_measure), measurement.map(d_in)  # type: ignore[no-untyped-call]
    promises: dict[str, Callable[[], Guarantee]] = {
        "MaxDivergence": lambda: PureDP(loss, neighbours),
        "ZeroConcentratedDivergence": lambda: ZCDP(loss, neighbours),
        "Approximate(MaxDivergence)": lambda: ApproxDP(loss[0], loss[1], neighbours),
    }
    if measure not in promises:
        raise InvalidInput(
            "measurement.output_measure",
            measure,
            "give one of "
            + ", ".join(promises)
            + "; for a privacy profile, fix δ first with make_fix_delta",
        )
    return OpenDPMechanism(measurement, promises[measure]())
