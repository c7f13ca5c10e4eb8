"""Run candidates, and the sums of large tables, on a Spark cluster with :class:`SparkExecutor`.

Data is broadcast: a machine fetches it when a task needs it, and fetches it again if it was lost.
All jobs have the same description. docs/cluster.md describes what a web page of the cluster still
shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from expost.errors import InvalidInput, import_extra
from expost.execution.calls import PartsLost, Raised
from expost.execution.parts import part_result, task_of
from expost.execution.workers import OwnedExecutor, count_try, work
from expost.rationals import count_of

__all__ = ["SparkExecutor"]


class SparkExecutor(OwnedExecutor):
    """An executor that runs tasks on a Spark cluster.

    As a context manager it stops the session at the end if it was the one that started it. The same
    version of expost must be installed on every machine.

    Parameters
    ----------
    session : pyspark.sql.SparkSession, optional
        A session that has a Spark context. By default the active one, or a new one with Spark's
        own settings (``spark.master``), or on all cores of this machine if they name no cluster.
    tasks : int, optional
        How many tasks a wave has; by default the parallelism of the session. This number is public.

    Raises
    ------
    MissingExtra
        If PySpark is not installed.
    InvalidInput
        If an argument is not valid, or Spark cannot be started.
    """

    def __init__(self, session: Any = None, *, tasks: int | None = None) -> None:
        SparkSession = import_extra("pyspark.sql", "pyspark", "spark").SparkSession
        wanted = None if tasks is None else count_of(tasks, "tasks", at_least=1)
        if not (session is None or isinstance(session, SparkSession)):
            raise InvalidInput(
                "session", type(session).__name__, "give a SparkSession with a Spark context"
            )
        active = session or SparkSession.getActiveSession()
        self._started = active is None
        self._session: Any = active or _start(SparkSession)
        self._context: Any = self._session.sparkContext
        _workers_like_here(self._context)
        self.tasks = wanted or max(1, int(self._context.defaultParallelism))
        self._threads = ThreadPoolExecutor(self.tasks)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function in a worker; what :meth:`share` gave stands for the data."""
        return self._threads.submit(lambda: self._run([(function, arguments)])[0])

    @contextmanager
    def share(self, data: Any) -> Iterator[Any]:
        """Broadcast data; yield what stands for it in :meth:`submit`."""
        shared = self._context.broadcast(data)
        try:
            yield shared
        finally:
            shared.destroy()

    def keep_all(self, loads: Sequence[Callable[[], Any]]) -> _Kept:
        """Broadcast the parts of a data set; return what calls functions for all of them."""
        return _Kept(self, [self._context.broadcast(load()) for load in loads])

    def _run(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        """Make several calls in one Spark job."""
        from pyspark import Broadcast

        def call(number: int) -> Any:
            function, arguments = calls[number]
            return function(
                *(
                    argument.value if isinstance(argument, Broadcast) else argument
                    for argument in arguments
                )
            )

        self._context.setJobDescription("expost")
        numbers = self._context.parallelize(range(len(calls)), max(1, len(calls)))
        results: list[Any] = numbers.map(call).collect()
        return results

    def shutdown(self) -> None:
        """Stop the session if this executor started it."""
        self._threads.shutdown()
        if self._started:
            self._session.stop()
            self._started = False


class _Kept:
    """Parts of a data set that were broadcast; a function of all of them is one Spark job."""

    def __init__(self, executor: SparkExecutor, handles: Sequence[Any]) -> None:
        self._executor, self._handles = executor, handles

    def map(self, calls: Any) -> list[Any]:
        """Return the result of every part."""
        tries = [0]
        while True:
            try:
                outputs = self._executor._run(
                    [(work, (task_of(calls), handle)) for handle in self._handles]
                )
                results = [part_result(output) for output in outputs]
                if not any(isinstance(result, Raised) for result in results):
                    return results
                lost = "Exception"
            except Exception as error:  # the text may come from a worker
                lost = type(error).__name__
            count_try(tries, 0, lost, PartsLost)

    def close(self) -> None:
        """Delete the parts on all machines."""
        for handle in self._handles:
            handle.destroy()


def _workers_like_here(context: Any) -> None:
    """Let workers on this machine run this Python unless a setting names another one.

    Spark would run the first ``python3`` of the path, which need not have the package.
    """
    named = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not named and context.master.startswith("local"):
        context.pythonExec = sys.executable


def _start(builder: Any) -> Any:
    """Start a session by Spark's own settings, or on this machine."""
    from pyspark import SparkConf

    problem = None
    try:
        settings = SparkConf()
        if not settings.contains("spark.master"):
            settings = settings.setMaster("local[*]").set("spark.ui.enabled", "false")
        settings = settings.set("spark.ui.showConsoleProgress", "false").setAppName("expost")
        session = builder.builder.config(conf=settings).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return session
    except Exception as error:  # no data was sent
        problem = type(error).__name__
    raise InvalidInput(
        "executor", "spark", f"Spark cannot be started ({problem}); it needs Java on this machine"
    )
