"""A public number of rows: the actual one decides nothing but the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training.configuration import exact_rows, plans

MODELS = ["logistic", "module", "lstm"]


def fleet(model: str, settings: Configuration) -> Fleet:
    if model == "logistic":
        return Fleet("logistic", [settings])
    nn = pytest.importorskip("torch").nn
    if model == "module":
        return Fleet(lambda: nn.Sequential(nn.Linear(3, 1)), [settings], loss="logistic")
    # a layer without a native kernel, so that the general engine trains it
    return Fleet(lambda: nn.Sequential(nn.Linear(3, 1), nn.Softsign()), [settings], loss="logistic")


def data(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(1)
    X = 3 * generator.standard_normal((rows, 3))
    return X, generator.integers(0, 2, rows).astype(float)


def one_step(model: str, X: Any, y: Any) -> Any:
    """The change of the parameters in one step over all rows, without noise."""
    settings = Configuration(1.0, 1, 1024, 1.0, noise_multiplier=0)
    flat = []
    for rows, targets in ((X, y), (X[:0], y[:0])):
        (found,) = fleet(model, settings).train(
            rows, targets, randomness=SimulationRandomness(5), simulation=True, rows=1024
        )
        flat.append(np.concatenate([each.ravel() for each in found.parameters.values()]))
    return flat[0].astype(float) - flat[1].astype(float)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_plan_for_any_number_of_rows(model: str) -> None:
    settings = Configuration(0.1, 2, 20, 1.0, epsilon=1.0, delta=1e-5)
    for rows in (0, 1, 7, 100, 333):
        (found,) = fleet(model, settings).train(
            *data(rows), randomness=SimulationRandomness(1), simulation=True, rows=100
        )
        assert found.guarantee == settings.guarantee(100, neighbours="add-remove")
        assert all(np.isfinite(each).all() for each in found.parameters.values())


@pytest.mark.parametrize("rows", [8, 16, 64])
def test_one_more_row_adds_its_own_contribution_and_nothing_else(rows: int) -> None:
    """Catches a grid of the sums that follows the actual number of rows.

    It would change at powers of two, and all rows would be rounded anew.
    """
    X, y = data(rows + 1)
    before, after = one_step("logistic", X[:rows], y[:rows]), one_step("logistic", X, y)
    alone = one_step("logistic", X[rows:], y[rows:])
    assert (after - before == alone).all()
    assert 0 < np.linalg.norm(1024 * alone) <= 1


def test_which_rows_can_be_summed_exactly_is_public() -> None:
    assert exact_rows(1000, "zero-out") == 1000
    assert exact_rows(1000, "add-remove") == 1 << 24
    assert exact_rows(1 << 24, "add-remove") == 1 << 26


def test_relations() -> None:
    settings = Configuration(0.1, 2, 20, 1.0, noise_multiplier=2.0)
    (found,) = Fleet("logistic", [settings]).train(*data(100))
    assert found.guarantee == settings.guarantee(100)
    assert found.guarantee is not None
    assert found.guarantee.neighbours == "zero-out"
    assert settings.guarantee(100, neighbours="add-remove").as_zero_out() == found.guarantee
    with pytest.raises(InvalidInput, match="neighbours"):
        plans([settings], 100, neighbours="replace")
    with pytest.raises(InvalidInput, match="rows"):
        Fleet("logistic", [settings]).train(*data(10), rows=0)
    with pytest.raises(InvalidInput, match="at least one row"):
        Fleet("logistic", [settings]).train(*data(0))
