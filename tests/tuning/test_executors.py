"""Tuning with workers: the same model, the same folder, one charge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import SimulationRandomness
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import WorkersLost
from expost.execution.workers import Processes
from tests.tuning.jobs import TOML, clouds, job, write


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as pool:
        yield pool


def simulate(config: Any = None, *rows: Any, **options: Any) -> Any:
    given = rows or clouds()
    return expost.tune(
        config or job(), *given, randomness=SimulationRandomness(2), simulation=True, **options
    )


def assert_same(one: Any, other: Any) -> None:
    assert (one.params, one.score, one.spent) == (other.params, other.score, other.spent)
    for name, value in other.model.parameters.items():
        assert np.array_equal(one.model.parameters[name], value)


WIDE = job(
    search={"learning_rates": [1, 2, 3, 4, 5]},
    goal={"at_least": None, "maximize": True},
    privacy={"repeats": 3},
)


@pytest.mark.parametrize(
    ("config", "stop_early"),
    [(job(), True), (job(), False), (WIDE, True)],
    ids=["bar", "all", "best"],
)
def test_the_same_model_wherever_it_is_trained(
    processes: Processes, config: Any, stop_early: bool
) -> None:
    here = simulate(config)
    with ThreadPoolExecutor(3) as threads:
        assert_same(simulate(config, executor=threads, stop_early=stop_early), here)
    assert_same(simulate(config, executor=processes, stop_early=stop_early), here)


def test_progress_and_one_charge(tmp_path: Path, processes: Processes) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    seen: list[tuple[float, float]] = []
    result = expost.tune(
        WIDE,
        *clouds(),
        ledger=ledger,
        out=tmp_path / "out",
        executor=processes,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]
    assert ledger.standing().as_dict()["settled"]["epsilon"] == result.spent.epsilon
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.npz",
        "privacy.png",
        "release.json",
    ]
    text = (tmp_path / "out" / "release.json").read_text(encoding="utf-8")
    assert "executor" not in text
    assert "process" not in text.lower()


class Unplugged(ThreadPoolExecutor):
    """A cluster whose workers cannot be reached any more once the first task is there."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if function.__name__ == "work":
            raise ConnectionError("no route to host")
        return super().submit(function, *arguments, **options)


def test_a_job_that_lost_its_workers_goes_on_elsewhere(tmp_path: Path) -> None:
    """Same folder, another executor: one reservation, and the attempt is not counted as lost."""
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    with Unplugged(1) as gone, pytest.raises(WorkersLost, match="ConnectionError"):
        expost.tune(job(), *clouds(), ledger=ledger, out=tmp_path / "out", executor=gone)
    assert (
        json.loads((tmp_path / "out" / "attempts.json").read_text(encoding="utf-8"))["begun"] == 1
    )
    result = expost.tune(job(), *clouds(), ledger=ledger, out=tmp_path / "out")
    assert len(result.attempts) == 1
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]


NETWORK = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
"""


@pytest.mark.slow
def test_a_module_next_to_the_settings_is_found_by_workers(
    tmp_path: Path, processes: Processes
) -> None:
    """A module that a new process cannot import by name is found by its folder.

    The first parameters come from the run's own source.
    """
    pytest.importorskip("torch")
    config = write(tmp_path, TOML.replace('kind = "logistic"', 'kind = "own_network_5c1:make"'))
    (tmp_path / "own_network_5c1.py").write_text(NETWORK, encoding="utf-8")

    def tuned(**options: Any) -> Any:
        return expost.tune(config, randomness=SimulationRandomness(2), simulation=True, **options)

    assert_same(tuned(executor=processes), tuned())
