"""Runs by threads and processes: the contract, what a pool can see, and processes that die."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from expost import Candidate, PureDP, RandomDropping
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput, WorkersLost
from expost.execution.workers import LOOK_AHEAD, Processes, Task, here, tasks_of, work
from expost.selection.selector import Selector
from tests.contracts.test_secrets import everything_said
from tests.execution.elsewhere import (
    CANARY,
    CASES,
    DATA,
    Dying,
    ExecutorContract,
    Noisy,
    Telling,
    candidates,
    fix_draws,
    simulate,
    wait_for,
)


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as pool:
        yield pool


class TestThreads(ExecutorContract):
    separate = False

    @pytest.fixture
    def executor(self, threads: Any) -> Any:
        return threads


class TestProcesses(ExecutorContract):
    @pytest.fixture
    def executor(self, processes: Any) -> Any:
        return processes


# What can be seen.


class Watched:
    """An executor that notes what is submitted, as a dashboard would."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.seen: list[tuple[str, str]] = []
        self.sizes: list[int] = []

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        self.seen.append((function.__name__, repr(type(arguments[0]))))
        if isinstance(arguments[0], Task):
            self.sizes.append(len(arguments[0].calls))
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize("tasks", [1, 3, 7])
def test_the_number_of_tasks_does_not_tell_the_number_of_runs(
    tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wave for any number of runs, also for none; all tasks look alike."""
    shown = set()
    for kept in ([], [0], [0, 1], list(range(12)) * 4):
        fix_draws(monkeypatch, kept)
        executor = Watched(tasks)
        RandomDropping(2.0, allow_nothing=True).select(candidates(), DATA, executor=executor)
        shown.add(tuple(executor.seen))
        assert sum(executor.sizes) == len(kept)
        assert max(executor.sizes) - min(executor.sizes) <= 1  # dealt in turn
        assert len(executor.sizes) == tasks
    assert len(shown) == 1


def test_a_bar_is_looked_for_in_waves_of_a_public_size(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list(range(12)) * 10  # 120 runs; only the last passes
    fix_draws(monkeypatch, kept)
    for stop_early, waves in ((True, 4), (False, 1)):
        executor = Watched(4)
        release = RandomDropping(2.0, at_least=61).select(
            candidates(repeats=10), DATA, executor=executor, stop_early=stop_early
        )
        assert release.passed
        assert len(executor.sizes) == 4 * waves
        assert sum(executor.sizes) == len(kept)
    executor = Watched(4)
    RandomDropping(2.0, at_least=0).select(candidates(repeats=10), DATA, executor=executor)
    assert sum(executor.sizes) == LOOK_AHEAD


def test_a_task_shows_nothing() -> None:
    """Canaries that no address, host name or process number can contain by chance."""
    number = 77_717_177_711_771_777_171_777
    task = Task((Noisy(number),), (b"s" * 32,), False, True, here())
    shown = repr(task).lower()
    assert str(number) not in shown
    assert f"{number:x}" not in shown
    assert "s" * 16 not in shown
    assert (b"s" * 16).hex() not in shown


def flush() -> None:
    sys.stdout.flush()


def test_workers_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Catches a print, a write or a traceback of a candidate that ends in a worker's log."""
    with Processes(2) as pool:
        given = candidates(Telling)
        told: list[str] = []
        release = simulate(
            RandomDropping(2.0),
            given,
            executor=pool,
            on_failure=lambda _, error: told.append(str(error)),
        )
        for flushed in [
            pool.submit(flush) for _ in range(8)
        ]:  # in the workers: what stayed in a buffer comes out now
            flushed.result()
    out, err = capfd.readouterr()
    assert CANARY not in out + err
    assert any(CANARY in each for each in told)  # but the curator may ask
    simulate(RandomDropping(2.0), given)
    assert CANARY in capfd.readouterr().out  # test of the test; and at home a candidate may talk
    assert release.index is not None


def test_words_of_a_candidate_travel_only_if_somebody_listens() -> None:
    failing = Telling(3)
    for tell in (True, False):
        (output,) = work(Task((failing,), (bytes(32),), True, tell, here()), DATA).outputs
        assert (output.error is not None) is tell


def test_a_result_that_cannot_be_sent_does_not_show_itself_in_a_log() -> None:
    """Dask logs the repr of what it could not serialise."""
    made = work(Task((lambda data, randomness: CANARY,), (bytes(32),), True, True, here()), DATA)
    assert made.outputs == [CANARY]
    assert CANARY not in repr(made)


def test_tasks_of_executors() -> None:
    assert tasks_of(Processes(3)) == 3
    assert tasks_of(object()) == os.cpu_count()
    with ThreadPoolExecutor(5) as pool:
        assert tasks_of(pool) == 5


# Deaths.


def test_workers_that_always_die_end_in_an_error_that_can_be_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a lost reservation, a lost checkpoint, or a task that is tried for ever."""
    fix_draws(monkeypatch, kept=[0, 1, 2])
    marker = tmp_path / "died"
    given = candidates(Dying, marker=str(marker), always=True)
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    options = {"ledger": ledger, "checkpoint": tmp_path / "checkpoint"}
    with Processes(2) as pool, pytest.raises(WorkersLost, match="3 times") as caught:
        RandomDropping(2.0).select(given, DATA, executor=pool, **options)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve"]
    (tmp_path / "died-repaired").touch()
    release = RandomDropping(2.0).select(given, DATA, **options)
    assert release == RandomDropping(2.0).select(given, DATA)
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]


class Gone(ThreadPoolExecutor):
    """Takes the candidates, and then nothing more; or takes tasks, and loses them."""

    def __init__(self, at_once: bool) -> None:
        super().__init__(2)
        self.at_once = at_once

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if function is not work:
            return super().submit(function, *arguments, **options)
        error = ConnectionError(f"{CANARY}: no route to host")
        if self.at_once:
            raise error
        future: Future[Any] = Future()
        future.set_exception(error)
        return future


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_lost_worker_said_is_not_passed_on(at_once: bool) -> None:
    """The text of an error that comes from a worker may come from a candidate."""
    with Gone(at_once) as pool, pytest.raises(WorkersLost) as caught:
        simulate(RandomDropping(2.0), candidates(), executor=pool)
    assert caught.value.kind == "ConnectionError"
    assert CANARY not in everything_said(caught.value)


def test_a_broken_pool_of_the_standard_library_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_draws(monkeypatch, kept=[0, 1, 2])
    given = candidates(Dying, marker=str(tmp_path / "died"))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        # Both workers start first: the pool waits for ever for one that starts while it breaks.
        wait([pool.submit(time.sleep, 0.1) for _ in range(2)])
        with pytest.raises(WorkersLost, match="stays broken") as caught:
            RandomDropping(2.0).select(
                given, DATA, executor=pool, checkpoint=tmp_path / "checkpoint"
            )
    assert caught.value.kind == "BrokenProcessPool"
    with Processes(2) as mending:
        release = RandomDropping(2.0).select(
            given, DATA, executor=mending, checkpoint=tmp_path / "checkpoint"
        )
    assert release == RandomDropping(2.0).select(given, DATA)


PARENT = """
import sys, time
from pathlib import Path
from expost import PureDP, RandomDropping
from expost.budget.ledger import Ledger
from expost.execution.workers import Processes
from tests.execution.slow_runs import given, DATA, SELECTOR

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with Processes(2) as pool:
        ledger, checkpoint = Ledger.open(folder / "ledger.db"), folder / "checkpoint"
        SELECTOR.select(given(folder), DATA, executor=pool, ledger=ledger, checkpoint=checkpoint)
"""


@pytest.mark.slow
def test_the_selecting_process_is_killed_and_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9 the same call finishes the same selection with one charge; no worker stays."""
    from tests.execution import slow_runs

    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    path = os.pathsep.join(
        [str(Path(__file__).parent.parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": path}
    )
    pids = wait_for(lambda: list(tmp_path.glob("pid-*")) if len(outputs(tmp_path)) >= 2 else None)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    workers = [int(path.name.split("-")[1]) for path in pids]
    wait_for(lambda: not any(alive(worker) for worker in workers))
    held = json.loads((tmp_path / "checkpoint").read_text().split("\n")[0].partition(" ")[2])[
        "draws"
    ]
    finished = len(outputs(tmp_path))
    assert finished < len(held["kept"])
    (tmp_path / "go").touch()
    given = slow_runs.given(tmp_path)
    release = slow_runs.SELECTOR.select(
        given, slow_runs.DATA, ledger=ledger, checkpoint=tmp_path / "checkpoint"
    )
    monkeypatch.setattr(Selector, "_secrets", lambda *_: held)
    assert release == slow_runs.SELECTOR.select(
        given, slow_runs.DATA
    )  # undisturbed, with the same draws
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]


def outputs(folder: Path) -> list[str]:
    path = folder / "checkpoint"
    return path.read_text(encoding="utf-8").split("\n")[1:-1] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False


# Bad input: early, and nothing is charged.


@pytest.mark.parametrize("executor", [3, "processes", object()])
def test_what_is_no_executor_is_refused(executor: Any, tmp_path: Path) -> None:
    refused(executor, candidates(), tmp_path, "Executor")


def test_what_workers_cannot_import_is_refused(tmp_path: Path) -> None:
    unknown = [Candidate(lambda data, randomness: 1.0, guarantee=PureDP(0.1))]
    with Processes(1) as pool:
        refused(pool, unknown, tmp_path, "lambda")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        refused(pool, unknown, tmp_path, "lambda")


def test_futures_of_another_kind_are_refused(tmp_path: Path) -> None:
    class Foreign:
        def submit(self, *_: Any) -> object:
            return object()

    refused(Foreign(), candidates(), tmp_path, "Future")


def refused(executor: Any, given: list[Candidate], folder: Path, match: str) -> None:
    ledger = Ledger.create(folder / f"{id(executor)}.db", PureDP(100))
    with pytest.raises(InvalidInput, match=match):
        RandomDropping(2.0).select(
            given, DATA, executor=executor, ledger=ledger, checkpoint=folder / "checkpoint"
        )
    assert [entry.action for entry in ledger.entries()] == ["create"]
    assert not (folder / "checkpoint").exists()


@pytest.mark.parametrize("field", ["stop_early", "on_start"])
def test_bad_options(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        simulate(*CASES["best"], **{field: "no"})


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_bad_numbers_of_workers(workers: Any) -> None:
    with pytest.raises(InvalidInput, match="workers"):
        Processes(workers)


def test_on_start_comes_after_the_reservation_and_before_the_runs(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    events: list[str] = []

    def run(data: Any, randomness: Any) -> float:
        events.append("run")
        return 1.0

    given = [Candidate(run, guarantee=PureDP(1e-9))]
    begin = lambda: events.append(f"start after {[entry.action for entry in ledger.entries()][-1]}")  # noqa: E731
    RandomDropping(1.0).select(given, DATA, ledger=ledger, on_start=begin)
    assert events == ["start after reserve", "run"]
