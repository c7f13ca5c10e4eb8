"""The trained parameters of a torch module as one flat vector per model, and back.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput


class Parameters:
    """Names, shapes and precision of the trained parameters of ``module``.

    ``factory`` makes further models of the same architecture.
    """

    def __init__(self, module: nn.Module, factory: Callable[[], Any], device: str) -> None:
        self.factory, self.device = factory, device
        self.trained = {
            name: value for name, value in module.named_parameters() if value.requires_grad
        }
        self.dtype = next(iter(self.trained.values())).dtype
        self.itemsize = next(iter(self.trained.values())).element_size()
        self.starts: dict[str, int] = {}  # where each parameter starts in the flat vector
        self.width = 0
        for name, value in self.trained.items():
            self.starts[name] = self.width
            self.width += value.numel()

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """Return the initial parameters of one new model per seed: models × width, float64."""
        made = []
        for seed in seeds:
            torch.manual_seed(seed % 2**63)
            made.append(self._flat(self.factory()))
        return torch.stack(made).to(self.device, torch.float64)

    def _flat(self, module: nn.Module) -> torch.Tensor:
        """Return the trained parameters of a module as one vector."""
        values = dict(module.named_parameters())
        if {name: value.shape for name, value in self.trained.items()} != {
            name: values[name].shape for name in self.trained if name in values
        }:
            raise InvalidInput(
                "model",
                "modules of different shapes",
                "pass a function that returns the same architecture at every call",
            )
        return torch.cat([values[name].detach().flatten().cpu() for name in self.trained])

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return flat parameters (… × width) by name, in the module's shapes and precision."""
        pieces = torch.split(
            flat.to(self.dtype), [value.numel() for value in self.trained.values()], dim=-1
        )
        shapes = [(*flat.shape[:-1], *value.shape) for value in self.trained.values()]
        return {
            name: piece.reshape(shape)
            for name, piece, shape in zip(self.trained, pieces, shapes, strict=True)
        }

    def arrays(self, flat: Array) -> dict[str, Array]:
        """Return the flat parameters of one model as arrays by name."""
        return {
            name: value.numpy().copy() for name, value in self.named(torch.from_numpy(flat)).items()
        }
