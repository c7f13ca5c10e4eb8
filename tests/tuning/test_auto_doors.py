"""``training = "auto"`` from the defaults of every door: progressive training is asked first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("numba", reason="needs the native extra")

import expost
from expost.cli.main import main
from expost.randomness.source import SimulationRandomness
from expost.selection.above_threshold import PlannedAttempt
from expost.sklearn import DPLogisticRegression, ExPostSearch
from tests.tuning.jobs import TINY, TOML, clouds

FACTS: dict[str, Any] = {"at_least": 0.7, "feature_bounds": [0, 1], "classes": 2}
UNSAID = TOML.replace('training = "dp-sgd"\n', "\n")
SEED: Any = {"randomness": SimulationRandomness(1), "simulation": True}


def by_file(folder: Path, text: str) -> Any:
    """The certificate of ``expost tune`` on a file."""
    X, y = clouds(2000)
    np.savez(folder / "rows.npz", X=X, y=y)
    (folder / "job.toml").write_text(text, encoding="utf-8")
    sys.argv = ["expost", "tune", str(folder / "job.toml"), "--out", str(folder / "out")]
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return json.loads((folder / "out" / "release.json").read_text(encoding="utf-8"))


def by_rows(folder: Path, *more: str) -> Any:
    """The certificate of ``expost tune rows.npz``."""
    X, y = clouds(2000)
    np.savez(folder / "rows.npz", X=X, y=y)
    facts = ["--at-least", "0.7", "--feature-bounds", "0:1", "--classes", "2"]
    sys.argv = ["expost", "tune", str(folder / "rows.npz"), *facts, *more]
    sys.argv += ["--out", str(folder / "out"), "--max-epsilon", "20"]
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return json.loads((folder / "out" / "release.json").read_text(encoding="utf-8"))


def by_tune(_: Path, **more: Any) -> Any:
    return json.loads(
        expost.tune(*clouds(2000), **FACTS, **SEED, max_epsilon=20.0, **more).certificate()
    )


def by_mapping(_: Path) -> Any:
    tables = {**TINY, "model": {"kind": "logistic"}}
    tables["privacy"] = TINY["privacy"] | {"max_epsilon": 20.0}
    return json.loads(expost.tune(tables, *clouds(2000), **SEED).certificate())


def by_search(_: Path, **more: Any) -> Any:
    estimator = DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 1), delta=1e-4)
    search = ExPostSearch(
        estimator, training="auto", at_least=0.7, random_state=1, simulation=True, **more
    )
    return json.loads(search.fit(*clouds(2000)).certificate())


GRID = {"epsilons": [1.0, 4.0], "param_grid": {"learning_rate": [1.0, 2.0]}}
DOORS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "a job file with a grid": (lambda folder: by_file(folder, UNSAID), True),
    "a mapping with a grid": (by_mapping, True),
    "a job file": (lambda folder: by_file(folder, without_grid(UNSAID)), False),
    "expost tune rows": (by_rows, False),
    "expost tune rows --epsilons": (lambda folder: by_rows(folder, "--epsilons", "1"), True),
    "expost tune rows --features plain,auto": (
        lambda folder: by_rows(folder, "--features", "plain,auto", "--epsilons", "1"),
        True,
    ),
    "expost.tune": (by_tune, False),
    "expost.tune, attempts": (lambda folder: by_tune(folder, attempts=2, epsilons=[1.0]), True),
    "expost.tune, rates": (
        lambda folder: by_tune(folder, learning_rates=[1.0], epsilons=[1.0]),
        True,
    ),
    "ExPostSearch": (by_search, False),
    "ExPostSearch with a grid": (lambda folder: by_search(folder, **GRID), True),
}


def without_grid(text: str) -> str:
    """The job without its table [search], and the key that belongs to it."""
    first, rest = text.split("[search]")
    return first + "[goal]" + rest.split("[goal]")[1].replace("attempts = 3\n", "")


@pytest.mark.parametrize("name", DOORS)
def test_the_first_request_is_progressive_and_a_grid_follows(name: str, tmp_path: Path) -> None:
    door, grid = DOORS[name]
    document = door(tmp_path)
    assert document["passed"]
    made = document["requests"]["made"]
    assert len(made) == 1
    assert made[0]["selector"]["training"] == "progressive"
    # Only noise of DP-SGD is calibrated by an accountant; it is planned, even if it was not made.
    assert (document["tuning"]["accountant"] is not None) == grid
    assert document["spent"]["epsilon"] < 1.0  # DP-SGD at its lowest level costs about 2


def test_a_network_comes_after_a_linear_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training is not said; a path that may cost a quarter of its attempts is asked first."""
    pytest.importorskip("torch")
    from expost.tuning import job as jobs
    from expost.tuning.plan.rehearsal import Pace

    monkeypatch.setattr(jobs, "rehearse", lambda *_: Pace(0.0, 0.0))
    tables = {**TINY, "model": {"kind": "cnn"}, "data": {"feature_bounds": [0, 1], "classes": 10}}
    tables["goal"] = {"metric": "accuracy", "at_least": 0.5}
    plan = expost.plan_job(tables, np.zeros((4000, 784)), np.zeros(4000))
    assert plan.steps[0].recipe is not None
    assert plan.steps[0].recipe.kind == "softmax"
    kinds = [step.recipe and step.recipe.kind for step in plan.steps]
    assert kinds[:3] == ["softmax", "cnn", "cnn"]
    assert all(isinstance(step.selector, PlannedAttempt) for step in plan.steps[3:])


def test_the_best_model_has_a_grid_on_rows_of_norm_1() -> None:
    X, y = clouds(2000)
    facts = {**FACTS, "at_least": None}
    made = expost.tune(X, y, **facts, maximize=True, epsilons=[2.0], **SEED)
    assert made.params["features"] == "auto"
    assert made.record()["features"]["record"]["norm"] == "row"
    assert np.mean(made.model.predict(X) == y) > 0.9
