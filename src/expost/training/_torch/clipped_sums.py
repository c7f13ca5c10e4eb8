"""Gradient clipping of DP-SGD on a torch device: clip factors and sums of clipped gradients.

:func:`clip_factors` computes min(1, clip / norm). :class:`ClippedSums` is the base class of the
sums that a step computes for many models at once; :class:`LinearSums` is its version for linear
models. The equivalent for native kernels is :mod:`expost.training._native.linear`.

Models with one expected batch size and one optimiser train together. Each has its own Poisson
sample and its own noise (:mod:`expost.training._torch.device_keystream`). The step itself is in
:mod:`expost.training._torch.model_group`. Samples are padded to a common size and padding has
weight 0; no sample is truncated.

Parameters, noise, optimiser and the sums over a batch are float64. In float32, one example would
affect the rounding of everything that is added after it, and so move a sum by many clipping norms.
On a CPU, :class:`expost.training._torch.modules.ModuleSums` rounds contributions to a grid, so that
its sums are exact. On CUDA, all sums are matrix products of at most 4,096 rows; the bound on their
rounding is :func:`expost.training.exact_noise.rounding_slack`, and the guarantee is computed with
it.

A row that does not count has the target NaN (:mod:`expost.training.configuration`). It is treated
as not taken. Class weights multiply the gradient at the outputs, so they are part of the gradient
whose norm is computed. Tests: ``tests/training/test_clipping.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from expost.arrays import Array
from expost.training.configuration import OWN
from expost.training.exact_noise import MOST_ROWS

# from this sampling rate and number of models on, products over all rows beat gathering the rows
_DENSE_RATE = 1 / 40
_DENSE_MODELS = 16
_LEAST = 2.0**-120  # smaller factors are replaced by 0
VANISHED = 2.0**-1021  # per term: the most that squares below the least double lose


class ClippedSums(ABC):
    """Sums of clipped per-example gradients of many models of one architecture.

    Each model has ``width`` parameters.
    """

    width: int
    rows: int
    exact_rows: int | None = None  # how many rows a step must sum exactly; None: ``rows``
    fixed = False  # whether a step is a fixed list of operations, which a CUDA graph can hold
    careful = True  # if False, an example without a finite norm spoils a sum and clears ``sound``
    sound: torch.Tensor | None = None
    valid: torch.Tensor | None = None  # which rows count; None if all do
    class_weights: torch.Tensor | None = None  # models × classes; None if no model has any

    def weigh(self, class_weights: Sequence[Sequence[float] | None], device: Any) -> None:
        """Set the class weights of the models that train next; None is 1 for all classes."""
        known = [len(class_weight) for class_weight in class_weights if class_weight is not None]
        self.class_weights = (
            torch.tensor(
                [
                    [1.0] * known[0] if class_weight is None else list(class_weight)
                    for class_weight in class_weights
                ],
                dtype=torch.float64,
                device=device,
            )
            if known
            else None
        )

    def weighted(self, slopes: torch.Tensor, targets: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the slopes (models × rows × outputs) times the weights of the rows' classes.

        ``first`` is the number of the first of these models.
        """
        if self.class_weights is None:
            return slopes
        weights = self.class_weights[first : first + len(slopes)].gather(1, targets.to(torch.int64))
        return slopes * weights[:, :, None].to(slopes.dtype)

    def targets(self, y: Array, device: str) -> torch.Tensor:
        """Return the targets, 0 where a row does not count, and note which rows count."""
        missing = np.isnan(y)
        self.valid = torch.from_numpy(~missing).to(device) if missing.any() else None
        return torch.from_numpy(np.where(missing, 0.0, y)).to(device)

    def before_step(self, step: int) -> None:  # noqa: B027  (nothing to prepare by default)
        """Prepare step number ``step``; called before the step, also when it is repeated."""

    @abstractmethod
    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """Return the initial parameters of one model per seed: models × width, float64."""

    @abstractmethod
    def bytes_per_example(self) -> int:
        """Return the scratch memory that one example of one model needs, in bytes."""

    @abstractmethod
    def chunk(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the sums over these rows (models × rows; only ``taken`` ones): models × width."""

    def __call__(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        """Return the sums over whole batches, computed in chunks that fit ``memory`` bytes.

        The sum over an empty batch is 0.
        """
        if rows.shape[1] == 0:
            return torch.zeros_like(parameters)
        if self.valid is not None:
            taken = taken & self.valid[rows]
        return self.batch(parameters, rows, taken, clips, memory)

    def batch(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        """Return the sums over a batch that is not empty."""
        columns = max(1, memory // (self.bytes_per_example() * len(parameters)))
        columns = min(columns, MOST_ROWS)
        if columns >= rows.shape[1]:
            return self.chunk(parameters, rows, taken, clips)
        total = torch.zeros_like(parameters)
        for first in range(0, rows.shape[1], columns):
            part = slice(first, first + columns)
            total += self.chunk(parameters, rows[:, part], taken[:, part], clips)
        return total


class LinearSums(ClippedSums):
    """Closed form for linear models, as in :mod:`expost.training._native.linear`.

    The sums are two batched matrix products over gathered rows. If many models sample a large part
    of few rows, gathering costs more than it saves. Then two plain products over all rows are made,
    and the second one has zeros for the rows that a model did not sample.
    """

    fixed = True

    def __init__(self, X: Array, y: Array, loss: str, outputs: int, device: str) -> None:
        self.X, self.y = torch.from_numpy(X).to(device), self.targets(y, device)
        self.norms = torch.sqrt(self.X.to(torch.float64).square().sum(1) + 1.0)
        self.loss, self.outputs = loss, outputs
        self.rows, self.width = len(X), outputs * (X.shape[1] + 1)

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        return torch.zeros(len(seeds), self.width, dtype=torch.float64, device=self.X.device)

    def bytes_per_example(self) -> int:
        return (self.X.element_size() + 8) * self.X.shape[1] + 8 * 8 * self.outputs

    def batch(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        models = len(parameters)
        many = models >= _DENSE_MODELS and _DENSE_RATE * self.rows <= rows.shape[1] <= MOST_ROWS
        if many and 3 * 8 * models * self.outputs * self.rows + 8 * self.X.numel() < memory:
            return self.dense(parameters, rows, taken, clips)
        return super().batch(parameters, rows, taken, clips, memory)

    def chunk(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        table = parameters.view(len(parameters), self.outputs, -1)
        gathered = self.X[rows]
        weights = table[:, :, :-1].to(gathered.dtype).transpose(1, 2)
        logits = torch.bmm(gathered, weights).to(torch.float64) + table[:, None, :, -1]
        residuals = self._clipped(logits, rows, taken, clips)
        sums = torch.bmm(residuals.transpose(1, 2), gathered.to(torch.float64))
        return torch.cat([sums, residuals.sum(1)[:, :, None]], dim=2).flatten(1)

    def dense(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the same sums by products over all rows."""
        models = len(parameters)
        table = parameters.view(models, self.outputs, -1)
        weights = table[:, :, :-1].to(self.X.dtype).flatten(0, 1)
        everywhere = torch.mm(weights, self.X.T).view(models, self.outputs, self.rows)
        columns = rows[:, None, :].expand(-1, self.outputs, -1)
        logits = (
            everywhere.gather(2, columns).transpose(1, 2).to(torch.float64) + table[:, None, :, -1]
        )
        residuals = self._clipped(logits, rows, taken, clips)
        spread = torch.zeros(
            models, self.outputs, self.rows + 1, dtype=torch.float64, device=self.X.device
        )
        # padding is written to a separate last column
        outside = torch.where(taken[:, None, :], columns, self.rows)
        spread.scatter_(2, outside, residuals.transpose(1, 2))
        sums = torch.mm(
            spread[:, :, :-1].reshape(models * self.outputs, self.rows), self.X.to(torch.float64)
        )
        both = [sums.view(models, self.outputs, -1), residuals.sum(1)[:, :, None]]
        return torch.cat(both, dim=2).flatten(1)

    def _clipped(
        self, logits: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the clipped residuals, models × rows × outputs; 0 where a row is not taken."""
        residuals = self.weighted(slopes_of(logits, self.y[rows], self.loss), self.y[rows])
        lengths = residuals.norm(dim=2) + 2.0**-500  # more than squares that vanished
        factors = clip_factors(lengths * self.norms[rows], clips[:, None]) * taken
        return cut(torch.where(factors[:, :, None] > 0, residuals * factors[:, :, None], 0.0))


def slopes_of(outputs: torch.Tensor, targets: torch.Tensor, loss: str) -> torch.Tensor:
    """Return the gradient of each example's loss at its outputs: models × examples × outputs."""
    outputs = outputs.detach()
    if loss == OWN:  # the first output is the loss; others are told, not trained
        slopes = torch.zeros_like(outputs)
        slopes[..., 0] = 1.0
        return slopes
    goals = targets[:, :, None].to(outputs.dtype)
    if loss == "squared":
        return 2.0 * (outputs - goals)
    if loss == "logistic":
        return torch.sigmoid(outputs) - goals
    labels = functional.one_hot(targets.to(torch.int64), outputs.shape[2])
    return torch.softmax(outputs, dim=2) - labels.to(outputs.dtype)


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 inside the context, whatever the caller's script allows.

    Ten bits of precision are too few for norms, and cuDNN allows TF32 by default.
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    new = hasattr(matmul, "fp32_precision")
    settings = [matmul, cudnn.conv, cudnn.rnn] if new else [matmul, cudnn]
    name, plain = ("fp32_precision", "ieee") if new else ("allow_tf32", False)
    before = [getattr(setting, name) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, name, plain)
        yield
    finally:
        for setting, old in zip(settings, before, strict=True):
            setattr(setting, name, old)


def clip_factors(norms: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """Return min(1, clip / norm), or 0 where the norm is not finite: that example adds nothing."""
    return torch.where(torch.isfinite(norms), torch.clamp(clips / norms, max=1.0), 0.0)


def cut(factors: torch.Tensor) -> torch.Tensor:
    """Replace tiny factors by 0, so that no product with a factor is close to underflow."""
    return torch.where(factors.abs() >= _LEAST, factors, 0.0)
