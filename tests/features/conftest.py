"""All features, with rows that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from expost.features import (
    Chain,
    Columns,
    EncodedColumns,
    Encoder,
    Features,
    Function,
    HashedText,
    OrientedGradients,
    RandomFourier,
)

Rows = Callable[[np.random.Generator, int], Any]


def _floats(columns: int) -> Rows:
    return lambda generator, n: generator.normal(size=(n, columns))


def _pictures(*shape: int) -> Rows:
    return lambda generator, n: generator.integers(0, 256, size=(n, *shape)).astype(np.uint8)


def _objects(*choices: list[Any]) -> Rows:
    def rows(generator: np.random.Generator, n: int) -> Any:
        cells = np.empty((n, len(choices)), dtype=object)
        for column, known in enumerate(choices):
            for row in range(n):
                cells[row, column] = known[generator.integers(len(known))]
        return cells

    return rows


_PHRASES = ["red red wine", "Äpfel und Birnen", "", None, 12, "naïve 😀 text", "wine, RED!", "a"]


def squares(row: list[float]) -> list[float]:
    """A function of one row, for tests."""
    return [value * value for value in row[:3]]


def linear_layer() -> object:
    """An encoder, for tests."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())


_TABLE = Columns(
    feature_bounds={"age": (17, 90), "gain": (0, 99999), "loss": (-10, 10), "share": (0, 100)},
    categories={"class": ("Private", "State-gov", 3)},
    booleans=("member",),
    dates={"since": ("2000-01-01", "2026-12-31")},
    texts=("note",),
    missing={"age": "indicator", "loss": 0, "since": "indicator", "share": 50, "member": "no"},
    names=("age", "gain", "loss", "class", "member", "since", "share", "note", "unused"),
)
_CELLS = _objects(
    [17, 39.5, "50", None, 1e9],
    [0, 2174, "99999"],
    [-5, 7, None],
    ["Private", "State-gov", 3, "3.0", "elsewhere", None],
    [True, "no", "yes", 0],
    ["2010-05-05", "1990-01-01", None, "soon"],
    [1, 50, 99, None, "x"],
    _PHRASES,
    [None, "whatever"],
)

FEATURES: dict[str, tuple[Features, Rows]] = {
    "numbers, a bound": (
        Columns({"a": (-2.0, 2.0), "b": (0.0, 1.0)}, bins=0, norm="bound"),
        _floats(2),
    ),
    "categories": (
        Columns(categories={"a": ("a", "b"), "b": ("a", "b")}),
        _objects(["a", "b", "c", None], ["a", 1, b"b"]),
    ),
    "table": (_TABLE, _CELLS),
    "encoded columns": (
        EncodedColumns(5, ((1, 0.0, 1.0), (2, -5.0, 4000.0), (4, 17, 90)), 8),
        lambda generator, n: generator.uniform(-0.2, 1.2, size=(n, 5)),
    ),
    "encoded columns, a bound": (
        EncodedColumns(3, ((0, 0.0, 1e6),), 0, False, norm="bound"),
        _floats(3),
    ),
    "pictures": (OrientedGradients((12, 10), cells=(4, 3)), _pictures(12, 10)),
    "colours": (OrientedGradients("9x8x3", cells=3, orientations=5), _pictures(9, 8, 3)),
    "random Fourier": (RandomFourier(34, 1.5, seed=3), _floats(7)),
    "text": (HashedText(64), _objects(_PHRASES, _PHRASES)),
    "function": (Function(squares, 3), _floats(4)),
    "function of a shape": (Function("numpy:ravel", 6, shape=(2, 3)), _floats(6)),
    "encoder": (Encoder(linear_layer, 5, shape=(6,)), _floats(6)),
    "chain": (
        Chain((OrientedGradients((8, 8)), RandomFourier(20, 2.0, seed=1))),
        _pictures(8, 8),
    ),
}
"""Every kind of features once, with a function that makes rows for it."""


@pytest.fixture(params=FEATURES)
def case(request: pytest.FixtureRequest) -> tuple[Features, Rows]:
    """Features and a function (generator, n) that makes rows."""
    if request.param == "encoder":
        pytest.importorskip("torch")
    return FEATURES[request.param]
