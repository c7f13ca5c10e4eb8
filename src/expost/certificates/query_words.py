"""What a certificate says about the parts of a query in SQL; used by :mod:`.words`.

Tests: ``tests/analytics/test_sql_run.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from expost.certificates.document import Record
from expost.rationals import charge_text

_SIGNS = {"epsilon": "ε", "rho": "ρ"}


def rows_words(rows: Sequence[Record]) -> str:
    """Return how many rows of the answer reached the error."""
    answered = sum(bool(row["answered"]) for row in rows)
    return f"{answered:,} of {len(rows):,} rows reached this error in every column"


def part_words(part: Record, unit: str) -> str:
    """Return what one aggregate cost, and in how many groups it reached the error."""
    answered, others = len(part["answers"]), len(part["unanswered"])
    said = f"{part['of']}: {_SIGNS[unit]} = {charge_text(part['spent'])}"
    return f"{said}, {answered:,} of {answered + others:,} groups"
