"""Lists of numbers on the command line."""

from __future__ import annotations

from expost.errors import InvalidInput

_MOST_LEVELS = 1000


def parse_levels(text: str) -> list[float]:
    """Levels from ``0.1,0.2`` or ``first:last:step``."""
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            count = round((last - first) / step)
            if count >= _MOST_LEVELS:
                raise OverflowError
            return [round(first + step * place, 12) for place in range(count + 1)]
        return [float(part) for part in text.split(",") if part.strip()]
    except (ValueError, ZeroDivisionError, OverflowError):
        valid = f"give at most {_MOST_LEVELS} numbers, like 0.1,0.2,0.4 or first:last:step"
        raise InvalidInput("epsilons", text, valid) from None
