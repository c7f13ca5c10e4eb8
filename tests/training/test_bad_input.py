"""Bad input is refused before training starts, by name, without showing data."""

import numpy as np
import pytest
import torch
from torch import nn

from expost.errors import InvalidInput, SimulationOnly
from expost.randomness.source import SimulationRandomness
from expost.training import DPSGD, Configuration, Fleet

SETTINGS = Configuration(0.1, 1, 5, 1.0, noise_multiplier=1.0)
SECRET = 4711.25


def good(rows=10):
    X = np.arange(rows * 2.0).reshape(rows, 2) + SECRET
    return X, np.arange(rows) % 2


def spoiled(value):
    X, _ = good()
    X[3, 1] = value
    return X


X, Y = good()
CASES = {
    "NaN": ("logistic", spoiled(np.nan), Y, "X"),
    "infinity": ("logistic", spoiled(-np.inf), Y, "X"),
    "no rows": ("logistic", np.empty((0, 2)), np.empty(0), "X"),
    "no columns": ("logistic", np.empty((10, 0)), Y, "X"),
    "one axis": ("linear", X[:, 0], Y, "X"),
    "three axes": ("linear", X[:, :, None], Y, "X"),
    "texts": ("linear", np.array([["a", "b"]] * 10), Y, "X"),
    "ragged": ("linear", [[1.0], [1.0, 2.0]], [0, 1], "X"),
    "complex": ("linear", X + 1j, Y, "X"),
    "one class": ("logistic", X, np.ones(10), "y"),
    "labels −1 and 1": ("logistic", X, 2 * Y - 1, "y"),
    "half a label": ("logistic", X, Y + SECRET, "y"),
    "label too large": ("softmax", X, np.arange(10), "y"),
    "target NaN": ("linear", X, np.where(Y, np.nan, 1.0), "y"),
    "targets of another length": ("linear", X, Y[:9], "y"),
    "targets in a column": ("linear", X, Y[:, None], "y"),
    "complex targets": ("linear", X, Y + 1j, "y"),
    "texts as targets": ("linear", X, ["a"] * 10, "y"),
    "sampling rate above 1": ("linear", X[:4], Y[:4].astype(float), "batch_size"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("module", [False, True])
def test_bad_data(case, module):
    model, X, y, field = CASES[case]
    calls = []
    if module:
        if case == "three axes":
            pytest.skip("a module may take rows of any shape")
        fleet = Fleet(
            lambda: nn.Linear(2, 3 if model == "softmax" else 1),
            [SETTINGS],
            loss={"linear": "squared"}.get(model, model),
        )
    else:
        fleet = Fleet(model, [SETTINGS], classes=3 if model == "softmax" else None)
    with pytest.raises(InvalidInput) as error:
        fleet.train(X, y, progress=lambda *numbers: calls.append(numbers))
    assert error.value.field == field
    assert "47" not in str(error.value)
    assert calls == []


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("configurations", ("linear", [])),
        ("configurations", ("linear", SETTINGS)),
        ("configurations", ("linear", [1])),
        ("model", ("tree", [SETTINGS])),
        ("model", (["linear"], [SETTINGS])),
        ("classes", ("softmax", [SETTINGS])),
        ("classes", ("softmax", [SETTINGS], 1)),
        ("classes", ("linear", [SETTINGS], 3)),
        ("loss", ("linear", [SETTINGS], None, "squared")),
        ("loss", (nn.Identity, [SETTINGS], None, "hinge")),
    ],
)
def test_bad_fleets(field, arguments):
    with pytest.raises(InvalidInput) as error:
        Fleet(*arguments)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("threads", {"threads": 0}),
        ("memory_limit", {"memory_limit": -1}),
        ("progress", {"progress": 3}),
        ("device", {"device": "tpu"}),
        ("device", {"device": "cpu:0"}),
        ("device", {"device": "cuda:first"}),
        ("simulation", {"simulation": "no"}),
        ("randomness", {"randomness": 3}),
    ],
)
def test_bad_options(field, options):
    with pytest.raises(InvalidInput) as error:
        Fleet("linear", [SETTINGS]).train(X, Y, **options)
    assert error.value.field == field


def test_bad_mechanisms():
    for field, change in (
        ("configurations", {"configuration": "fast"}),
        ("device", {"device": "tpu"}),
        ("n", {"n": 0}),
    ):
        with pytest.raises(InvalidInput) as error:
            DPSGD(**{"model": "linear", "configuration": SETTINGS, "n": 10} | change)
        assert error.value.field == field
    with pytest.raises(InvalidInput, match="a function that returns a fresh one"):
        Fleet(nn.Linear(2, 1), [SETTINGS], loss="squared").train(X, Y)


def test_tensors_with_a_history_are_refused_by_name():
    with pytest.raises(InvalidInput) as error:
        Fleet("linear", [SETTINGS]).train(torch.zeros(10, 2, requires_grad=True), Y)
    assert error.value.field == "X"


def test_no_protection_only_in_a_simulation():
    silent = Configuration(0.1, 1, 5, 1.0, noise_multiplier=0)
    with pytest.raises(InvalidInput, match="simulation=True"):
        Fleet("linear", [SETTINGS, silent]).train(X, Y)
    with pytest.raises(SimulationOnly):
        Fleet("linear", [SETTINGS]).train(X, Y, randomness=SimulationRandomness(0))
    assert Fleet("linear", [silent]).train(X, Y, simulation=True)[0].promise is None


def test_whole_numbers_and_booleans_are_fine_as_rows():
    for rows in (
        np.eye(10, dtype=int),
        np.eye(10, dtype=bool),
        np.eye(10, dtype=np.float16),
        np.eye(10).tolist(),
    ):
        assert Fleet("logistic", [SETTINGS]).train(rows, Y)[0].parameters["weight"].shape == (1, 10)
