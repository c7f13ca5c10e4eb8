"""Many models a step: trainings with one expected batch size and one optimiser move together on a torch device.

Each model has its own Poisson sample and its own noise. Samples are padded to the largest of the step, padding weighs 0; no sample is cut.
Models leave when their steps are done. Parameters, noise and optimiser are float64; clipped sums have the precision of the data.
Tests: ``tests/training/test_batched.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from expost.training.configuration import Configuration, Plan
from expost.training.device_stream import DeviceStream
from expost.training.keystream import Array
from expost.training.meter import Meter
from expost.training.update import BETA1, BETA2, TINY

DEFAULT_MEMORY = 4 << 30


class ClippedSums(ABC):
    """Sums of clipped per-example gradients of many models of one architecture, ``width`` parameters each."""

    width: int
    rows: int

    @abstractmethod
    def start(self, models: int) -> torch.Tensor:
        """First parameters, models × width, float64."""

    @abstractmethod
    def bytes_per_example(self) -> int:
        """Scratch memory that one example of one model takes."""

    @abstractmethod
    def chunk(self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
        """The sums over these rows (models × rows; only those taken count), models × width."""

    def __call__(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor, memory: int
    ) -> torch.Tensor:
        """The sums over whole batches, in chunks that fit ``memory`` bytes."""
        columns = max(1, memory // (self.bytes_per_example() * len(parameters)))
        total = torch.zeros_like(parameters)
        for first in range(0, rows.shape[1], columns):
            part = slice(first, first + columns)
            total += self.chunk(parameters, rows[:, part], taken[:, part], clips)
        return total


class LinearSums(ClippedSums):
    """Closed form for linear models (as :mod:`expost.training.linear`): gathered rows, two batched matrix products."""

    def __init__(self, X: Array, y: Array, loss: str, outputs: int, device: str) -> None:
        self.X, self.y = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
        self.norms = torch.sqrt(self.X.to(torch.float64).square().sum(1) + 1.0)
        self.loss, self.outputs = loss, outputs
        self.rows, self.width = len(X), outputs * (X.shape[1] + 1)

    def start(self, models: int) -> torch.Tensor:
        return torch.zeros(models, self.width, dtype=torch.float64, device=self.X.device)

    def bytes_per_example(self) -> int:
        return self.X.element_size() * self.X.shape[1] + 8 * 8 * self.outputs

    def chunk(self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
        table = parameters.view(len(parameters), self.outputs, -1)
        gathered = self.X[rows]
        weights = table[:, :, :-1].to(gathered.dtype).transpose(1, 2)
        logits = torch.bmm(gathered, weights).to(torch.float64) + table[:, None, :, -1]
        residuals = self._residuals(logits, self.y[rows])
        factors = clip_factors(residuals.norm(dim=2) * self.norms[rows], clips[:, None]) * taken
        residuals = torch.where(factors[:, :, None] > 0, residuals * factors[:, :, None], 0.0)
        sums = torch.bmm(residuals.to(gathered.dtype).transpose(1, 2), gathered).to(torch.float64)
        return torch.cat([sums, residuals.sum(1)[:, :, None]], dim=2).flatten(1)

    def _residuals(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.loss == "squared":
            return 2.0 * (logits - targets[:, :, None])
        if self.loss == "logistic":
            return torch.sigmoid(logits) - targets[:, :, None]
        return torch.softmax(logits, dim=2) - functional.one_hot(targets.to(torch.int64), self.outputs)


def clip_factors(norms: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """min(1, clip / norm), and 0 where the norm is no finite number: such an example adds nothing."""
    return torch.where(torch.isfinite(norms), torch.clamp(clips / norms, max=1.0), 0.0)


def train_batched(
    sums: ClippedSums,
    configurations: Sequence[Configuration],
    planned: Sequence[Plan],
    source: DeviceStream,
    most: int | None,
    memory: int | None,
    meter: Meter,
) -> list[Array]:
    """Final parameters of every configuration; at most ``most`` models move together."""
    limit = memory or DEFAULT_MEMORY
    state_bytes = 6 * 8 * sums.width
    together = max(1, min(limit // (2 * state_bytes), most or len(planned)))
    found: list[Any] = [None] * len(planned)
    for places in _groups(configurations, planned, int(together)):
        scratch = max(1, limit - len(places) * state_bytes)
        group = _Group([configurations[p] for p in places], [planned[p] for p in places], sums, scratch)
        for place, parameters in zip(places, group.train(source, meter), strict=True):
            found[place] = parameters
    return found


def _groups(configurations: Sequence[Configuration], planned: Sequence[Plan], together: int) -> list[list[int]]:
    """Places with one batch size and one optimiser, the longest trainings first."""
    families: dict[tuple[float, str], list[int]] = {}
    for place in sorted(range(len(planned)), key=lambda place: -planned[place].steps):
        families.setdefault((planned[place].sampling_rate, configurations[place].optimiser), []).append(place)
    return [family[first : first + together] for family in families.values() for first in range(0, len(family), together)]


class _Group:
    """Models that move together, the longest training first, so that those still training come first."""

    def __init__(
        self, configurations: Sequence[Configuration], planned: Sequence[Plan], sums: ClippedSums, scratch: int
    ) -> None:
        self.sums, self.scratch = sums, scratch
        self.parameters = sums.start(len(planned))
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.steps = [plan.steps for plan in planned]
        self.rate, self.batch = planned[0].sampling_rate, float(configurations[0].batch_size)
        self.optimiser = configurations[0].optimiser
        self.clips = self._column([float(each.clip) for each in configurations])
        self.noises = self._column([plan.noise_multiplier for plan in planned]) * self.clips
        self.noisy = any(plan.noise_multiplier > 0 for plan in planned)
        self.rates = self._column([float(each.learning_rate) for each in configurations])
        self.momenta = self._column([float(each.momentum) for each in configurations])

    def _column(self, numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=self.parameters.device)

    def train(self, source: DeviceStream, meter: Meter) -> Array:
        active = len(self.steps)
        for step in range(1, self.steps[0] + 1):
            while self.steps[active - 1] < step:
                active -= 1
            rows, taken = source.poisson_samples(self.rate, self.sums.rows, active)
            total = self.sums(self.parameters[:active], rows, taken, self.clips[:active], self.scratch)
            if self.noisy:
                total += self.noises[:active, None] * source.gaussians(active, self.sums.width)
            self._move(total / self.batch, step, active)
            meter.add(active * self.batch)
        return np.asarray(self.parameters.cpu().numpy())

    def _move(self, gradient: torch.Tensor, step: int, active: int) -> None:
        parameters, first, second = self.parameters[:active], self.first[:active], self.second[:active]
        rates = self.rates[:active, None]
        if self.optimiser == "sgd":
            parameters -= rates * gradient
        elif self.optimiser == "momentum":
            first.mul_(self.momenta[:active, None]).add_(gradient)
            parameters -= rates * first
        else:
            first.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            parameters -= rates * (first / (1 - BETA1**step)) / (torch.sqrt(second / (1 - BETA2**step)) + TINY)
