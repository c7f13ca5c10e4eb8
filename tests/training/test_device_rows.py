"""Sums on a device are those of this machine, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

import expost
from expost.errors import ExpostError
from expost.randomness.source import SimulationRandomness
from expost.training._torch.device_rows import DeviceRows
from expost.training.lattice_rows import CompactRows, whole_rows
from expost.training.progressive import LinearTraining, TrainingRows, on_lattice

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
)
DEVICES = ["cpu", GPU]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("count", "width", "outputs"), [(1, 1, 1), (700, 30, 3), (8192, 300, 10)])
def test_products_and_sums_are_exact(device: str, count: int, width: int, outputs: int) -> None:
    """Compared with whole numbers of Python, in which nothing is rounded."""
    generator = np.random.default_rng(count)
    rows = generator.normal(size=(count, width))
    whole = whole_rows(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    weights = on_lattice(generator.normal(0, 30, (width, outputs)))
    residuals = np.trunc(generator.uniform(-(2.0**24), 2.0**24, (count, outputs)))
    there, here = DeviceRows(whole, device), CompactRows.of(whole)
    assert len(there) == count
    assert np.array_equal(there.products(weights), here.products(weights))
    assert np.array_equal(there.weighted_sum(residuals), here.weighted_sum(residuals))
    some = slice(0, 40)
    exact = whole[some].astype(np.int64).astype(object).T @ residuals[some].astype(np.int64)
    assert (DeviceRows(whole[some], device).weighted_sum(residuals[some]) == exact).all()


@pytest.mark.parametrize("device", [GPU])
def test_the_gradient_and_the_model_are_the_same(device: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(20_000, 12))
    y = (X @ generator.normal(size=12) > 0).astype(int)
    training = LinearTraining("softmax", 12, 20_000, classes=2)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    weights = on_lattice(generator.normal(size=(12, training.outputs)))
    sums = [
        TrainingRows.of(rows, y, training, device=where).gradient_sum(weights, training)
        for where in ("cpu", device)
    ]
    assert np.array_equal(*sums)

    def model(where: str) -> Any:
        result = expost.tune(
            X,
            y,
            at_least=0.8,
            feature_bounds=[0, 1],
            classes=2,
            device=where,
            randomness=SimulationRandomness(1),
            simulation=True,
        )
        return result.spent, result.model.parameters["weight"].tobytes()

    assert model("cpu") == model(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ExpostError, match="cuda"):
        expost.tune(
            np.ones((300, 2)),
            np.arange(300) % 2,
            at_least=0.6,
            feature_bounds=[0, 1],
            classes=2,
            device="cuda",
        )
