"""The models of the fleet's benchmark, synthetic data for them, and the least work per example."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from expost.training._torch.modules import mnist_cnn


@dataclass(frozen=True)
class Case:
    """A model and data of its shape.

    ``peer_steps`` are the steps of Opacus per turn, by batch size; ``fleet_examples`` are the
    examples of the fleet per turn.
    """

    key: str
    name: str
    model: Any
    module: Callable[[], nn.Module]
    loss: str
    X: np.ndarray
    y: np.ndarray
    peer_steps: dict[int, int]
    fleet_examples: int


def _regression() -> nn.Module:
    return nn.Linear(77, 1)


def _classifier() -> nn.Module:
    return nn.Linear(5000, 1)


def case_of(key: str, quick: bool) -> Case:
    """Return case (a), (b) or (c); the data is the same each time."""
    rng = np.random.default_rng(ord(key))
    if key == "a":
        X = rng.standard_normal((100_000, 77), dtype=np.float32)
        y, steps = X @ rng.standard_normal(77).astype(np.float32), {32: 150, 256: 80, 1000: 30}
        return Case(
            key,
            "linear regression 100,000 × 77",
            "linear",
            _regression,
            "squared",
            X,
            y,
            steps,
            6_000_000,
        )
    if key == "b":
        rows, steps = 6_000 if quick else 60_000, {32: 15, 256: 4, 1000: 2}
        X, y = rng.standard_normal((rows, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, rows)
        return Case(key, "MNIST CNN", mnist_cnn, mnist_cnn, "softmax", X, y, steps, 12_000)
    X, y, steps = (
        rng.standard_normal((6_000, 5_000), dtype=np.float32),
        rng.integers(0, 2, 6_000),
        {32: 50, 256: 25, 1000: 10},
    )
    return Case(
        key,
        "linear classifier 6,000 × 5,000",
        "logistic",
        _classifier,
        "logistic",
        X,
        y,
        steps,
        300_000,
    )


def least_work(case: Case) -> tuple[float, float]:
    """Return the (FLOPs, bytes) that one example costs one model at least.

    FLOPs: a layer of w weights with p output positions (1 unless it is a convolution) needs p·w
    multiply-adds forward, as many for the gradient of its weights, and as many for that of its
    input unless it is the first layer; 2 FLOPs each. Left out, because they are small or do not
    occur once per example: biases, activations, pooling, norms, and the noise of a step. Bytes: the
    row of the example, read once.
    """
    module, counted = case.module(), []

    def count(layer: Any, inputs: Any, outputs: torch.Tensor) -> None:
        counted.append(layer.weight.numel() * outputs.numel() // layer.weight.shape[0])

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(torch.zeros((1, *case.X.shape[1:])))
    return 2.0 * sum(each * (2 if place == 0 else 3) for place, each in enumerate(counted)), float(
        case.X[0].nbytes
    )


class Peaks:
    """The peak speed of this machine with all its cores, in float32.

    FLOP/s of a large matrix product; bytes/s of a large copy (read and written) or a large sum
    (read), whichever is larger. It is measured between the contenders' turns; the best value
    counts.
    """

    def __init__(self, device: str) -> None:
        self._device, self.flops, self.bytes = device, 0.0, 0.0
        side, size = (1536, 1 << 26) if device == "cpu" else (8192, 1 << 29)
        self._factor, self._source = (
            torch.randn(side, side, device=device),
            torch.ones(size, device=device),
        )
        self._target, self._product = torch.zeros_like(self._source), torch.zeros_like(self._factor)
        self.look()

    def look(self) -> None:
        """Measure once, and keep the best values."""
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        side, size = len(self._factor), self._source.nbytes
        flops = (
            2
            * side**3
            / self._seconds(lambda: torch.mm(self._factor, self._factor, out=self._product))
        )
        copied = 2 * size / self._seconds(lambda: self._target.copy_(self._source))
        read = size / self._seconds(self._source.sum)
        torch.set_num_threads(threads)
        self.flops, self.bytes = max(self.flops, flops), max(self.bytes, copied, read)

    def _seconds(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        wait(self._device)
        return time.perf_counter() - start


def wait(device: str) -> None:
    """Wait until the device has finished."""
    if device != "cpu":
        torch.cuda.synchronize()
