"""Runs on a real Ray cluster of this machine.

The contract, a killed worker, and what the logs and the timeline show.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import expost
from expost import Candidate, PureDP, RandomDropping, SimulationRandomness
from expost.errors import InvalidInput
from expost.integrations.ray import RayExecutor
from tests.execution.elsewhere import CANARY, ExecutorContract, Telling, simulate, wait_for
from tests.execution.parts_contract import PartsContract
from tests.tuning.jobs import clouds, job
from tests.tuning.large_tables import cells, pa, tuned

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

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
        pytest.skip(f"Ray does not start here: {type(error).__name__}: {error}")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(cluster: Any) -> Iterator[RayExecutor]:
    with RayExecutor() as executor:
        yield executor
    assert cluster.is_initialized()  # it was not the executor's to end


class TestRay(ExecutorContract):
    @pytest.fixture
    def executor(self, pool: RayExecutor) -> RayExecutor:
        return pool


class TestParts(PartsContract):
    @pytest.fixture
    def executor(self, pool: RayExecutor) -> RayExecutor:
        return pool


def test_a_training_on_sums_of_parts_is_the_same(pool: RayExecutor) -> None:
    rows = pa.table(cells())
    assert tuned(rows, executor=pool) == tuned(rows)


def test_a_wave_has_as_many_tasks_as_the_cluster_has_room_for(cluster: Any) -> None:
    assert RayExecutor().tasks == 2
    assert RayExecutor(num_cpus=2).tasks == 1
    assert RayExecutor(num_cpus=0.5).tasks == 4
    assert RayExecutor(tasks=7).tasks == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_cpus", 0),
        ("num_cpus", "2"),
        ("num_cpus", 3),
        ("num_gpus", -1),
        ("num_gpus", 1),
        ("tasks", 0),
        ("address", "auto"),
    ],
)
def test_bad_input(cluster: Any, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        RayExecutor(**{field: value})
    assert cluster.is_initialized()


def test_functions_without_a_module_travel_too(pool: RayExecutor) -> None:
    given = [
        Candidate(lambda data, randomness, n=n: n + randomness.below(100), guarantee=PureDP(0.25))
        for n in range(9)
    ]
    assert simulate(RandomDropping(2.0), given, executor=pool) == simulate(
        RandomDropping(2.0), given
    )


def session(cluster: Any) -> Path:
    return Path(cluster._private.worker._global_node.get_session_dir_path())


def test_nothing_of_the_selection_is_in_rays_files_or_names(
    cluster: Any, pool: RayExecutor
) -> None:
    """Candidates that print, write and raise their canary.

    Params hold a canary, and an output is one. Then every file is searched.
    """
    marked = [
        Candidate(Telling(number), {"number": number, "text": f"{CANARY}-params"}, repeats=4)
        for number in range(100, 112)
    ]
    listen: list[Any] = []
    simulate(
        RandomDropping(2.0), marked, executor=pool, on_failure=lambda *told: listen.append(told)
    )
    assert listen
    folder = session(cluster)
    contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    telling = (
        CANARY,
        "Telling",
        "number=10",
        "number=11",
        "PureDP",
        "kept",
        "seeds",
    )  # candidates are numbers 100 to 111
    assert [
        (name, word)
        for name, content in contents.items()
        for word in telling
        if word.encode() in content
    ] == []
    assert (
        len(list((folder / "logs").glob("worker-*"))) > 0
    )  # test of the test: this is where a print would be
    events = wait_for(lambda: [event for event in cluster.timeline() if "expost" in event["cat"]])
    assert {event["cat"] for event in events} == {"task::expost"}
    assert {event["name"] for event in events} <= {
        "expost.execution.workers.work",
        "expost.execution.workers._arrive",
    }
    assert all(set(event["args"]) == {"name", "task_id"} for event in events)


def test_the_search_would_find_what_a_task_prints(cluster: Any) -> None:
    """Test of the test."""

    @cluster.remote
    def talk() -> None:
        sys.stdout.write("loud-9d1e\n")
        sys.stdout.flush()

    cluster.get(talk.remote())
    files = [path for path in session(cluster).rglob("*") if path.is_file()]
    assert [path for path in files if b"loud-9d1e" in path.read_bytes()]


def test_tuning_gives_the_same_model(pool: RayExecutor) -> None:
    def tuned(**options: Any) -> Any:
        return expost.tune(
            job(), *clouds(), randomness=SimulationRandomness(2), simulation=True, **options
        )

    here, there = tuned(), tuned(executor=pool)
    assert there.params == here.params
    assert there.score == here.score
    for name, value in here.model.parameters.items():
        assert np.array_equal(there.model.parameters[name], value)


COMMAND = """
import sys
from expost.cli.main import main
sys.argv = ["expost", "tune", "job.toml", "--executor", "ray", "--json"]
main()
"""


def test_from_the_command_line(tmp_path: Path) -> None:
    """A cluster of its own, for this command."""
    from tests.tuning.jobs import write

    write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spent"]["epsilon"] > 0
