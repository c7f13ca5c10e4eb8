"""HTML for notebooks: the ``_repr_html_`` of plans, releases, results and ledgers.

Only what the object's public fields hold is shown: nothing is computed from data. Every text is
escaped, because names of groups, columns and analysts come from users. Losses are rounded up to
four digits, never down. Tests: ``tests/test_html_tables.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context
from html import escape
from math import isfinite
from typing import Any

import numpy as np

from expost.privacy.guarantees import Guarantee
from expost.rationals import decimal_up

_DIGITS = 4
_MOST_ROWS = 60
_LONGEST = 200  # characters of one cell


@dataclass(frozen=True)
class Loss:
    """A privacy loss, shown rounded up."""

    value: float


@dataclass(frozen=True)
class HtmlTable:
    """A table: a caption, the names of the columns, and rows of any values."""

    caption: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


def html_summary(title: str, facts: Mapping[str, Any], *tables: HtmlTable) -> str:
    """Return a title, a list of facts and the first rows of tables as HTML, all text escaped."""
    listed = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th>"
        f"<td style='text-align:left'>{shown(value)}</td></tr>"
        for name, value in facts.items()
    )
    parts = [f"<strong>{_text(title)}</strong>", f"<table><tbody>{listed}</tbody></table>"]
    return f"<div class='expost'>{''.join(parts)}{''.join(map(_table, tables))}</div>"


def _table(table: HtmlTable) -> str:
    """Return one table."""
    rows = list(table.rows)
    head = "".join(f"<th>{_text(name)}</th>" for name in table.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>"
        for row in rows[:_MOST_ROWS]
    )
    left = len(rows) - _MOST_ROWS
    more = "" if left <= 0 else f"<p>… and {left} more</p>"
    return (
        f"<table><caption>{_text(table.caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{more}"
    )


def shown(value: Any) -> str:
    """Return one value as escaped HTML text."""
    if value is None:
        return "–"
    if isinstance(value, Loss):
        return _number(value.value, up=True)
    if isinstance(value, Guarantee):
        return _text(guarantee_text(value))
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        return _number(float(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(key)} = {shown(item)}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value) or "–"
    return _text(value)


def guarantee_text(guarantee: Guarantee) -> str:
    """Return a guarantee in symbols, rounded up, with its neighbouring relation."""
    pure, pair, concentrated = guarantee.as_pure(), guarantee.as_approx(), guarantee.as_zcdp()
    if pure is not None:
        text = f"ε = {_number(pure.epsilon, up=True)}"
    elif pair is not None:
        text = f"ε = {_number(pair.epsilon, up=True)}, δ = {_number(pair.delta, up=True)}"
    elif concentrated is not None:
        text = f"ρ = {_number(concentrated.rho, up=True)}"
    else:
        curve = guarantee.as_renyi()
        text = f"a Rényi curve at {len(curve.orders) if curve is not None else 0} orders"
    return f"{text} ({guarantee.neighbours})"


def _number(value: float, *, up: bool = False) -> str:
    """Return a number with four significant digits, rounded up if it is a loss."""
    if not isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "NaN"
    nearest = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)
    rounded = decimal_up(value, _DIGITS) if up else nearest.create_decimal_from_float(value)
    if rounded == 0:
        return "0"
    return f"{rounded:f}" if -4 <= rounded.adjusted() < 7 else f"{rounded:e}"


def _text(value: Any) -> str:
    """Return a text, escaped and of bounded length."""
    text = str(value)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
