"""Weight decay, learning-rate schedules and class weights: every engine against plain torch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import DPSGD, Configuration, Fleet, candidates
from expost.training._native import linear
from expost.training._native import network as native
from expost.training._native.network import Network
from expost.training._torch.clipped_sums import LinearSums
from expost.training._torch.device_keystream import DeviceStream
from expost.training._torch.layer_chain import ChainSums
from expost.training._torch.model_group import train_batched
from expost.training._torch.modules import ModuleSums
from expost.training.configuration import SCHEDULES, plans
from expost.training.engines import Meter
from expost.training.exact_noise import clip_bound

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]
ROWS, COLUMNS, CLASSES = 40, 4, 3
WEIGHTS = {"logistic": (0.5, 4.0), "softmax": (1.0, 0.25, 6.0)}
NO_NOISE = {"noise_multiplier": 0}


def data(loss):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = rng.integers(0, len(WEIGHTS[loss]), ROWS).astype(float)
    y[5] = np.nan  # a row that does not count
    return X, y


def module_of(kind, loss):
    outputs = 1 if loss == "logistic" else CLASSES
    middle = nn.ReLU() if kind == "native" else nn.Tanh()
    return nn.Sequential(nn.Linear(COLUMNS, 5), middle, nn.Linear(5, outputs)).double()


def linear_module(loss):
    module = nn.Sequential(nn.Linear(COLUMNS, 1 if loss == "logistic" else CLASSES)).double()
    for value in module.parameters():
        nn.init.zeros_(value)
    return module


def settings_of(loss, optimiser="sgd", schedule="constant", decay=0.0, weights=True, **more):
    """Full batches: every row is taken in every step."""
    return Configuration(
        *(0.4, 6, ROWS, 0.3),
        optimiser=optimiser,
        schedule=schedule,
        weight_decay=decay,
        class_weights=WEIGHTS[loss] if weights else None,
        **NO_NOISE,
        **more,
    )


def reference(module, settings, X, y, loss):
    """DP-SGD without noise by torch's own optimisers and schedulers, row by row."""
    kept = ~np.isnan(y)
    rows, labels = torch.tensor(X[kept]), torch.tensor(y[kept])
    rate, steps = float(settings.learning_rate), int(settings.epochs)
    parameters = list(module.parameters())
    if settings.optimiser == "adam":  # its weight decay is decoupled
        made = torch.optim.AdamW(parameters, lr=rate, weight_decay=settings.weight_decay)
    else:
        momentum = settings.momentum if settings.optimiser == "momentum" else 0.0
        made = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    scheduler = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(made, factor=1.0),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=steps),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(made, 1.0, 0.0, total_iters=steps),
    }[settings.schedule]()
    for _ in range(steps):
        total = [torch.zeros_like(each) for each in parameters]
        for row, label in zip(rows, labels, strict=True):
            outputs = module(row[None])
            if loss == "softmax":
                value = functional.cross_entropy(outputs, label[None].long())
            else:
                value = functional.binary_cross_entropy_with_logits(outputs[0, 0], label)
            if settings.class_weights is not None:
                value = value * settings.class_weights[int(label)]
            found = torch.autograd.grad(value, parameters)
            norm = torch.sqrt(sum(each.square().sum() for each in found))
            for mine, each in zip(total, found, strict=True):
                mine += each * min(1.0, float(settings.clip) / float(norm))
        for value, mine in zip(parameters, total, strict=True):
            value.grad = mine / ROWS
            if settings.optimiser != "adam":
                value.data *= 1.0 - made.param_groups[0]["lr"] * settings.weight_decay
        made.step()
        scheduler.step()
    return np.concatenate([each.detach().numpy().ravel() for each in parameters])


def flat(trained):
    return np.concatenate([np.ravel(each) for each in trained.parameters.values()])


CASES = [
    ("sgd", "linear", 0.0, False),
    ("momentum", "cosine", 0.0, False),
    ("sgd", "constant", 0.3, False),
    ("sgd", "constant", 0.0, True),
    ("momentum", "linear", 0.2, True),
    ("adam", "cosine", 0.1, True),
]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("case", CASES)
def test_linear_kernels_equal_plain_torch(case, loss):
    X, y = data(loss)
    settings = settings_of(loss, *case)
    classes = CLASSES if loss == "softmax" else None
    (found,) = Fleet(loss, [settings], classes).train(X, y, simulation=True)
    expected = reference(linear_module(loss), settings, X, y, loss)
    assert np.allclose(flat(found), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["native", "general"])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("case", CASES[-2:])
def test_networks_and_other_modules_equal_plain_torch(case, loss, kind):
    X, y = data(loss)
    settings = [settings_of(loss, *case), settings_of(loss, *case[:3], weights=False)]
    torch.manual_seed(0)
    start = module_of(kind, loss).state_dict()

    def factory():
        module = module_of(kind, loss)
        module.load_state_dict(start)
        return module

    trained = Fleet(factory, settings, loss=loss).train(X, y, simulation=True)
    for each, found in zip(settings, trained, strict=True):
        expected = reference(factory(), each, X, y, loss)
        assert np.allclose(flat(found), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["linear", "chain", "exact module", "module"])
def test_groups_of_models_equal_plain_torch(kind, device):
    """Different schedules, decays, class weights and lengths in one call."""
    loss = "softmax"
    X, y = data(loss)
    settings = [settings_of(loss, *case) for case in CASES]
    short = settings_of(loss, *CASES[4])
    settings.append(Configuration(**{**vars(short), "epochs": 3, "class_weights": None}))
    torch.manual_seed(0)
    start = (linear_module(loss) if kind == "linear" else module_of("native", loss)).state_dict()

    def factory():
        module = linear_module(loss) if kind == "linear" else module_of("native", loss)
        module.load_state_dict(start)
        return module

    if kind == "linear":
        sums = LinearSums(X, y, loss, CLASSES, device)
    elif kind == "chain":
        sums = ChainSums(factory(), factory, X, y, loss, device)
    else:
        exact = kind == "exact module"
        if exact and device != "cpu":
            pytest.skip("exact sums are made on a CPU")
        sums = ModuleSums(factory(), factory, X, y, loss, device, exact=exact)
    stream = DeviceStream([SimulationRandomness(1)] * len(settings), device)
    found = train_batched(
        sums, settings, plans(settings, ROWS), stream, [0] * len(settings), None, None, Meter(None)
    )
    for each, mine in zip(settings, found, strict=True):
        expected = reference(factory(), each, X, y, loss)
        if kind == "linear":  # weights of an output, then its bias
            weight, bias = np.split(expected, [CLASSES * COLUMNS])
            expected = np.column_stack([weight.reshape(CLASSES, -1), bias]).ravel()
        assert np.allclose(mine, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_defaults_change_no_bit_and_ones_are_no_weights(schedule):
    X, y = data("logistic")
    plain = Configuration(0.4, 6, 10, 0.3, noise_multiplier=1.0, schedule=schedule)
    ones = Configuration(**{**vars(plain), "class_weights": (1, 1)})
    found = [
        Fleet("logistic", [each]).train(X, y, simulation=True, randomness=SimulationRandomness(1))
        for each in (plain, ones)
    ]
    assert (flat(found[0][0]) == flat(found[1][0])).all()
    assert plain.guarantee(ROWS) == ones.guarantee(ROWS)


@pytest.mark.parametrize("weight", [1e-6, 0.3, 7.0, 1e6])
@pytest.mark.parametrize("kind", ["logistic", "softmax", "network"])
def test_a_weighted_row_moves_an_exact_sum_by_the_clipping_norm_at_most(kind, weight):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((30, COLUMNS)) * 10.0 ** rng.uniform(-3, 3, (30, 1))).astype(
        np.float32
    )
    y, clip = rng.integers(0, 2, 30).astype(float), 0.7
    weights = np.array([weight, 1.0 / weight])
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Linear(COLUMNS, 5), nn.ReLU(), nn.Linear(5, 2)), (COLUMNS,))
    width = {"logistic": COLUMNS + 1, "softmax": 2 * COLUMNS + 2, "network": network.width}[kind]
    bound, parameters = clip_bound(clip, width, 30), rng.standard_normal(width)
    scratch, norms = network.scratch(np.float32), linear.row_norms(X)

    def add(rows):
        total = np.zeros(width)
        if kind == "network":
            native.load_parameters(network.table, parameters, scratch)
            native.clipped_sum(
                network.table, X, y, rows, linear.SOFTMAX, bound, scratch, total, weights
            )
        elif kind == "softmax":
            linear.clipped_sum_softmax(X, y, norms, rows, parameters, bound, 2, total, weights)
        else:
            linear.clipped_sum_single(
                X, y, norms, rows, parameters, bound, linear.LOGISTIC, total, weights
            )
        return total

    every = add(np.arange(30))
    moves = [every - add(np.delete(np.arange(30), row)) for row in range(30)]
    lengths = np.linalg.norm(moves, axis=1)
    assert lengths.max() <= clip
    if weight in (7.0, 1e6):
        assert lengths.max() > 0.999 * clip  # clipping is at work


@pytest.mark.parametrize("weight", [1e-6, 7.0, 1e6])
def test_a_weighted_row_moves_a_sum_on_a_device_by_the_clipping_norm_at_most(weight):
    X, y = data("softmax")
    rows = torch.arange(ROWS)[:, None]
    clips = torch.full((ROWS,), 0.7, dtype=torch.float64)
    torch.manual_seed(0)
    module = module_of("native", "softmax")
    for sums in (
        LinearSums(X, y, "softmax", CLASSES, "cpu"),
        ChainSums(module, lambda: module, X, y, "softmax", "cpu"),
        ModuleSums(module, lambda: module, X, y, "softmax", "cpu", exact=False),
    ):
        sums.weigh([(1.0, weight, 1.0 / weight)] * ROWS, "cpu")
        parameters = torch.randn(1, sums.width, dtype=torch.float64).expand(ROWS, -1)
        taken = torch.ones_like(rows, dtype=torch.bool)
        found = sums(parameters, rows, taken, clips, 1 << 30)
        lengths = torch.linalg.vector_norm(found, dim=1)
        assert float(lengths.max()) <= 0.7 * (1 + 1e-12)
        assert float(lengths[5]) == 0.0  # a row that does not count


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("weight_decay", -0.1),
        ("weight_decay", float("nan")),
        ("weight_decay", 1e-200),
        ("weight_decay", 11.0),  # times the learning rate: more than 1
        ("schedule", "step"),
        ("schedule", None),
        ("class_weights", "balanced"),
        ("class_weights", 2.0),
        ("class_weights", (1.0,)),
        ("class_weights", (1.0, 0.0)),
        ("class_weights", (1.0, -1.0)),
        ("class_weights", (1.0, 1e7)),
        ("class_weights", (1.0, float("inf"))),
        ("class_weights", {0: 1.0, 1: 2.0}),
    ],
)
def test_wrong_settings_are_refused(field, wrong):
    with pytest.raises(InvalidInput) as caught:
        Configuration(0.1, 1, 10, 1.0, noise_multiplier=1.0, **{field: wrong})
    assert caught.value.field == field


def test_class_weights_must_fit_the_model():
    X, y = data("softmax")

    def with_weights(*weights):
        return Configuration(0.1, 1, 10, 1.0, noise_multiplier=1.0, class_weights=weights)

    with pytest.raises(InvalidInput, match="no classes"):
        Fleet("linear", [with_weights(1, 2)])
    with pytest.raises(InvalidInput, match="pass 2 numbers"):
        Fleet("logistic", [with_weights(1, 2, 3)])
    with pytest.raises(InvalidInput, match="pass 3 numbers"):
        DPSGD("softmax", with_weights(1, 2), ROWS, classes=3)
    module = Fleet(lambda: module_of("native", "softmax"), [with_weights(1, 2)])
    with pytest.raises(InvalidInput, match="pass 3 numbers"):
        module.train(X, y)


def test_public_parameters_list_what_is_given():
    plain = Configuration(0.1, 1, 10, 1.0, noise_multiplier=1.0)
    given = Configuration(
        *(0.1, 1, 10, 1.0),
        noise_multiplier=1.0,
        weight_decay=0.01,
        schedule="cosine",
        class_weights=[1, 5],
    )
    first, second = (dict(each.params) for each in candidates("logistic", [plain, given], ROWS))
    added = {"weight_decay": 0.01, "schedule": "cosine", "class_weights": [1.0, 5.0]}
    assert {key: second[key] for key in set(second) - set(first)} == added


def test_opacus_makes_the_same_training():
    pytest.importorskip("opacus", reason="compares with Opacus: pip install 'expost[opacus]'")
    from expost.integrations.opacus import train_with_opacus

    for loss in WEIGHTS:
        X, y = data(loss)
        settings = settings_of(loss, "momentum", "cosine", 0.2)
        found = train_with_opacus(
            lambda loss=loss: linear_module(loss), settings, X, y, loss=loss, simulation=True
        )
        expected = reference(linear_module(loss), settings, X, y, loss)
        assert np.allclose(flat(found), expected, rtol=1e-4, atol=1e-6)  # Opacus clips in float32
