"""Rényi curves computed by dp_accounting, for whole and fractional orders.

The numbers are those of dp_accounting; nothing is padded.

Tests: ``tests/privacy/test_dpsgd.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from expost.errors import import_extra
from expost.privacy.guarantees import RenyiDP
from expost.privacy.profiles import DEFAULT_ORDERS

__all__ = ["dpsgd_guarantee", "event_guarantee"]


def dpsgd_guarantee(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    orders: Sequence[float] = DEFAULT_ORDERS,
) -> RenyiDP:
    """Return the Rényi curve of a DP-SGD training, exactly as dp_accounting computes it.

    Parameters
    ----------
    sampling_rate, noise_multiplier, steps
        As in :func:`expost.privacy.dpsgd_curve`.
    orders : sequence of float, optional
        The Rényi orders. Orders at which dp_accounting gives no finite value are left out.

    Returns
    -------
    RenyiDP
        The curve under add-remove neighbours.

    Raises
    ------
    MissingExtra
        If dp_accounting is not installed.
    """
    accounting = import_extra("dp_accounting", "dp_accounting", "accounting")
    step = accounting.PoissonSampledDpEvent(
        sampling_rate, accounting.GaussianDpEvent(noise_multiplier)
    )
    return event_guarantee(accounting.SelfComposedDpEvent(step, steps), orders)


def event_guarantee(event: Any, orders: Sequence[float] = DEFAULT_ORDERS) -> RenyiDP:
    """Return the Rényi curve of any dp_accounting event under add-remove neighbours.

    Parameters
    ----------
    event : dp_accounting.DpEvent
        What ran.
    orders : sequence of float, optional
        As in :func:`dpsgd_guarantee`.
    """
    accounting = import_extra("dp_accounting", "dp_accounting", "accounting")
    accountant = accounting.rdp.RdpAccountant(orders=list(orders))
    accountant.compose(event)
    pairs = [
        (float(a), float(e))
        for a, e in zip(accountant._orders, accountant._rdp, strict=True)
        if isfinite(e)
    ]
    return RenyiDP(tuple(a for a, _ in pairs), tuple(e for _, e in pairs))
