"""The fleet against sequential Opacus: examples a second, measured interleaved in one run.

``python -m benchmarks.fleet --device cpu|cuda [--quick]``. Data are synthetic, of the shapes of (a) a linear regression of 100,000 × 77,
(b) the CNN of Opacus' MNIST example, (c) a linear classifier of 6,000 × 5,000. Opacus runs twice: as documented (``PrivacyEngine``,
``DPDataLoader``) and hand-fed with ``X[idx]`` from Poisson samples drawn beforehand, which is faster. It has the number of torch threads
(1 or all) that is faster here. The fleet's time includes everything that ``train`` does: checks, sampling, strong noise, promises
(remembered after the first call). On a busy machine wall time punishes whoever uses more cores, so CPU time is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Row, interleaved
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training.modules import LOSSES, mnist_cnn

TARGETS = {"cpu": {"a": "≥ 40×", "b": "≥ 2.5×", "c": "≥ 12×"}, "cuda": {"a": "≥ 1000×", "b": "≥ 50×", "c": "≥ 300×"}}


@dataclass(frozen=True)
class Case:
    """A model, data of its shape, and about how many examples Opacus does in a third of a second on a CPU."""

    name: str
    key: str
    model: Any
    module: Callable[[], nn.Module]
    loss: str
    X: np.ndarray
    y: np.ndarray
    peer_steps: dict[int, int]
    fleet_examples: int


def cases(quick: bool) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 77), dtype=np.float32)
    steps = {32: 150, 256: 80, 1000: 30}
    y = X @ rng.standard_normal(77).astype(np.float32)
    yield Case(
        "linear regression 100,000 × 77",
        "a",
        "linear",
        lambda: nn.Linear(77, 1),
        "squared",
        X,
        y,
        steps,
        2_000_000,
    )
    rows = 6_000 if quick else 60_000
    images, digits = rng.standard_normal((rows, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, rows)
    steps = {32: 15, 256: 4, 1000: 2}
    yield Case("MNIST CNN", "b", mnist_cnn, mnist_cnn, "softmax", images, digits, steps, 6_000)
    X = rng.standard_normal((6_000, 5_000), dtype=np.float32)
    labels = rng.integers(0, 2, 6_000)
    steps = {32: 50, 256: 25, 1000: 10}
    yield Case(
        "linear classifier 6,000 × 5,000",
        "c",
        "logistic",
        lambda: nn.Linear(5000, 1),
        "logistic",
        X,
        labels,
        steps,
        150_000,
    )


def fleet(
    case: Case, batch: int, models: int, device: str, randomness: Randomness | None = None
) -> tuple[Callable[[], Any], float]:
    """A run of the fleet, and how many examples it processes (expected)."""
    each = max(batch, case.fleet_examples * (1 if device == "cpu" else 20) // models)
    settings = Configuration(0.1, each / len(case.X), batch, 1.0, noise_multiplier=1.0)
    together = Fleet(case.model, [settings] * models, loss=case.loss if callable(case.model) else None)
    simulation = randomness is not None
    run = lambda: together.train(case.X, case.y, device=device, randomness=randomness, simulation=simulation)  # noqa: E731
    return run, models * settings.plan(len(case.X)).steps * batch


def hand_fed(case: Case, batch: int, device: str) -> tuple[Callable[[], None], float]:
    """Opacus without its loader: ``X[idx]``, Poisson samples drawn beforehand."""
    module = case.module().to(device)
    wrapped = GradSampleModule(module)
    optimiser = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )
    X, y = torch.from_numpy(case.X).to(device), torch.from_numpy(case.y).to(device)
    rng = np.random.default_rng(1)
    samples = [np.flatnonzero(rng.random(len(X)) < batch / len(X)) for _ in range(case.peer_steps[batch])]
    chosen = [torch.from_numpy(sample).to(device) for sample in samples]

    def run() -> None:
        for idx in chosen:
            optimiser.zero_grad()
            LOSSES[case.loss](wrapped(X[idx]), y[idx]).backward()
            optimiser.step()
        _wait(device)

    return run, sum(map(len, samples))


def documented(case: Case, batch: int, device: str) -> tuple[Callable[[], None], float]:
    """Opacus as its documentation shows it."""
    module = case.module().to(device)
    data = TensorDataset(torch.from_numpy(case.X), torch.from_numpy(case.y))
    wrapped, optimiser, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    steps = max(2, case.peer_steps[batch] // 2)

    def run() -> None:
        for step, (X, y) in enumerate(loader):
            if step == steps:
                break
            optimiser.zero_grad()
            LOSSES[case.loss](wrapped(X.to(device)), y.to(device)).backward()
            optimiser.step()
        _wait(device)

    return run, steps * batch


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _better_threads(run: Callable[[], object]) -> int:
    """1 or all torch threads, whichever is faster now."""
    times = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        run()
        start = time.perf_counter()
        run()
        times[threads] = time.perf_counter() - start
    return min(times, key=lambda threads: times[threads])


def compare(case: Case, batch: int, models: int, device: str, turns: int) -> Iterator[Row]:
    """The fleet's row against each way to run Opacus, all interleaved."""
    ours, mine = fleet(case, batch, models, device)
    fed, theirs = hand_fed(case, batch, device)
    loaded, other = documented(case, batch, device)
    torch.set_num_threads(_better_threads(fed) if device == "cpu" else torch.get_num_threads())
    wall, cpu = clocked(ours, fed, loaded, turns=turns)
    what = f"({case.key}) {case.name}, batch {batch}, {models} models, an example"
    target = TARGETS[device][case.key] if batch == 256 else "–"
    yield Row(what, wall[0] / mine, "Opacus hand-fed", wall[1] / theirs, target)
    yield Row(what, wall[0] / mine, "Opacus as documented", wall[2] / other)
    if device == "cpu":
        yield Row(f"{what}, CPU time", cpu[0] / mine, "Opacus hand-fed, CPU time", cpu[1] / theirs)


def clocked(*contenders: Callable[[], object], turns: int) -> tuple[list[float], list[float]]:
    """Median wall seconds and median CPU seconds of each contender; they take turns."""
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for turn in range(turns + 1):
        for place, contender in enumerate(contenders):
            start = time.perf_counter(), time.process_time()
            contender()
            if turn:  # the first one warms up
                times[place].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    medians = [[statistics.median(column) for column in zip(*each, strict=True)] for each in times]
    return [each[0] for each in medians], [each[1] for each in medians]


def strength(case: Case, turns: int) -> Iterator[Row]:
    """What the strong keystream costs: Gaussians alone, and a training."""
    from expost.training.keystream import gaussians, streams

    out = np.empty(100_000)
    strong, fast = streams(Randomness(), 1)[0], streams(SimulationRandomness(0), 1)[0]
    seconds = interleaved(lambda: gaussians(strong, out), lambda: gaussians(fast, out), turns=5 * turns)
    yield Row("a Gaussian, ChaCha20", seconds[0] / len(out), "xoshiro256++", seconds[1] / len(out))
    ours, mine = fleet(case, 256, 16, "cpu")
    simulated, _ = fleet(case, 256, 16, "cpu", SimulationRandomness(0))
    seconds = interleaved(ours, simulated, turns=turns)
    yield Row(f"({case.key}) batch 256 with ChaCha20, an example", seconds[0] / mine, "with xoshiro256++", seconds[1] / mine)


def grid() -> Row:
    """End to end: a grid of 1,620 configurations of (a), 864 million examples, calibration included."""
    case = next(cases(True))
    settings = [
        Configuration(rate, epochs, batch, clip, epsilon=epsilon, delta=1e-6)
        for rate in (0.001, 0.01, 0.1)
        for epochs in (1, 5, 10)
        for batch in (32, 64, 128, 256, 512, 1000)
        for clip in (0.1, 1.0, 10.0)
        for epsilon in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    ]
    start = time.perf_counter()
    Fleet("linear", settings).train(case.X, case.y)
    return Row(f"(a) grid of {len(settings)} configurations, end to end", time.perf_counter() - start, target="≤ 180 s")


def rows() -> Iterator[Row]:
    """The short version for ``make bench``."""
    yield from measure("cpu", quick=True)


def measure(device: str, *, quick: bool) -> Iterator[Row]:
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    turns = 3 if quick else 5
    for case in cases(quick):
        sizes = {"cpu": (4 if case.key == "b" else 16,), "cuda": (64,) if case.key == "b" else (512,)}[device]
        for batch in (256,) if quick else (32, 256, 1000):
            for models in sizes if quick or device == "cpu" else (1, 8, *sizes):
                yield from compare(case, batch, models, device, turns)
        if case.key == "a" and device == "cpu":
            yield from strength(case, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="batch 256 only, fewer turns")
    parser.add_argument("--grid", action="store_true", help="only the whole grid of (a), end to end")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    found = []
    for row in [grid()] if arguments.grid else measure(arguments.device, quick=arguments.quick):
        print("  ".join((*row.cells(), f"{1 / row.seconds:,.0f} a second")), flush=True)
        found.append(row.as_dict())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
