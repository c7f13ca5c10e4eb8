"""A tiny tuning job: two clouds in the unit square."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

TINY: dict[str, Any] = {
    "data": {"feature_bounds": [0, 1], "classes": 2},
    "model": {"kind": "logistic", "training": "dp-sgd"},
    "search": {
        "epsilons": [1, 4],
        "learning_rates": [1, 4],
        "epochs": [4],
        "batch_sizes": [40],
        "clips": [1],
    },
    "goal": {"metric": "accuracy", "at_least": 0.7},
    "privacy": {"delta": 1e-4, "attempts": 3, "max_epsilon": 100.0},
}


def job(**changes: dict[str, Any]) -> dict[str, Any]:
    """The tiny job with some keys changed; None takes a key out."""
    made = copy.deepcopy(TINY)
    for table, keys in changes.items():
        for key, value in keys.items():
            if value is None:
                made[table].pop(key, None)
            else:
                made[table][key] = value
    if "maximize" in made["goal"]:
        made["privacy"].pop("attempts", None)
    return made


def clouds(rows: int = 300, noise: float = 0.12) -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    y = generator.integers(0, 2, rows)
    X = np.where(y[:, None] == 1, 0.75, 0.25) + noise * generator.normal(size=(rows, 2))
    return X, y


def line(rows: int = 300) -> tuple[Any, Any]:
    generator = np.random.default_rng(6)
    X = generator.random((rows, 2))
    return X, 10 * X[:, 0] + generator.normal(size=rows) * 0.3


TOML = """\
[data]
path = "rows.npz"
feature_bounds = [0, 1]
classes = 2

[model]
kind = "logistic"
training = "dp-sgd"
[search]
epsilons = [1, 4]
learning_rates = [1, 4]
epochs = [4]
batch_sizes = [40]
clips = [1]

[goal]
metric = "accuracy"
at_least = 0.7

[privacy]
delta = 1e-4
attempts = 3
max_epsilon = 100
"""


def write(folder: Path, text: str = TOML) -> Path:
    """The tiny job as files."""
    X, y = clouds()
    np.savez(folder / "rows.npz", X=X, y=y)
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path
