"""How good are the default grids of ``expost.tune``?

``python -m scripts.default_grid`` trains, on data sets of scikit-learn, every setting of a wide
grid and of the default grid at every level, without selection, and prints the best accuracy of
each. It is a simulation on public data: the best of many trainings is not private.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from sklearn import datasets

from expost.features import EncodedColumns
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.tuning.request.defaults import (
    default_batch,
    default_delta,
    default_epochs,
    job_with_defaults,
)

LEVELS = (0.25, 0.5, 1, 2, 4)


def data_sets() -> Iterator[tuple[str, Any, Any, int]]:
    """Yield name, numbers in [0, 1], labels and number of classes."""
    for name, bunch in (
        ("digits", datasets.load_digits()),
        ("breast_cancer", datasets.load_breast_cancer()),
        ("wine", datasets.load_wine()),
    ):
        low, width = bunch.data.min(0), np.ptp(bunch.data, axis=0)
        X = (bunch.data - low) / np.where(width > 0, width, 1)
        yield name, X, bunch.target, len(bunch.target_names)
    for rows, classes in ((3000, 4), (20_000, 2)):
        X, y = datasets.make_classification(
            rows, 20, n_informative=8, n_classes=classes, n_clusters_per_class=1, random_state=1
        )
        yield f"made up, {classes} classes", np.clip((X + 5) / 10, 0, 1), y, classes


def accuracies(X: Any, y: Any, classes: int, grid: list[Any], delta: float) -> list[float]:
    """Return the accuracy of each (level, rate, epochs, batch, clip) on a fifth of the rows."""
    order = np.random.default_rng(0).permutation(len(X))
    X, y, cut = X[order], y[order], int(0.8 * len(X))
    wanted = [
        Configuration(rate, epochs, batch, clip, epsilon=level, delta=delta)
        for level, rate, epochs, batch, clip in grid
    ]
    fleet = Fleet("softmax", wanted, classes=classes) if classes > 2 else Fleet("logistic", wanted)
    trained = fleet.train(X[:cut], y[:cut], randomness=SimulationRandomness(1), simulation=True)
    found = []
    for each in trained:
        raw = X[cut:] @ each.parameters["weight"].T + each.parameters["bias"]
        decided = raw.argmax(1) if classes > 2 else raw[:, 0] > 0
        found.append(float((decided == y[cut:]).mean()))
    return found


def main() -> None:
    """Print the best accuracy of the wide grid and of the default grid, level by level."""
    for name, X, y, classes in data_sets():
        n, delta = int(0.8 * len(X)), default_delta(len(X))
        X = EncodedColumns(X.shape[1], tuple((i, 0, 1) for i in range(X.shape[1])), 0).transform(X)
        search = job_with_defaults({"maximize": True, "classes": classes}, len(X))["search"]
        small = list(
            product(
                LEVELS,
                search["learning_rates"],
                default_epochs(n, default_batch(n)),
                [default_batch(n)],
                search["clips"],
            )
        )
        wide = [
            (level, rate, epochs, n / parts, clip)
            for level, rate, epochs, parts, clip in product(
                LEVELS, (1, 2, 4, 8, 16), (10, 20, 40), (4, 8, 16), (0.5, 1)
            )
            if n / parts >= 16 and n * epochs < 400_000
        ]
        print(f"{name}: {n} training rows, {len(small)} and {len(wide)} settings")
        for label, grid in (("wide", wide), ("default", small)):
            found = accuracies(X, y, classes, grid, delta)
            best = dict.fromkeys(LEVELS, 0.0)
            for (level, *_), accuracy in zip(grid, found, strict=True):
                best[level] = max(best[level], accuracy)
            cells = "  ".join(f"ε = {level:g}: {value:.3f}" for level, value in best.items())
            print(f"  {label:8} {cells}")


if __name__ == "__main__":
    main()
