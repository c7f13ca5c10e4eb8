"""Numbers of the drawings: templates turn them into SVG, and labels stay HTML text.

All places are in per cent of the width or the height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from expost.server.pages.amounts import group

MOST_ROWS = 40
_MOST_POINTS = 2000


def intervals(
    answers: Sequence[Mapping[str, Any]], unanswered: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """Return one row per group with its estimate and interval on a common scale.

    Only the first 40 groups are drawn; the table below the drawing holds all of them.
    """
    found = [dict(each, reached=True) for each in answers]
    found += [dict(each, reached=False) for each in unanswered]
    drawn = [each for each in found if each["estimate"] is not None][:MOST_ROWS]
    if not drawn:
        return None
    low = min(0.0, *(_of(each, "low") for each in drawn))
    high = max(_of(each, "high") for each in drawn)
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return round(1 + 98 * (value - low) / width, 3)

    rows = [
        {
            "group": group(each["group"]),
            "reached": each["reached"],
            "at": place(each["estimate"]),
            "low": place(_of(each, "low")),
            "high": place(_of(each, "high")),
        }
        for each in drawn
    ]
    return {"rows": rows, "low": low, "high": high, "left_out": len(found) - len(drawn)}


def _of(answer: Mapping[str, Any], end: str) -> float:
    """An end of an interval, or the estimate where there is none."""
    value = answer[end]
    return float(answer["estimate"] if value is None else value)


def history(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the two step lines of a budget over time: spent, and spent with what is held."""
    points = document["points"][-_MOST_POINTS:]
    if len(points) < 2:
        return None
    times = [datetime.fromisoformat(each["time"]).timestamp() for each in points]
    begin, span = times[0], (times[-1] - times[0]) or 1.0
    largest = max(each["spent"] + each["held"] for each in points)
    top = document["limit"] if largest > document["limit"] / 4 else (largest * 1.25 or 1.0)

    def line(values: Sequence[float]) -> str:
        """A step line from left to right."""
        parts, before = [], None
        for time, value in zip(times, values, strict=True):
            x, y = round(96 * (time - begin) / span, 3), round(100 - 98 * value / top, 3)
            parts.append(f"M{x} {y}" if before is None else f"H{x}V{y}")
            before = y
        return "".join(parts) + "H100"

    spent = [each["spent"] for each in points]
    held = [each["spent"] + each["held"] for each in points]
    return {
        "spent": line(spent),
        "held": line(held),
        "area": line(spent) + "V100H0Z",
        "top": top,
        "limit": round(100 - 98 * document["limit"] / top, 3) if top >= document["limit"] else None,
        "first": points[0]["time"],
        "last": points[-1]["time"],
    }


def bars(amounts: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return amounts by name as bars on a common scale."""
    most = max(amounts.values(), default=0.0) or 1.0
    return [
        {"name": name, "amount": each, "width": round(100 * each / most, 2)}
        for name, each in sorted(amounts.items(), key=lambda pair: -pair[1])
    ]
