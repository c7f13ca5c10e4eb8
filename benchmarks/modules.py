"""Modules of one's own against Opacus: time per example, measured in turns in one run.

Run: python -m benchmarks.modules [--device cpu|cuda] [--models 1,8,64] [--json FILE]

Three modules that no native kernel supports, batch 256, synthetic data: a text model (embedding,
LayerNorm, MLP), an MLP with LayerNorm, and a small ResNet with GroupNorm. Opacus is hand-fed: it
gets ``X[idx]`` from Poisson samples that were drawn beforehand, and the number of torch threads (1
or all) that is faster on this machine. It trains one model at a time.

The time of the fleet includes everything that ``train`` does: checks, sampling, cryptographic
noise, promises, and on CUDA the recording of graphs.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.fleet_cases import Case
from benchmarks.measure import Contender, Row, clocked
from benchmarks.opacus_peers import better_threads, hand_fed
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


def rows() -> Iterator[Row]:
    """Yield the rows for ``make bench``."""
    yield from measure("cpu", SIZES["cpu"], turns=3)


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
    arguments = parser.parse_args()
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
