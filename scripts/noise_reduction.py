"""What second moments and progressive training cost for regressions.

``python -m scripts.noise_reduction`` runs whole jobs with private scoring on regressions, trained
by ``"progressive"``, ``"noise-reduction"`` and ``"auto"`` (seeded: a simulation). Bounds of columns
are those of the data, which is fine for a simulation and not for a real job. Rows are written to
docs/results/noise_reduction.json; those of other tasks are kept, so tasks can be run one by one:
``python -m scripts.noise_reduction flights``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

import expost
from expost.randomness.source import SimulationRandomness

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "noise_reduction.json"
DATA = ROOT.parent / "shared" / "data"
RUNS = {"flights": 4, "blogfeedback": 4, "diabetes": 10, "3 columns": 10, "50 columns": 6}
ROWS, DELTA = 20_000, 1e-6


def task(name: str) -> tuple[Any, Any, float]:
    """Return features and targets in [0, 1], and the bar as a share of the target's variance."""
    generator = np.random.default_rng(1)
    if name == "flights":
        file = np.load(DATA / "flights_100k.npz")
        return unit(file["X"])[:ROWS], clipped(file["y"], 0.01, 0.99)[:ROWS], 0.9
    if name == "blogfeedback":
        file = np.load(DATA / "blogfeedback.npz")
        return unit(file["X"])[:ROWS], np.log1p(file["y"])[:ROWS] / 8, 0.8
    if name == "diabetes":  # 442 rows, each ten times with noise
        X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        X = np.tile(unit(X), (10, 1))
        return np.clip(X + 0.05 * generator.normal(size=X.shape), 0, 1), np.tile(unit(y), 10), 0.65
    columns = int(name.split()[0])
    X = np.clip(generator.normal(0.5, 0.18, (ROWS, columns)), 0, 1)
    signal = (X - 0.5) @ generator.normal(size=columns) / np.sqrt(columns) / 0.18
    return X, np.clip(0.5 + 0.12 * (signal + 0.6 * generator.normal(size=ROWS)), 0, 1), 0.6


def unit(values: Any) -> Any:
    """Scale columns to [0, 1]."""
    low, high = values.min(axis=0), values.max(axis=0)
    return np.asarray((values - low) / np.where(high > low, high - low, 1), dtype=np.float64)


def clipped(values: Any, low: float, high: float) -> Any:
    """Scale what lies between two quantiles to [0, 1]."""
    first, last = np.quantile(values, [low, high])
    return np.clip((values - first) / (last - first), 0, 1)


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return what jobs on a task cost, by the way of training."""
    X, y, share = task(name)
    found = []
    for training in ("progressive", "noise-reduction", "auto"):
        made = [
            expost.tune(
                X,
                y,
                feature_bounds=[0, 1],
                target_bounds=[0, 1],
                at_most=share * float(np.var(y)),
                delta=DELTA,
                training=training,
                randomness=SimulationRandomness(seed),
                simulation=True,
            )
            for seed in range(RUNS[name])
        ]
        spent = [each.spent.epsilon for each in made]
        found.append(
            {
                "task": f"{name} ({len(X):,} rows, {X.shape[1]} columns)",
                "bar": f"{share:g} of the variance",
                "mechanism": training,
                "delta": DELTA,
                "trials": len(spent),
                "mean": float(np.mean(spent)),
                "se": float(np.std(spent, ddof=1) / np.sqrt(len(spent))),
                "pass_rate": float(np.mean([each.passed for each in made])),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def main(names: list[str]) -> None:
    """Measure the named tasks, or all, and write the results."""
    warnings.simplefilter("ignore")
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    for name in names or RUNS:
        known = [row for row in known if not row["task"].startswith(name)] + rows_of(name)
        record = {"randomness": "simulation: seeded", "rows": known}
        RESULTS.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
