"""A frozen transformer encoder with a trained head.

The encoder is made on the spot here. A real one is loaded from a file with public weights. Frozen
parameters get no gradients and no noise; only the head is trained.
"""

from __future__ import annotations

import torch
from torch import nn


class FrozenEncoder(nn.Module):
    """Token ids of shape (rows, length) to one value per class."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # stands for public weights
            self.embedding = nn.Embedding(vocabulary, width)
            layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.requires_grad_(False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


def make(vocabulary: int = 64, width: int = 32) -> FrozenEncoder:
    """Return a new model."""
    return FrozenEncoder(vocabulary, width)
