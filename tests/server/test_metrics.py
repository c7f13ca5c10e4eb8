"""Goals of tuning jobs at a server: metrics by name only, never code of an analyst."""

from __future__ import annotations

from typing import Any

import pytest

from expost.errors import InvalidInput
from tests.server.running_server import JOB

tuning_jobs = pytest.importorskip("expost.server.jobs.tuning_jobs")

FACTS: dict[str, Any] = {
    "kind": "rows",
    "name": "digits",
    "delta": 1e-5,
    "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10, "holdout": 0.2},
}


def read(goal: dict[str, Any]) -> Any:
    return tuning_jobs.read_job(FACTS, {**JOB, "goal": goal}, "approx")


@pytest.mark.parametrize("metric", ["os:system", "own.py:cost", ["accuracy"], 3])
def test_a_function_of_an_analyst_is_refused(metric: Any, tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match=r"goal\.metric"):
        read({"metric": metric, "metric_bounds": [0, 1], "at_least": 0.3})


def test_built_in_metrics_are_allowed() -> None:
    goal = {"metric": "log_loss", "loss_bound": 4.0, "at_most": 2.0}
    assert read(goal)["goal"] == goal
    assert read({"at_least": 0.3})["goal"] == {"at_least": 0.3}
    with pytest.raises(InvalidInput, match="class_shares"):
        read({"metric": "balanced_accuracy", "at_least": 0.3})
