"""Gradients of any module: against autograd row by row, independence of rows, odd modules."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._torch.device_keystream import DeviceStream
from expost.training._torch.model_group import train_batched
from expost.training._torch.modules import ModuleSums
from expost.training.configuration import plans
from expost.training.engines import Meter
from tests.training.networks import CLASSES, clipped_gradients, random_network


def sums_of(module, X, y, *, exact=True, clip=0.7, models=1, rows=None):
    """The clipped sums of models with the module's parameters: models × parameters."""
    sums = ModuleSums(module, lambda: module, X, y, "softmax", "cpu", exact=exact)
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    chosen = torch.arange(len(X)) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
    places = chosen.expand(models, -1)
    clips = torch.full((models,), clip, dtype=torch.float64)
    return sums(
        flat.double().expand(models, -1).clone(),
        places,
        torch.ones_like(places, dtype=torch.bool),
        clips,
        1 << 30,
    ).numpy()


@pytest.mark.parametrize(
    "block", [0, 1, *(pytest.param(block, marks=pytest.mark.long) for block in range(2, 10))]
)
def test_clipped_sums_equal_autograd_row_by_row(block):
    """Thirty random networks each: exact sums and matrix products of two models."""
    for seed in range(30 * block, 30 * block + 30):
        module, X, y = random_network(seed)
        for clip in (0.3, 1e3):
            wanted = clipped_gradients(module, X, y, clip).sum(0)
            size = max(1.0, np.abs(wanted).max())
            for exact in (True, False):
                found = sums_of(module, X, y, exact=exact, clip=clip, models=1 if exact else 2)
                assert np.abs(found - wanted).max() <= 1e-9 * size, (seed, exact)


def classifier(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers).double()


def agrees(module, X, y=None, clip=0.5):
    """Both ways to sum agree with autograd row by row; returns the sum."""
    y = np.arange(len(X)) % CLASSES * 1.0 if y is None else y
    wanted = clipped_gradients(module, X, y, clip).sum(0)
    for exact in (True, False):
        found = sums_of(module, X, y, exact=exact, clip=clip)
        assert np.allclose(found[0], wanted, rtol=1e-9, atol=1e-12)
    return wanted


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("exact", [True, False])
def test_a_row_moves_the_sum_by_at_most_the_clipping_norm(seed, exact):
    module, X, y = random_network(seed)
    X, y = np.concatenate([X, 10 * X]), np.concatenate([y, (y + 1) % CLASSES])
    if hasattr(module, "tokens"):
        X = np.clip(X, 0, 6)
    clip, everything = 1e-3, np.arange(len(X))
    whole = sums_of(module, X, y, exact=exact, clip=clip)[0]
    moves = [
        np.linalg.norm(
            whole - sums_of(module, X, y, exact=exact, clip=clip, rows=np.delete(everything, row))
        )
        for row in everything
    ]
    assert max(moves) <= clip * (1 + 1e-9)
    assert max(moves) >= 0.99 * clip


class Mixing(nn.Module):
    """A forward pass that looks across its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.layer(x / x.amax()) + x.mean(0, keepdim=True)[:, :CLASSES]


@pytest.mark.parametrize("exact", [True, False])
def test_a_forward_pass_that_looks_across_the_batch_sees_one_row(exact):
    torch.manual_seed(0)
    module, rng = Mixing().double(), np.random.default_rng(0)
    X, y = rng.standard_normal((5, 4)), np.arange(5.0) % CLASSES
    together = sums_of(module, X, y, exact=exact)
    alone = sum(sums_of(module, X, y, exact=exact, rows=[row]) for row in range(5))
    assert np.allclose(together, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}])
def test_recurrent_layers(kind, settings):
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(3, 4, batch_first=True, **settings)
            self.head = nn.Linear(4 * (1 + bool(settings)), CLASSES)

        def forward(self, x):
            outputs, state = self.cell(x)
            last = state[0] if isinstance(state, tuple) else state
            return self.head(outputs[:, -1]) + last.mean()

    torch.manual_seed(0)
    agrees(Network().double(), np.random.default_rng(0).standard_normal((4, 5, 3)))


def test_tied_frozen_unused_and_repeated_parameters():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    shared = classifier(first, nn.Tanh(), second, first, nn.Linear(4, CLASSES))
    X = np.random.default_rng(0).standard_normal((4, 4))
    agrees(shared, X)
    first.bias.requires_grad_(False)
    shared[-1].weight.requires_grad_(False)
    agrees(shared, X)
    shared.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    assert (agrees(shared, X)[:2] == 0).all()


def test_a_frozen_layer_is_not_recorded():
    module = classifier(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    module[0].requires_grad_(False)
    X = np.random.default_rng(0).standard_normal((4, 4))
    agrees(module, X)
    sums = ModuleSums(module, lambda: module, X, np.zeros(4), "softmax", "cpu")
    assert [tap.layer for tap in sums.taps.taps] == [module[2]]
    assert sums.taps.rest == []


def test_empty_batches_and_one_row():
    module, X = classifier(nn.Linear(4, CLASSES)), np.ones((3, 4))
    for exact in (True, False):
        assert (sums_of(module, X, np.zeros(3), exact=exact, rows=[]) == 0).all()
    agrees(module, X[:1])
    settings = [Configuration(0.1, 20, 1e-3, 1.0, noise_multiplier=1.0)]
    (found,) = Fleet(lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), settings).train(
        X[:2], [0, 1], randomness=SimulationRandomness(0), simulation=True
    )
    assert all(np.isfinite(value).all() for value in found.parameters.values())


class Words(nn.Module):
    """Integers without a conversion."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 3), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(self.tokens(x).mean(1))


def test_integers_stay_integers_and_unknown_tokens_add_nothing():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 5, (12, 4)), np.arange(12) % CLASSES
    settings = [Configuration(0.5, 4, 12, 1.0, noise_multiplier=0)]

    def trained(rows, labels):
        (found,) = Fleet(lambda: Words().double(), settings).train(
            rows, labels, randomness=SimulationRandomness(1), simulation=True
        )
        return np.concatenate([value.ravel() for value in found.parameters.values()])

    strange = X.copy()
    strange[3, 2], strange[7, 0] = 5, -1
    kept = np.delete(np.arange(12), [3, 7])
    wanted = trained(X, np.where(np.isin(np.arange(12), kept), y, 9))
    assert np.isfinite(wanted).all()
    assert np.allclose(trained(strange, y), wanted, rtol=1e-12, atol=1e-14)
    strange = strange.astype(np.uint64)  # no warning tells of a number that no int64 holds
    strange[7, 0] = 1 << 63
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert np.allclose(trained(strange, y), wanted, rtol=1e-12, atol=1e-14)


def test_dropout_draws_the_same_for_any_number_of_threads():
    def factory():
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES))

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 4)), np.arange(20) % CLASSES
    settings = [Configuration(0.5, 2, 10, 1.0, noise_multiplier=1.0)] * 3

    def trained(threads):
        found = Fleet(factory, settings).train(
            X, y, randomness=SimulationRandomness(1), simulation=True, threads=threads
        )
        return np.concatenate([v.ravel() for each in found for v in each.parameters.values()])

    assert (trained(1) == trained(2)).all()


class Pair(nn.Module):
    """Two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x), x


class Branching(nn.Module):
    """A branch that depends on the data, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(("factory", "words"), [(Pair, "tuple"), (Branching, "vectorised")])
def test_refusals_name_the_reason_before_anything_is_trained(factory, words):
    with pytest.raises(InvalidInput, match=words):
        Fleet(factory, [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]).train(
            np.zeros((4, 4)), [0, 1, 0, 1]
        )


def test_the_module_is_left_as_it_was():
    module = classifier(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES))
    agrees(module, np.ones((2, 4)))
    assert not any("forward" in layer.__dict__ for layer in module.modules())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("seed", range(40))
def test_cuda_equals_the_cpu(seed):
    """Training without noise, recorded as a graph, two models."""
    module, X, y = random_network(seed)
    X, y = np.tile(X, (4, *[1] * (X.ndim - 1))), np.tile(y, 4)
    start = {name: value.clone() for name, value in module.state_dict().items()}

    def factory():
        fresh = random_network(seed)[0]
        fresh.load_state_dict(start)
        return fresh

    settings = [Configuration(rate, 40, len(X), 0.3, noise_multiplier=0) for rate in (0.1, 0.2)]
    found = [
        Fleet(factory, settings).train(
            X, y, randomness=SimulationRandomness(0), simulation=True, device=device
        )
        for device in ("cpu", "cuda")
    ]
    for one, other in zip(*found, strict=True):
        for name, value in one.parameters.items():
            assert np.allclose(value, other.parameters[name], rtol=1e-5, atol=1e-7), name


def test_steps_by_matrix_products_equal_exact_ones_also_with_a_row_that_overflows():
    """Two models of different lengths in one group; the row's gradient is not finite."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)).astype(np.float32), np.arange(30.0) % CLASSES
    X[7] = 3e38
    settings = [Configuration(0.3, epochs, 30, 0.4, noise_multiplier=0) for epochs in (5, 3)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES))
    found = []
    for exact in (True, False):
        sums = ModuleSums(module, lambda: module, X, y, "softmax", "cpu", exact=exact)
        stream = DeviceStream([SimulationRandomness(0)] * 2, "cpu")
        planned = plans(settings, len(X))
        found.append(
            train_batched(sums, settings, planned, stream, [1, 2], None, None, Meter(None))
        )
    assert np.isfinite(found[0]).all()
    assert np.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert not np.allclose(found[0][0], found[0][1])
