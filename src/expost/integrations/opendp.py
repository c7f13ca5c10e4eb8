"""Use any OpenDP measurement as a mechanism; its privacy map gives the guarantee.

Assumption about the caller: distance ``d_in`` in the input metric of the measurement is the named
neighbouring relation. OpenDP draws its own (float-safe) noise.

Tests: ``tests/integrations/test_opendp.py``.
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
    """An OpenDP measurement with the guarantee of its privacy map at one input distance.

    Parameters
    ----------
    measurement : opendp.mod.Measurement
        The measurement.
    guarantee : Guarantee
        The guarantee.
    """

    measurement: Any
    guarantee: Guarantee

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        """Return the output of the measurement on ``data``; ``randomness`` is not used."""
        return self.measurement(data)


def from_opendp(measurement: Any, d_in: Any = 1, neighbours: str = ADD_REMOVE) -> OpenDPMechanism:
    """Return a mechanism from an OpenDP measurement.

    Parameters
    ----------
    measurement : opendp.mod.Measurement
        Its output measure is MaxDivergence, ZeroConcentratedDivergence or
        Approximate(MaxDivergence).
    d_in : object, default 1
        The distance of neighbouring data sets in the input metric of the measurement.
    neighbours : str, default "add-remove"
        The neighbouring relation that ``d_in`` stands for, ``"add-remove"`` or ``"replace"``.

    Returns
    -------
    OpenDPMechanism
        The mechanism.

    Raises
    ------
    MissingExtra
        If OpenDP is not installed.
    InvalidInput
        If ``measurement`` is no measurement, or has another output measure.
    """
    try:
        from opendp.mod import Measurement
    except ImportError:
        raise MissingExtra("opendp", "opendp") from None
    if not isinstance(measurement, Measurement):
        raise InvalidInput("measurement", type(measurement).__name__, "give an opendp Measurement")
    measure = str(measurement.output_measure)
    loss = measurement.map(d_in)  # type: ignore[no-untyped-call]
    guarantees: dict[str, Callable[[], Guarantee]] = {
        "MaxDivergence": lambda: PureDP(loss, neighbours),
        "ZeroConcentratedDivergence": lambda: ZCDP(loss, neighbours),
        "Approximate(MaxDivergence)": lambda: ApproxDP(loss[0], loss[1], neighbours),
    }
    if measure not in guarantees:
        raise InvalidInput(
            "measurement.output_measure",
            measure,
            "give a measurement with one of the measures "
            + ", ".join(guarantees)
            + "; for a privacy profile, fix δ first with make_fix_delta",
        )
    return OpenDPMechanism(measurement, guarantees[measure]())
