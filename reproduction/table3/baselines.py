"""The baselines of Table 3: doubling over Papernot–Steinke tuning, and Brownian noise reduction.

Noise in floating point: for simulations only.

*Doubling.* Each level (at least twice the one before) tunes over all settings by Papernot and
Steinke's repeat-and-select and releases the best. The first level that passes ends the trial, and
all levels so far are paid: their Rényi curves add up and are converted at δ/L for L levels, each
sum at its best order ("stopped at level i" is a separate outcome, with its own share of δ). The
paper states neither the distribution of the number of runs nor its mean. Nine distributions are
tried and the one with the lowest mean cost is shown, which favours this baseline.

*Brownian.* A deterministic model whose noise is reduced level by level until the bar is passed
(:mod:`expost.mechanisms`):

* linear regression by sufficient statistics: Σ zzᵀ with z = (x, 1, y), of sensitivity
  ‖z‖² ≤ B² + 1 (off-diagonal entries count twice). A ridge of σ·√(2·width), about the norm of the
  noise, keeps the system solvable;
* classification by output perturbation: regularised logistic (softmax) regression on rows of
  norm 1, λ = 0.01. Its minimiser moves by at most √2/(nλ), or 1/(nλ) for two classes, when a row is
  added or removed (n, by which losses are divided, is a public number and does not change). It is
  solved to a gradient of 10⁻⁸, whose effect is added.

Level i of L has the ρ that (ε_i, δ/L) allows. Stopping at i is then ex-post (ε_i, δ): the outcomes
"stopped at i" have δ/L each. The bar is looked for on the public rows. Only ``reproduction reach``
uses this model; the rows of Table 3 come from the product (:mod:`reproduction.table3.product`). The
paper states no regularisation, no bound and no clipping; these are our choices. Tests:
``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from expost.arrays import Array
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness, SimulationRandomness
from expost.selection.baselines import (
    Doubling,
    RunCount,
    TruncatedNegativeBinomial,
    worst_guarantee,
)
from expost.selection.candidate import Candidate
from reproduction.simulated_paths import simulate_gaussian_paths
from reproduction.table3.problem import TableProblem, Trial, TrialOutcome
from reproduction.table3.tasks import DELTA, Split, task_named

LAWS = tuple(product((-0.5, 0.0, 1.0), (3.0, 10.0, 30.0)))  # shape η and mean number of runs
RIDGE = 0.01
_SOLVED = 1e-8
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class TunedLevel:
    """Tune one level: the best score of a random number of trainings of random settings."""

    candidates: tuple[Candidate, ...]
    runs: RunCount

    def __call__(self, data: Any, randomness: Randomness) -> float:
        picked = [
            self.candidates[randomness.below(len(self.candidates))]
            for _ in range(self.runs.draw(randomness))
        ]
        return max(float(each.call(data, randomness)) for each in picked)


def ladder(levels: Sequence[float]) -> list[float]:
    """Return the levels of doubling: the first, then each that is at least twice the last."""
    chosen = [levels[0]]
    for level in levels[1:]:
        if level >= 2 * chosen[-1] - 1e-12:
            chosen.append(level)
    return chosen


def doubling(problem: TableProblem, trials: int, source: SimulationRandomness) -> TrialOutcome:
    """Run doubling over tuned levels, with the run-count distribution chosen in hindsight.

    It is the cheapest one among those that pass most often.
    """
    promises = {level: worst_guarantee(problem.level(level)) for level in ladder(problem.levels)}
    return min((_doubling(problem, promises, *law, trials, source) for law in LAWS), key=_ranked)


def _doubling(
    problem: TableProblem,
    promises: Mapping[float, Guarantee],
    shape: float,
    mean: float,
    trials: int,
    source: SimulationRandomness,
) -> TrialOutcome:
    """Run doubling with one distribution of the number of runs."""
    law = TruncatedNegativeBinomial.with_mean(shape, mean)
    candidates, costs = tuned_levels(problem, promises, law)
    return TrialOutcome(
        "doubling",
        "papernot-steinke",
        None,
        f"η = {shape:g}, {mean:g} runs a level on average: "
        f"the best of {len(LAWS)} laws, in hindsight",
        None,
        "Papernot-Steinke 2022, Theorem 2; composed up to the first pass, δ shared by the levels",
        [_climb(candidates, problem.target, costs, source) for _ in range(trials)],
        sum(len(problem.level(level)) for level in promises),
        costs[-1],
    )


def tuned_levels(
    problem: TableProblem, promises: Mapping[float, Guarantee], law: TruncatedNegativeBinomial
) -> tuple[list[Candidate], list[float]]:
    """Return the tuned levels of doubling, and the total ε of stopping at each."""
    candidates = [
        Candidate(
            TunedLevel(problem.level(level), law),
            {"epsilon": level},
            guarantee=law.renyi_charge(curve),
        )
        for level, promise in promises.items()
        if (curve := promise.as_renyi()) is not None
    ]
    sums = Doubling(at_least=problem.target).charges(candidates)
    shared = DELTA / len(candidates)
    return candidates, [sums[place].to_approx(shared).epsilon for place in range(len(candidates))]


def _climb(
    candidates: Sequence[Candidate],
    target: float,
    costs: Sequence[float],
    source: SimulationRandomness,
) -> Trial:
    """Try one level after another; the first that passes is paid, with all before it."""
    for place, (candidate, cost) in enumerate(zip(candidates, costs, strict=True), 1):
        if candidate.call(None, source) >= target:
            return Trial(cost, True, place)
    return Trial(costs[-1], False, len(costs))


def _ranked(made: TrialOutcome) -> tuple[float, float]:
    """Rank by pass rate (up to 0.99), then by mean cost."""
    passed = float(np.mean([trial.passed for trial in made.trials]))
    return -min(passed, 0.99), float(np.mean([trial.epsilon for trial in made.trials]))


def public_scores(
    problem: TableProblem, data: Path, trials: int, generator: np.random.Generator
) -> Iterator[list[float]]:
    """Yield, trial by trial, the public score of the Brownian model at each level."""
    model = _model(problem.task.name, data)
    rhos = [gaussian_for(level, DELTA / len(problem.levels)).rho for level in problem.levels]
    deviations = [model.sensitivity / math.sqrt(2 * rho) for rho in rhos]
    for _ in range(trials):
        noises = simulate_gaussian_paths([each**2 for each in deviations], model.width, generator)
        yield [
            model.public_score(noise, deviation)
            for noise, deviation in zip(noises, deviations, strict=True)
        ]


class _Model(Protocol):
    """A deterministic model of ``rows`` rows, with noise added to its ``width`` numbers.

    Adding or removing a row moves these numbers by at most ``sensitivity``.
    """

    rows: int
    width: int
    sensitivity: float

    def public_score(self, noise: Array, deviation: float) -> float:
        """Return the public score alone."""


@lru_cache(maxsize=1)
def _model(name: str, data: Path) -> _Model:
    """Make the model of a task, once."""
    task = task_named(name)
    split = task.load(data)
    return _Statistics(split, task.row_bound) if task.row_bound is not None else _Classifier(split)


class _Statistics:
    """Linear regression from noisy sums of zzᵀ."""

    def __init__(self, split: Split, bound: float) -> None:
        self.train, self.test = _with_one(split.X, bound), _with_one(split.test_X, bound)
        self.y, self.test_y = split.y, split.test_y
        z = np.column_stack([self.train, self.y])
        self.rows, self.sums, self.size = len(z), z.T @ z, z.shape[1]
        self.width, self.sensitivity = self.size * (self.size + 1) // 2, bound**2 + 1
        self.upper = np.triu_indices(self.size)

    def symmetric(self, noise: Array) -> Array:
        """Return a vector as a symmetric matrix of the same norm.

        Off-diagonal entries appear twice.
        """
        matrix = np.zeros((self.size, self.size))
        matrix[self.upper] = noise / np.where(self.upper[0] == self.upper[1], 1.0, math.sqrt(2))
        return np.asarray(matrix + np.triu(matrix, 1).T)

    def public_score(self, noise: Array, deviation: float) -> float:
        return self._public(self._solved(noise, deviation))

    def _solved(self, noise: Array, deviation: float) -> Array:
        matrix = self.sums + self.symmetric(noise)
        ridge = deviation * math.sqrt(2 * self.size)
        left = matrix[:-1, :-1] + ridge * np.eye(self.size - 1)
        return np.asarray(np.linalg.solve(left, matrix[:-1, -1]))

    def _public(self, weights: Array) -> float:
        return -float(np.square(self.test @ weights - self.test_y).mean())


class _Classifier:
    """Regularised logistic regression (softmax for several classes) with noisy parameters."""

    def __init__(self, split: Split) -> None:
        self.train, self.test = _unit(split.X), _unit(split.test_X)
        self.y, self.test_y = split.y.astype(np.int64), split.test_y.astype(np.int64)
        self.classes = int(self.y.max()) + 1
        outputs = 1 if self.classes == 2 else self.classes
        self.rows = len(self.train)
        self.sensitivity = (1.0 if outputs == 1 else math.sqrt(2)) / (
            self.rows * RIDGE
        ) + 2 * _SOLVED / RIDGE
        self.weights = self._solve(outputs)
        self.width = self.weights.size
        # float32 is precise enough to count correct predictions.
        self.train, self.test = self.train.astype(np.float32), self.test.astype(np.float32)

    def _solve(self, outputs: int) -> Array:
        """Minimise a strongly convex loss by Nesterov's method, until the gradient is small."""
        weights = np.zeros((self.train.shape[1], outputs))
        ahead, smooth = weights, 0.5 + RIDGE  # rows have norm 1
        momentum = (math.sqrt(smooth) - math.sqrt(RIDGE)) / (math.sqrt(smooth) + math.sqrt(RIDGE))
        for _ in range(_MOST_STEPS):
            gradient = (
                self.train.T @ self._residuals(self.train @ ahead) / len(self.train) + RIDGE * ahead
            )
            if float(np.linalg.norm(gradient)) <= _SOLVED:
                break
            moved = ahead - gradient / smooth
            ahead, weights = moved + momentum * (moved - weights), moved
        return ahead

    def _residuals(self, logits: Array) -> Array:
        """Return predicted probabilities minus labels."""
        if logits.shape[1] == 1:
            return np.asarray(1 / (1 + np.exp(-logits)) - self.y[:, None])
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(shares)), self.y] -= 1
        return np.asarray(shares)

    def public_score(self, noise: Array, deviation: float) -> float:
        return self._public((self.weights + noise.reshape(self.weights.shape)).astype(np.float32))

    def _public(self, weights: Array) -> float:
        return float(np.mean(_decide(self.test @ weights) == self.test_y))


def _decide(logits: Array) -> Array:
    """Return the predicted classes."""
    return np.asarray(
        (logits[:, 0] > 0).astype(np.int64) if logits.shape[1] == 1 else logits.argmax(axis=1)
    )


def _unit(rows: Array) -> Array:
    """Scale rows to norm 1."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12))


def _with_one(rows: Array, bound: float) -> Array:
    """Append a 1 to each row, and scale the row down where (x, 1) is longer than the bound."""
    longer = np.column_stack([rows.astype(np.float64), np.ones(len(rows))])
    return np.asarray(longer * np.minimum(1.0, bound / np.linalg.norm(longer, axis=1))[:, None])
