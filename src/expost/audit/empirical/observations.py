"""Run the subject many times on both data sets, in this process or in several.

The runs are divided into chunks; their size does not depend on the number of workers. By default
every chunk draws from its own source of operating-system entropy. With a simulation seed, the
randomness of a chunk is determined by the seed, the data set and the number of the chunk, so a test
gives the same counts on any machine. Workers are spawned, not forked: they import what they need by
name. Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from expost.audit.empirical.events import Cells, Events, Feature, feature_of
from expost.audit.empirical.subjects import Key, Subject
from expost.errors import ExpostError, InvalidInput
from expost.randomness.source import Randomness, SimulationRandomness

AuditProgress = Callable[[int, int], None]

_CHUNKS = 64  # about this many per data set and phase: enough for progress and many workers
_LEAST_IN_CHUNK, _MOST_IN_CHUNK = 5, 1000

DATA, NEIGHBOUR = 0, 1
SIDES = ("data", "neighbour")


@dataclass(frozen=True)
class Setup:
    """Everything that a worker needs."""

    subject: Subject
    data: Any
    neighbour: Any
    events: Events | None
    simulation_seed: int | None


class Chunk(NamedTuple):
    """Some runs on one of the two data sets."""

    side: int
    number: int
    runs: int


def pilot_runs(setup: Setup, chunk: Chunk) -> list[tuple[Key, Feature]]:
    """Run a chunk and return its outcomes."""
    data = setup.data if chunk.side == DATA else setup.neighbour
    randomness = _source(setup, chunk)
    found = []
    for _ in range(chunk.runs):
        seen = setup.subject.observe(data, randomness)
        found.append((seen.key, feature_of(seen, setup.events)))
    return found


def counted_runs(setup: Setup, chunk: Chunk, cells: Cells) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Run a chunk and count its outcomes in each cell."""
    return cells.count(pilot_runs(setup, chunk))


def _source(setup: Setup, chunk: Chunk) -> Randomness:
    """Return the randomness of a chunk."""
    if setup.simulation_seed is None:
        return Randomness()
    return SimulationRandomness((setup.simulation_seed << 64) + (chunk.side << 48) + chunk.number)


def chunks(runs: int, first: int) -> list[Chunk]:
    """Divide ``runs`` runs on each data set into chunks, numbered from ``first``."""
    size = min(_MOST_IN_CHUNK, max(_LEAST_IN_CHUNK, -(-runs // _CHUNKS)))
    sizes = [min(size, runs - start) for start in range(0, runs, size)]
    return [
        Chunk(side, first + number, length)
        for number, length in enumerate(sizes)
        for side in (DATA, NEIGHBOUR)
    ]


class Workers:
    """Run chunks: in this process for one worker, else in spawned processes.

    Use it in a ``with`` statement.
    """

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup = setup
        self._pool = None if workers == 1 else self._open(workers)

    def _open(self, workers: int) -> ProcessPoolExecutor:
        """Start the worker processes."""
        try:
            pickle.dumps(self._setup)
        except Exception as error:  # pickle raises whatever an object's reduction raises
            raise InvalidInput(
                "workers",
                workers,
                f"the subject cannot be sent to another process ({type(error).__name__}): "
                "define it at the top level of a module, or pass workers=1",
            ) from None
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(self._setup,)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def results(
        self, work: Callable[..., Any], todo: Sequence[Chunk], *arguments: Any
    ) -> Iterator[tuple[Chunk, Any]]:
        """Yield the result of each chunk when it is done."""
        if self._pool is None:
            for chunk in todo:
                yield chunk, work(self._setup, chunk, *arguments)
            return
        waiting: dict[Future[Any], Chunk] = {
            self._pool.submit(_work, work, each, arguments): each for each in todo
        }
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), _opened(future.result())
        except BrokenProcessPool:
            raise ExpostError(
                "a worker process of the audit ended unexpectedly; try workers=1 to see why"
            ) from None


_setup: Setup | None = None


def _begin(setup: Setup) -> None:
    """Store the setup in a new worker process."""
    global _setup
    _setup = setup


class _Refusal(NamedTuple):
    """An error sent back from a worker: exceptions with their own fields cannot be pickled."""

    field: str
    value: str
    valid: str


def _work(work: Callable[..., Any], chunk: Chunk, arguments: tuple[Any, ...]) -> Any:
    """Run a chunk in a worker process; return errors as values."""
    assert _setup is not None
    try:
        return work(_setup, chunk, *arguments)
    except InvalidInput as error:
        return _Refusal(error.field, str(error.value), error.valid)
    except Exception as error:
        return _Refusal("subject", type(error).__name__, f"a run raised this error: {error}")


def _opened(result: Any) -> Any:
    """Raise the error that a worker returned, or pass its result on."""
    if isinstance(result, _Refusal):
        raise InvalidInput(*result)
    return result
