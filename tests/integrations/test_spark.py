"""Runs and sums on a real Spark session of this machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

import expost
from expost import RandomDropping, SimulationRandomness
from expost.errors import InvalidInput, MissingExtra
from expost.integrations.spark import SparkExecutor
from tests.execution.elsewhere import CANARY, ExecutorContract, Telling, candidates, simulate
from tests.execution.parts_contract import PartsContract
from tests.tuning.jobs import clouds, job
from tests.tuning.large_tables import cells, pa, tuned

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[SparkExecutor]:
    with SparkExecutor() as executor:
        yield executor


class TestSpark(ExecutorContract):
    @pytest.fixture
    def executor(self, pool: SparkExecutor) -> SparkExecutor:
        return pool


class TestParts(PartsContract):
    @pytest.fixture
    def executor(self, pool: SparkExecutor) -> SparkExecutor:
        return pool


def test_a_training_on_sums_of_parts_is_the_same(pool: SparkExecutor) -> None:
    rows = pa.table(cells())
    assert tuned(rows, executor=pool) == tuned(rows)


def test_a_grid_is_the_same(pool: SparkExecutor) -> None:
    def run(**where: Any) -> Any:
        source: Any = {"randomness": SimulationRandomness(5), "simulation": True}
        return expost.tune(job(), *clouds(), **source, **where)

    here, there = run(), run(executor=pool)
    assert here.params == there.params
    assert np.array_equal(here.model.parameters["weight"], there.model.parameters["weight"])


def test_what_candidates_say_is_not_shown(
    pool: SparkExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    simulate(RandomDropping(2.0), candidates(Telling), executor=pool)
    said = capfd.readouterr()
    assert CANARY not in said.out + said.err


def test_another_session_or_number_is_refused(
    pool: SparkExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SparkExecutor(pool._session, tasks=5).tasks == 5
    for settings in ({"session": 3}, {"tasks": 0}):
        with pytest.raises(InvalidInput):
            SparkExecutor(**settings)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=r"expost\[spark\]"):
        SparkExecutor()
