"""DP-SGD for any ``torch.nn.Module``: per-example gradients by ``torch.func``.

Batches are processed in chunks that fit the memory. Every example passes through the module on its
own (as a batch of one, vectorised), so its gradient cannot depend on other examples. Layers that
carry statistics of the batch from step to step are refused by name. Sums over examples are exact
(:func:`expost.training._torch.clipping.fixed_sum`).

Parameters that need no gradient, and buffers, are not changed and are not in the result. All models
share those of a module made under ``torch.manual_seed(0)``.

On a CPU, models train one after another. On CUDA, models of one batch size train together,
vectorised over models as well. Tests: ``tests/training/test_modules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._torch.clipping import (
    ClippedSums,
    clip_factors,
    cut,
    fixed_sum,
    grids_of,
)
from expost.training._torch.flat_parameters import Parameters

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": lambda outputs, target: functional.cross_entropy(outputs, target.to(torch.int64)),
    "logistic": lambda outputs, target: functional.binary_cross_entropy_with_logits(
        outputs.flatten(), target.to(outputs.dtype)
    ),
    "squared": lambda outputs, target: functional.mse_loss(
        outputs.flatten(), target.to(outputs.dtype)
    ),
}


def mnist_cnn() -> nn.Module:
    """Return the network of the MNIST example of Opacus.

    It has 26,010 parameters and takes images of 1 × 28 × 28 in ten classes.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def check_module(module: Any) -> nn.Module:
    """Return the module if it can be trained.

    Refuse a layer that mixes the examples of a batch, or that has no parameters yet (lazy layers).
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(
            "model", type(module).__name__, "pass a function that returns a torch.nn.Module"
        )
    for name, layer in module.named_modules():
        coupled = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        remembers = (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        )
        if coupled or remembers:
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name or 'the top'!r}",
                "it mixes the examples of a batch, so the gradient of one example cannot be "
                "bounded; use GroupNorm or LayerNorm",
            )
        if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name!r}",
                "specify the sizes: lazy layers have no parameters yet",
            )
    strange = {parameter.dtype for parameter in module.parameters()} - {
        torch.float32,
        torch.float64,
    }
    if strange:
        raise InvalidInput(
            "model",
            f"parameters of {strange.pop()}",
            "use float32 or float64: lower precision is too coarse for clipping",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("model", type(module).__name__, "pass a module with parameters to train")
    return module


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: two threads become slow when another process uses a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def outputs_of(module: nn.Module, X: Array) -> int:
    """Return the number of outputs per example, found with zeros: no data is read."""
    like = next(module.parameters())
    with torch.no_grad():
        blank = torch.zeros((1, *X.shape[1:]), dtype=like.dtype, device=like.device)
        try:
            return int(module(blank).numel())
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            raise InvalidInput(
                "X",
                f"rows of shape {X.shape[1:]}",
                "the model does not accept rows of this shape; pass rows that fit its first layer",
            ) from None


class ModuleSums(ClippedSums):
    """Sums of clipped per-example gradients of models of one architecture."""

    def __init__(
        self,
        module: nn.Module,
        factory: Callable[[], Any],
        X: Array,
        y: Array,
        loss: str,
        device: str,
    ) -> None:
        self.module = module.to(device).train()
        self.parameters = Parameters(self.module, factory, device)
        self.dtype, self.width = self.parameters.dtype, self.parameters.width
        self.X, self.y = torch.from_numpy(X).to(device, self.dtype), self.targets(y, device)
        self.rows = len(X)
        measure = LOSSES[loss]

        def example_loss(
            parameters: dict[str, torch.Tensor], x: torch.Tensor, target: torch.Tensor
        ) -> torch.Tensor:
            return measure(functional_call(self.module, parameters, (x[None],)), target[None])

        each_example = vmap(grad(example_loss), in_dims=(None, 0, 0), randomness="different")
        self._gradients = vmap(each_example, in_dims=(0, 0, 0), randomness="different")
        self._activations = self._count_activations()

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        made = self.parameters.start(seeds)
        torch.manual_seed(seeds[0])  # for dropout and similar layers; privacy does not rest on it
        return made

    def arrays(self, flat: Array) -> dict[str, Array]:
        return self.parameters.arrays(flat)

    def _count_activations(self) -> int:
        """Return how many numbers the layers return for one example."""
        seen = [0]

        def count(layer: nn.Module, arguments: Any, output: Any) -> None:
            seen[0] += output.numel() if isinstance(output, torch.Tensor) else 0

        hooks = [layer.register_forward_hook(count) for layer in self.module.modules()]
        outputs_of(self.module, np.empty((0, *self.X.shape[1:])))
        for hook in hooks:
            hook.remove()
        return seen[0]

    def bytes_per_example(self) -> int:
        return self.X.element_size() * (
            4 * self.width + 6 * self._activations + 2 * self.X[0].numel()
        )

    def chunk(
        self, parameters: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        gradients = self._gradients(self.parameters.named(parameters), self.X[rows], self.y[rows])
        flat = [value.flatten(2) for value in gradients.values()]
        norms = torch.sqrt(
            sum(
                (value.to(torch.float64).square().sum(2) for value in flat),
                torch.zeros((), device=rows.device),
            )
        )
        factors = cut(clip_factors(norms, clips[:, None]) * taken)
        sums, grids = [], grids_of(clips, self.exact_rows or self.rows)
        for value in flat:
            cleaned = (
                value
                if bool((factors > 0).all())
                else torch.where((factors > 0)[:, :, None], value, 0.0)
            )
            sums.append(fixed_sum(cleaned, factors, grids))
        return torch.cat(sums, dim=1)
