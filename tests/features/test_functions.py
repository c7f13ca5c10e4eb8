"""Functions of one row and encoders: total, apart, and never imported from a file."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.features import Chain, Encoder, Function, RandomFourier, features_from_dict

from .conftest import linear_layer, squares

ODD: dict[float, Any] = {
    1: lambda: [1.0],
    2: lambda: None,
    3: lambda: [float("nan"), 1.0],
    4: lambda: [1e308, 1.0],
    5: lambda: "text",
    6: lambda: 1 / 0,
    7: lambda: sys.exit(1),
    8: lambda: [[1.0], [2.0, 3.0]],
}


def odd(row: list[float]) -> Any:
    """Something else for each row."""
    return ODD[row[0]]() if row[0] in ODD else [3.0, 4.0]


def test_whatever_a_function_does_is_about_one_row() -> None:
    found = Function(odd, 2).transform([[float(number)] for number in range(9)])
    np.testing.assert_allclose(found[0] * np.sqrt(1.09), [0.6, 0.8, 0.3])
    assert not found[1:].any()


def test_a_function_cannot_change_the_rows() -> None:
    def spoil(row: Any) -> Any:
        row[:] = 7.0
        return [1.0]

    X = np.ones((3, 4))
    Function(spoil, 1, shape=(4,)).transform(X)
    Function(spoil, 1).transform(X)
    assert (X == 1).all()


def test_what_a_function_gets() -> None:
    seen: list[Any] = []
    Function(lambda row: seen.append(row) or [0.0], 1).transform([[1, "a", None]])
    assert seen.pop() == [1, "a", None]
    shaped = Function(lambda row: seen.append(row) or [0.0], 1, shape=(2, 2))
    shaped.transform([[1, 2, 3, "4"], [1, 2, 3, None]])
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], [[1.0, 2.0], [3.0, 4.0]])


def test_names_are_imported_at_use_only_if_the_user_gave_them() -> None:
    features = Function("statistics:mean", 1)
    np.testing.assert_allclose(features.transform([[1.0, 3.0]])[0] * np.sqrt(1.09), [1.0, 0.3])
    record = json.loads(json.dumps(features.as_dict()))
    with pytest.raises(InvalidInput, match="statistics:mean"):
        features_from_dict(record)
    table = Chain([features, RandomFourier(4)]).as_dict()
    with pytest.raises(InvalidInput, match="statistics:mean"):
        features_from_dict(table)
    assert features_from_dict(table, {"statistics:mean": "statistics:mean"}).as_dict() == table
    for name in ("no_such_module:f", "statistics:no_such_function", "statistics:__name__"):
        with pytest.raises(InvalidInput, match="function"):
            Function(name, 1).transform([[1.0]])


def test_another_function_can_be_set() -> None:
    features = Function("statistics:mean", 1)
    before = features.transform([[-1.0, -3.0]])
    features.set_params(function="builtins:len")
    assert features.transform([[-1.0, -3.0]])[0, 0] == -before[0, 0] > 0


@pytest.mark.parametrize("function", ["mean", "", 5, None, ":f", "m:"])
def test_other_functions_are_refused(function: Any) -> None:
    with pytest.raises(InvalidInput, match="function"):
        Function(function, 1)
    with pytest.raises(InvalidInput, match="dimension"):
        Function(squares, 0)
    with pytest.raises(InvalidInput, match="shape"):
        Function(squares, 1, shape=())


def test_pickles_import_the_function_again() -> None:
    features = Function("statistics:mean", 1)
    features.transform([[1.0]])
    again = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(again.transform([[2.0]]), features.transform([[2.0]]))


def test_an_encoder_is_frozen() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)).train()
    features = Encoder(module, 3, shape=(4,))
    X = np.random.default_rng(0).normal(size=(5, 4))
    found = features.transform(X)
    np.testing.assert_array_equal(features.transform(X), found)
    assert module.training
    assert torch.is_grad_enabled()
    assert "encoder" in features.describe()


def test_another_encoder_is_refused() -> None:
    torch = pytest.importorskip("torch")
    record = Encoder(linear_layer, 5, shape=(6,)).as_dict()
    name = record["function"]
    assert features_from_dict(record, {name: linear_layer}).as_dict() == record
    other = features_from_dict(record, {name: lambda: torch.nn.Linear(6, 5)})
    with pytest.raises(InvalidInput, match="not those of the file"):
        other.transform(np.zeros((1, 6)))
    with pytest.raises(InvalidInput, match="torch module"):
        Encoder(lambda: 5, 5, shape=(6,)).transform(np.zeros((1, 6)))
    with pytest.raises(InvalidInput, match="does not return 4 numbers"):
        Encoder(linear_layer, 4, shape=(6,)).transform(np.zeros((1, 6)))
    with pytest.raises(InvalidInput, match="shape"):
        Encoder(linear_layer, 5)
