"""Coverage of the intervals of ``expost count`` at the worst true count, by simulation.

``python -m scripts.interval_coverage`` writes docs/results/coverage.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from reproduction.simulated_paths import simulate_gaussian_paths, simulate_laplace_paths

from expost.analytics.refinement_noise import (
    GaussianLevels,
    LaplaceLevels,
    NoiseLevels,
    geometric_grid,
    half_width,
    make_rule,
)

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "coverage.json"
PATHS = 40_000
COUNTS = np.geomspace(60, 2000, 60)


def coverage(
    levels: NoiseLevels, least: np.ndarray, widths: np.ndarray, paths: np.ndarray
) -> float:
    """Return the smallest coverage over true counts.

    A group that is not answered counts as covered.
    """
    worst = 1.0
    for count in COUNTS:
        good = count + paths >= least[:, None]
        stop = good.argmax(axis=0)
        miss = good.any(axis=0) & (np.abs(paths[stop, np.arange(PATHS)]) > widths[stop])
        worst = min(worst, 1 - float(miss.mean()))
    return worst


def main() -> None:
    """Simulate the coverage and write it."""
    generator = np.random.default_rng(20130)
    rows = []
    for ratio in (2.0, 2**0.5, 1.2, 1.1):
        for levels in (
            LaplaceLevels(geometric_grid(0.002, 10, ratio)),
            GaussianLevels(geometric_grid(0.0005, 1.5, ratio)),
        ):
            simulate = (
                simulate_laplace_paths if levels.law == "laplace" else simulate_gaussian_paths
            )
            spread = levels.scales if levels.law == "laplace" else levels.scales**2
            paths = simulate(list(spread), PATHS, generator)
            rule = make_rule(levels, 0.1, 0.9)
            naive = half_width(levels, 0.9)
            row = {
                "law": levels.law,
                "ratio": ratio,
                "factor": float((rule.half_widths / naive).max()),
                "coverage": coverage(levels, rule.least, rule.half_widths, paths),
                "naive_coverage": coverage(levels, naive / 0.1, naive, paths),
            }
            rows.append(row)
            print(row, flush=True)
    RESULTS.write_text(
        json.dumps({"confidence": 0.9, "within": 0.1, "paths": PATHS, "rows": rows}, indent=2)
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
