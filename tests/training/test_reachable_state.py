"""What a module changes in a pass is set back, whatever holds it, or the module is refused.

The number of passes depends on rows. So a module that counts its passes in some way, and uses the
count, must train and predict as if every pass were the first.
"""

import collections
import io
import itertools
import random
import threading
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._torch.modules import ModuleSums, ThreadedSums
from expost.training._torch.reachable_state import ReachableState
from expost.tuning.model.released_model import Recipe
from tests.training.networks import CLASSES

COUNT, COUNTS = 0, [0]


class Slots:
    __slots__ = ("count",)


def closed():
    count = 0

    def add():
        nonlocal count
        count += 1
        return count - 1

    return add


def default(counts=[0]):  # noqa: B006  (state of that kind)
    counts[0] += 1
    return counts[0] - 1


def attribute():
    attribute.count += 1
    return attribute.count - 1


attribute.count = 0


def global_name():
    global COUNT
    COUNT += 1
    return COUNT - 1


class Counts(nn.Module):
    """Counts its passes in one of many ways, and uses the count."""

    in_class = 0
    in_class_list = [0]  # noqa: RUF012

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Parameter(torch.randn(5, 3)), nn.Linear(3, CLASSES)
        self.register_buffer("step", torch.zeros(()))
        self.register_buffer("wide", torch.zeros(1).expand(3))
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.how, self.number, self.plain = how, 0, torch.zeros(1)
        self.array, self.nested = np.zeros(2), {"passes": [[0]]}
        self.config, self.slots = SimpleNamespace(count=0), Slots()
        self.slots.count = 0
        self.deque, self.bytes, self.words = collections.deque([0]), bytearray(2), array("i", [0])
        self.counter, self.closed = collections.Counter(), closed()
        self.torch_numbers = torch.Generator().manual_seed(1)
        self.numpy_numbers, self.numbers = np.random.default_rng(1), random.Random(1)
        self.old_numbers = np.random.RandomState(1)
        self.odd = {
            "iterator": itertools.count(),
            "flat array": np.arange(1e6).flat,
            "generator": (number for number in range(10**6)),
            "file": io.StringIO("0123456789" * 100),
            "thread": threading.local(),
        }.get(how)

    def count(self):
        """Return how many passes there were."""
        if self.how in ("iterator", "generator", "flat array"):
            return next(self.odd)
        if self.how == "file":
            return int(self.odd.read(1))
        if self.how == "thread":
            self.odd.count = getattr(self.odd, "count", -1) + 1
            return self.odd.count
        return getattr(self, f"_{self.how}")()

    def _buffer(self):
        self.step += 1
        return self.step - 1

    def _rebound_memory(self):
        self.frozen.data = self.frozen.data + 1
        return float(self.frozen) - 1

    def _expanded(self):
        self.wide[:1].add_(1)
        return self.wide[0] - 1

    def _frozen(self):
        self.frozen.data += 1
        return float(self.frozen) - 1

    def _number(self):
        self.number += 1
        return self.number - 1

    def _plain(self):
        self.plain.add_(1)
        return float(self.plain) - 1

    def _on_tensor(self):
        self.plain.count = getattr(self.plain, "count", -1) + 1
        return self.plain.count

    def _array(self):
        self.array += 1
        return self.array[0] - 1

    def _nested(self):
        self.nested["passes"][0][0] += 1
        return self.nested["passes"][0][0] - 1

    def _config(self):
        self.config.count += 1
        return self.config.count - 1

    def _slots(self):
        self.slots.count += 1
        return self.slots.count - 1

    def _containers(self):
        for each in (self.deque, self.bytes, self.words):
            each[0] += 1
        self.counter["pass"] += 1
        return self.deque[0] + self.bytes[0] + self.words[0] + self.counter["pass"] - 4

    def _closure(self):
        return self.closed()

    def _default(self):
        return default()

    def _attribute(self):
        return attribute()

    def _global(self):
        COUNTS[0] += 1
        return global_name() + COUNTS[0] - 1

    def _class(self):
        Counts.in_class += 1
        self.in_class_list[0] += 1
        return Counts.in_class + self.in_class_list[0] - 2

    def _numbers(self):
        self.torch_numbers.manual_seed(self.torch_numbers.initial_seed() + 1)
        count = self.torch_numbers.initial_seed() - 2
        return count + self.numbers.random() + self.numpy_numbers.random() + self.old_numbers.rand()

    def _global_numbers(self):
        return random.random() + np.random.rand()

    def forward(self, x):
        scale = 1 + self.count()
        return self.head(torch.tanh(self.table[x.long()].mean(1))) * scale


RESTORED = [
    *("buffer", "expanded", "frozen", "rebound_memory", "number", "plain", "on_tensor", "array"),
    *("nested", "config", "slots", "containers", "closure", "default", "attribute", "global"),
    *("class", "numbers", "global_numbers"),
]
REFUSED = ["iterator", "generator", "flat array", "file", "thread"]


def trained(factory, X, y, *, models=1, threads=1, epochs=2):
    settings = [Configuration(0.5, epochs, len(X), 1.0, noise_multiplier=0)] * models
    found = Fleet(factory, settings).train(
        X, y, randomness=SimulationRandomness(1), simulation=True, threads=threads
    )
    return [np.concatenate([v.ravel() for v in each.parameters.values()]) for each in found]


@pytest.mark.parametrize("how", RESTORED)
def test_a_row_on_which_the_module_raises_does_not_act_on_others_in_training(how):
    """It leads to more passes; it must count as a row that is absent."""
    X = np.random.default_rng(0).integers(0, 5, (20, 4))
    y = np.arange(20) % CLASSES
    strange = X.copy()
    strange[4, 1] = 1 << 40
    (wanted,) = trained(lambda: Counts(how).double(), X, np.where(np.arange(20) == 4, 9, y))
    (found,) = trained(lambda: Counts(how).double(), strange, y)
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("how", RESTORED)
def test_a_row_on_which_the_module_raises_does_not_act_on_others_in_scoring(how):
    X = np.random.default_rng(0).integers(0, 5, (1030, 4)) * 1.0
    module = Counts(how)
    recipe = Recipe("own", "softmax", None, None, lambda: Counts(how), centred=False)
    parameters = {
        name: value.detach().numpy().copy()
        for name, value in module.named_parameters()
        if value.requires_grad
    }
    wanted = recipe.outputs(parameters, X)
    strange = X.copy()
    strange[4, 1] = 1 << 40
    found = recipe.outputs(parameters, strange)
    assert np.isnan(found[4]).all()
    assert (np.delete(found, 4, 0) == np.delete(wanted, 4, 0)).all()


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_be_set_back_is_refused(how):
    X, y = np.zeros((20, 4), dtype=np.int64), np.arange(20) % CLASSES
    with pytest.raises(InvalidInput, match="there cannot be set back"):
        trained(lambda: Counts(how).double(), X, y)


class Hidden(nn.Linear):
    """Counts its passes where no walk looks: in an installed package."""

    def forward(self, x):
        torch.passes_of_a_test = getattr(torch, "passes_of_a_test", 0) + 1
        return super().forward(x) * torch.passes_of_a_test


def test_outputs_that_change_from_pass_to_pass_are_refused():
    try:
        with pytest.raises(InvalidInput, match="change from one pass"):
            trained(lambda: Hidden(4, CLASSES), np.zeros((20, 4)), np.arange(20) % CLASSES)
    finally:
        del torch.passes_of_a_test


class Catches(nn.Module):
    """Goes another way for all rows if an operation raises for one of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        matrix = torch.diag_embed(1 + x)
        try:
            matrix.reshape(7, 7)  # raises for zeros, too
        except RuntimeError:
            matrix = matrix * 2
        try:
            root = torch.linalg.cholesky(matrix)
        except RuntimeError:
            root = -10 * matrix
        return self.head(root.sum(1))


def test_a_row_whose_error_the_module_catches_does_not_act_on_others():
    X = np.random.default_rng(0).random((20, 3))
    y = np.arange(20) % CLASSES
    strange = X.copy()
    strange[4] = -5.0
    (wanted,) = trained(lambda: Catches().double(), X, np.where(np.arange(20) == 4, 9, y))
    (found,) = trained(lambda: Catches().double(), strange, y)
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    recipe = Recipe("own", "softmax", None, None, lambda: Catches().double(), centred=False)
    parameters = {
        name: value.detach().numpy() for name, value in Catches().double().named_parameters()
    }
    plain, odd = (recipe.outputs(parameters, rows) for rows in (X, strange))
    assert np.isnan(odd[4]).all()
    assert (np.delete(odd, 4, 0) == np.delete(plain, 4, 0)).all()


class Hooked(nn.Module):
    """A hook that closes over the module itself, and reads a parameter of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, CLASSES)
        self.head.register_forward_pre_hook(lambda layer, given: (given[0] * self.body,))

    def forward(self, x):
        return self.head(x)


def shared_encoder():
    encoder = nn.Linear(3, 3)

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = encoder, nn.Linear(3, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.encoder(x)))

    return Shares


def test_threads_train_as_one_thread_does():
    X = np.random.default_rng(0).standard_normal((20, 3))
    y = np.arange(20) % CLASSES
    one = trained(lambda: Hooked().double(), X, y, models=4)
    two = trained(lambda: Hooked().double(), X, y, models=4, threads=2)
    for alone, beside in zip(one, two, strict=True):
        assert np.allclose(alone, beside, rtol=1e-12, atol=1e-14)
    starts = trained(lambda: Hooked().double(), X, np.full(20, 9), models=4)
    assert all(np.abs(end - start)[:3].max() > 1e-3 for end, start in zip(two, starts, strict=True))


@pytest.mark.parametrize(
    ("factory", "workers"),
    [
        (Hooked, 2),
        (shared_encoder(), 1),
        (lambda: Counts("global").float(), 1),
        (lambda: Counts("class").float(), 1),
        (lambda: Counts("global_numbers").float(), 1),
        (lambda: Counts("closure").float(), 2),
    ],
)
def test_threads_share_nothing_that_changes(factory, workers):
    def made():
        torch.manual_seed(3)
        return factory()

    module = made()
    width = 3 if hasattr(module, "body") or hasattr(module, "encoder") else 4
    X, y = np.zeros((20, width), dtype=np.float32), np.arange(20) % CLASSES * 1.0
    sums = ModuleSums(module, made, X, y, "softmax", "cpu")
    assert ThreadedSums(sums, 2).workers == workers


def test_a_factory_that_makes_different_modules_is_used_by_one_thread():
    scales = iter(range(100))

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, CLASSES)
            self.scale = next(scales)

        def forward(self, x):
            return super().forward(x + self.scale)

    X, y = np.zeros((20, 3), dtype=np.float32), np.arange(20) % CLASSES * 1.0
    sums = ModuleSums(Scaled(), Scaled, X, y, "softmax", "cpu")
    assert ThreadedSums(sums, 2).workers == 1


def test_what_was_added_to_or_taken_from_an_object_comes_back():
    layer = nn.Linear(2, 2)
    layer.config, layer.table = SimpleNamespace(a=1), {"a": 1, "b": 2}
    before = layer.weight.detach().clone()
    with ReachableState(layer).kept():
        layer.config.b, layer.table["c"] = 2, 3
        del layer.config.a
        layer.table["a"] = layer.table.pop("a")  # another order
        layer.weight.data = torch.zeros(3)
        layer.weight.requires_grad_(False)
        layer.weight.grad = torch.zeros(3)
    assert vars(layer.config) == {"a": 1}
    assert list(layer.table.items()) == [("a", 1), ("b", 2)]
    assert torch.equal(layer.weight, before)
    assert layer.weight.requires_grad
    assert layer.weight.grad is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("how", ["buffer", "frozen", "number", "nested", "closure"])
def test_state_is_set_back_in_recorded_steps(how):
    """64 steps: most of them are replayed from a graph, without Python."""

    def made():
        module = Counts(how).double()
        module.head.weight.data *= 0.1
        return module

    X = np.random.default_rng(0).integers(0, 5, (20, 4))
    y = np.arange(20) % CLASSES
    settings = [Configuration(0.05, 64, 20, 1.0, noise_multiplier=0)]
    found = [
        Fleet(made, settings).train(
            X, y, randomness=SimulationRandomness(1), simulation=True, device=device
        )[0]
        for device in ("cpu", "cuda")
    ]
    for name, value in found[0].parameters.items():
        assert np.allclose(found[1].parameters[name], value, rtol=1e-6, atol=1e-8)
