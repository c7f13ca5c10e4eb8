"""The Ray and Dask executors with hostile candidates: the same as in this process, exactly.

A cluster of this machine is started once per file. What leaves does not depend on where a run was
made, so each act must look like the plainest failure in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from expost import Ledger, PureDP, RandomDropping
from tests.hostile.acts import FAILURES, SECRET, THERE, Hostile, HostileTogether
from tests.hostile.judge import everything, same_as_tame
from tests.hostile.test_selectors import candidates, run

pytestmark = pytest.mark.slow


def ray_executor() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from expost.integrations.ray import RayExecutor

    try:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level="error",
        )
    except Exception as error:
        pytest.skip(f"Ray does not start here: {type(error).__name__}")
    with RayExecutor() as executor:
        yield executor
    ray.shutdown()


def dask_executor() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    from expost.integrations.dask import DaskExecutor

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(processes=True, silence_logs=50, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        yield DaskExecutor(client)


@pytest.fixture(scope="module", params=["ray", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from {"ray": ray_executor, "dask": dask_executor}[request.param]()


@pytest.mark.parametrize("kind", [Hostile, HostileTogether])
def test_every_failure_looks_like_the_plainest_one(executor, kind):
    for act in FAILURES:
        same_as_tame(
            lambda seed, act=act: everything(
                lambda: run("bar", act, THERE, seed, kind, executor=executor)
            ),
            lambda seed: everything(lambda: run("bar", "raises", THERE, seed)),
            seeds=2,
        )


def test_the_ledger_and_the_files(executor, tmp_path, capfd):
    """Reserve and settle, no file is left, and no stream shows a row's text."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10**6))
    before = sorted(path.name for path in tmp_path.iterdir())
    for act in FAILURES:
        released = RandomDropping(2.0).select(
            candidates(act),
            THERE,
            ledger=ledger,
            executor=executor,
            checkpoint=tmp_path / "checkpoint",
        )
        assert SECRET not in released.to_json(encode=repr)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert ledger.open_reservations() == []
    actions = [entry.action for entry in ledger.entries()]
    assert actions[1:] == ["reserve", "settle"] * len(FAILURES)
    assert SECRET not in "".join(capfd.readouterr())
