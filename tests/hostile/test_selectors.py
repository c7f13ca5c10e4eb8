"""Selectors and local executors with hostile candidates, scores and outputs."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    Ledger,
    NoiseReduction,
    Poisson,
    Processes,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from tests.hostile.acts import FAILURES, HERE, SECRET, THERE, VALUES, Hostile, HostileTogether
from tests.hostile.doors import concrete_selectors
from tests.hostile.judge import everything, same_as_tame, within_claim

SELECTORS: dict[str, Any] = {
    "best": RandomDropping(2.0),
    "bar": RandomDropping(2.0, at_least=2.0),
    "nothing allowed": RandomDropping(2.0, allow_nothing=True, minimum_drop_level=1),
    "first above": AboveThreshold(2.0, at_least=2.0),
    "doubling": Doubling(2.0),
    "geometric": RepeatAndSelect(TruncatedNegativeBinomial(1, 0.2)),
    "poisson": RepeatAndSelect(Poisson(2)),
}
OVER_QUERIES = {"noise-reduction": NoiseReduction, "above-threshold": AboveThreshold}
SIDES = pytest.mark.parametrize("side", [HERE, THERE])


def candidates(act: str, kind: Any = Hostile) -> list[Candidate]:
    return [Candidate(kind(number, act), {"number": number}, repeats=2) for number in range(4)]


def run(name: str, act: str, side: str, seed: int, kind: Any = Hostile, **options: Any) -> Any:
    return SELECTORS[name].select(
        candidates(act, kind),
        side,
        randomness=SimulationRandomness(seed),
        simulation=True,
        **options,
    )


def test_every_selector_is_here():
    assert {kind.name for kind in concrete_selectors()} == {
        each.name for each in SELECTORS.values()
    } | set(OVER_QUERIES) | {"noise-path", "tell"}  # test_noise_path.py, test_missed.py


@SIDES
@pytest.mark.parametrize("act", FAILURES)
@pytest.mark.parametrize("name", SELECTORS)
def test_every_failure_looks_like_the_plainest_one(name, act, side):
    same_as_tame(
        lambda seed: everything(lambda: run(name, act, side, seed)),
        lambda seed: everything(lambda: run(name, "raises", side, seed)),
        seeds=15,
    )


@SIDES
@pytest.mark.parametrize("act", FAILURES)
def test_with_a_checkpoint_and_a_ledger(tmp_path, act, side):
    """The files that are left and the state of the ledger are part of what leaves."""

    def with_files(act: str, seed: int, kind: Any = Hostile) -> Any:
        folder = tmp_path / f"{act}-{seed}-{kind.__name__}"
        folder.mkdir(exist_ok=True)
        release = everything(
            lambda: run("bar", act, side, seed, kind, checkpoint=folder / "checkpoint"), folder
        )
        assert release[1] == []
        return release

    same_as_tame(lambda s: with_files(act, s), lambda s: with_files("raises", s), seeds=4)


@pytest.mark.parametrize("act", FAILURES)
def test_the_ledger_hears_nothing_of_it(tmp_path, act):
    """A selection with fresh randomness is reserved and settled, whatever its candidates do."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10**6))
    for _ in range(3):
        released = RandomDropping(2.0).select(
            candidates(act), THERE, ledger=ledger, checkpoint=tmp_path / "checkpoint"
        )
        assert SECRET not in released.to_json(encode=repr)
    assert ledger.open_reservations() == []
    assert [entry.action for entry in ledger.entries()][1:] == ["reserve", "settle"] * 3


@SIDES
@pytest.mark.parametrize("act", FAILURES)
@pytest.mark.parametrize("kind", [Hostile, HostileTogether])
def test_threads(act, side, kind):
    with ThreadPoolExecutor(2) as pool:
        same_as_tame(
            lambda seed: everything(lambda: run("bar", act, side, seed, kind, executor=pool)),
            lambda seed: everything(lambda: run("bar", "raises", side, seed)),
            seeds=6,
        )


@SIDES
@pytest.mark.parametrize("act", FAILURES)
def test_runs_made_together(act, side):
    same_as_tame(
        lambda seed: everything(lambda: run("best", act, side, seed, HostileTogether)),
        lambda seed: everything(lambda: run("best", "raises", side, seed)),
        seeds=15,
    )


@pytest.fixture(scope="module")
def processes() -> Any:
    with Processes(2) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("act", FAILURES)
@pytest.mark.parametrize("kind", [Hostile, HostileTogether])
def test_processes(processes, act, kind):
    same_as_tame(
        lambda seed: everything(lambda: run("bar", act, THERE, seed, kind, executor=processes)),
        lambda seed: everything(lambda: run("bar", "raises", THERE, seed)),
        seeds=3,
    )


@pytest.mark.parametrize("act", [*VALUES, "raises"])
@pytest.mark.parametrize("name", SELECTORS)
def test_the_law_of_every_outcome_keeps_the_claim(name, act):
    """NaN, infinite and huge outputs, and failures: by many runs."""
    within_claim(SELECTORS[name], HERE, THERE, candidates=candidates(act), events=repr)


@pytest.mark.parametrize("act", [name for name in FAILURES if "cannot" not in name])
def test_hostile_scores_of_noise_reduction(act):
    """A score that raises is an outcome of the level, at the price of the level."""
    levels = [Candidate(DiscreteLaplace(Query(len), epsilon)) for epsilon in (0.5, 1.0, 2.0)]

    def score(act: str) -> Any:
        return lambda estimate: FAILURES[act]() if float(estimate) > 7 else float(estimate)

    def select(act: str, seed: int) -> Any:
        return NoiseReduction(at_least=6).select(
            levels,
            [0] * 6,
            score=score(act),
            randomness=SimulationRandomness(seed),
            simulation=True,
        )

    same_as_tame(
        lambda seed: everything(lambda: select(act, seed)),
        lambda seed: everything(lambda: select("raises", seed)),
        seeds=20,
    )


@pytest.mark.parametrize("size", [5, 2**53, 10**400])
def test_queries_with_large_counts(size):
    """Algorithm 1 near its target, also where floats cannot tell neighbours apart."""
    asked = [Candidate(Query(lambda data: data), guarantee=PureDP(1), repeats=3)]
    selector = AboveThreshold(1.0, at_least=5 if size == 5 else 2.0**53)
    within_claim(selector, size, size + 1, candidates=asked, events=lambda value: str(value)[-2:])
    assert math.isfinite(selector.charges(asked).worst_case.epsilon)


def test_no_secret_leaves(tmp_path: Path, capfd: Any) -> None:
    """Neither a release nor an exception nor a stream shows a row's text."""
    for act in FAILURES:
        text = repr(everything(lambda act=act: run("bar", act, THERE, 1)))
        assert SECRET not in text
    assert SECRET not in "".join(capfd.readouterr())
