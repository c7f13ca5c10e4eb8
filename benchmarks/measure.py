"""Timing side by side: the contenders take turns, and the medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Floor:
    """What an example must cost at least, and which shares of what the machine can do were reached."""

    flops: float
    bytes: float
    of_flops: float
    of_bytes: float


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds, and how many times faster than the peer (if there is one)."""

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
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds

    def cells(self) -> tuple[str, ...]:
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
        """CPU seconds of both, and the floor."""
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
        return asdict(self) | {"ratio": self.ratio}


@dataclass(frozen=True)
class Contender:
    """Something to time: what it does, how many examples that is, and a clock of the CPU seconds it takes."""

    name: str
    run: Callable[[], object]
    examples: float
    cpu_clock: Callable[[], float] = time.process_time


def readable(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def interleaved(*contenders: Callable[[], object], turns: int = 5) -> list[float]:
    """Median seconds of each contender; each turn times them all, one after another."""
    return [
        wall
        for wall, _ in clocked([Contender("", contender, 1) for contender in contenders], turns)
    ]


def clocked(contenders: list[Contender], turns: int) -> list[tuple[float, float]]:
    """Median wall seconds and median CPU seconds of each, an example; a first turn warms up."""
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
