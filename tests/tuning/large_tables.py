"""A table in files, and jobs on it whose models must be the same bytes, however rows arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyarrow import parquet

import expost
from expost.randomness.source import SimulationRandomness
from expost.training.progressive import step_squares

CITIES = ["Bern", "Zug", "Chur"]


def cells(count: int = 700, seed: int = 0) -> dict[str, list[Any]]:
    """Rows with two numbers, a city and a label, some of them odd or empty."""
    generator = np.random.default_rng(seed)
    age = generator.uniform(10, 100, count)
    city = generator.integers(0, 4, count)
    yes = generator.normal((age - 55) / 25 + (city == 1), 0.5) > 0
    table: dict[str, list[Any]] = {
        "age": age.tolist(),
        "gain": generator.integers(-5, 9000, count).tolist(),
        "city": [[*CITIES, "elsewhere"][place] for place in city],
        "label": np.where(yes, "yes", "no").tolist(),
    }
    odd = {
        "age": [None, np.nan, np.inf, 1e308],
        "gain": [None],
        "city": [None, ""],
        "label": [None, "?"],
    }
    for name, values in odd.items():
        for value in values:
            table[name][int(generator.integers(count))] = value
    return table


def write(path: Path, table: dict[str, list[Any]]) -> Path:
    """Write a table as Parquet (with small row groups) or as text."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(table), path, row_group_size=97)
        return path
    rows = zip(*table.values(), strict=True)
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([",".join(table), *lines]) + "\n", encoding="utf-8")
    return path


FACTS: dict[str, Any] = {
    "target": "label",
    "classes": ["no", "yes"],
    "feature_bounds": {"age": [0, 120], "gain": [0, 5000]},
    "categories": {"city": CITIES},
}


def few_steps(levels: Any, first: float, steps_per_doubling: int) -> Any:
    """A short training, for tests of how sums are made."""
    return step_squares(levels, first, 2)


def tuned(table: Any, /, *, seed: int = 3, **more: Any) -> tuple[Any, ...]:
    """What a job releases: whether it passed, its cost, its score, and the bytes of its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expost.training.progressive.step_squares", few_steps)
        result = expost.tune(
            table,
            randomness=SimulationRandomness(seed),
            simulation=True,
            **{"at_least": 0.6, "max_epsilon": 3, **FACTS, **more},
        )
    model = (
        None
        if result.model is None
        else [(name, value.tobytes()) for name, value in sorted(result.model.parameters.items())]
    )
    told = None if result.told is None else result.told.as_dict()
    return result.passed, result.spent, result.score, model, told
