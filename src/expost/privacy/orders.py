"""The default Rényi orders; they are dense where the best order of a tuning job lies."""

from __future__ import annotations

INTEGER_ORDERS: tuple[float, ...] = tuple(
    float(order)
    for order in (
        *range(2, 65),
        *range(66, 129, 2),
        *range(132, 257, 4),
        *range(264, 513, 8),
        *range(528, 1025, 16),
        1152,
        1280,
        1536,
        1792,
        2048,
        2560,
        3072,
        4096,
        6144,
        8192,
    )
)
"""Whole orders up to 1,024 with steps of at most 3.2 %, then sparser to 8,192 for very small ε."""

FRACTIONAL_ORDERS: tuple[float, ...] = (
    *(1.05, 1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.75, 1.8, 1.9),
    *(2.1, 2.2, 2.4, 2.6, 2.8, 3.25, 3.5, 3.75, 4.5, 5.5),
)
"""Fractional orders, which matter for large ε: DP-SGD at ε ≈ 10 is best between 1.4 and 3."""

DEFAULT_ORDERS: tuple[float, ...] = tuple(sorted((*FRACTIONAL_ORDERS, *INTEGER_ORDERS)))
""":data:`INTEGER_ORDERS` and :data:`FRACTIONAL_ORDERS`. Ledgers name their own orders."""
