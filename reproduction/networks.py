"""What networks cost, trained until they pass: ``python -m reproduction networks``.

Every run is a job of :func:`expost.tune` with ``training="progressive"``, the public facts of its
table, a goal and defaults. Randomness is seeded: this is a simulation. Made-up rows are drawn anew
in each run. A run has a process of its own and a limit of time; a run that is not finished counts
as ``unfinished`` and is in no mean.

``chosen`` says that the constants of the rule were picked on rows like these. The other tasks were
run for the first time afterwards.

Tests: ``tests/reproduction/test_networks.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from reproduction.least_tasks import ADULT_FACTS

EXAMPLES = Path(__file__).parent.parent / "examples"
DELTA = 1e-6

Rows = tuple[Any, Any, dict[str, Any]]
"""Rows, targets (None: in a file), and more settings."""


@dataclass(frozen=True)
class NetworkTask:
    """A module, its rows and a goal."""

    words: str
    goal: float
    read: Callable[[Path, int], Rows]
    module: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)
    aim: float | None = None
    chosen: bool = False
    scoring: str = "private"
    files: tuple[str, ...] = ()


def _layers(*widths: int, rectified: bool = True) -> Any:
    """Return linear layers of these widths, with ReLU or tanh between them."""
    from torch import nn

    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU() if rectified else nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def ring_network() -> Any:
    return _layers(2, 8, 2, rectified=False)


def moons_network() -> Any:
    return _layers(2, 16, 16, 2)


def spirals_network() -> Any:
    return _layers(2, 32, 32, 3)


def digits_network() -> Any:
    return _layers(64, 32, 10)


def mixture_network() -> Any:
    return _layers(20, 64, 10)


def clusters_network() -> Any:
    return _layers(20, 32, 3)


def cancer_network() -> Any:
    return _layers(30, 16, 2)


def adult_network() -> Any:
    return _layers(113, 32, 2)


def picture_network() -> Any:
    from expost.training._torch.modules import mnist_cnn

    return mnist_cnn()


def gradient_network() -> Any:
    """Return a convolution over the 7 × 7 cells of oriented gradients, and a linear layer."""
    from torch import nn

    class Cells(nn.Module):
        def forward(self, rows: Any) -> Any:
            return 20.0 * rows[:, :392].reshape(-1, 8, 7, 7)  # rows have norm 1

    return nn.Sequential(
        Cells(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)
    )


def lora_network() -> Any:
    return _example("text_lora/model.py").make()


def _example(name: str) -> Any:
    """Return a module of the folder of examples."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("example", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ring(data: Path, run: int) -> Rows:
    X = np.random.default_rng(3 + run).uniform(-1, 1, size=(2400, 2))
    return X, (np.square(X).sum(axis=1) < 0.64).astype(int), {}


def _moons(data: Path, run: int) -> Rows:
    from sklearn.datasets import make_moons

    X, y = make_moons(2000, noise=0.2, random_state=run)
    return X, y, {}


def _spirals(data: Path, run: int) -> Rows:
    """Return three arms of a spiral."""
    generator = np.random.default_rng(run)
    y, radius = generator.integers(0, 3, 8000), generator.uniform(0.1, 1, 8000)
    angle = 4 * radius + 2 * np.pi / 3 * y + generator.normal(0, 0.15, 8000)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]), y, {}


def _digits(data: Path, run: int) -> Rows:
    from sklearn.datasets import load_digits

    return *load_digits(return_X_y=True), {}


def _mixture(data: Path, run: int) -> Rows:
    """Return ten Gaussian classes in twenty columns."""
    generator = np.random.default_rng(1000 + run)
    middles, y = generator.normal(size=(10, 20)), generator.integers(0, 10, 10_000)
    return middles[y] + generator.normal(size=(10_000, 20)), y, {}


def _clusters(data: Path, run: int) -> Rows:
    """Return three classes of two clusters each; eight of twenty columns matter."""
    from sklearn.datasets import make_classification

    shape = {"n_features": 20, "n_informative": 8, "n_classes": 3}
    X, y = make_classification(6000, **shape, class_sep=1.5, random_state=run)
    return X, y, {}


def _cancer(data: Path, run: int) -> Rows:
    """Return scikit-learn's breast cancer table; bounds are the largest values, rounded up."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return X, y, {"feature_bounds": [[0.0, float(np.ceil(top))] for top in X.max(axis=0)]}


def _lora(data: Path, run: int) -> Rows:
    reviews = _example("made_up_reviews.py")
    texts, labels = reviews.reviews(1500, seed=run)
    return reviews.tokens(texts), labels, {}


def _pictures(data: Path, run: int) -> Rows:
    """Return 6,000 of the pictures, others in each run."""
    with np.load(data / "mnist.npz") as archive:
        X, y = archive["x_train"], archive["y_train"]
    some = np.random.default_rng(run).permutation(len(X))[:6000]
    return X[some].reshape(-1, 784), y[some], {}


def _gradients(data: Path, run: int) -> Rows:
    """Return the oriented gradients of all pictures; the test rows are public."""
    from expost.features import OrientedGradients

    features = OrientedGradients("28x28")

    def of(pictures: Array) -> Array:
        return np.asarray(features.transform(pictures.reshape(-1, 28, 28)))

    with np.load(data / "mnist.npz") as archive:
        rows = {name: archive[name] for name in archive.files}
    test = Path(tempfile.mkdtemp()) / "test.npz"
    np.savez(test, X=of(rows["x_test"]), y=rows["y_test"])
    facts = {"scoring": "public", "public_test": str(test)}
    return of(rows["x_train"]), rows["y_train"], facts


def _adult(data: Path, run: int) -> Rows:
    return data / "adult.csv", None, {}


_UNIT = {"feature_bounds": [-1, 1], "classes": 2}
TASKS: dict[str, NetworkTask] = {
    "ring": NetworkTask(
        "a ring, 2,400 made-up rows, 42 parameters",
        *(0.85, _ring, ring_network, _UNIT),
        chosen=True,
    ),
    "moons": NetworkTask(
        "two moons, 2,000 made-up rows, 354 parameters",
        *(0.9, _moons, moons_network, {"feature_bounds": [-2, 3], "classes": 2}),
        chosen=True,
    ),
    "digits": NetworkTask(
        "scikit-learn's digits, 1,797 rows, 2,410 parameters",
        *(0.85, _digits, digits_network, {"feature_bounds": [0, 16], "classes": 10}),
        chosen=True,
    ),
    "spirals": NetworkTask(
        "three spirals, 8,000 made-up rows, 1,251 parameters",
        *(0.85, _spirals, spirals_network, {"feature_bounds": [-1, 1], "classes": 3}),
        chosen=True,
    ),
    "cancer": NetworkTask(
        "breast cancer, 569 rows, 530 parameters",
        *(0.85, _cancer, cancer_network, {"classes": 2}),
        chosen=True,
    ),
    "mixture": NetworkTask(
        "ten Gaussian classes, 10,000 made-up rows, 1,994 parameters",
        *(0.8, _mixture, mixture_network, {"feature_bounds": [-6, 6], "classes": 10}),
    ),
    "clusters": NetworkTask(
        "six clusters of three classes, 6,000 made-up rows, 771 parameters",
        *(0.75, _clusters, clusters_network, {"feature_bounds": [-8, 8], "classes": 3}),
    ),
    "adult": NetworkTask(
        "Adult, 32,561 rows, one hidden layer, 3,714 parameters",
        *(0.83, _adult, adult_network, ADULT_FACTS),
        files=("adult.csv",),
    ),
    "lora": NetworkTask(
        "the LoRA example, 1,500 made-up rows, 578 parameters",
        *(0.7, _lora, lora_network),
        {"feature_bounds": [0, 63], "classes": 2, "integers": True, "holdout": 0.2, "delta": 1e-5},
        aim=2.5,
        chosen=True,
    ),
    "cnn": NetworkTask(
        "6,000 of MNIST's pictures, convolutions, 26,010 parameters",
        *(0.8, _pictures, picture_network),
        {"feature_bounds": [0, 255], "classes": 10, "input_shape": (1, 28, 28)},
        aim=1.5,
        chosen=True,
        files=("mnist.npz",),
    ),
    "mnist": NetworkTask(
        "60,000 pictures of MNIST as oriented gradients, a convolution, 9,018 parameters",
        *(0.97, _gradients, gradient_network),
        {"feature_bounds": [0, 1], "classes": 10},  # as they are: no cell is negative
        aim=1.0,
        chosen=True,
        scoring="public",
        files=("mnist.npz",),
    ),
}


def one_run(task: NetworkTask, data: Path, seed: int, run: int) -> dict[str, Any]:
    """Make one job and return what it paid."""
    import expost

    X, y, more = task.read(data, run)
    facts = {"delta": DELTA, **task.facts, **more}
    given = (X,) if y is None else (X, y)
    random = expost.SimulationRandomness(
        int(np.random.SeedSequence([seed, run]).generate_state(1)[0])
    )
    result = expost.tune(
        *given,
        model=task.module,
        training="progressive",
        at_least=task.goal,
        randomness=random,
        simulation=True,
        **facts,
    )
    return {"epsilon": result.spent.epsilon, "passed": bool(result.passed)}


def networks(
    names: Sequence[str], data: Path, *, runs: int = 5, seed: int = 15183, seconds: float = 600
) -> dict[str, Any]:
    """Return one row per task, with what is the same for all of them.

    Parameters
    ----------
    names : sequence of str
        Of ``TASKS``.
    data : Path
        Folder of the files of data.
    runs, seed : int
        Runs of each task, and the seed of all.
    seconds : float
        The longest time of a run.
    """
    for name in names:
        if name not in TASKS:
            raise InvalidInput("tasks", name, "choose from " + ", ".join(TASKS))
        missing = [file for file in TASKS[name].files if not (data / file).is_file()]
        if missing:
            raise InvalidInput(
                "data", str(data), f"give the folder that holds {', '.join(missing)}"
            )
    rows = [
        _row(name, [_bounded(name, data, seed, run, seconds) for run in range(runs)])
        for name in names
    ]
    return {"randomness": f"simulation: seed {seed}", "rows": rows}


def write(path: Path, document: dict[str, Any]) -> None:
    """Replace the rows of the document's tasks in a file, and leave those of other tasks."""
    known = {row["task"]: row for row in document["rows"]}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        known = {row["task"]: row for row in before["rows"]} | known
    rows = [known[name] for name in TASKS if name in known]
    text = json.dumps(document | {"rows": rows}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _bounded(name: str, data: Path, seed: int, run: int, seconds: float) -> dict[str, Any] | None:
    """Make one run in a process of its own; None if it was not finished in time."""
    command = [sys.executable, "-m", "reproduction.networks", name, str(data), str(seed), str(run)]
    try:
        ended = subprocess.run(command, timeout=seconds, check=True, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return None
    outcome: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return outcome


def _row(name: str, outcomes: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    task = TASKS[name]
    ended = [outcome for outcome in outcomes if outcome is not None]
    epsilons = [outcome["epsilon"] for outcome in ended]
    return {
        "task": name,
        "what": task.words,
        "method": "progressive",
        "goal": task.goal,
        "scoring": task.scoring,
        "delta": task.facts.get("delta", DELTA),
        "epsilon": float(np.mean(epsilons)) if epsilons else None,
        "largest": max(epsilons, default=None),
        "passed": float(np.mean([outcome["passed"] for outcome in ended])) if ended else None,
        "runs": len(ended),
        "unfinished": len(outcomes) - len(ended),
        "aim": task.aim,
        "chosen": task.chosen,
    }


if __name__ == "__main__":
    _name, _data, _seed, _run = sys.argv[1:]
    print(json.dumps(one_run(TASKS[_name], Path(_data), int(_seed), int(_run))))
