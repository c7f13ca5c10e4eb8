"""The trained parameters of a torch module as one flat vector a model, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput


class Parameters:
    """Names, shapes and precision of what is trained in ``module``; ``factory`` makes further models of the kind."""

    def __init__(self, module: nn.Module, factory: Callable[[], Any], device: str) -> None:
        self.factory, self.device = factory, device
        self.trained = {
            name: value for name, value in module.named_parameters() if value.requires_grad
        }
        self.dtype = next(iter(self.trained.values())).dtype
        self.width = sum(value.numel() for value in self.trained.values())

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """First parameters of a fresh model a seed, models × width, float64."""
        made = []
        for seed in seeds:
            torch.manual_seed(seed)
            made.append(self._flat(self.factory()))
        return torch.stack(made).to(self.device, torch.float64)

    def _flat(self, module: nn.Module) -> torch.Tensor:
        values = dict(module.named_parameters())
        if {name: value.shape for name, value in self.trained.items()} != {
            name: values[name].shape for name in self.trained if name in values
        }:
            raise InvalidInput(
                "model",
                "modules of different shapes",
                "give a function that returns the same architecture each time",
            )
        return torch.cat([values[name].detach().flatten().cpu() for name in self.trained])

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Flat parameters (… × width) by name, in the shapes and the precision of the module."""
        pieces = torch.split(flat, [value.numel() for value in self.trained.values()], dim=-1)
        shapes = [(*flat.shape[:-1], *value.shape) for value in self.trained.values()]
        return {
            name: piece.reshape(shape).to(self.dtype)
            for name, piece, shape in zip(self.trained, pieces, shapes, strict=True)
        }

    def arrays(self, flat: Array) -> dict[str, Array]:
        return {
            name: value.numpy().copy() for name, value in self.named(torch.from_numpy(flat)).items()
        }
