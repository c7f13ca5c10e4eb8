"""Timing side by side: the contenders take turns, and the medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Floor:
    """The least work per example, and the shares of the machine's peak speed that were reached."""

    flops: float
    bytes: float
    of_flops: float
    of_bytes: float


@dataclass(frozen=True)
class Row:
    """One row of the table: seconds, and how many times faster than the peer, if there is one."""

    what: str
    seconds: float
    peer: str = "–"
    peer_seconds: float | None = None
    target: str = "–"
    cpu_seconds: float | None = None
    peer_cpu_seconds: float | None = None
    floor: Floor | None = None

    @property
    def ratio(self) -> float | None:
        """Seconds of the peer divided by ours."""
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        ratio = "–" if self.ratio is None else f"{self.ratio:.3g}×"
        return (
            self.what,
            readable(self.seconds),
            self.peer,
            readable(self.peer_seconds),
            ratio,
            self.target,
        )

    def more_cells(self) -> tuple[str, ...]:
        """Return the CPU seconds of both sides, and the least work, as text."""
        cells = (
            f"CPU {readable(self.cpu_seconds)}",
            f"peer's CPU {readable(self.peer_cpu_seconds)}",
        )
        if self.floor is None:
            return cells
        shares = (
            f"{self.floor.of_flops:.0%} of peak FLOP/s, {self.floor.of_bytes:.0%} of peak bytes/s"
        )
        return (*cells, f"{self.floor.flops:,.0f} FLOP, {self.floor.bytes:,.0f} bytes: {shares}")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"ratio": self.ratio}


@dataclass(frozen=True)
class Contender:
    """Something to time: a function, its number of examples, and a clock of its CPU seconds."""

    name: str
    run: Callable[[], object]
    examples: float
    cpu_clock: Callable[[], float] = time.process_time


def readable(seconds: float | None) -> str:
    """Format seconds with a suitable unit."""
    if seconds is None:
        return "–"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def interleaved(*contenders: Callable[[], object], turns: int = 5) -> list[float]:
    """Return the median seconds of each contender; each turn times all of them in order."""
    return [
        wall
        for wall, _ in clocked([Contender("", contender, 1) for contender in contenders], turns)
    ]


def clocked(contenders: list[Contender], turns: int) -> list[tuple[float, float]]:
    """Return median wall and CPU seconds per example of each; the first turn is a warm-up."""
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for turn in range(turns + 1):
        for contender, found in zip(contenders, times, strict=True):
            start = time.perf_counter(), contender.cpu_clock()
            contender.run()
            if turn:
                found.append((time.perf_counter() - start[0], contender.cpu_clock() - start[1]))
    each = zip(contenders, times, strict=True)
    return [
        (
            statistics.median(wall for wall, _ in found) / contender.examples,
            statistics.median(cpu for _, cpu in found) / contender.examples,
        )
        for contender, found in each
    ]
