"""Linear models: clipped sums against Opacus, plain gradient descent without noise, optimisers
against torch.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._native import linear
from expost.training._torch.clipped_sums import LinearSums
from expost.training.exact_noise import clip_bound
from tests.training.peers import exact_norm_square, opacus_clipped_sum

LOSSES = {
    "linear": lambda out, y: functional.mse_loss(out.flatten(), y, reduction="sum"),
    "logistic": lambda out, y: functional.binary_cross_entropy_with_logits(
        out.flatten(), y, reduction="sum"
    ),
    "softmax": lambda out, y: functional.cross_entropy(out, y.long(), reduction="sum"),
}
CLASSES = 4


def problem(model: str, rows: int = 60, columns: int = 7, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    if model == "linear":
        return X, X @ rng.standard_normal(columns) + 1
    return X, rng.integers(0, 2 if model == "logistic" else CLASSES, rows).astype(float)


def outputs(model: str) -> int:
    return CLASSES if model == "softmax" else 1


def clipped_sum(
    model: str, X: np.ndarray, y: np.ndarray, rows: np.ndarray, parameters: np.ndarray, clip: float
) -> np.ndarray:
    total, norms = np.empty_like(parameters), linear.row_norms(X)
    bound = clip_bound(clip, len(parameters), len(X))
    if model == "softmax":
        linear.clipped_sum_softmax(
            X, y, norms, rows, parameters, bound, CLASSES, total, linear.NO_WEIGHTS
        )
    else:
        linear.clipped_sum_single(
            X,
            y,
            norms,
            rows,
            parameters,
            bound,
            ["linear", "logistic"].index(model),
            total,
            linear.NO_WEIGHTS,
        )
    return total


def flat(module: nn.Linear, gradient: np.ndarray) -> np.ndarray:
    """torch's order (all weights, then all biases) as ours (each output's weights and bias)."""
    weights, biases = (
        gradient[: module.weight.numel()].reshape(module.weight.shape),
        gradient[module.weight.numel() :],
    )
    return np.concatenate([weights, biases[:, None]], axis=1).ravel()


@pytest.mark.parametrize("model", LOSSES)
@pytest.mark.parametrize("clip", [0.1, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("engine", ["native", "batched"])
def test_clipped_sums_equal_opacus(model, clip, engine):
    X, y = problem(model)
    torch.manual_seed(1)
    module = nn.Linear(X.shape[1], outputs(model)).double()
    parameters = flat(
        module, torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()
    )
    expected = flat(
        module, opacus_clipped_sum(module, LOSSES[model], torch.tensor(X), torch.tensor(y), clip)
    )
    rows = np.arange(len(X))
    if engine == "batched":
        loss = {"linear": "squared"}.get(model, model)
        both = torch.tensor(np.stack([parameters, parameters]))
        taken = torch.ones(2, len(X), dtype=torch.bool)
        sums = LinearSums(X, y, loss, outputs(model), "cpu")
        total = sums(
            both,
            torch.tensor(np.stack([rows, rows])),
            taken,
            torch.tensor([clip, clip], dtype=torch.float64),
            10_000,
        )
        assert torch.equal(total[0], total[1])
        total = total[0].numpy()
    else:
        total = clipped_sum(model, X, y, rows, parameters, clip)
    assert np.abs(total - expected).max() <= 1e-10 * max(1, np.abs(expected).max())


def test_no_row_moves_the_sum_by_more_than_the_clip_even_when_its_residual_overflows():
    X, clip = np.array([[1e150, 1.0], [3.0, 4.0]]), 0.5
    norms, bound = linear.row_norms(X), clip_bound(clip, 6, 2)
    for weights in ([1e200, 0.0, 0.0], [np.nan, 0.0, 0.0], [1e308, 1e308, 1e308]):
        for row in (0, 1):
            for model in (linear.SQUARED, linear.LOGISTIC):
                total = np.empty(3)
                one = np.array([row])
                linear.clipped_sum_single(
                    X,
                    np.zeros(2),
                    norms,
                    one,
                    np.array(weights),
                    bound,
                    model,
                    total,
                    linear.NO_WEIGHTS,
                )
                assert exact_norm_square(total) <= Fraction(clip) ** 2
            total = np.empty(6)
            linear.clipped_sum_softmax(
                X,
                np.zeros(2),
                norms,
                one,
                np.array(weights * 2),
                bound,
                2,
                total,
                linear.NO_WEIGHTS,
            )
            assert exact_norm_square(total) <= Fraction(clip) ** 2


@pytest.mark.parametrize("model", LOSSES)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_without_noise_and_clipping_a_full_batch_is_plain_descent(model, optimiser):
    """Against torch.optim on the mean loss, in float64."""
    X, y = problem(model)
    settings = Configuration(
        0.05, 12, len(X), 1e3, noise_multiplier=0, optimiser=optimiser, momentum=0.8
    )
    fleet = Fleet(model, [settings], classes=CLASSES if model == "softmax" else None)
    (trained,) = fleet.train(X, y, randomness=SimulationRandomness(0), simulation=True)
    module = nn.Linear(X.shape[1], outputs(model)).double()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    rule = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    }[optimiser](module.parameters())
    for _ in range(12):
        rule.zero_grad()
        (LOSSES[model](module(torch.tensor(X)), torch.tensor(y)) / len(X)).backward()
        rule.step()
    assert trained.guarantee is None
    for name, parameter in module.named_parameters():
        assert np.allclose(
            trained.parameters[name], parameter.detach().numpy(), rtol=1e-10, atol=1e-11
        )


@pytest.mark.parametrize("model", LOSSES)
@pytest.mark.parametrize("columns", [7, 77, 2000])
@pytest.mark.parametrize("clip", [0.1, 3.0, 1e6])
def test_float32_rows_give_what_float64_rows_give(model, columns, clip):
    """Clipped sums to 1e-5 of the largest, with every number of rows left over."""
    X, y = problem(model, rows=61, columns=columns)
    X = X.astype(np.float32)
    parameters = np.random.default_rng(1).standard_normal(outputs(model) * (columns + 1)) / np.sqrt(
        columns
    )
    for count in (1, 3, 4, 7, 8, 61):
        single, double = (
            clipped_sum(model, each, y, np.arange(count), parameters, clip)
            for each in (X, X.astype(float))
        )
        assert np.abs(single - double).max() <= 1e-5 * np.abs(double).max()


@pytest.mark.parametrize("model", LOSSES)
@pytest.mark.parametrize(("size", "clip"), [(30, 0.7), (1e37, 1e-6)])
def test_a_float32_row_moves_the_sum_by_no_more_than_the_clip(model, size, clip):
    """One row more among others, which then stand in other groups; rows so large, too, that a
    float32 factor would have lost its bits.
    """
    X, y = problem(model, rows=40, columns=300)
    X = (size * X).astype(np.float32)
    parameters = np.random.default_rng(2).standard_normal(outputs(model) * 301)
    moves = []
    for row in range(len(X)):
        others = np.delete(np.arange(len(X)), row)
        with_and_without = [
            clipped_sum(model, X, y, rows, parameters, clip) for rows in (others, np.arange(len(X)))
        ]
        # the difference is exact: both sums are whole numbers of grid steps
        moves.append(exact_norm_square(with_and_without[1] - with_and_without[0]))
    assert Fraction(clip * (1 - 1e-9)) ** 2 <= max(moves) <= Fraction(clip) ** 2


@pytest.mark.parametrize("model", LOSSES)
def test_training_on_float32_rows_is_training_on_float64_rows(model):
    X, y = problem(model)
    X = X.astype(np.float32)
    fleet = Fleet(
        model,
        [Configuration(0.05, 5, 20, 1.0, noise_multiplier=1.0)],
        classes=CLASSES if model == "softmax" else None,
    )
    single, double = (
        fleet.train(each, y, randomness=SimulationRandomness(3), simulation=True)[0]
        for each in (X, X.astype(float))
    )
    assert np.allclose(
        single.parameters["weight"], double.parameters["weight"], rtol=1e-5, atol=1e-7
    )
