"""Modules of one's own against Opacus: time per example, measured in turns in one run.

Run: python -m benchmarks.modules [--device cpu|cuda] [--models 1,8,64] [--json FILE]
     python -m benchmarks.modules --memory [--turns 3] [--json FILE]

Three modules that no native kernel supports, batch 256, synthetic data: a text model (embedding,
LayerNorm, MLP), an MLP with LayerNorm, and a small ResNet with GroupNorm. Opacus is hand-fed: it
gets ``X[idx]`` from Poisson samples that were drawn beforehand, and the number of torch threads (1
or all) that is faster on this machine. It trains one model at a time.

The time of the fleet includes everything that ``train`` does: checks, sampling, cryptographic
noise, promises, and on CUDA the recording of graphs.

``--memory`` fine-tunes all 11 M parameters of a BERT-like model on a CPU, 32 × 64 tokens a step on
one thread, in a process per contender: Opacus with per-example gradients and with ghost clipping.
The peak is the largest resident memory of the process (``ru_maxrss``), with all that it imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.fleet_cases import Case
from benchmarks.measure import Contender, Row, clocked
from expost.training import Configuration, Fleet

BATCH = 256
SIZES = {"cpu": (1, 8), "cuda": (1, 8, 64)}
TARGETS = {
    "cpu": {1: "≥ 1×", 8: "≥ 2×"},
    "cuda": {1: "≥ 1.5×", 8: "≥ 8×", 64: "≥ 25×"},
}
STEPS = {"cpu": {"text": 20, "mlp": 30, "resnet": 2}, "cuda": dict.fromkeys(("text", "mlp"), 400)}
STEPS["cuda"]["resnet"] = 200
TOKENS = 1000


class TextModel(nn.Module):
    """Embedding, LayerNorm and an MLP on the mean over the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(TOKENS, 64), nn.LayerNorm(64)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.norm(self.tokens(x.long())).mean(1))
        return made


def layer_norm_mlp() -> nn.Module:
    """Return an MLP of three layers with LayerNorm, on 100 features."""
    return nn.Sequential(
        nn.Linear(100, 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.LayerNorm(128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """Return a ResNet of five convolutions with GroupNorm, on images of 3 × 32 × 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def cases(device: str) -> Iterator[Case]:
    """Yield the three modules with data of their shapes."""
    rng, rows = np.random.default_rng(0), 20_000
    made = {
        "text": ("text model", TextModel, rng.integers(0, TOKENS, (rows, 32)), 4),
        "mlp": ("LayerNorm MLP", layer_norm_mlp, rng.standard_normal((rows, 100)), 10),
        "resnet": ("GroupNorm ResNet", resnet, rng.standard_normal((rows, 3, 32, 32)), 10),
    }
    for key, (name, module, X, classes) in made.items():
        steps, y = STEPS[device][key], rng.integers(0, classes, rows)
        yield Case(key, name, module, module, "softmax", X.astype(np.float32), y,
                   {BATCH: max(2, steps // (1 if device == "cpu" else 10))}, steps)  # fmt: skip


def fleet(case: Case, models: int, device: str) -> Contender:
    """Return a run of the fleet; ``fleet_examples`` of the case are its steps."""
    steps = case.fleet_examples
    settings = Configuration(0.1, steps * BATCH / len(case.X), BATCH, 1.0, noise_multiplier=1.0)
    together = Fleet(case.model, [settings] * models, loss=case.loss)

    def run() -> None:
        together.train(case.X, case.y, device=device)

    return Contender("expost", run, models * settings.plan(len(case.X)).steps * BATCH)


def measure(device: str, sizes: tuple[int, ...], turns: int = 5) -> Iterator[Row]:
    """Yield one row per module and number of models."""
    # here, as Opacus takes 160 MB, and a process of ``alone`` needs none of it
    from benchmarks.opacus_peers import better_threads, hand_fed

    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    for case in cases(device):
        fed = hand_fed(case, BATCH, device)
        if device == "cpu":
            torch.set_num_threads(better_threads(fed.run))
        for models in sizes:
            both = clocked([fleet(case, models, device), fed], turns)
            (wall, cpu), (peer_wall, peer_cpu) = both
            times = (cpu, peer_cpu) if device == "cpu" else (None, None)
            plural = "s" if models > 1 else ""
            yield Row(
                f"{case.name}, batch {BATCH}, {models} model{plural}, an example",
                wall,
                fed.name,
                peer_wall,
                TARGETS[device].get(models, "–"),
                *times,
            )


class EncoderLayer(nn.Module):
    """Attention with four heads, and an MLP, each with a shortcut and LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = *x.shape[:2], 4, x.shape[2] // 4
        query, key, value = (
            layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(2, 3) / shape[3] ** 0.5, dim=3)
        x = self.first(x + self.out((weights @ value).transpose(1, 2).reshape(x.shape)))
        mixed: torch.Tensor = self.second(x + self.down(nn.functional.gelu(self.up(x))))
        return mixed


class Bert(nn.Module):
    """The architecture of BERT with four layers of width 256, for two classes."""

    VOCABULARY, LENGTH, WIDTH = 30_522, 64, 256

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.places, self.norm = nn.Embedding(512, self.WIDTH), nn.LayerNorm(self.WIDTH)
        self.layers = nn.Sequential(*(EncoderLayer(self.WIDTH) for _ in range(4)))
        self.pooler, self.head = nn.Linear(self.WIDTH, self.WIDTH), nn.Linear(self.WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # a view of one row, as transformers makes it, fails in Opacus' ghost clipping
        places = torch.arange(x.shape[1], device=x.device).repeat(len(x), 1)
        encoded = self.layers(self.norm(self.words(x) + self.places(places)))
        outputs: torch.Tensor = self.head(torch.tanh(self.pooler(encoded[:, 0])))
        return outputs


_BERT_BATCH, _BERT_STEPS, _BERT_ROWS = 32, 8, 3_200


def _bert_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, Bert.VOCABULARY, (_BERT_ROWS, Bert.LENGTH))
    return tokens, rng.integers(0, 2, _BERT_ROWS)


def _alone_expost(clock: Callable[[], None]) -> int:
    """Train and call ``clock`` after every step; return the number of steps."""
    X, y = _bert_rows()
    epochs = _BERT_STEPS * _BERT_BATCH / len(X)
    settings = Configuration(0.1, epochs, _BERT_BATCH, 1.0, noise_multiplier=1.0)
    Fleet(Bert, [settings]).train(X, y, threads=1, progress=lambda done, total: clock())
    return settings.plan(len(X)).steps


def _alone_opacus(clock: Callable[[], None], *, ghost: bool) -> int:
    """Do the same with Opacus, with Poisson samples that are drawn beforehand."""
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    X, y = (torch.from_numpy(values) for values in _bert_rows())
    settings = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "expected_batch_size": _BERT_BATCH,
    }
    loss: Any = nn.CrossEntropyLoss()
    wrapped: Any
    optimiser: Any
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(
            Bert(), max_grad_norm=1.0, use_ghost_clipping=True
        )
        inner = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        optimiser = DPOptimizerFastGradientClipping(inner, **settings)
        loss = DPLossFastGradientClipping(wrapped, optimiser, loss)
    else:
        wrapped = GradSampleModule(Bert())
        optimiser = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.1), **settings)
    rng = np.random.default_rng(1)
    for _ in range(_BERT_STEPS):
        chosen = torch.from_numpy(np.flatnonzero(rng.random(len(X)) < _BERT_BATCH / len(X)))
        optimiser.zero_grad()
        loss(wrapped(X[chosen]), y[chosen]).backward()
        optimiser.step()
        clock()
    return _BERT_STEPS


_ALONE: dict[str, Callable[[Callable[[], None]], int]] = {
    "expost": _alone_expost,
    "Opacus": lambda clock: _alone_opacus(clock, ghost=False),
    "Opacus, ghost clipping": lambda clock: _alone_opacus(clock, ghost=True),
}


def alone(name: str) -> dict[str, float]:
    """Train the BERT-like model in this process; return seconds per example and peak bytes."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    clocks: list[tuple[float, float]] = []
    _ALONE[name](lambda: clocks.append((time.perf_counter(), time.process_time())))
    # the first two steps load and allocate; the others take one expected batch each
    steps = len(clocks) - 3
    wall, cpu = ((clocks[-1][index] - clocks[2][index]) / (steps * _BERT_BATCH) for index in (0, 1))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": wall, "cpu_seconds": cpu, "peak_bytes": peak}


def memory(turns: int) -> list[dict[str, Any]]:
    """Return medians of time and memory of every contender, which take turns."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in _ALONE}
    for _ in range(turns):
        for name, runs in measured.items():
            command = [sys.executable, "-m", "benchmarks.modules", "--alone", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
    return [
        {"name": name}
        | {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        | {"peak_bytes": max(run["peak_bytes"] for run in runs)}
        for name, runs in measured.items()
    ]


def rows() -> Iterator[Row]:
    """Yield the rows for ``make bench``."""
    yield from measure("cpu", SIZES["cpu"], turns=3)
    mine, *peers = memory(turns=2)
    for peer in peers:
        peaks = " and ".join(f"{run['peak_bytes'] / 1e9:.2f} GB" for run in (mine, peer))
        yield Row(
            f"BERT of 11 M parameters, batch {_BERT_BATCH} × {Bert.LENGTH}, an example ({peaks})",
            mine["seconds"],
            peer["name"],
            peer["seconds"],
            "≥ 2×",
            mine["cpu_seconds"],
            peer["cpu_seconds"],
        )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.modules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device")
    parser.add_argument("--models", help="numbers of models, e.g. 1,8,64")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--memory", action="store_true", help="the BERT-like model, with peaks")
    parser.add_argument("--alone", choices=list(_ALONE), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(alone(arguments.alone)))
        return
    if arguments.memory:
        measured = memory(arguments.turns)
        for run in measured:
            print(f"{run['name']}: {run['peak_bytes'] / 1e9:.3f} GB, "
                  f"{1e3 * run['cpu_seconds']:.1f} ms of CPU per example")  # fmt: skip
        if arguments.json:
            arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
        return
    sizes = SIZES[arguments.device]
    if arguments.models:
        sizes = tuple(int(each) for each in arguments.models.split(","))
    found = []
    for row in measure(arguments.device, sizes, arguments.turns):
        print("  ".join((*row.cells(), *row.more_cells())), flush=True)
        found.append(row.as_dict())
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
