"""What privacy per person costs: five rows per person against one, for the same persons.

``python -m scripts.per_person FOLDER`` needs ``adult.csv`` in the folder of data. Adult has one row
per person, so persons are made up: 6,000 groups of five rows, in two ways. *alike*: rows of one
class with neighbouring education, age and hours are one person, so that further rows tell little
that is new. *apart*: five rows at random. Each is compared with the same 6,000 persons of whom one
row, any of the five, is used. Everything else is the same: goal, δ, defaults of ``expost.tune``.
Every run draws its own rows: with 2,100 scoring persons, which ones they are moves a score by one
per cent, more than the noise does. It is a simulation: noise and draws come from seeds. The mean ε
of the passes, its standard error, and the ratio of the means are printed and written to
``docs/results/per_person.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from reproduction.least_tasks import ADULT_FACTS, DELTA

import expost
from expost.randomness.source import SimulationRandomness

PERSONS, ROWS, RUNS, BAR = 6000, 5, 16, 0.80
_OUT = Path(__file__).parent.parent / "docs" / "results" / "per_person.json"


def persons_of(frame: Any, alike: bool, run: int) -> Any:
    """Return 30,000 rows with the column ``person``, in no order."""
    generator = np.random.default_rng(run)
    rows = frame.iloc[generator.permutation(len(frame))[: PERSONS * ROWS]]
    if alike:
        rows = rows.sort_values(["income", "education_num", "age", "hours_per_week"])
    rows = rows.assign(person=np.repeat(np.arange(PERSONS), ROWS))
    return rows.iloc[generator.permutation(len(rows))]


def charge(rows: Any, run: int) -> float | None:
    """Return the ε of a run that passed."""
    tuned = expost.tune(
        rows,
        at_least=BAR,
        delta=DELTA,
        user="person",
        max_rows_per_user=ROWS,
        randomness=SimulationRandomness(run),
        simulation=True,
        **ADULT_FACTS,
    )
    return tuned.spent.epsilon if tuned.passed else None


def summed_up(charges: Sequence[float | None]) -> dict[str, float]:
    """Return the mean of the passes, its standard error, and their number."""
    passed = [epsilon for epsilon in charges if epsilon is not None]
    error = stdev(passed) / len(passed) ** 0.5
    return {"epsilon": mean(passed), "standard error": error, "passes": len(passed)}


def measure(folder: Path) -> dict[str, Any]:
    """Return the charges by grouping."""
    import pandas as pd

    frame = pd.read_csv(folder / "adult.csv", skipinitialspace=True)
    results: dict[str, Any] = {"persons": PERSONS, "rows": ROWS, "runs": RUNS, "bar": BAR}
    for name in ("alike", "apart"):
        tables = [persons_of(frame, name == "alike", run) for run in range(RUNS)]
        one = summed_up([charge(t.drop_duplicates("person"), run) for run, t in enumerate(tables)])
        five = summed_up([charge(table, run) for run, table in enumerate(tables)])
        ratio = five["epsilon"] / one["epsilon"]
        results[name] = {"one row": one, "five rows": five, "ratio": ratio}
        print(name, json.dumps(results[name]), flush=True)
    return results


if __name__ == "__main__":
    measured = measure(Path(sys.argv[1]))
    _OUT.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
