"""Find the cheapest pure-DP classifier that passes a goal, on scikit-learn's breast-cancer data.

The candidates are private naive Bayes classifiers: noisy counts per class and bin of a few
features, with public bin edges. Each candidate also returns a noisy accuracy on held-out rows.
Training and held-out rows are disjoint, so a candidate promises its ε for both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer

from expost import Candidate, DiscreteLaplace, PureDP, Query, RandomDropping, Randomness

BAR = 0.88
EPSILONS = [0.1, 0.2, 0.4, 0.8, 1.6]
# Ranges from the data set's published description, not from the rows.
PUBLIC_RANGES = {
    "mean radius": (6.981, 28.11),
    "mean concave points": (0.0, 0.201),
    "worst perimeter": (50.41, 251.2),
    "worst concave points": (0.0, 0.291),
    "worst area": (185.2, 4254.0),
}


@dataclass(frozen=True)
class Model:
    """Log-probabilities per class, feature and bin, and a private estimate of the accuracy."""

    logs: Any
    accuracy: float


@dataclass(frozen=True)
class PrivateNaiveBayes:
    """Naive Bayes from counts with discrete Laplace noise.

    Replacing one row changes two cells in the table of each feature.
    """

    epsilon: float
    features: int
    bins: int

    @property
    def guarantee(self) -> PureDP:
        """The guarantee of one call, when one row may be replaced."""
        return PureDP(self.epsilon, "replace")

    def __call__(self, data: dict[str, Any], randomness: Randomness) -> Model:
        """Train on the training rows, and score on the held-out rows."""
        train = self._binned(data["train"])
        cells = 2 * self.features * self.bins
        query = Query(
            lambda rows: self._counts(train, rows["train_labels"]),
            sensitivity=2 * self.features,
            dimension=cells,
        )
        noisy = DiscreteLaplace(query, self.epsilon, "replace")(data, randomness)
        counts = np.array([max(1.0, float(cell)) for cell in noisy]).reshape(
            2, self.features, self.bins
        )
        logs = np.log(counts / counts.sum(axis=2, keepdims=True))
        right = Query(
            lambda rows: int(np.sum(self._predict(logs, rows["test"]) == rows["test_labels"]))
        )
        score = DiscreteLaplace(right, self.epsilon, "replace")(data, randomness)
        return Model(logs, float(score) / len(data["test"]))

    def _binned(self, rows: Any) -> Any:
        low, high = np.array(list(PUBLIC_RANGES.values())[: self.features]).T
        return np.clip(
            (rows[:, : self.features] - low) / (high - low) * self.bins, 0, self.bins - 1
        ).astype(int)

    def _counts(self, binned: Any, labels: Any) -> Any:
        counts = np.zeros((2, self.features, self.bins), dtype=int)
        for feature in range(self.features):
            np.add.at(counts, (labels, feature, binned[:, feature]), 1)
        return counts

    def _predict(self, logs: Any, rows: Any) -> Any:
        binned = self._binned(rows)
        evidence = sum(logs[:, feature, binned[:, feature]] for feature in range(self.features))
        return np.argmax(evidence, axis=0)


def load() -> dict[str, Any]:
    """Load the data and split it by position."""
    table = load_breast_cancer()
    columns = [list(table.feature_names).index(name) for name in PUBLIC_RANGES]
    rows, labels = table.data[:, columns], table.target
    return {
        "train": rows[:369],
        "train_labels": labels[:369],
        "test": rows[369:],
        "test_labels": labels[369:],
    }


def main() -> None:
    """Select a classifier, show its cost, and save its certificate."""
    console = Console()
    candidates = [
        Candidate(PrivateNaiveBayes(e, f, b), {"epsilon": e, "features": f, "bins": b}, repeats=4)
        for e, f, b in product(EPSILONS, (2, 3, 5), (4, 8))
    ]
    selector = RandomDropping(overhead=0.05, at_least=BAR)
    charges = selector.charges(candidates)
    console.print(
        f"{len(candidates)} settings, 4 copies each; bar: accuracy ≥ {BAR}. "
        "The data has not been read yet."
    )
    release = selector.select(candidates, load(), score=lambda model: model.accuracy)
    everything = sum(candidate.guarantee.size * candidate.repeats for candidate in candidates)
    table = Table(
        title="The cheapest private classifier that passes", title_justify="left", show_header=False
    )
    table.add_row("setting", ", ".join(f"{key} {value}" for key, value in release.params.items()))
    table.add_row("private accuracy", "–" if release.score is None else f"{release.score:.3f}")
    table.add_row("bar reached", "yes" if release.passed else "no")
    table.add_row("ε spent", f"[bold green]{float(release.spent.size):.2f}[/bold green]")
    table.add_row("ε at worst", f"{float(charges.worst_case.size):.2f}")
    table.add_row("ε of running all", f"{float(everything):.0f}")
    console.print(table)
    path = Path("out") / "breast_cancer.json"
    path.parent.mkdir(exist_ok=True)
    release.save(
        path,
        encode=lambda model: {"log_probabilities": model.logs.tolist(), "accuracy": model.accuracy},
    )
    console.print(f"Certificate: {path} (show it: .venv/bin/expost certificate {path})")


if __name__ == "__main__":
    main()
