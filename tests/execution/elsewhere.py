"""What every executor must do: the contract suite, and mechanisms that workers can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from expost import (
    FAILED,
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    PureDP,
    Query,
    RandomDropping,
    Release,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.budget.ledger import Ledger
from expost.execution.workers import tasks_of
from expost.selection.selector import Selector

DATA = list(range(50))
CANARY = "canary-51c2"


@dataclass(frozen=True)
class Noisy:
    """The size of the data and noise; ``number`` tells candidates apart."""

    number: int
    guarantee: PureDP = field(default_factory=lambda: PureDP(0.25))

    def __call__(self, data: Any, randomness: Any) -> float:
        return len(data) + self.number + randomness.below(10**6) / 10**6


@dataclass(frozen=True)
class Telling(Noisy):
    """Writes about itself wherever it can."""

    def __call__(self, data: Any, randomness: Any) -> float:
        for stream in (sys.stdout, sys.stderr):
            stream.write(f"{CANARY} printed {self.number}\n")
        os.write(1, f"{CANARY} written {self.number}\n".encode())
        os.write(2, f"{CANARY} written {self.number}\n".encode())
        if self.number % 3 == 0:
            raise RuntimeError(f"{CANARY} raised {self.number}")
        return super().__call__(data, randomness)


@dataclass(frozen=True)
class Failing(Noisy):
    """Raises; every third one tries to end the program."""

    def __call__(self, data: Any, randomness: Any) -> float:
        if self.number % 3 == 0:
            raise SystemExit(1)
        raise ValueError(f"no luck with {self.number}")


@dataclass(frozen=True)
class Dying(Noisy):
    """Kills its worker after having drawn.

    It does so the first time that it runs (``marker`` tells), or, if ``always``, until somebody
    has repaired the machine (a second file tells).
    """

    marker: str = ""
    always: bool = False

    def __call__(self, data: Any, randomness: Any) -> float:
        value = super().__call__(data, randomness)
        broken = self.always and not Path(f"{self.marker}-repaired").exists()
        if not Path(self.marker).exists() or broken:
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value


class Unsendable:
    """An output that no pool can send."""

    def __init__(self, value: float) -> None:
        self.value, self.frame = value, sys._getframe()

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Returning(Noisy):
    """Every third one returns an output that cannot be sent."""

    def __call__(self, data: Any, randomness: Any) -> Any:
        value = super().__call__(data, randomness)
        return Unsendable(-value) if self.number % 3 == 0 else value


@dataclass(frozen=True)
class Fleet(Noisy):
    """Made together; each output from its own source."""

    together_key: str = "fleet"

    def __call__(self, data: Any, randomness: Any) -> float:
        raise AssertionError("a fleet is not run one by one")

    def run_together(self, calls: Any, data: Any, randomness: Any) -> list[Any]:
        pairs = zip(calls, randomness, strict=True)
        return [
            FAILED if call.number == 3 else Noisy.__call__(call, data, source)
            for call, source in pairs
        ]


def candidates(
    kind: Callable[..., Any] = Noisy, count: int = 12, repeats: int = 4, **settings: Any
) -> list[Candidate]:
    return [
        Candidate(kind(number, **settings), {"number": number}, repeats=repeats)
        for number in range(count)
    ]


def counted(data: Any) -> int:
    return len(data)


LEVELS = [Candidate(DiscreteLaplace(Query(counted), epsilon)) for epsilon in (0.01, 0.1, 1.0)]
QUERIES = [Candidate(Query(counted), guarantee=PureDP(0.5), repeats=20)]
CASES: dict[str, tuple[Selector, list[Candidate]]] = {
    "best": (RandomDropping(2.0), candidates()),
    "bar": (RandomDropping(2.0, at_least=60.2), candidates()),
    "a goal that nobody passes": (RandomDropping(2.0, at_least=1000), candidates()),
    "first above": (AboveThreshold(2.0, at_least=60.2), candidates()),
    "queries": (AboveThreshold(0.5, at_least=55), QUERIES),
    "fleet": (RandomDropping(2.0), candidates(Fleet)),
    "fleet and others": (
        RandomDropping(2.0, at_least=60.2),
        [*candidates(Fleet), *candidates(Failing), *candidates()],
    ),
    "noise reduction": (NoiseReduction(at_least=49), LEVELS),
    "runs": (RepeatAndSelect(TruncatedNegativeBinomial(1, 0.05)), candidates()),
    "doubling": (Doubling(60.2), candidates()),
    "nothing kept": (
        RandomDropping(0.001, allow_nothing=True, minimum_drop_level=200),
        candidates(repeats=1),
    ),
}


def simulate(selector: Selector, given: list[Candidate], seed: int = 4, **options: Any) -> Release:
    return selector.select(
        given, DATA, randomness=SimulationRandomness(seed), simulation=True, **options
    )


def fix_draws(monkeypatch: pytest.MonkeyPatch, kept: list[int]) -> None:
    """Give every selection of the test the same draws, as if real randomness repeated them."""
    monkeypatch.setattr(
        Selector, "_secrets", lambda *_: {"kept": kept, "key": bytes(range(32)).hex()}
    )


class ExecutorContract:
    """Subclasses define a fixture ``executor``; ``separate`` means that workers are processes."""

    separate = True

    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("stop_early", [True, False])
    def test_the_release_is_the_same_as_here(
        self, executor: Any, name: str, stop_early: bool
    ) -> None:
        """Catches runs whose noise or rank depends on where or with which others they ran."""
        selector, given = CASES[name]
        here = simulate(selector, given)
        elsewhere = simulate(selector, given, executor=executor, stop_early=stop_early)
        assert elsewhere == here
        assert elsewhere.to_json() == here.to_json()

    def test_other_draws_give_other_releases(self, executor: Any) -> None:
        """Test of the test: the comparison above would see a difference."""
        values = {simulate(*CASES["best"], seed=seed, executor=executor).value for seed in range(3)}
        assert len(values) == 3

    def test_a_candidate_that_raises_is_an_outcome(self, executor: Any) -> None:
        told: list[tuple[int, str]] = []
        given = [*candidates(Failing), *candidates()]
        listen = lambda index, error: told.append((index, str(error)))  # noqa: E731
        selector = RandomDropping(2.0)
        assert simulate(selector, given, executor=executor, on_failure=listen) == simulate(
            selector, given
        )
        assert told
        assert all(index < 12 for index, _ in told)
        assert any("no luck with" in said for _, said in told)
        assert any("SystemExit" in said or said == "1" for _, said in told)
        alone = simulate(selector, candidates(Failing), executor=executor)
        assert alone.value is FAILED

    def test_an_output_that_cannot_be_sent_is_an_outcome(self, executor: Any) -> None:
        """Catches a selection that ends, and names a type, because of what one output is."""
        told: list[int] = []
        selector, given = RandomDropping(2.0), candidates(Returning)
        release = simulate(
            selector, given, executor=executor, on_failure=lambda index, _: told.append(index)
        )
        assert release == simulate(selector, given)
        assert bool(told) == self.separate
        assert all(index % 3 == 0 for index in told)
        alone = simulate(selector, candidates(Returning, count=1), executor=executor)
        assert (alone.value is FAILED) == self.separate

    def test_a_killed_worker_is_replaced_and_draws_the_same(
        self, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a second draw: runs of a lost task give the same results and one charge."""
        if not self.separate:
            pytest.skip("a thread cannot be killed alone")
        fix_draws(monkeypatch, kept=list(range(12)))
        marker = tmp_path / "died"
        given = candidates(Dying, marker=str(marker))
        marker.touch()
        undisturbed = RandomDropping(2.0).select(given, DATA)
        marker.unlink()
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
        release = RandomDropping(2.0).select(
            given, DATA, executor=executor, ledger=ledger, checkpoint=tmp_path / "checkpoint"
        )
        assert marker.exists()  # somebody died
        assert release == undisturbed
        assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]
        assert float(ledger.standing().filter.settled[0]) == release.spent.epsilon
        assert sorted(path.name for path in tmp_path.iterdir() if "checkpoint" in path.name) == []

    def test_progress_comes_from_tasks_that_are_done(self, executor: Any) -> None:
        seen: list[tuple[int, int]] = []
        simulate(
            *CASES["best"],
            executor=executor,
            progress=lambda done, total: seen.append((done, total)),
        )
        assert len(seen) <= tasks_of(executor)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]


def wait_for(condition: Any, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")
