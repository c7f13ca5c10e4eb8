"""Torch modules: clipped sums against Opacus, native and vectorised engines against each other,
refusals.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.checkpoint import checkpoint

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._native import linear
from expost.training._native import network as native
from expost.training._native.network import Network
from expost.training._torch.layer_chain import ChainSums
from expost.training._torch.modules import ModuleSums, mnist_cnn
from expost.training._torch.plain_chain import UnsupportedChain
from expost.training.exact_noise import clip_bound
from tests.training.peers import exact_norm_square, opacus_clipped_sum


def odd_cnn() -> nn.Module:
    """Sizes that are no multiples of four, unequal kernels, strides and paddings, nested chains."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, (3, 2), (2, 1), padding=(1, 0)), nn.ReLU()),
        nn.MaxPool2d((2, 3), (1, 2)),
        nn.Conv2d(5, 6, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 5, 7),
        nn.ReLU(),
        nn.Linear(7, 4),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Identity(), nn.Linear(9, 3))


MODELS = {
    "mnist": (mnist_cnn, (1, 28, 28), 10),
    "odd": (odd_cnn, (3, 7, 10), 4),
    "mlp": (mlp, (6,), 3),
}


def problem(name: str, rows: int = 24, seed: int = 0):
    factory, shape, classes = MODELS[name]
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    return (
        factory().double(),
        rng.standard_normal((rows, *shape)),
        rng.integers(0, classes, rows).astype(float),
    )


def cross_entropy(outputs, labels):
    return functional.cross_entropy(outputs, labels.long(), reduction="sum")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [0.1, 2.0, 100.0])
@pytest.mark.parametrize("engine", ["native", "chain", "vectorised"])
def test_clipped_sums_equal_opacus(name, clip, engine):
    module, X, y = problem(name)
    if engine == "native":
        network = Network(module, X.shape[1:])
        scratch, total = network.scratch(np.float64), np.empty(network.width)
        native.load_parameters(network.table, network.flat(module), scratch)
        native.clipped_sum(
            network.table,
            network.rows(X),
            y,
            np.arange(len(X)),
            2,
            clip_bound(clip, network.width, len(X)),
            scratch,
            total,
            linear.NO_WEIGHTS,
        )
        found = np.concatenate([value.ravel() for value in network.named(total).values()])
    else:
        kind = ChainSums if engine == "chain" else ModuleSums
        sums = kind(module, lambda: module, X, y, "softmax", "cpu")
        rows = torch.arange(len(X))[None]
        clips = torch.tensor([clip], dtype=torch.float64)
        memory = 7 * sums.bytes_per_example()
        found = sums(sums.start([0]), rows, torch.ones_like(rows, dtype=torch.bool), clips, memory)[
            0
        ].numpy()
    expected = opacus_clipped_sum(module, cross_entropy, torch.tensor(X), torch.tensor(y), clip)
    assert np.abs(found - expected).max() <= 1e-10 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_other_losses_equal_opacus(loss):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 6)), rng.integers(0, 2, 20).astype(float)
    network = Network(module, (6,))
    scratch, total = network.scratch(np.float64), np.empty(network.width)
    native.load_parameters(network.table, network.flat(module), scratch)
    native.clipped_sum(
        network.table,
        X,
        y,
        np.arange(20),
        ["squared", "logistic"].index(loss),
        clip_bound(0.3, network.width, len(X)),
        scratch,
        total,
        linear.NO_WEIGHTS,
    )
    peer = {
        "squared": functional.mse_loss,
        "logistic": functional.binary_cross_entropy_with_logits,
    }[loss]
    expected = opacus_clipped_sum(
        module,
        lambda out, labels: peer(out.flatten(), labels, reduction="sum"),
        torch.tensor(X),
        torch.tensor(y),
        0.3,
    )
    assert (
        np.abs(np.concatenate([v.ravel() for v in network.named(total).values()]) - expected).max()
        <= 1e-10
    )


def test_padded_rows_of_a_batch_add_nothing():
    module, X, y = problem("mlp")
    sums = ModuleSums(module, lambda: module, X, y, "softmax", "cpu")
    rows = torch.arange(len(X)).expand(2, -1)
    taken = rows % torch.tensor([[2], [3]]) == 0
    both = sums(
        sums.start([0, 0]), rows, taken, torch.tensor([0.5, 2.0], dtype=torch.float64), 1 << 20
    )
    for model, clip in ((0, 0.5), (1, 2.0)):
        chosen = rows[model][taken[model]][None]
        alone = sums(
            sums.start([0]),
            chosen,
            torch.ones_like(chosen, dtype=torch.bool),
            torch.tensor([clip]).double(),
            1 << 20,
        )
        assert torch.allclose(alone[0], both[model], rtol=1e-12, atol=1e-14)


class Opaque(nn.Module):
    """The same network where the native kernel cannot see it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp().double()

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_engines_agree_with_plain_descent_without_noise(optimiser):
    """Native and vectorised, full batch, no clipping, against torch.optim, in float64."""
    _, X, y = problem("mlp", rows=40)
    settings = [
        Configuration(0.05, 6, 40, 100.0, noise_multiplier=0, optimiser=optimiser, momentum=0.7)
    ]
    finals = []
    for factory in (lambda: mlp().double(), Opaque):
        (trained,) = Fleet(factory, settings).train(
            X, y, randomness=SimulationRandomness(4), simulation=True
        )
        finals.append(list(trained.parameters.values()))
    source = SimulationRandomness(4)
    source.bytes(32)  # the model's key
    with torch.random.fork_rng():
        torch.manual_seed(source.bits(256) % 2**63)
        module = mlp().double()
    rule = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.7),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    }[optimiser](module.parameters())
    for _ in range(6):
        rule.zero_grad()
        (cross_entropy(module(torch.tensor(X)), torch.tensor(y)) / len(X)).backward()
        rule.step()
    for found in finals:
        for expected, value in zip(module.parameters(), found, strict=True):
            assert np.allclose(expected.detach().numpy(), value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "factory",
    [mlp, lambda: nn.Sequential(mlp(), nn.Tanh(), nn.Linear(3, 3))],
    ids=["native", "vectorised"],
)
def test_same_seed_same_result_and_mixed_settings(factory):
    _, X, y = problem("mlp", rows=60)
    settings = [
        Configuration(0.1, 2, 10, 1.0, noise_multiplier=1.0),
        Configuration(0.1, 1, 30, 0.5, noise_multiplier=2.0, optimiser="adam"),
        Configuration(0.2, 3, 10, 0.1, noise_multiplier=0.5, optimiser="momentum"),
    ]

    def run(seed, **options):
        found = Fleet(factory, settings).train(
            X, y, randomness=SimulationRandomness(seed), simulation=True, **options
        )
        assert [each.guarantee for each in found] == [each.guarantee(60) for each in settings]
        return np.concatenate(
            [value.ravel() for each in found for value in each.parameters.values()]
        )

    assert (run(1) == run(1, threads=1)).all()
    assert (run(1) != run(2)).any()


def test_the_parameters_load_into_the_module():
    _, X, y = problem("mnist", rows=30)
    (trained,) = Fleet(mnist_cnn, [Configuration(0.1, 1, 10, 1.0, noise_multiplier=1.0)]).train(
        X.astype(np.float32), y
    )
    module = mnist_cnn()
    module.load_state_dict(
        {name: torch.from_numpy(value) for name, value in trained.parameters.items()}
    )
    assert all(value.dtype == np.float32 for value in trained.parameters.values())


def test_what_the_native_kernel_computes_is_what_torch_computes():
    """Outputs of the odd network, so that the layout of every layer is right."""
    module, X, _ = problem("odd")
    network = Network(module, X.shape[1:])
    scratch = network.scratch(np.float64)
    native.load_parameters(network.table, network.flat(module), scratch)
    outputs, target = [], network.table[-1, native.TARGET]
    for first in range(0, len(X), native.BLOCK):
        block = np.arange(first, min(first + native.BLOCK, len(X)))
        native.forward(network.table, network.rows(X), block, scratch)
        outputs += scratch.values[: len(block), target : target + 4].tolist()
    assert np.allclose(outputs, module(torch.tensor(X)).detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_float32_rows_give_what_float64_rows_give(name, clip):
    """Clipped sums to 1e-5 of the largest; every number of examples that a last block may have."""
    module, X, y = problem(name, rows=13)
    network = Network(module, X.shape[1:])
    for count in (1, 5, 6, 13):
        sums = []
        for dtype in (np.float32, np.float64):
            scratch, total = network.scratch(dtype), np.empty(network.width)
            native.load_parameters(network.table, network.flat(module), scratch)
            rows = network.rows(X).astype(np.float32).astype(dtype)
            native.clipped_sum(
                network.table,
                rows,
                y,
                np.arange(count),
                2,
                clip_bound(clip, network.width, len(X)),
                scratch,
                total,
                linear.NO_WEIGHTS,
            )
            sums.append(total)
        assert np.abs(sums[0] - sums[1]).max() <= 1e-5 * np.abs(sums[1]).max()


def test_a_float32_example_moves_the_sum_by_no_more_than_the_clip():
    """One example more among others; norms and sums are float64, so hardly anything is for
    rounding.
    """
    module, X, y = problem("odd", rows=9)
    network, clip = Network(module, X.shape[1:]), 0.3
    scratch, rows = network.scratch(np.float32), network.rows(10 * X).astype(np.float32)
    native.load_parameters(network.table, 3 * network.flat(module), scratch)
    moves = []
    for row in range(len(X)):
        moved = []
        for chosen in (np.delete(np.arange(len(X)), row), np.arange(len(X))):
            total = np.empty(network.width)
            native.clipped_sum(
                network.table,
                rows,
                y,
                chosen,
                2,
                clip_bound(clip, network.width, len(X)),
                scratch,
                total,
                linear.NO_WEIGHTS,
            )
            moved.append(total)
        moves.append(exact_norm_square(moved[1] - moved[0]))
    assert Fraction(clip * (1 - 1e-9)) ** 2 <= max(moves) <= Fraction(clip) ** 2


def random_chain(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    """Any order of convolutions, pooling and ReLU, first and last ones too, then one to three fully
    connected layers.
    """
    height, width, channels = (int(each) for each in rng.integers(5, 10, 3))
    shape, layers = (channels, height, width), []
    for _ in range(rng.integers(0, 5)):
        kernel, stride, padding = (
            tuple(int(each) for each in rng.integers(low, high, 2))
            for low, high in ((1, 4), (1, 3), (0, 3))
        )
        kind = rng.choice(["conv", "pool", "relu"])
        if kind == "relu":
            layers.append(nn.ReLU())
        elif kind == "conv":
            outputs = int(rng.integers(1, 20))
            layers.append(nn.Conv2d(channels, outputs, kernel, stride, padding))
            channels = outputs
        elif min(nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[2:]) >= 3:
            layers.append(nn.MaxPool2d(kernel, stride))
        if min(nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[2:]) < 3:
            break
    layers.append(nn.Flatten())
    size = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    for _ in range(rng.integers(0, 3)):
        outputs = int(rng.integers(1, 40))
        layers += [nn.Linear(size, outputs), nn.ReLU()]
        size = outputs
    return nn.Sequential(*layers, nn.Linear(size, 3)).double(), shape


@pytest.mark.parametrize("seed", range(25))
def test_any_chain_equals_opacus(seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module, shape = random_chain(rng)
    X, y = rng.standard_normal((8, *shape)), rng.integers(0, 3, 8).astype(float)
    network = Network(module, shape)
    scratch, total = network.scratch(np.float64), np.empty(network.width)
    native.load_parameters(network.table, network.flat(module), scratch)
    native.clipped_sum(
        network.table,
        network.rows(X),
        y,
        np.arange(8),
        2,
        clip_bound(0.5, network.width, len(X)),
        scratch,
        total,
        linear.NO_WEIGHTS,
    )
    found = np.concatenate([value.ravel() for value in network.named(total).values()])
    expected = opacus_clipped_sum(module, cross_entropy, torch.tensor(X), torch.tensor(y), 0.5)
    assert np.abs(found - expected).max() <= 1e-10


def test_an_example_whose_gradient_overflows_adds_nothing_and_spoils_no_other():
    """One row of a block is so large that float32 overflows; the others' sum is what it is without
    it.
    """
    module, X, y = problem("mlp", rows=6)
    network, X = Network(module, (6,)), X.astype(np.float32)
    parameters = 1e3 * network.flat(module)
    X[2] = 3e37
    sums = []
    for rows in (np.arange(6), np.delete(np.arange(6), 2), np.array([2])):
        scratch, total = network.scratch(np.float32), np.empty(network.width)
        native.load_parameters(network.table, parameters, scratch)
        native.clipped_sum(
            network.table,
            X,
            y,
            rows,
            2,
            clip_bound(1.0, network.width, len(X)),
            scratch,
            total,
            linear.NO_WEIGHTS,
        )
        sums.append(total)
    assert np.allclose(sums[0], sums[1], rtol=1e-12, atol=1e-15)
    assert (sums[2] == 0).all()
    assert np.linalg.norm(sums[1]) > 0.1


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(6, 2), nn.ReLU()),
        nn.Linear(6, 2),
    ],
)
def test_what_the_native_kernel_does_not_know_goes_to_torch(module):
    with pytest.raises(UnsupportedChain):
        Network(module, (6,))
    _, X, y = problem("mlp")
    found = Fleet(lambda: module, [Configuration(0.1, 1, 12, 1.0, noise_multiplier=1.0)]).train(
        X, y % 2
    )
    assert all(np.isfinite(value).all() for value in found[0].parameters.values())


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.BatchNorm2d(3), "BatchNorm2d"),
        (nn.SyncBatchNorm(3), "SyncBatchNorm"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d"),
        (nn.InstanceNorm2d(3, track_running_stats=True), "InstanceNorm2d"),
        (nn.LazyConv2d(3, 3), "LazyConv2d"),
    ],
)
def test_layers_that_mix_a_batch_are_refused_by_name(layer, name):
    def factory():
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 3, 1), layer), nn.Flatten(), nn.Linear(12, 2)
        )

    with pytest.raises(InvalidInput, match=rf"{name} at .*0\.1"):
        Fleet(factory, [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]).train(
            np.zeros((4, 3, 2, 2)), [0, 1, 0, 1]
        )


def _with_backward_hook(kind):
    layer = nn.Linear(3, 3)
    getattr(layer, kind)(lambda *given: None)
    return layer


class Recomputed(nn.Linear):
    """A layer whose forward pass is recomputed in the backward pass."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("layer", "named", "instead"),
    [
        (lambda: spectral_norm(nn.Linear(3, 3)), "spectral_norm", "weight_norm"),
        (
            lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
            "spectral_norm",
            "matrix_norm",
        ),
        (lambda: nn.Embedding(5, 3, max_norm=1.0), "Embedding with max_norm", "normalize"),
        (lambda: nn.EmbeddingBag(5, 3, max_norm=1.0), "EmbeddingBag with max_norm", "normalize"),
        (lambda: _with_backward_hook("register_full_backward_hook"), "a backward hook", "detach"),
        (lambda: _with_backward_hook("register_full_backward_pre_hook"), "backward hook", "detach"),
        (lambda: Recomputed(3, 3), "activation checkpointing", "call the function itself"),
    ],
)
def test_what_cannot_be_trained_names_what_to_use(layer, named, instead):
    settings = [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]
    fleet = Fleet(lambda: nn.Sequential(layer(), nn.Linear(3, 2)), settings)
    with pytest.raises(InvalidInput, match=named) as refused:
        fleet.train(np.zeros((4, 3)), np.zeros(4))
    assert instead in str(refused.value)


def test_other_refusals():
    settings = [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]
    X, y = np.zeros((4, 6)), [0, 1, 0, 1]
    for factory, words in [
        (lambda: 3, "torch.nn.Module"),
        (nn.Identity, "parameters to train"),
        (lambda: nn.Linear(5, 2), "rows of this shape"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            Fleet(factory, settings).train(X, y)
    with pytest.raises(InvalidInput, match="one number per example"):
        Fleet(lambda: nn.Linear(6, 2), settings, loss="squared").train(X, y)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="no CUDA"):
            Fleet(lambda: nn.Linear(6, 2), settings).train(X, y, device="cuda")


def test_group_and_layer_norm_and_dropout_are_fine():
    def factory():
        return nn.Sequential(
            nn.Linear(6, 4), nn.GroupNorm(2, 4), nn.Dropout(0.2), nn.LayerNorm(4), nn.Linear(4, 3)
        )

    _, X, y = problem("mlp")
    found = Fleet(factory, [Configuration(0.1, 1, 12, 1.0, noise_multiplier=1.0)]).train(
        X, y, memory_limit=50_000
    )
    assert all(np.isfinite(value).all() for value in found[0].parameters.values())


class Hidden(nn.Module):
    """A chain inside of another module, which only torch.func trains."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def one_rectifier() -> nn.Module:
    rectifier = nn.ReLU()
    return nn.Sequential(
        nn.Linear(6, 8), rectifier, nn.Linear(8, 8), rectifier, nn.Linear(8, 3)
    ).double()


def one_layer_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 3)).double()


def one_weight_twice() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(6, 3)).double()


def trained_flat(factory, X, y):
    settings = [Configuration(0.5, 5, len(X), 10.0, noise_multiplier=0)]
    (found,) = Fleet(factory, settings).train(
        X, y, randomness=SimulationRandomness(1), simulation=True
    )
    return np.concatenate([value.ravel() for value in found.parameters.values()])


@pytest.mark.parametrize("factory", [one_rectifier, one_layer_twice, one_weight_twice])
def test_a_layer_that_comes_twice_is_applied_twice(factory):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 6)), np.arange(20) % 3
    assert np.allclose(
        trained_flat(factory, X, y),
        trained_flat(lambda: Hidden(factory()), X, y),
        rtol=1e-9,
        atol=1e-12,
    )
    if factory is one_rectifier:
        module = factory()
        chain, reference = (
            kind(module, lambda: module, X, y.astype(float), "softmax", "cpu")
            for kind in (ChainSums, ModuleSums)
        )
        rows, clips = torch.arange(20)[None], torch.ones(1, dtype=torch.float64)
        start = chain.start([1])
        found, wanted = (
            each(start, rows, torch.ones_like(rows, dtype=bool), clips, 1 << 30)
            for each in (chain, reference)
        )
        assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    else:
        with pytest.raises(UnsupportedChain):
            ChainSums(factory(), factory, X, y.astype(float), "softmax", "cpu")


def test_frozen_layers_do_not_depend_on_what_was_drawn_before():
    def factory() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        module[0].requires_grad_(False)
        return module

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 6)), np.arange(20) % 3
    first = trained_flat(factory, X, y)
    torch.rand(3)
    assert np.array_equal(first, trained_flat(factory, X, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    X, y = np.zeros((6, 4)), np.arange(6) % 2
    with pytest.raises(InvalidInput, match="float32 or float64"):
        Fleet(
            lambda: nn.Linear(4, 2).to(dtype), [Configuration(0.1, 1, 3, 1.0, noise_multiplier=1.0)]
        ).train(X, y)
