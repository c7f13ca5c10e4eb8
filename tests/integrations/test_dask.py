"""Runs on a real Dask cluster of this machine.

The contract, a killed worker, and what others can see of the runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed")

import expost
from expost import Candidate, PureDP, RandomDropping, SimulationRandomness
from expost.errors import InvalidInput
from expost.integrations.dask import DaskExecutor
from tests.execution.elsewhere import CANARY, ExecutorContract, Telling, candidates, simulate
from tests.execution.parts_contract import PartsContract
from tests.tuning.jobs import clouds, job
from tests.tuning.large_tables import cells, pa, tuned

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def pool(client: Any) -> DaskExecutor:
    client.wait_for_workers(2)
    return DaskExecutor(client)


class TestDask(ExecutorContract):
    @pytest.fixture
    def executor(self, pool: DaskExecutor) -> DaskExecutor:
        return pool


class TestParts(PartsContract):
    @pytest.fixture
    def executor(self, pool: DaskExecutor) -> DaskExecutor:
        return pool


def test_a_training_on_sums_of_parts_is_the_same(pool: DaskExecutor) -> None:
    rows = pa.table(cells())
    assert tuned(rows, executor=pool) == tuned(rows)


def test_connecting(client: Any) -> None:
    client.wait_for_workers(2)
    assert DaskExecutor(client).tasks == 2
    assert DaskExecutor(client, tasks=5).tasks == 5
    with DaskExecutor(client.scheduler.address) as other:
        assert other.tasks == 2
        assert simulate(RandomDropping(2.0), candidates(), executor=other) == simulate(
            RandomDropping(2.0), candidates()
        )
    assert client.status == "running"


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"client_or_address": 3}, "client_or_address"), ({"tasks": 0}, "tasks")],
)
def test_bad_input(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        DaskExecutor(**settings)


def test_functions_without_a_module_travel_too(pool: DaskExecutor) -> None:
    given = [
        Candidate(lambda data, randomness, n=n: n + randomness.below(100), guarantee=PureDP(0.25))
        for n in range(9)
    ]
    assert simulate(RandomDropping(2.0), given, executor=pool) == simulate(
        RandomDropping(2.0), given
    )


def told_by(keys: list[str], dask_scheduler: Any) -> str:
    """What the scheduler could show: events of all topics, and the story of these tasks."""
    return repr(dask_scheduler.get_events()) + repr(dask_scheduler.story(*keys))


def test_keys_logs_and_events_tell_nothing(
    client: Any, pool: DaskExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: set[str] = set()
    original = client.submit

    def watch(*arguments: Any, **options: Any) -> Any:
        seen.add(options["key"])
        return original(*arguments, **options)

    client.submit = watch
    try:
        simulate(
            RandomDropping(2.0), candidates(Telling), executor=pool, on_failure=lambda *_: None
        )
    finally:
        del client.submit
    assert len(seen) == 1 + pool.tasks
    assert all(re.fullmatch("expost-[0-9a-f]{32}", key) for key in seen)
    told = client.run_on_scheduler(told_by, sorted(seen))
    logs = f"{client.get_worker_logs()} {client.get_scheduler_logs()} {told}"
    assert any(key in logs for key in seen)  # test of the test: this is where tasks leave traces
    assert CANARY not in logs
    out, err = capfd.readouterr()
    assert CANARY not in out + err


def test_tuning_gives_the_same_model(pool: DaskExecutor) -> None:
    def tuned(**options: Any) -> Any:
        return expost.tune(
            job(), *clouds(), randomness=SimulationRandomness(2), simulation=True, **options
        )

    here, there = tuned(), tuned(executor=pool)
    assert (there.params, there.score) == (here.params, here.score)
    for name, value in here.model.parameters.items():
        assert np.array_equal(there.model.parameters[name], value)
