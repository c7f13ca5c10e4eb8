"""A progress bar for the curator's own terminal: examples a second and the time left.

It counts expected examples (steps × expected batch), which are public; which models were worth training may not be, so keep it off logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, float], None]
"""Called with (examples processed, examples in all), from any thread but never from two at once."""


@contextmanager
def progress_bar(label: str = "training") -> Iterator[Progress]:
    """``with progress_bar() as bar: fleet.train(X, y, progress=bar)`` draws on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
