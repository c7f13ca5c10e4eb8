"""Compare ``expost count`` with one capped Laplace or Gaussian histogram.

The results are in docs/results/counting_comparison.json.
Counted: groups whose 90 % interval is within the wanted error and whose estimate is within it of
the uncapped truth. The Microsoft web data are skipped where ``../shared/data`` is absent.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import expost
from expost import SimulationRandomness
from expost.privacy.dpsgd import gaussian_for

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "counting_comparison.json"
MSWEB = (
    Path(os.environ.get("EXPOST_SHARED", ROOT.parent / "shared")) / "data" / "msweb_user_area.npz"
)
RUNS = 20
DELTA = 1e-6


def msweb(path: Path) -> list[dict[str, Any]]:
    """285 areas of the Microsoft web data at ε = 2, within 10 %."""
    data = np.load(path)
    users, groups, truth = data["user"], data["group"], data["unique_users"]
    names = [str(place) for place in np.flatnonzero(truth)]
    table = pa.table({"user": users, "area": groups.astype(str)})
    sizes = {name: int(truth[int(name)]) for name in names}
    rows = []
    for noise, delta in (("pure", None), ("δ = 1e-6", DELTA)):
        generator = np.random.default_rng(5)
        runs = [histogram(users, groups, truth, delta, generator) for _ in range(RUNS)]
        rows.append(summary("capped histogram, m = 10", noise, runs))
        for cap in (10, "auto", "none"):
            runs = []
            for seed in range(RUNS):
                result = expost.count(
                    table,
                    by="area",
                    user="user",
                    keys=names,
                    epsilon=2,
                    delta=delta,
                    max_groups_per_user=cap,
                    randomness=SimulationRandomness(seed),
                    simulation=True,
                )
                runs.append((len(result.answers), right(result.answers, sizes, 0.1), result.spent))
            rows.append(summary(f"expost count, m = {cap}", noise, runs))
    return rows


def histogram(
    users: np.ndarray,
    groups: np.ndarray,
    truth: np.ndarray,
    delta: float | None,
    generator: np.random.Generator,
    most: int = 10,
    epsilon: float = 2.0,
) -> tuple[int, int, float]:
    """One noisy histogram after a random cap: answers, right ones, and what it cost."""
    order = np.lexsort((generator.random(len(users)), users))
    first = np.searchsorted(users[order], users[order])
    kept = np.arange(len(users)) - first < most
    counts = np.bincount(groups[order][kept], minlength=len(truth))
    if delta is None:
        noisy = counts + generator.laplace(0, most / epsilon, len(truth))
        width, cost = math.log(10) * most / epsilon, epsilon
    else:
        cost = gaussian_for(epsilon, delta).rho
        deviation = math.sqrt(most / (2 * cost))
        noisy = counts + generator.normal(0, deviation, len(truth))
        width = 1.6449 * deviation
    answered = width <= 0.1 * noisy
    good = answered & (np.abs(noisy - truth) <= 0.1 * truth)
    return int(answered.sum()), int(good.sum()), cost


def zipf() -> list[dict[str, Any]]:
    """1,000 groups with exponent 0.8, 200,000 users in at most 3 of them, ε = 1."""
    generator = np.random.default_rng(3)
    weights = np.arange(1, 1001) ** -0.8
    picks = generator.choice(1000, (200_000, 3), p=weights / weights.sum())
    pairs = np.unique(picks + 1000 * np.arange(200_000)[:, None])
    sizes = {f"g{place}": int(n) for place, n in enumerate(np.bincount(pairs % 1000))}
    rows = []
    for within in (0.1, 0.2):
        runs = []
        for seed in range(RUNS):
            result = expost.count(
                sizes,
                keys=list(sizes),
                epsilon=1,
                within=within,
                max_groups_per_user=3,
                randomness=SimulationRandomness(seed),
                simulation=True,
            )
            runs.append((len(result.answers), right(result.answers, sizes, within), result.spent))
        rows.append(summary(f"1,000 Zipf groups, m = 3, within {within:.0%}", "pure", runs))
    result = expost.count({"one": 100_000}, keys=["one"], epsilon=10)
    rows.append(
        summary("one group of 100,000, ε = 10", "pure", [(len(result.answers), 1, result.spent)])
    )
    return rows


def right(answers: Any, truth: dict[str, int], within: float) -> int:
    """Answers whose estimate is within the error of the uncapped truth."""
    return sum(
        abs(answer.estimate - truth[answer.group]) <= within * truth[answer.group]
        for answer in answers
    )


def summary(what: str, noise: str, runs: list[tuple[int, int, float]]) -> dict[str, Any]:
    """Means over the runs."""
    answered, good, spent = np.mean(runs, axis=0)
    deviation = float(np.std([run[1] for run in runs]))
    row = {
        "what": what,
        "noise": noise,
        "answered": float(answered),
        "right": float(good),
        "right_deviation": deviation,
        "spent": float(spent),
        "most_spent": float(max(run[2] for run in runs)),
        "runs": len(runs),
    }
    print(row, flush=True)
    return row


def main() -> None:
    rows = zipf()
    if MSWEB.exists():
        rows = [*msweb(MSWEB), *rows]
    else:
        print(f"skipped: {MSWEB.name} is not there")
        return
    RESULTS.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
