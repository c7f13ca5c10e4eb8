"""dp_accounting's numbers as promises, for whole and fractional orders alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from expost.errors import MissingExtra
from expost.privacy.guarantees import RenyiDP
from expost.privacy.orders import DEFAULT_ORDERS

__all__ = ["dpsgd_guarantee", "event_guarantee"]


def dpsgd_guarantee(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    orders: Sequence[float] = DEFAULT_ORDERS,
) -> RenyiDP:
    """The Rényi curve of a DP-SGD training exactly as dp_accounting computes it (orders it cannot do are left out)."""
    accounting = _accounting()
    step = accounting.PoissonSampledDpEvent(
        sampling_rate, accounting.GaussianDpEvent(noise_multiplier)
    )
    return event_guarantee(accounting.SelfComposedDpEvent(step, steps), orders)


def event_guarantee(event: Any, orders: Sequence[float] = DEFAULT_ORDERS) -> RenyiDP:
    """The Rényi curve of any dp_accounting event, under add-remove neighbours."""
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant(orders=list(orders))
    accountant.compose(event)
    pairs = [
        (float(a), float(e))
        for a, e in zip(accountant._orders, accountant._rdp, strict=True)
        if isfinite(e)
    ]
    return RenyiDP(tuple(a for a, _ in pairs), tuple(e for _, e in pairs))


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise MissingExtra("dp_accounting", "accounting") from None
    return dp_accounting
