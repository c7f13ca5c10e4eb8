"""Bad input is refused before training starts, by name, without showing data.

Whether it is refused depends on types and shapes only. Rows that cannot be used count for nothing.
"""

import numpy as np
import pytest
import torch
from torch import nn

from expost.errors import InvalidInput, SimulationOnly
from expost.randomness.source import SimulationRandomness
from expost.training import DPSGD, Configuration, Fleet
from expost.training.configuration import check_training_data

SETTINGS = Configuration(0.1, 1, 5, 1.0, noise_multiplier=1.0)
SECRET = 4711.25


def good(rows=10):
    X = np.arange(rows * 2.0).reshape(rows, 2) + SECRET
    return X, np.arange(rows) % 2


def spoiled(value):
    X, _ = good()
    X = X.astype(type(value)) if isinstance(value, np.longdouble) else X
    X[3, 1] = value
    return X


X, Y = good()
CASES = {
    "no rows": ("logistic", np.empty((0, 2)), np.empty(0), "X"),
    "no columns": ("logistic", np.empty((10, 0)), Y, "X"),
    "one axis": ("linear", X[:, 0], Y, "X"),
    "three axes": ("linear", X[:, :, None], Y, "X"),
    "texts": ("linear", np.array([["a", "b"]] * 10), Y, "X"),
    "ragged": ("linear", [[1.0], [1.0, 2.0]], [0, 1], "X"),
    "complex": ("linear", X + 1j, Y, "X"),
    "targets of another length": ("linear", X, Y[:9], "y"),
    "targets in a column": ("linear", X, Y[:, None], "y"),
    "complex targets": ("linear", X, Y + 1j, "y"),
    "texts as targets": ("linear", X, ["a"] * 10, "y"),
    "numbers as texts": ("linear", X, ["1"] * 10, "y"),
    "objects as targets": ("linear", X, np.array([1.0] * 10, dtype=object), "y"),
    "objects": ("linear", X.astype(object), Y, "X"),
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


HOSTILE = {
    "NaN": ("logistic", spoiled(np.nan), Y),
    "infinity": ("logistic", spoiled(-np.inf), Y),
    "a float64 that is no float32": ("logistic", spoiled(1e300), Y),
    "a number beyond float64": ("linear", spoiled(np.longdouble("1e4000")), Y),
    "label −1": ("logistic", X, np.where(np.arange(10) == 3, -1, Y)),
    "half a label": ("logistic", X, np.where(np.arange(10) == 3, 0.5, Y)),
    "label too large": ("softmax", X, np.where(np.arange(10) == 3, 3, Y)),
    "label far too large": ("softmax", X, np.where(np.arange(10) == 3, 1e30, Y)),
    "target NaN": ("linear", X, np.where(np.arange(10) == 3, np.nan, Y)),
    "target infinite": ("linear", X, np.where(np.arange(10) == 3, -np.inf, Y)),
}


class Plain(nn.Module):
    """A linear model where only torch.func can see it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2, outputs)
        nn.init.zeros_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)

    def forward(self, x):
        return self.inner(x)


def batched(kind, model, rows, targets, settings, seed):
    """Trained by a group of models, as on CUDA, but on the CPU."""
    from expost.training._torch.clipped_sums import LinearSums
    from expost.training._torch.device_keystream import DeviceStream
    from expost.training._torch.layer_chain import ChainSums
    from expost.training._torch.model_group import train_batched
    from expost.training.configuration import check_training_data, plans
    from expost.training.engines import Meter

    loss, outputs = {"linear": "squared"}.get(model, model), 3 if model == "softmax" else 1
    rows, targets = check_training_data(rows, targets, loss, outputs, dimensions=2)
    if kind == "group":
        sums = LinearSums(rows, targets, loss, outputs, "cpu")
    else:
        module = nn.Sequential(Plain(outputs).inner)
        sums = ChainSums(module, lambda: nn.Sequential(Plain(outputs).inner), rows, targets, loss,
                         "cpu")  # fmt: skip
    stream = DeviceStream([SimulationRandomness(seed)], "cpu")
    planned = plans([settings], len(rows))
    return train_batched(sums, [settings], planned, stream, [1], None, None, Meter(None))[0]


def trained(kind, model, rows, targets, seed=1):
    settings = Configuration(0.1, 3, 5, 1.0, noise_multiplier=1.0)
    if kind in ("group", "chain"):
        return batched(kind, model, rows, targets, settings, seed)
    classes = 3 if model == "softmax" else None
    if kind == "linear":
        fleet = Fleet(model, [settings], classes=classes)
    else:
        loss = {"linear": "squared"}.get(model, model)
        made = {
            "module": lambda: Plain(classes or 1),
            "network": lambda: nn.Sequential(Plain(classes or 1).inner),
        }[kind]
        fleet = Fleet(made, [settings], loss=loss)
    (found,) = fleet.train(rows, targets, randomness=SimulationRandomness(seed), simulation=True)
    return np.concatenate([value.ravel() for value in found.parameters.values()])


@pytest.mark.parametrize("kind", ["linear", "network", "module", "group", "chain"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_row_that_cannot_be_used_adds_nothing(case, kind):
    """Training is that on a data set where the row is there, but its gradient is 0: two hostile
    values give the same model to the last bit, and it is not that of the harmless row.
    """
    model, rows, targets = HOSTILE[case]
    found = trained(kind, model, rows, targets)
    assert np.isfinite(found).all()
    zero = rows.copy()
    zero[3] = np.nan
    assert (
        found == trained(kind, model, zero, np.where(np.arange(10) == 3, np.nan, targets))
    ).all()
    harmless, label = rows.copy(), np.where(np.arange(10) == 3, 1.0, targets)
    harmless[3] = 4711.0
    if case != "a float64 that is no float32" or kind in ("linear", "group"):
        assert (found != trained(kind, model, harmless, label)).any()


@pytest.mark.parametrize("kind", ["linear", "network", "module", "group", "chain"])
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
def test_one_class_or_no_usable_row_is_no_error(model, kind):
    assert np.isfinite(trained(kind, model, X, np.ones(10))).all()
    nothing = np.full_like(X, np.nan)
    first = trained(kind, model, nothing, Y)
    assert np.isfinite(first).all()
    assert (first == trained(kind, model, nothing, np.full(10, 99))).all()
    assert (first != 0).any()  # noise only


def test_whether_data_is_refused_does_not_depend_on_values():
    """Random values of every kind in arrays of one shape and type: all pass, or none does."""
    rng = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 0.5, 1e300, 7.0])
    for loss, classes in (("squared", None), ("logistic", None), ("softmax", 3)):
        for _ in range(50):
            rows, targets = rng.choice(odd, (4, 3)), rng.choice(odd, 4)
            found, labels = check_training_data(rows, targets, loss, classes, dimensions=2)
            usable = np.isfinite(rows).all(1) & np.isfinite(targets)
            if loss != "squared":
                usable &= np.isin(targets, range(classes or 2))
            assert (np.isnan(labels) == ~usable).all()
            assert (found[usable] == rows[usable]).all()
            assert (found[~usable] == 0).all()
            with pytest.raises(InvalidInput):
                check_training_data(rows, targets[:3], loss, classes, dimensions=2)


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
    assert Fleet("linear", [silent]).train(X, Y, simulation=True)[0].guarantee is None


def test_whole_numbers_and_booleans_are_fine_as_rows():
    for rows in (
        np.eye(10, dtype=int),
        np.eye(10, dtype=bool),
        np.eye(10, dtype=np.float16),
        np.eye(10).tolist(),
    ):
        assert Fleet("logistic", [SETTINGS]).train(rows, Y)[0].parameters["weight"].shape == (1, 10)
