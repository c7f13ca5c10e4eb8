"""How far a fleet is."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from expost.training.configuration import Configuration, Plan
from expost.training.progress import Progress


class Meter:
    """Counts expected examples across threads; a stopped fleet's threads end at their next report."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.done = self.total = 0.0
        self.stopped = False

    def start(self, configurations: Sequence[Configuration], planned: Sequence[Plan]) -> None:
        """All that will be processed is known before the first step."""
        self.total = sum(plan.steps * float(each.batch_size) for each, plan in zip(configurations, planned, strict=True))

    def add(self, examples: float) -> None:
        if self.stopped:
            raise InterruptedError("the fleet was stopped")
        if self._progress is not None:
            with self._lock:
                self.done += examples
                self._progress(self.done, self.total)
