"""Hostile acts of a candidate, and a mechanism that keeps its guarantee while it commits them."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expost import PureDP

HERE, THERE = "here", "there"  # two neighbouring data sets
SECRET = "row 7 of Jane Doe"
PROMISE = PureDP(math.log(4))


class Panic(BaseException):
    """Like the panic of a compiled library."""


class Unsendable:
    """No number, and cannot be pickled."""

    def __init__(self) -> None:
        self.frame = sys._getframe()


def raising(make: Callable[[str], BaseException]) -> Callable[[], Any]:
    def act() -> Any:
        raise make(SECRET)

    return act


FAILURES: dict[str, Callable[[], Any]] = {
    "raises": raising(ValueError),
    "panics": raising(Panic),
    "ends the program": raising(SystemExit),
    "is cancelled": raising(asyncio.CancelledError),
    "closes a generator": raising(GeneratorExit),
    "runs out of memory": raising(MemoryError),
    "cannot be stored": lambda: {SECRET},
    "cannot be sent": Unsendable,
    "is a text": lambda: SECRET,
}
"""Acts that must all look like the first one."""

VALUES: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "huge": 10**400,
    "a NumPy number": np.float32(3.5),
}
"""Values that are outcomes like any other."""


@dataclass(frozen=True)
class Hostile:
    """Commits its act with probability 0.8 on one data set and 0.2 on the other: ln 4-DP."""

    number: int
    act: str
    guarantee: PureDP = field(default_factory=lambda: PROMISE)

    def __call__(self, data: Any, randomness: Any) -> Any:
        if randomness.below(10) < (8 if data == THERE else 2):
            return VALUES[self.act] if self.act in VALUES else FAILURES[self.act]()
        return float(self.number)


@dataclass(frozen=True)
class HostileTogether(Hostile):
    """The same, made together with others: one act ends the whole call."""

    together_key: str = "hostile"

    def run_together(self, calls: Any, data: Any, randomness: Any) -> list[Any]:
        return [call(data, source) for call, source in zip(calls, randomness, strict=True)]
