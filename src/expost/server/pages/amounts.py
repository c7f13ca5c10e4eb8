"""Amounts, times and numbers as text, and numbers of drawings.

Templates turn the drawings into SVG; labels stay HTML text, and positions are in per cent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

_FRACTION = re.compile(r"[0-9]{1,400}/[1-9][0-9]{0,400}")
MOST_ROWS = 40
_MOST_POINTS = 2000
_MARKS = {"epsilon": "ε", "rho": "ρ", "delta": "δ"}


def grouped_number(value: float | None, digits: int = 3, rounding: str = ROUND_HALF_EVEN) -> str:
    """Return a number for people: thousands with commas, else some digits."""
    if value is None:
        return "none"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    shown = Decimal(repr(float(value)))  # the shortest decimal of a float: 0.1 is not above 0.1
    if abs(value) >= 1000:
        return f"{shown.to_integral_value(rounding):,}"
    return f"{float(Context(prec=digits, rounding=rounding).plus(shown)):.{digits}g}"


def loss_text(value: float | None, digits: int = 3) -> str:
    """Return a privacy loss, rounded up."""
    return grouped_number(value, digits, ROUND_CEILING)


def percent(value: float) -> str:
    """Return a share as a percentage; a chance below 1 never reads as certain."""
    if 0.999 < value < 1:
        return "over 99.9 %"
    return f"{100 * value:.3g} %"


def unit_of(kind: str) -> str:
    """Return the letter of what a budget counts."""
    return "ρ" if kind == "zcdp" else "ε"


def size(value: Any) -> float:
    """Return the first number of an amount: ε, ρ, or the largest Rényi ε."""
    if isinstance(value, Mapping):
        if "epsilons" in value:
            return float(max(value["epsilons"], default=0.0))
        for name in ("epsilon", "rho"):
            if name in value:
                return float(value[name])
        return 0.0
    return float(value or 0.0)


def limit(value: Any, kind: str = "pure") -> str:
    """Return a limit, or what is left of it, rounded down."""
    return amount(value, kind, ROUND_FLOOR)


def amount(value: Any, kind: str = "pure", rounding: str = ROUND_CEILING) -> str:
    """Return an amount that is charged, such as "ε 0.5, δ 1e-06", rounded up."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        if "epsilons" in value:
            pairs = list(zip(value["orders"], value["epsilons"], strict=True))
            ends = pairs if len(pairs) < 3 else [pairs[0], pairs[-1]]
            return " to ".join(
                f"ε({order:g}) {grouped_number(epsilon, 3, rounding)}" for order, epsilon in ends
            )
        parts = [
            f"{mark} {grouped_number(float(value[name]), 3, rounding)}"
            for name, mark in _MARKS.items()
            if value.get(name) is not None
        ]
        return ", ".join(parts) or "none"
    return f"{unit_of(kind)} {grouped_number(abs(float(value)), 3, rounding)}"


def budget_shares(standing: Mapping[str, Any]) -> dict[str, float]:
    """Return which shares of a budget are spent, held and left, from 0 to 1."""
    limit = standing["budget"]
    if "epsilons" in limit:
        used = _renyi(standing["settled"], limit), _renyi(standing["held"], limit)
    else:
        whole = size(limit) or 1.0
        used = size(standing["settled"]) / whole, size(standing["held"]) / whole
    spent = min(1.0, max(0.0, used[0]))
    held = min(1.0 - spent, max(0.0, used[1]))
    return {"spent": spent, "held": held, "left": 1.0 - spent - held}


def _renyi(used: Any, limit: Mapping[str, Any]) -> float:
    """The share that is used at the order with the most left."""
    pairs = zip(used["epsilons"], limit["epsilons"], strict=True)
    return min((amount / most for amount, most in pairs if most), default=0.0)


def used(value: Any) -> bool:
    """Return whether an amount is more than nothing."""
    if isinstance(value, Mapping):
        return any(value["epsilons"] if "epsilons" in value else value.values())
    return bool(value)


def plain_text(value: Any) -> str:
    """Return a number, a text, or a list or a table of them, without needless digits."""
    if isinstance(value, Mapping):  # bounds of columns
        return "; ".join(f"{name}: {plain_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain_text(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def facts(detail: Mapping[str, Any], left_out: tuple[str, ...] = ()) -> str:
    """Return the facts of an entry or an act in words: fractions as numbers, nothing empty."""
    shown = []
    for name, value in detail.items():
        if name in left_out or value is None or value in ({}, [], ""):
            continue
        words = name.replace("_", " ")
        if isinstance(value, Mapping):
            shown.append(f"{words} ({facts(value)})")
        elif isinstance(value, list):
            shown.append(f"{words} {', '.join(_fraction(part) for part in value)}")
        else:
            shown.append(f"{words} {_fraction(value)}")
    return "; ".join(shown)


def _fraction(value: Any) -> str:
    """A fraction such as "607/10000" as a number; other texts as they are."""
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        top, _, bottom = value.partition("/")
        return grouped_number(int(top) / int(bottom), 6)
    return plain_text(value)


def certainty(epsilon: float) -> float:
    """Return how certain an observer, undecided before, can be afterwards: e^ε / (1 + e^ε)."""
    return 1 / (1 + math.exp(-min(epsilon, 700.0)))


def shown_time(text: str | None) -> str:
    """Return a time as "2026-01-31 12:00:00"; all times are UTC."""
    return "" if text is None else text[:19].replace("T", " ")


def shown_group(value: Any) -> str:
    """Return the name of a group; several columns are joined."""
    if isinstance(value, (list, tuple)):
        return " · ".join(str(part) for part in value)
    return "all" if value is None else str(value)


def intervals(
    answers: Sequence[Mapping[str, Any]], unanswered: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return one row per group with its estimate and interval on a common scale.

    Only the first 40 groups are drawn; the table below the drawing holds all of them.
    """
    groups = [dict(answer, reached=True) for answer in answers]
    groups += [dict(answer, reached=False) for answer in unanswered]
    drawn = [answer for answer in groups if answer["estimate"] is not None][:MOST_ROWS]
    if not drawn:
        return None
    low = min(0.0, *(_of(answer, "low") for answer in drawn))
    high = max(_of(answer, "high") for answer in drawn)
    width = (high - low) or 1.0

    def at(value: float) -> float:
        return round(1 + 98 * (value - low) / width, 3)

    rows = [
        {
            "group": shown_group(answer["group"]),
            "reached": answer["reached"],
            "at": at(answer["estimate"]),
            "low": at(_of(answer, "low")),
            "high": at(_of(answer, "high")),
        }
        for answer in drawn
    ]
    return {"rows": rows, "low": low, "high": high, "left_out": len(groups) - len(drawn)}


def _of(answer: Mapping[str, Any], end: str) -> float:
    """An end of an interval, or the estimate where there is none."""
    value = answer[end]
    return float(answer["estimate"] if value is None else value)


def history(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the two step lines of a budget over time: spent, and spent with what is held."""
    points = document["points"][-_MOST_POINTS:]
    if len(points) < 2:
        return None
    times = [datetime.fromisoformat(point["time"]).timestamp() for point in points]
    begin, span = times[0], (times[-1] - times[0]) or 1.0
    largest = max(point["spent"] + point["held"] for point in points)
    top = document["limit"] if largest > document["limit"] / 4 else (largest * 1.25 or 1.0)

    def line(values: Sequence[float]) -> str:
        """A step line from left to right."""
        parts, before = [], None
        for time, value in zip(times, values, strict=True):
            x, y = round(96 * (time - begin) / span, 3), round(100 - 98 * value / top, 3)
            parts.append(f"M{x} {y}" if before is None else f"H{x}V{y}")
            before = y
        return "".join(parts) + "H100"

    spent = [point["spent"] for point in points]
    held = [point["spent"] + point["held"] for point in points]
    return {
        "spent": line(spent),
        "held": line(held),
        "area": line(spent) + "V100H0Z",
        "top": top,
        "limit": round(100 - 98 * document["limit"] / top, 3) if top >= document["limit"] else None,
        "first": points[0]["time"],
        "last": points[-1]["time"],
    }


def bars(amounts: Mapping[str, float], *, in_order: bool = False) -> list[dict[str, Any]]:
    """Return amounts by name as bars on a common scale: the largest first, or as they are."""
    most = max(amounts.values(), default=0.0) or 1.0
    return [
        {"name": name, "amount": amount, "width": round(100 * amount / most, 2)}
        for name, amount in sorted(amounts.items(), key=lambda pair: 0 if in_order else -pair[1])
    ]
