"""Timing side by side: the contenders take turns, and the medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds, and how many times faster than the peer (if there is one)."""

    what: str
    seconds: float
    peer: str = "–"
    peer_seconds: float | None = None
    target: str = "–"

    @property
    def ratio(self) -> float | None:
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds

    def cells(self) -> tuple[str, ...]:
        peer = "–" if self.peer_seconds is None else readable(self.peer_seconds)
        ratio = "–" if self.ratio is None else f"{self.ratio:.3g}×"
        return (self.what, readable(self.seconds), self.peer, peer, ratio, self.target)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}


def readable(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def interleaved(*contenders: Callable[[], object], turns: int = 5) -> list[float]:
    """Median seconds of each contender; each turn times them all, one after another."""
    times: list[list[float]] = [[] for _ in contenders]
    for contender in contenders:
        contender()  # warm up
    for _ in range(turns):
        for place, contender in enumerate(contenders):
            start = time.perf_counter()
            contender()
            times[place].append(time.perf_counter() - start)
    return [statistics.median(each) for each in times]
