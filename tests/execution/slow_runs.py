"""A selection whose later runs wait for a signal, for a test that kills the selecting process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost import Candidate, PureDP, RandomDropping

DATA = list(range(50))
SELECTOR = RandomDropping(1.0, at_least=10**9)  # nobody passes, and more than one wave is needed


@dataclass(frozen=True)
class Slow:
    folder: str
    number: int
    guarantee: PureDP = field(default_factory=lambda: PureDP(1e-9))

    def __call__(self, data: Any, randomness: Any) -> float:
        folder = Path(self.folder)
        (folder / f"pid-{os.getpid()}").touch()
        end = time.monotonic() + 60
        while self.number >= 40 and not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)
        return self.number + randomness.below(10**6) / 10**6


def given(folder: Path) -> list[Candidate]:
    return [Candidate(Slow(str(folder), number), {"number": number}) for number in range(60)]
