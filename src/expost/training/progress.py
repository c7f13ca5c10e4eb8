"""A progress bar for the curator's own terminal: examples a second and the time left.

It counts expected examples (steps × expected batch), which are public; which models were worth training may not be, so keep it off logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from expost.training.configuration import Configuration, TrainingPlan

TrainingProgress = Callable[[float, float], None]
"""Called with (examples processed, examples in all), from any thread but never from two at once."""


@contextmanager
def progress_bar(label: str = "training") -> Iterator[TrainingProgress]:
    """``with progress_bar() as bar: fleet.train(X, y, progress=bar)`` draws on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(label, total=None, speed="")

        def update(done: float, total: float) -> None:
            elapsed = display.tasks[0].elapsed
            speed = f"{done / elapsed:,.0f} examples/s" if elapsed else ""
            display.update(task, completed=done, total=total, speed=speed)

        yield update


class Meter:
    """Counts expected examples across threads; a stopped fleet's threads end at their next report."""

    def __init__(self, progress: TrainingProgress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.done = self.total = 0.0
        self.stopped = False

    def start(
        self, configurations: Sequence[Configuration], planned: Sequence[TrainingPlan]
    ) -> None:
        """All that will be processed is known before the first step."""
        self.total = sum(
            plan.steps * float(each.batch_size)
            for each, plan in zip(configurations, planned, strict=True)
        )

    def add(self, examples: float) -> None:
        if self.stopped:
            raise InterruptedError("the fleet was stopped")
        if self._progress is not None:
            with self._lock:
                self.done += examples
                self._progress(self.done, self.total)
