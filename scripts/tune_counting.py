"""Search for the settings of the private runs of Algorithm 3 in Tables 1 and 2.

``python -m scripts.tune_counting`` prints the results, on synthetic data with its own seed. It is
run by hand; the chosen settings are in reproduction/counting.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from reproduction.counting.common import Tuning
from reproduction.counting.table1_mechanisms import random_dropping_pure
from reproduction.counting.table2_mechanisms import random_dropping_gaussian
from reproduction.counting.tables import synthetic

SHAPES = (
    ((0,), (1,)),
    ((0,), (4,)),
    ((0,), (8,)),
    ((0,), (16,)),
    ((0, 1), (8, 4)),
    ((0, 1, 2), (8, 4, 2)),
)


def main() -> None:
    """Try all settings and print the mean number of answers."""
    for name, run, orders in (
        ("table 1", random_dropping_pure, (32.0,)),
        ("table 2", random_dropping_gaussian, (32.0, 48.0, 64.0)),
    ):
        for overhead, (offsets, copies), order in product((0.05, 0.1, 0.2), SHAPES, orders):
            generator = np.random.default_rng(7)
            tuning = Tuning(overhead, offsets, copies, order)
            means = [
                run(synthetic(size, 100, generator), generator, tuning).answers.mean()
                for size in ("S8000", "S128000")
            ]
            print(f"{name} {tuning}: " + ", ".join(f"{mean:.2f}" for mean in means), flush=True)


if __name__ == "__main__":
    main()
