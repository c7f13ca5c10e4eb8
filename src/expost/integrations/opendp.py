"""Use any OpenDP measurement as a mechanism; its privacy map gives the guarantee.

The input metric is read, and what does not fit the named neighbouring relation is refused:

- ``SymmetricDistance`` and ``InsertDeleteDistance`` count rows that are added or removed. One row
  is a distance of 1 under add-remove; a replaced row is a distance of 2.
- ``ChangeOneDistance``, ``HammingDistance`` and ``DiscreteDistance`` count rows that are replaced,
  in data of a fixed size. They say nothing about add-remove.
- ``AbsoluteDistance``, ``L1Distance``, ``L2Distance`` and ``LInfDistance`` measure numbers that the
  caller has computed. Assumption about the caller: neighbouring data change them by at most
  ``d_in``.

OpenDP draws its own (float-safe) noise.

Tests: ``tests/integrations/test_opendp.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from expost.errors import InvalidInput, import_extra
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP
from expost.randomness.source import Randomness

__all__ = ["OpenDPMechanism", "from_opendp"]

_ADDED_OR_REMOVED = ("SymmetricDistance", "InsertDeleteDistance")
_REPLACED = ("ChangeOneDistance", "HammingDistance", "DiscreteDistance")
_OF_NUMBERS = ("AbsoluteDistance", "L1Distance", "L2Distance", "LInfDistance")


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
        The distance of neighbouring data sets in the input metric of the measurement: rows per
        person, or the sensitivity of numbers that you have computed.
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
        If ``measurement`` is no measurement, has another output measure, or its input metric is
        unknown or does not fit ``neighbours`` and ``d_in``.
    """
    if not isinstance(measurement, import_extra("opendp.mod", "opendp").Measurement):
        raise InvalidInput("measurement", type(measurement).__name__, "give an opendp Measurement")
    _check_metric(measurement, d_in, neighbours)
    measure = str(measurement.output_measure)
    loss = measurement.map(d_in)
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


def _check_metric(measurement: Any, d_in: Any, neighbours: str) -> None:
    """Refuse an input metric in which ``d_in`` does not stand for the neighbouring relation."""
    metric = str(measurement.input_metric)
    kind = metric.partition("(")[0]
    least: float
    if kind in _OF_NUMBERS:
        least = 0
    elif kind in _ADDED_OR_REMOVED:
        # A data set of a fixed size has no neighbour at distance 1, so its map would be 0.
        if neighbours == ADD_REMOVE and "size=" in str(measurement.input_domain):
            raise InvalidInput(
                "measurement.input_domain",
                str(measurement.input_domain),
                "data of a fixed size has no add-remove neighbours; use a domain without a size, "
                'or pass neighbours="replace" and d_in=2',
            )
        least = 1 if neighbours == ADD_REMOVE else 2
    elif kind in _REPLACED and neighbours == ADD_REMOVE:
        raise InvalidInput(
            "measurement.input_metric",
            metric,
            'this metric counts replaced rows; pass neighbours="replace"',
        )
    elif kind in _REPLACED:
        least = 1
    else:
        raise InvalidInput(
            "measurement.input_metric",
            metric,
            "give a measurement with one of the metrics "
            + ", ".join((*_ADDED_OR_REMOVED, *_REPLACED, *_OF_NUMBERS)),
        )
    if not isinstance(d_in, (int, float)) or not d_in > 0 or d_in < least:
        raise InvalidInput(
            "d_in", d_in, f"give a number of at least {least}" if least else "give a number > 0"
        )
