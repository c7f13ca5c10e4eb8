"""Jobs that are trained progressively, at the door: goals, saved models, secret rows, resuming."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.execution.checkpoint import identity_of
from expost.features import EncodedColumns
from expost.privacy.guarantees import ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.training.lattice_rows import rounded_rows
from expost.tuning.rows.job_columns import FeatureRows


def people(count: int = 3000, seed: int = 0) -> tuple[Any, Any]:
    """A made-up table: a category, two numbers of which one is skewed, and a yes or no."""
    generator = np.random.default_rng(seed)
    work = generator.choice(["office", "field", "home"], count)
    age = generator.integers(17, 91, count)
    gain = np.where(generator.random(count) < 0.2, generator.lognormal(7, 1, count), 0.0)
    signal_ = 2.0 * (work == "office") - (work == "home") + (age - 45) / 15 + (gain > 500)
    rich = np.where(signal_ + generator.normal(size=count) > 0.5, "yes", "no")
    cells = {"work": work, "age": age.astype(object), "gain": gain.astype(object)}
    return pandas.DataFrame(cells, dtype=object), rich


def job(**data: Any) -> dict[str, Any]:
    """The job with nothing but public facts and a goal."""
    return {
        "data": {
            "categories": {"work": ["office", "field", "home"]},
            "feature_bounds": {"age": [17, 90], "gain": [0, 99999]},
            "classes": ["no", "yes"],
            **data,
        },
        "model": {"kind": "logistic"},
        "goal": {"metric": "accuracy", "at_least": 0.7},
        "privacy": {"delta": 1e-5},
    }


def run(tables: dict[str, Any], seed: int = 1, count: int = 3000, **more: Any) -> Any:
    source: Any = {"randomness": SimulationRandomness(seed), "simulation": True}
    return expost.tune(tables, *people(count), **source, **more)


@pytest.fixture(scope="module")
def result() -> Any:
    return run(job())


def test_the_default_passes_and_its_model_is_the_same_after_loading(
    result: Any, tmp_path: Path
) -> None:
    assert result.passed
    assert result.params["training"] == "progressive"
    assert result.spent.epsilon == result.params["epsilon"] < 0.7
    X, y = people(2000, seed=9)
    X.iloc[0], X.iloc[1] = ("elsewhere", 1e300, -1e300), (None, "45", 5e-324)
    predicted = result.model.predict(X)
    assert np.mean(predicted == y) > 0.68
    result.model.save(tmp_path / "model.npz")
    loaded = expost.load_model(tmp_path / "model.npz")
    assert np.array_equal(loaded.predict(X), predicted)
    assert np.array_equal(loaded.predict_proba(X), result.model.predict_proba(X))
    for part in (slice(3), slice(1, 2), slice(7, 900)):  # whatever other rows there are
        again = loaded.predict_proba(X.iloc[part])
        assert np.array_equal(again, loaded.predict_proba(X)[part])


def reachable(root: Any) -> list[Any]:
    """Everything that an object refers to, classes and functions left out."""
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType)):
            continue
        seen[id(value)] = value
        stack += gc.get_referents(value)
    return list(seen.values())


def test_a_result_refers_to_no_rows(result: Any) -> None:
    """A result may be published whole; arrays as long as the private rows are private."""
    arrays = [value for value in reachable(result) if isinstance(value, np.ndarray)]
    assert arrays
    assert max(len(array) for array in arrays if array.ndim) < 100


def test_features_are_those_of_the_array_and_are_forgotten_with_it() -> None:
    rows = FeatureRows(EncodedColumns(2, ((0, 0.0, 1.0),)))
    identity = identity_of(rows)
    generator = np.random.default_rng(0)
    for _ in range(20):  # arrays die, and others may come to lie at the same address
        first, second = generator.random((2, 7, 2))
        for X in (first, second, first):
            assert np.array_equal(rows.of(X), rounded_rows(rows.features.transform(X)))
    assert rows.of(first) is rows.of(first)
    assert identity_of(rows) == identity  # what was computed does not matter to a checkpoint
    del first, second, X
    assert not rows._known
    assert rows.of(np.zeros((0, 2))).shape == (0, rows.features.width())


@pytest.mark.parametrize("count", [0, 1, 7, 3000, 4500])
def test_a_secret_number_of_rows_never_fails(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows than stated, none in a part, and more than stated: no look fails."""
    looks = []
    plain = FeatureRows.of

    def seen(self: FeatureRows, X: Any) -> Any:
        looks.append(len(X))
        found = plain(self, X)
        looks.pop()
        return found

    monkeypatch.setattr(FeatureRows, "of", seen)
    made = run(job(rows=3000), count=count)
    assert made.spent.neighbours == "add-remove"
    assert made.passed == (count >= 3000)
    assert not looks
    if made.passed:
        assert made.bounds.on_scoring_rows == 0.7  # only the goal: the number is secret


KILLED = """\
import os, signal, sys
from expost.training.progressive import TrainingRows
from tests.tuning.test_progressive_jobs import paid
plain, steps = TrainingRows.gradient_sum, []
def counted(self, *values):
    steps.append(1)
    if len(steps) == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *values)
TrainingRows.gradient_sum = counted
paid(sys.argv[1], sys.argv[2])
"""


def paid(book: str, out: str) -> Any:
    """A job whose labels are coins: no look passes."""
    X, y = people(1500)
    y = np.random.default_rng(8).permutation(y)
    tables = job()
    tables["goal"]["confidence"] = 1 - 1e-9
    tables["model"] |= {"training": "progressive", "levels": [0.3, 0.4, 0.6, 0.8]}
    return expost.tune(tables, X, y, ledger=Ledger.open(book), out=out)


def test_a_killed_job_resumes_with_the_noise_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thresholds and the key of the walk are those of the first process; it pays once."""
    from expost.selection.noise_path import PathSearch
    from expost.training.progressive import TrainingWalk

    book, out = str(tmp_path / "ledger.db"), str(tmp_path / "out")
    Ledger.create(book, ApproxBudget(4.0, 1e-4, ZERO_OUT))
    died = subprocess.run(
        [sys.executable, "-c", KILLED, book, out],
        env=dict(os.environ),
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    held = Ledger.open(book).standing().as_dict()["held"]["epsilon"]
    assert held > 0
    files = [path for path in Path(out).rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in files).decode("utf-8", "replace")
    drawn: list[Any] = []
    keys: list[str] = []
    draw, start = PathSearch._draw, TrainingWalk.__init__

    def drawing(self: Any, *values: Any) -> Any:
        drawn.append(self)
        return draw(self, *values)

    def starting(self: Any, path: Any, squares: Any, seed: bytes, simulated: bool) -> None:
        keys.append(seed.hex())
        start(self, path, squares, seed, simulated)

    monkeypatch.setattr(PathSearch, "_draw", drawing)
    monkeypatch.setattr(TrainingWalk, "__init__", starting)
    result = paid(book, out)
    assert keys[0] in kept  # the walk that was interrupted goes on with its own noise
    assert len(drawn) == len(result.attempts) - 1  # nothing is drawn anew for it
    standing = Ledger.open(book).standing().as_dict()
    assert standing["held"]["epsilon"] == 0
    assert standing["settled"]["epsilon"] == result.spent.epsilon
    if os.name == "posix":
        assert all(not path.stat().st_mode & 0o077 for path in files if keys[0] in path_text(path))
    assert keys[0] not in "".join(path_text(path) for path in Path(out).rglob("*"))


def path_text(path: Path) -> str:
    """The text of a file, if it is there."""
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
