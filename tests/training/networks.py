"""Random small networks for tests: supported and unsupported layers in any combination."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 3


class Scale(nn.Module):
    """A parameter that no layer of torch holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return x * self.scale


class Residual(nn.Module):
    """x + f(x), with one layer that is applied twice."""

    def __init__(self, width: int, twice: bool) -> None:
        super().__init__()
        self.layer, self.twice = nn.Linear(width, width), twice

    def forward(self, x):
        made = torch.tanh(self.layer(x))
        return x + (self.layer(made) if self.twice else made)


class Tied(nn.Module):
    """A weight that is used by its layer and transposed by another product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width + 1)

    def forward(self, x):
        return functional.linear(torch.tanh(self.layer(x)), self.layer.weight.T)


class Recurrent(nn.Module):
    """An LSTM or a GRU; returns the outputs of all times."""

    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.cell = kind(width, width, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        return x + self.inner(x, x, x, need_weights=False)[0]


class Text(nn.Module):
    """Tokens, positions, layers over the sequence, a mean and an output."""

    def __init__(self, rng: np.random.Generator, places: int, width: int) -> None:
        super().__init__()
        padding = 0 if rng.random() < 0.5 else None
        self.tokens = nn.Embedding(7, width, padding_idx=padding)
        self.places = nn.Embedding(places, width)
        layers: list[nn.Module] = []
        for _ in range(rng.integers(1, 4)):
            layers.append(_sequence_layer(rng, width))
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 7)
        if rng.random() < 0.3:
            self.head.weight = self.tokens.weight
        self.last = nn.Linear(7, CLASSES)

    def forward(self, x):
        tokens = x.long()
        where = torch.arange(tokens.shape[1], device=x.device)
        hidden = self.tokens(tokens) + self.places(where)
        return self.last(functional.relu(self.head(self.layers(hidden).mean(1))))


def _sequence_layer(rng: np.random.Generator, width: int) -> nn.Module:
    """Return a layer on examples × places × width."""
    choice = rng.integers(0, 9)
    if choice == 0:
        return nn.LayerNorm(width)
    if choice == 1:
        return Attention(width)
    if choice == 2:
        return Recurrent(nn.LSTM if rng.random() < 0.5 else nn.GRU, width)
    if choice == 3:
        return nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
    if choice == 4:
        return Tied(width)
    if choice == 5:
        return Scale(width)
    if choice == 6:
        return nn.RMSNorm(width)
    return Residual(width, twice=bool(rng.random() < 0.5))


def _vector_network(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    width = int(rng.integers(2, 9))
    first, layers = width, []
    for _ in range(rng.integers(0, 5)):
        choice = rng.integers(0, 9)
        if choice <= 2:
            outputs = int(rng.integers(2, 9))
            layers.append(nn.Linear(width, outputs, bias=bool(rng.random() < 0.7)))
            width = outputs
        elif choice == 3:
            layers.append(nn.LayerNorm(width, bias=bool(rng.random() < 0.7)))
        elif choice == 4:
            layers.append(nn.PReLU())
        elif choice == 5:
            layers.append(Scale(width))
        elif choice == 6:
            layers.append(Tied(width))
        elif choice == 7:
            layers.append(Residual(width, twice=bool(rng.random() < 0.5)))
        else:
            layers.append(nn.ReLU(inplace=bool(rng.random() < 0.5)) if layers else nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)), (first,)


def _image_network(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    line = bool(rng.random() < 0.3)
    channels, size = 2 * int(rng.integers(1, 3)), int(rng.integers(5, 9))
    shape = (channels, size) if line else (channels, size, size - 1)
    layers: list[nn.Module] = []
    for _ in range(rng.integers(1, 4)):
        outputs = 2 * int(rng.integers(1, 4))
        settings = {
            "stride": int(rng.integers(1, 3)),
            "padding": int(rng.integers(0, 2)),
            "dilation": int(rng.integers(1, 3)) if rng.random() < 0.3 else 1,
            "groups": 2 if rng.random() < 0.3 else 1,
            "bias": bool(rng.random() < 0.7),
            "padding_mode": "circular" if rng.random() < 0.1 else "zeros",
        }
        kind = nn.Conv1d if line else nn.Conv2d
        layer = kind(channels, outputs, int(rng.integers(1, 4)), **settings)
        try:
            size = nn.Sequential(*layers, layer)(torch.zeros(1, *shape))[0, 0].numel()
        except RuntimeError:
            break  # the image has become too small
        layers.append(layer)
        channels = outputs
        if rng.random() < 0.6 and size > 1:
            layers.append(nn.GroupNorm(2, channels))
        layers.append(nn.ReLU(inplace=bool(rng.random() < 0.5)))
    pool: nn.Module = nn.AdaptiveAvgPool1d(2) if line else nn.AdaptiveAvgPool2d(2)
    return (
        nn.Sequential(
            *layers, pool, nn.Flatten(), nn.Linear(channels * (2 if line else 4), CLASSES)
        ),
        shape,
    )


def random_network(seed: int) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """Return a network in float64, some of it frozen, with rows and class numbers for it."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    rows = int(rng.integers(1, 7))
    kind = rng.integers(0, 3)
    if kind == 2:
        places, width = int(rng.integers(1, 6)), 4
        module: nn.Module = Text(rng, places, width)
        X = rng.integers(0, 7, (rows, places)).astype(float)
    else:
        module, shape = (_vector_network if kind == 0 else _image_network)(rng)
        X = rng.standard_normal((rows, *shape))
    for parameter in module.parameters():
        parameter.requires_grad_(bool(rng.random() < 0.85))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        next(module.parameters()).requires_grad_(True)
    return module.double(), X, rng.integers(0, CLASSES, rows).astype(float)


def clipped_gradients(module: nn.Module, X: np.ndarray, y: np.ndarray, clip: float) -> np.ndarray:
    """Return the clipped gradient of each row alone, by autograd: rows × parameters."""
    trained = [value for value in module.parameters() if value.requires_grad]
    found = []
    for row, label in zip(torch.tensor(X), torch.tensor(y).long(), strict=True):
        loss = functional.cross_entropy(module(row[None].to(trained[0].dtype)), label[None])
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        flat = torch.cat(
            [
                torch.zeros(value.numel(), dtype=torch.float64)
                if gradient is None
                else gradient.flatten().double()
                for value, gradient in zip(trained, gradients, strict=True)
            ]
        )
        found.append((flat * min(1.0, clip / max(float(flat.norm()), 1e-300))).numpy())
    return np.array(found)
