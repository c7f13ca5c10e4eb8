"""Parts of a data set: memory and file, executors, lost workers."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from expost.errors import WorkersLost
from expost.execution.calls import Raised, call_or_failure
from expost.execution.parts import Parts, for_each
from expost.execution.workers import Processes
from tests.execution.parts_contract import PartsContract, fail, filled, summed


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as pool:
        yield pool


class TestProcesses(PartsContract):
    @pytest.fixture
    def executor(self, processes: Any) -> Any:
        return processes


class TestThreads(PartsContract):
    separate = False

    @pytest.fixture
    def executor(self) -> Iterator[Any]:
        with ThreadPoolExecutor(2) as pool:
            yield pool


class Elsewhere:
    """An executor that is none of ours; the first calls are lost."""

    def __init__(self, lost: int = 0, refused: int = 0) -> None:
        self.lost, self.refused, self.calls = lost, refused, 0

    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        self.calls += 1
        if self.calls <= self.refused:
            raise OSError
        future: Future[Any] = Future()
        content = pickle.dumps((function, arguments))
        if self.calls <= self.lost:
            future.set_exception(OSError())
        else:
            function, arguments = pickle.loads(content)
            future.set_result(function(*arguments))
        return future


class TestElsewhere(PartsContract):
    separate = False

    @pytest.fixture
    def executor(self) -> Any:
        return Elsewhere()


@pytest.mark.parametrize("kind", ["lost", "refused"])
def test_a_lost_part_is_tried_three_times(kind: str) -> None:
    with filled(Elsewhere(**{kind: 2}), size=1) as parts:
        assert sum(parts.map(summed, 1)) == 499500
    gone = Elsewhere(**{kind: 3})
    with filled(gone, size=1) as parts, pytest.raises(WorkersLost):
        list(parts.map(summed, 1))
    assert gone.calls == 3


def test_a_lost_worker_is_no_outcome_of_a_candidate() -> None:
    """A failure would be an outcome, and the search would go on without the rows."""
    with filled(Elsewhere(lost=3)) as parts, pytest.raises(WorkersLost):
        call_or_failure(lambda: list(parts.map(summed, 1)))
    assert isinstance(call_or_failure(fail, None), Raised)


@pytest.mark.parametrize("limit", [0, 3000, 10**9])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_file_has_no_name_and_ends_with_the_parts(
    limit: int, threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("expost.execution.parts._IN_MEMORY", limit)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with filled(None, threads=threads) as parts:
        assert sum(parts.map(summed, 1)) == 499500
        assert not list(tmp_path.iterdir())
        file = parts._file
        assert (file is None) == (limit == 10**9)
        if file is not None:
            assert stat.S_IMODE(os.fstat(file).st_mode) == 0o600
    if file is not None:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(file)
    assert not parts._kept


def test_what_making_a_part_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        for_each(lambda piece: str(1 / piece), iter([1, 0, 2] * 50))


def test_parts_are_not_sent_anywhere() -> None:
    with filled(None) as parts, pytest.raises(TypeError):
        pickle.dumps(parts)


def test_arrays_in_a_file_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expost.execution.parts._IN_MEMORY", 0)
    given = [(np.arange(size, dtype=np.int16), np.ones((size, 3)), b"x") for size in (0, 1, 5000)]
    with Parts() as parts:
        for_each(parts.add, iter(given))
        back = sorted(
            parts.map(lambda part: [part[0].copy(), part[1].copy(), part[2]]),
            key=lambda part: len(part[0]),
        )
    for before, after in zip(given, back, strict=True):
        assert np.array_equal(before[0], after[0])
        assert after[0].dtype == np.int16
        assert np.array_equal(before[1], after[1])
