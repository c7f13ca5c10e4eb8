"""Amounts of budgets, times and numbers as text, and the share of a budget that is used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

_FRACTION = re.compile(r"[0-9]{1,400}/[1-9][0-9]{0,400}")
_MARKS = {"epsilon": "ε", "rho": "ρ", "delta": "δ"}


def number(value: float | None, digits: int = 3, rounding: str = ROUND_HALF_EVEN) -> str:
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


def charge(value: float | None, digits: int = 3) -> str:
    """Return a privacy loss, rounded up."""
    return number(value, digits, ROUND_CEILING)


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
            return " to ".join(f"ε({order:g}) {number(each, 3, rounding)}" for order, each in ends)
        parts = [
            f"{mark} {number(float(value[name]), 3, rounding)}"
            for name, mark in _MARKS.items()
            if value.get(name) is not None
        ]
        return ", ".join(parts) or "none"
    return f"{unit_of(kind)} {number(abs(float(value)), 3, rounding)}"


def shares(standing: Mapping[str, Any]) -> dict[str, float]:
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
    return min((each / most for each, most in pairs if most), default=0.0)


def used(value: Any) -> bool:
    """Return whether an amount is more than nothing."""
    if isinstance(value, Mapping):
        return any(value["epsilons"] if "epsilons" in value else value.values())
    return bool(value)


def plain(value: Any) -> str:
    """Return a number, a text or a list of them, without needless digits."""
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def facts(detail: Mapping[str, Any], left_out: tuple[str, ...] = ()) -> str:
    """Return the facts of an entry or an act in words: fractions as numbers, nothing empty."""
    shown = []
    for name, each in detail.items():
        if name in left_out or each is None or each in ({}, [], ""):
            continue
        words = name.replace("_", " ")
        if isinstance(each, Mapping):
            shown.append(f"{words} ({facts(each)})")
        elif isinstance(each, list):
            shown.append(f"{words} {', '.join(_fraction(part) for part in each)}")
        else:
            shown.append(f"{words} {_fraction(each)}")
    return "; ".join(shown)


def _fraction(value: Any) -> str:
    """A fraction such as "607/10000" as a number; other texts as they are."""
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        top, _, bottom = value.partition("/")
        return number(int(top) / int(bottom), 6)
    return plain(value)


def certainty(epsilon: float) -> float:
    """Return how certain an observer, undecided before, can be afterwards: e^ε / (1 + e^ε)."""
    return 1 / (1 + math.exp(-min(epsilon, 700.0)))


def moment(text: str | None) -> str:
    """Return a time as "2026-01-31 12:00:00"; all times are UTC."""
    return "" if text is None else text[:19].replace("T", " ")


def group(value: Any) -> str:
    """Return the name of a group; several columns are joined."""
    if isinstance(value, (list, tuple)):
        return " · ".join(str(part) for part in value)
    return "all" if value is None else str(value)
