"""The least fixed ε with which diffprivlib and Opacus reach a bar: what one does without expost.

A fixed ε must be chosen beforehand. So for every bar we look for the least ε of a grid
(``GRID``: ten values per decade) at which some setting reaches the bar in at least 95 % of 20
seeds. *Much is given to them for free:* the search for ε, the choice of the setting at each ε (the
best of ``SETTINGS``, in hindsight) and the scores on public rows cost nothing, all other rows
train, and the seeds that were used to find the setting count as successes.

``raw``
    Rows as users of these libraries have them. MNIST, digits: pixels from 0 to 1 (divided by the
    norm of the row for a logistic regression; less 0.1307 and divided by 0.3081 for the network of
    MNIST). Adult:
    one-hot categories and numbers from 0 to 1 by public bounds. Nothing of it costs privacy.
``public``
    The public features that expost uses (docs/features.md), as if these libraries had them. Methods
    with them have the suffix ``-features``.

diffprivlib has pure ε (no δ). Opacus has δ = 10⁻⁶; its noise is calibrated by expost's privacy loss
distributions, which need less noise than Opacus's own accountants, and every step draws a Poisson
sample. Seeds are those of a simulation; no training protects anybody.

Accuracies are kept in docs/results/fixed_epsilon.json, and the rows of a table are derived from
them. ``python -m reproduction.fixed_epsilon adult opacus`` adds what is missing there. At each
ε that is tried, every setting is trained until two seeds missed the bar, or one setting has 20.
ε is found by bisection, so the value below it on the grid was tried as well and missed.

Tests: ``tests/reproduction/test_fixed_epsilon.py``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from reproduction.least_tasks import DELTA, TASKS, problem_named

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "fixed_epsilon.json"
SEEDS, MISSES = 20, 1  # 19 of 20 are 95 %
_STEPS = ("1", "1.25", "1.6", "2", "2.5", "3.15", "4", "5", "6.3", "8")
GRID = (*(float(f"{step}e{power}") for power in (-2, -1, 0, 1) for step in _STEPS), 100.0)
LIBRARIES = ("diffprivlib", "opacus")
METHODS = tuple(library + end for library in LIBRARIES for end in ("", "-features"))
EXTRA = "baselines"


@dataclass(frozen=True)
class Setting:
    """One way to use a library.

    Parameters
    ----------
    library, model : str
        What is trained.
    features : {"raw", "public"}
        What the model sees.
    numbers : tuple of float
        diffprivlib: C of a logistic regression, or the number of trees; Opacus: learning rate,
        epochs, batch size and clipping norm.
    least : float
        The setting is tried from this ε on: long steps need little noise.
    """

    library: str
    features: str
    model: str
    numbers: tuple[float, ...] = ()
    least: float = 0.0

    @property
    def method(self) -> str:
        """Name of the rows to which the setting belongs."""
        return self.library + ("-features" if self.features == "public" else "")

    def __str__(self) -> str:
        return " ".join([self.model, *(f"{number:g}" for number in self.numbers)])


def _settings(task: str) -> Iterable[Setting]:
    for features in ("raw", "public"):
        for penalty in (1e-4, 1e-3, 0.01, 0.1) if task == "mnist" else (1e-3, 0.01, 0.1, 1.0):
            yield Setting("diffprivlib", features, "logistic", (penalty,))
    yield Setting("diffprivlib", "raw", "bayes")
    if task != "mnist":  # of MNIST they get less than 30 % right even at ε = 63
        for trees in (10.0, 40.0):
            yield Setting("diffprivlib", "raw", "forest", (trees,))
    rates = {
        10.0: (1.0, 2.0, 4.0, 8.0),
        30.0: (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
        100.0: () if task == "mnist" else (1.0, 4.0, 16.0),
    }
    batch = 512.0 if task == "digits" else 4096.0
    for epochs, chosen in rates.items():
        for rate in chosen:
            least = 0.25 if task == "mnist" and (epochs, rate) >= (30.0, 8.0) else 0.0
            for features in ("public",) if task == "mnist" else ("raw", "public"):
                yield Setting("opacus", features, "linear", (rate, epochs, batch, 1.0), least)
    if (
        task == "mnist"
    ):  # the best of the 162 settings of docs/results/bank_mnist.json, and one more
        for numbers in (
            (0.1, 5.0, 1000.0, 1.0),
            (0.1, 10.0, 1000.0, 1.0),
            (1.0, 1.0, 512.0, 1.0),
            (1.0, 5.0, 512.0, 1.0),
            (1.0, 5.0, 1000.0, 1.0),
            (1.0, 10.0, 1000.0, 1.0),
            (2.0, 20.0, 2000.0, 1.0),
        ):
            yield Setting("opacus", "raw", "network", numbers)


SETTINGS = {task: tuple(_settings(task)) for task in ("mnist", "adult", "digits")}


def settings_of(task: str, method: str, epsilon: float) -> list[Setting]:
    """Return the settings of a method that are tried at an ε."""
    return [each for each in SETTINGS[task] if each.method == method and each.least <= epsilon]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that train and public rows that score, as a model sees them."""

    X: Floats
    y: Array
    test_X: Floats
    test_y: Array


@cache
def rows_for(task: str, features: str, data: Path) -> Rows:
    """Return the rows of a task: ``raw``, of ``unit`` norm, or ``public`` features."""
    problem, _ = problem_named(task, "public", data)

    def seen(X: Array) -> Floats:
        flat = np.asarray(X, dtype=np.float64).reshape(len(X), -1)
        if features == "public":
            assert problem.recipe.features is not None
            return problem.recipe.features.transform_cells(flat)
        if features == "raw":
            return flat
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        return np.asarray(flat / np.maximum(norms, 1e-12))

    rows = problem.rows
    labels = np.asarray(rows.y).astype(int), np.asarray(rows.score_y).astype(int)
    return Rows(seen(rows.X), labels[0], seen(rows.score_X), labels[1])


def need(library: str) -> None:
    """Refuse to go on without a library."""
    if importlib.util.find_spec(library) is None:
        raise InvalidInput(
            "methods",
            library,
            f"{library} is not installed: pip install 'expost[{EXTRA}]' in an environment of its "
            "own, because diffprivlib needs scikit-learn below 1.8; or leave --fresh out, which "
            "shows the committed rows",
        )


def accuracy(task: str, setting: Setting, epsilon: float, seed: int, data: Path) -> float:
    """Train once and return the accuracy on the public rows."""
    train = train_diffprivlib if setting.library == "diffprivlib" else train_opacus
    return train(task, setting, epsilon, seed, data)


def train_diffprivlib(task: str, setting: Setting, epsilon: float, seed: int, data: Path) -> float:
    """Train a model of diffprivlib."""
    import warnings

    from diffprivlib import models

    warnings.simplefilter("ignore")
    kind = "unit" if (setting.model, setting.features) == ("logistic", "raw") else setting.features
    rows = rows_for(task, kind, data)
    common: dict[str, Any] = {"epsilon": epsilon, "random_state": seed}
    classes = list(range(int(rows.y.max()) + 1))
    model: Any
    if setting.model == "logistic":
        model = models.LogisticRegression(data_norm=1.0, C=setting.numbers[0], **common)
    elif setting.model == "bayes":
        model = models.GaussianNB(bounds=(0, 1), **common)
    else:
        trees = int(setting.numbers[0])
        model = models.RandomForestClassifier(trees, bounds=(0, 1), classes=classes, **common)
    model.fit(rows.X, rows.y)
    return float(np.mean(model.predict(rows.test_X) == rows.test_y))


@cache
def noise_for(n: int, numbers: tuple[float, ...], epsilon: float) -> tuple[float, float, int]:
    """Return the noise multiplier, the sampling rate and the number of steps of a training."""
    from expost.training.configuration import Configuration

    rate, epochs, batch, clip = numbers
    plan = Configuration(rate, epochs, batch, clip, epsilon=epsilon, delta=DELTA).plan(n)
    return float(plan.noise_multiplier), float(plan.sampling_rate), int(plan.steps)


@cache
def _tensors(task: str, features: str, data: Path, device: str) -> tuple[Any, ...]:
    import torch

    rows = rows_for(task, features, data)
    X, test_X = (torch.tensor(part, dtype=torch.float32) for part in (rows.X, rows.test_X))
    if (task, features) == ("mnist", "raw"):
        X, test_X = ((part.reshape(-1, 1, 28, 28) - 0.1307) / 0.3081 for part in (X, test_X))
    y, test_y = (torch.tensor(part) for part in (rows.y, rows.test_y))
    return tuple(part.to(device) for part in (X, y, test_X, test_y))


def train_opacus(task: str, setting: Setting, epsilon: float, seed: int, data: Path) -> float:
    """Train with Opacus: its per-row gradients, its clipping and its noise, on Poisson samples."""
    import warnings

    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from expost.training._torch.modules import mnist_cnn

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y, test_X, test_y = _tensors(task, setting.features, data, device)
    rate, _, batch, clip = setting.numbers
    noise, share, steps = noise_for(len(X), setting.numbers, epsilon)
    torch.manual_seed(seed)
    classes = int(y.max()) + 1
    plain = mnist_cnn() if setting.model == "network" else torch.nn.Linear(X.shape[1], classes)
    model = GradSampleModule(plain.to(device))
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=int(batch),
    )
    loss = torch.nn.CrossEntropyLoss()
    for _ in range(steps):
        drawn = torch.nonzero(torch.rand(len(X), device=device) < share)[:, 0]
        optimiser.zero_grad()
        loss(model(X[drawn]), y[drawn]).backward()
        optimiser.step()
    with torch.no_grad():
        right = [
            (model(test_X[start : start + 2000]).argmax(1) == test_y[start : start + 2000]).sum()
            for start in range(0, len(test_X), 2000)
        ]
    return float(sum(int(count) for count in right) / len(test_X))


@dataclass
class Accuracies:
    """Accuracies by setting, ε and seed, of one method on one task."""

    task: str
    method: str
    scores: dict[str, dict[float, list[float]]] = field(default_factory=dict)

    @classmethod
    def load(cls, task: str, method: str, path: Path = RESULTS) -> Accuracies:
        """Read what is known."""
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        scores = known.get(f"{task} {method}", {})
        return cls(
            task,
            method,
            {
                name: {float(epsilon): list(values) for epsilon, values in levels.items()}
                for name, levels in scores.items()
            },
        )

    def save(self, path: Path = RESULTS) -> None:
        """Write the accuracies beside those of other methods."""
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        known[f"{self.task} {self.method}"] = {
            name: {f"{epsilon:g}": levels[epsilon] for epsilon in sorted(levels)}
            for name, levels in sorted(self.scores.items())
        }
        text = json.dumps(known, indent=1)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(_short_lists(text) + "\n", encoding="utf-8")
        partial.replace(path)

    def of(self, setting: str, epsilon: float) -> list[float]:
        """Return the accuracies of a setting at an ε, by seed."""
        return self.scores.setdefault(setting, {}).setdefault(epsilon, [])

    def reached(self, bar: float, epsilon: float) -> float | None:
        """Return the largest share of 20 seeds that a setting reached, if that is 95 % or more."""
        shares = [
            float(np.mean(np.array(levels[epsilon]) >= bar))
            for levels in self.scores.values()
            if len(levels.get(epsilon, ())) >= SEEDS
        ]
        passed = [share for share in shares if share >= 1 - MISSES / SEEDS]
        return max(passed, default=None)

    @property
    def largest(self) -> float:
        """The largest ε that was tried."""
        return max((epsilon for levels in self.scores.values() for epsilon in levels), default=0.0)

    def missed(self, bar: float, epsilon: float) -> bool:
        """Return whether every setting missed the bar twice at an ε."""
        settings = settings_of(self.task, self.method, epsilon)
        tried = [self.scores.get(str(each), {}).get(epsilon, []) for each in settings]
        return all(sum(score < bar for score in scores) > MISSES for scores in tried)

    def rows(self, bars: Sequence[float]) -> list[dict[str, Any]]:
        """Return a row for each bar that was reached: the least ε of the grid that did.

        Where the value below was not tried, there is no row: a smaller ε might do.
        """
        rows = []
        for bar in bars:
            least = next((e for e in GRID if self.reached(bar, e) is not None), None)
            if least is None or (least > GRID[0] and not self.missed(bar, _below(least))):
                continue
            row = {"bar": bar, "method": self.method, "mean_epsilon": least, "standard_error": 0.0}
            rows.append({**row, "passed": self.reached(bar, least)})
        return rows


def _below(epsilon: float) -> float:
    """Return the next smaller value of the grid."""
    return GRID[GRID.index(epsilon) - 1]


def _short_lists(text: str) -> str:
    """Write each list of numbers on one line."""
    import re

    return re.sub(r"\[\s+([^\[\]]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)


Evaluate = Callable[[list[tuple[Setting, float, int]]], list[float]]


def complete(
    known: Accuracies,
    bars: Sequence[float],
    evaluate: Evaluate,
    *,
    span: tuple[float, float] = (GRID[0], GRID[-1]),
    say: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Find the least ε of each bar by bisection on the grid; adds what must be trained."""
    grid = [epsilon for epsilon in GRID if span[0] <= epsilon <= span[1]]
    low = -1
    for bar in sorted(bars):
        high = len(grid) - 1
        if not reaches(known, bar, grid[high], evaluate):
            say(f"{known.task} {known.method}: {bar:g} is not reached at ε = {grid[high]:g}")
            save()
            break
        while high - low > 1:
            middle = (low + high) // 2
            if reaches(known, bar, grid[middle], evaluate):
                high = middle
            else:
                low = middle
            save()
        say(f"{known.task} {known.method}: {bar:g} at ε = {grid[high]:g}")
        low = high - 1


def reaches(known: Accuracies, bar: float, epsilon: float, evaluate: Evaluate) -> bool:
    """Train every setting until two seeds missed the bar, or until one setting has 20 seeds."""
    settings = settings_of(known.task, known.method, epsilon)

    def hopeful() -> list[Setting]:
        found = []
        for setting in settings:
            scores = known.of(str(setting), epsilon)
            if sum(score < bar for score in scores) <= MISSES:
                found.append((-float(np.mean(scores)) if scores else 0.0, setting))
        return [setting for _, setting in sorted(found, key=lambda pair: pair[0])]

    def add(jobs: list[tuple[Setting, float, int]]) -> None:
        for (setting, _, _), score in zip(jobs, evaluate(jobs), strict=True):
            known.of(str(setting), epsilon).append(round(score, 5))

    if known.reached(bar, epsilon) is not None:
        return True
    first = MISSES + 1
    add(
        [
            (setting, epsilon, seed)
            for setting in hopeful()
            for seed in range(len(known.of(str(setting), epsilon)), first)
        ]
    )
    while known.reached(bar, epsilon) is None:
        left = hopeful()
        if not left:
            return False
        done = len(known.of(str(left[0]), epsilon))
        more = SEEDS if done > first else first + 4  # few first: most settings miss soon
        add([(left[0], epsilon, seed) for seed in range(done, more)])
    return True


def train_missing(
    task: str,
    method: str,
    data: Path,
    *,
    bars: Sequence[float] | None = None,
    jobs: int = 1,
    span: tuple[float, float] = (GRID[0], GRID[-1]),
    out: Path = RESULTS,
) -> Accuracies:
    """Train what the rows of a method need and return all accuracies; they are saved as well."""
    need(method.removesuffix("-features"))
    known = Accuracies.load(task, method, out)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:

        def evaluate(wanted: list[tuple[Setting, float, int]]) -> list[float]:
            return list(pool.map(_one, [(task, *job, data) for job in wanted]))

        def say(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        def save() -> None:
            known.save(out)

        complete(known, bars or TASKS[task].bars, evaluate, span=span, say=say, save=save)
    save()
    return known


def _one(arguments: tuple[str, Setting, float, int, Path]) -> float:
    return accuracy(*arguments)


def main(arguments: Sequence[str]) -> None:
    """Take a task, a method, and data=…, jobs=…, out=…, span=low:high, bars=…, if not default."""
    task, method, *rest = arguments
    given = dict(each.split("=") for each in rest)
    options: dict[str, Any] = {"jobs": int(given.get("jobs", 1))}
    if "bars" in given:
        options["bars"] = [float(bar) for bar in given["bars"].split(",")]
    if "span" in given:
        low, high = given["span"].split(":")
        options["span"] = float(low), float(high)
    if "out" in given:
        options["out"] = Path(given["out"])
    train_missing(task, method, Path(given.get("data", "../shared/data")), **options)


if __name__ == "__main__":
    main(sys.argv[1:])
