"""Progress of a training: a bar for the curator's terminal, and the count of processed examples.

The count is that of expected examples (steps × expected batch), which are public. Under a selector,
which models are trained is not public, so do not log the progress.
Tests: ``tests/training/test_fleet.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from expost.training.configuration import Configuration, TrainingPlan

TrainingProgress = Callable[[float, float], None]
"""Called with (examples processed, examples in total).

Calls come from any thread, but never from two threads at once."""


@contextmanager
def progress_bar(
    label: str = "training", *, unit: str | None = "examples"
) -> Iterator[TrainingProgress]:
    """Draw a progress bar on standard error, or in the cell of a notebook.

    It shows the speed and the time left. In a notebook tqdm draws it, if it is installed.
    Do not log it, and clear it before sharing a notebook: see the module's docstring.

    Parameters
    ----------
    label : str
        Text before the bar.
    unit : str, optional
        What is counted per second. None: no speed is shown.

    Yields
    ------
    callable
        The ``progress`` argument of :meth:`Fleet.train <expost.training.Fleet.train>`.

    Examples
    --------
    ::

        with progress_bar() as bar:
            fleet.train(X, y, progress=bar)
    """
    if _in_notebook() and find_spec("tqdm") is not None:
        with _notebook_bar(label, unit) as report:
            yield report
        return
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
            speed = f"{done / elapsed:,.0f} {unit}/s" if elapsed and unit is not None else ""
            display.update(task, completed=done, total=total, speed=speed)

        yield update


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return type(running).__name__ == "ZMQInteractiveShell"


@contextmanager
def _notebook_bar(label: str, unit: str | None) -> Iterator[TrainingProgress]:
    """Draw the bar with tqdm, which finds the kind of notebook itself; it disappears at the end."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(desc=label, unit=f" {unit or ''}", unit_scale=bool(unit), leave=False) as bar:

        def update(done: float, total: float) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


class Meter:
    """Counts expected examples across threads.

    After ``stopped`` is set, each thread of the fleet ends at its next report.
    """

    def __init__(self, progress: TrainingProgress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.done = self.total = 0.0
        self.stopped = False

    def start(
        self, configurations: Sequence[Configuration], planned: Sequence[TrainingPlan]
    ) -> None:
        """Compute the total, which is known before the first step."""
        self.total = sum(
            plan.steps * float(configuration.batch_size)
            for configuration, plan in zip(configurations, planned, strict=True)
        )

    def add(self, examples: float) -> None:
        """Count processed examples and report progress."""
        if self.stopped:
            raise InterruptedError("the fleet was stopped")
        if self._progress is not None:
            with self._lock:
                self.done += examples
                self._progress(self.done, self.total)
