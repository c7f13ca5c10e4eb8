"""Modules that keep state, draw numbers or raise on a row: no row acts on another through them."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._torch.module_state import (
    ReachableState,
    RowsApart,
    WholeState,
    seed_draws,
    seed_model,
)
from expost.training._torch.modules import ModuleSums
from tests.training.networks import CLASSES


def sums_for(module, X, *, exact=True):
    """Return a function from row numbers to the clipped sum, for one model."""
    y = np.arange(len(X)) % CLASSES * 1.0
    sums = ModuleSums(module, lambda: module, X, y, "softmax", "cpu", exact=exact)
    sums.careful = True
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    flat, clips = flat.double()[None], torch.tensor([0.5], dtype=torch.float64)

    def add(rows):
        places = torch.as_tensor(rows, dtype=torch.int64)[None]
        taken = torch.ones_like(places, dtype=torch.bool)
        return sums(flat, places, taken, clips, 1 << 30)[0].numpy()

    return sums, add


class Remembers(nn.Module):
    """Uses the batch before, once it has seen some, in one of three ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.how, self.calls = nn.Linear(4, CLASSES), how, 0
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.memory = [torch.zeros(4, dtype=torch.float64)]
        self.table = {"last": torch.zeros(4, dtype=torch.float64)}

    def forward(self, x):
        self.calls += 1
        last = {"buffer": self.mean, "list": self.memory[-1], "dict": self.table["last"]}[self.how]
        made = self.layer(x + last if self.calls > 20 else x)
        if self.how == "buffer":
            self.mean = 0.5 * self.mean + x.detach().mean(0) if self.calls > 1 else x.detach()[0]
        elif self.how == "list":
            self.memory.append(5 * x.detach()[0])
        else:
            self.table["last"] = 5 * x.detach()[0]
        return made


@pytest.mark.parametrize("how", ["buffer", "list", "dict"])
@pytest.mark.parametrize("exact", [True, False])
def test_no_row_acts_on_a_later_step_through_the_module(how, exact):
    """Before a step on rows 0 to 2, other rows pass through the module, often."""
    X = np.random.default_rng(0).standard_normal((6, 4))
    found = []
    for earlier in ([3, 4, 5], [5, 3, 4]):
        _, add = sums_for(Remembers(how).double(), X, exact=exact)
        for _ in range(30):
            add(earlier)
        found.append(add([0, 1, 2]))
    assert (found[0] == found[1]).all()


def test_a_module_is_set_back_after_a_pass_also_when_it_raises():
    layer = nn.Linear(2, 2)
    layer.kept, layer.names, layer.count = [1, 2], {"a"}, 3
    before = dict(vars(layer))
    with suppress(ValueError), ReachableState(layer).kept():
        layer.kept.append(3)
        layer.names.add("b")
        layer.count += 1
        layer.new = 5
        layer.register_buffer("more", torch.zeros(1))
        del layer.training
        raise ValueError("stop")
    assert vars(layer) == before
    assert layer.kept == [1, 2]
    assert layer.names == {"a"}
    assert not dict(layer.named_buffers())


def test_what_is_replaced_inside_a_container_comes_back():
    """The number of elements stays the same."""
    layer = nn.Linear(2, 2)
    layer.kept, layer.table = [1, 2], {"a": 1}
    with ReachableState(layer).kept():
        layer.kept[0] = 5
        layer.table["a"] = 5
    assert layer.kept == [1, 2]
    assert layer.table == {"a": 1}


class Looks(nn.Module):
    """Reads a table at places given by the row, or factors a matrix made of it; both can raise."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.table = nn.Parameter(torch.randn(5, 3))
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        if self.how == "bag":
            return self.head(functional.embedding_bag(x.long(), self.table))
        if self.how == "index":
            return self.head(self.table[x.long()].mean(1))
        weights = torch.linalg.cholesky(torch.diag_embed(x[:, :3] + 1))
        return self.head(weights @ self.table[:3])[:, 0]


@pytest.mark.parametrize("how", ["bag", "index", "cholesky"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_row_on_which_the_module_raises_adds_nothing(how, exact):
    X = np.random.default_rng(0).integers(0, 5, (9, 4)) * 1.0
    X[2], X[7, 1] = -9.0, -7.0  # outside the table, and not positive definite
    _, add = sums_for(Looks(how).double(), X, exact=exact)
    good = [0, 1, 3, 4, 5, 6, 8]
    alone = [add([row]) for row in range(9)]
    assert (alone[2] == 0).all()
    assert (alone[7] == 0).all()
    assert np.allclose(add(range(9)), sum(alone[row] for row in good), rtol=1e-12, atol=1e-14)
    assert np.abs(add(range(9))).max() > 0


def test_a_training_does_not_fail_on_a_row_that_makes_the_module_raise():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 5, (12, 4)), np.arange(12) % CLASSES
    settings = [Configuration(0.5, 3, 12, 1.0, noise_multiplier=0)] * 2

    def trained(rows, labels):
        found = Fleet(lambda: Looks("index").double(), settings).train(
            rows, labels, randomness=SimulationRandomness(1), simulation=True
        )
        return np.concatenate([v.ravel() for each in found for v in each.parameters.values()])

    strange = X.copy()
    strange[4, 1] = 1 << 40
    wanted = trained(X, np.where(np.arange(12) == 4, 9, y))
    assert np.allclose(trained(strange, y), wanted, rtol=1e-12, atol=1e-14)


class Scaled(nn.Embedding):
    """An embedding of another type."""

    def forward(self, input):
        return 2 * super().forward(input)


class LooksUp(nn.Module):
    """Looks up rows of a parameter, or of a tensor made of the row, by numbers in the row."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.table = how, nn.Parameter(torch.randn(5, 3))
        self.other, self.head = Scaled(5, 3), nn.Linear(3, CLASSES)

    def forward(self, x):
        tokens = x[:, :2].long()
        own = torch.outer(x[0, :4], self.table[0])
        if self.how == "type":
            found = self.other(tokens)
        elif self.how == "function":
            found = functional.embedding(tokens, self.table)
        elif self.how == "operation":
            found = torch.embedding(self.table, tokens)
        elif self.how == "own":
            found = functional.embedding(tokens[0], own)[None]
        elif self.how == "fill":
            found = own.index_fill(0, tokens[0], 0.5)[None]
        else:
            found = torch.index_fill(own.T, 1, tokens[0], 2.0).T[None]
        return self.head(found.mean(1))


@pytest.mark.parametrize("how", ["type", "function", "operation", "own", "fill", "fill columns"])
@pytest.mark.parametrize("exact", [True, False])
def test_an_index_outside_does_not_reach_the_tensors_of_another_row(how, exact):
    """vmap would read or fill those of the next row."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 4, (5, 2)), rng.standard_normal((5, 2))])
    whole, outside = [], []
    for token in (3, -1, 5, 9, -6):
        rows = X.copy()
        rows[2, 0] = token
        _, add = sums_for(LooksUp(how).double(), rows, exact=exact)
        if token in (5, 9, -6):
            outside.append(add([2]))
        whole.append(add(range(5)) - add([2]))
        alone = sum(add([row]) for row in (0, 1, 3, 4))
        assert np.allclose(whole[-1], alone, rtol=1e-12, atol=1e-14)
    for other in whole[1:]:
        assert np.allclose(other, whole[0], rtol=1e-12, atol=1e-14)
    if "fill" not in how:
        assert all((each == 0).all() for each in outside)


def test_lookups_inside_are_those_of_torch():
    torch.manual_seed(0)
    table, tokens = torch.randn(5, 3), torch.tensor([[0, 4], [2, 2]])
    with RowsApart():
        assert torch.equal(functional.embedding(tokens, table), table[tokens])
        assert torch.equal(functional.embedding(tokens, weight=table), table[tokens])
        found = table.index_fill(0, torch.tensor([-1, 2]), 7.0)
        turned = torch.index_fill(table, dim=-1, index=torch.tensor([1]), value=7.0)
        whole = functional.embedding(tokens, torch.arange(10).view(5, 2))
    assert torch.equal(found, table.index_fill(0, torch.tensor([4, 2]), 7.0))
    assert torch.equal(turned, table.index_fill(1, torch.tensor([1]), 7.0))
    assert whole.dtype == torch.int64


def dropout():
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, CLASSES))


@pytest.mark.parametrize("exact", [True, False])
def test_masks_cannot_be_found_from_the_seed_of_the_first_parameters(exact):
    """torch reads 32 bits of a seed, and they determine the first parameters. The masks need more:
    with known masks, one row more would move all others to other masks.
    """
    torch.manual_seed(0)
    X = np.random.default_rng(0).standard_normal((6, 4))
    sums, add = sums_for(dropout().double(), X, exact=exact)

    def masked(secret, step):
        sums.start([secret])
        sums.before_step(step)
        return add(range(6))

    low = 123_456_789
    secrets = [low, low + (1 << 40), low + (1 << 62), low + (1 << 255)]
    starts = [sums.start([secret]) for secret in (low, low + (1 << 255))]
    assert torch.equal(*starts)
    found = [masked(secret, step) for secret in secrets for step in (1, 2)]
    for place, one in enumerate(found):
        for other in found[:place]:
            assert not np.allclose(one, other)
    assert (masked(low, 2) == found[1]).all()


def test_secrets_of_a_fleet_have_256_bits(monkeypatch):
    given = []
    before = ModuleSums.start
    monkeypatch.setattr(
        ModuleSums, "start", lambda sums, seeds: given.extend(seeds) or before(sums, seeds)
    )
    Fleet(dropout, [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)] * 8).train(
        np.zeros((4, 4)), [0, 1, 2, 0]
    )
    assert len(set(given)) == 8
    assert max(given) >= 1 << 240


def test_all_words_of_the_state_of_torchs_generator_come_from_the_secret():
    state, drawn = torch.random.get_rng_state(), []
    try:
        for secret in (1, 2):
            seed_draws(secret, 3, torch.device("cpu"))
            words = torch.random.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
            assert len(np.unique(words)) == 624
            assert words.max() < 1 << 32
            drawn.append((words.copy(), torch.rand(1000).numpy()))
    finally:
        torch.random.set_rng_state(state)
    assert (drawn[0][0] != drawn[1][0]).all()
    for _, uniforms in drawn:
        assert abs(uniforms.mean() - 0.5) < 0.05


def test_coins_and_exponential_numbers_are_made_of_the_whole_state():
    """On some processors, torch makes them from 31 bits of the state."""
    x = torch.zeros(20_000)

    def drawn(make):
        torch.manual_seed(5)
        with WholeState():
            found = make()
        torch.manual_seed(5)
        return found, torch.rand(20_000, dtype=torch.float64)

    with torch.random.fork_rng():
        for make in (
            lambda: torch.bernoulli(x, 0.3),
            lambda: torch.empty_like(x).bernoulli_(0.3),
        ):
            found, uniforms = drawn(make)
            assert torch.equal(found, (uniforms < 0.3).to(x.dtype))
        found, uniforms = drawn(lambda: functional.dropout(x + 1, 0.25))
        assert abs(float((found == 0).double().mean()) - 0.25) < 0.02
        found, uniforms = drawn(lambda: torch.empty_like(x).exponential_(2.0))
        assert torch.allclose(found.double(), -torch.log(1 - uniforms) / 2, rtol=1e-6)
        assert abs(float(found.mean()) - 0.5) < 0.02


class FromList(nn.Module):
    """Reads a parameter from a list of its own, where training cannot replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)
        self.others = [self.layer.weight]

    def forward(self, x):
        return self.layer(x) + x[:, :CLASSES] * self.others[0].sum()


def hooked():
    layer = nn.Linear(4, CLASSES)
    layer.weight.register_hook(lambda gradient: 2 * gradient)
    return nn.Sequential(layer, nn.Tanh())


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass, outside vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(lambda given: torch.tanh(self.layer(given)), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (FromList, "layer that holds it"),
        (hooked, "hook"),
        (Checkpointed, "activation checkpointing"),
    ],
)
def test_modules_whose_gradients_would_be_wrong_are_refused(factory, words):
    with pytest.raises(InvalidInput, match=words):
        Fleet(factory, [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]).train(
            np.zeros((4, 4)), [0, 1, 0, 1]
        )


class Padded(nn.Module):
    """Has padding without a layer of type ``nn.Embedding``, or another operation of that kind."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.table = how, nn.Parameter(torch.randn(5, 3))
        self.other, self.head = Scaled(5, 3, padding_idx=1), nn.Linear(3, CLASSES)

    def forward(self, x):
        tokens, aten = x.long(), torch.ops.aten.embedding
        looked_up = {
            "type": lambda: self.other(tokens),
            "function": lambda: functional.embedding(tokens, self.table, padding_idx=-4),
            "operation": lambda: torch.embedding(self.table, tokens, 1),
            "frequency": lambda: functional.embedding(tokens, self.table, 1, None, 2.0, True),
            "sparse": lambda: functional.embedding(tokens, self.table, 1, sparse=True),
            "aten": lambda: aten.default(self.table, tokens, 1) + aten(self.table, tokens, 1),
            "bag": lambda: functional.embedding_bag(tokens, self.table, padding_idx=1)[:, None],
            "select": lambda: torch.select_scatter(self.table, self.table[tokens[0, 0]] ** 2, 0, 1)[
                None
            ],
        }[self.how]()
        return self.head(torch.tanh(looked_up.mean(1)))


PADDED = ["type", "function", "operation", "frequency", "sparse", "aten", "bag", "select"]


@pytest.mark.parametrize("how", PADDED)
def test_one_row_moves_a_step_of_a_fleet_by_its_own_gradient(how):
    """vmap gives padding in the first row of a pass another gradient than in the others."""
    X, y = np.full((64, 4), 1), np.zeros(64, dtype=np.int64)
    X[:, 1], X[0] = 2, 3

    def trained(present):
        settings = Configuration(64.0, 1, 64, 1.0, noise_multiplier=0)
        labels = np.where(np.isin(np.arange(64), present), y, CLASSES)  # CLASSES is no class
        found = Fleet(lambda: Padded(how).double(), [settings]).train(
            X, labels, randomness=SimulationRandomness(1), simulation=True
        )
        return np.concatenate([each.ravel() for each in found[0].parameters.values()])

    moved = trained(range(64)) - trained(range(1, 64))
    assert np.linalg.norm(moved) <= 1.0 + 1e-9
    assert np.allclose(moved, trained([0]) - trained([]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("how", PADDED)
@pytest.mark.parametrize("exact", [True, False])
def test_padding_has_no_gradient_in_any_row(how, exact):
    """Sums over several rows are those of torch for single rows."""
    X = np.random.default_rng(0).integers(0, 5, (6, 4)) * 1.0
    X[:, 0] = 1
    module = Padded(how).double()
    _, add = sums_for(module, X, exact=exact)
    wanted = 0.0
    for row in range(6):
        loss = functional.cross_entropy(
            module(torch.from_numpy(X[row : row + 1])), torch.tensor([row % CLASSES])
        )
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        flat = torch.cat(
            [
                torch.zeros(each.numel()) if value is None else value.to_dense().flatten()
                for each, value in zip(module.parameters(), found, strict=True)
            ]
        )
        wanted = wanted + (flat * min(1.0, 0.5 / float(flat.norm()))).numpy()
    assert np.allclose(add(range(6)), wanted, rtol=1e-9, atol=1e-12)


@torch.jit.script
def _scripted(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return functional.embedding(tokens, table, 1)


class Compiled(nn.Module):
    """Looks up inside a script, which no mode of Python sees."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, CLASSES))

    def forward(self, x):
        return _scripted(x.long(), self.table).mean(1)


def test_padding_inside_a_script_is_refused():
    with pytest.raises(InvalidInput, match="not from a script"):
        Fleet(Compiled, [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]).train(
            np.zeros((4, 4)), [0, 1, 0, 1]
        )


def test_a_grid_that_is_not_finite_gives_numbers_that_are_not_finite():
    """torch itself reads any memory there, and may end the process."""
    image, grid = torch.randn(1, 2, 4, 4), torch.zeros(1, 3, 3, 2)
    grid[0, 1, 1, 0], grid[0, 2, 2, 1] = torch.inf, torch.nan
    with RowsApart():
        found = functional.grid_sample(image, grid, padding_mode="reflection", align_corners=False)
        same = torch.grid_sampler(image, grid, 0, 2, False)
    wanted = torch.zeros(3, 3, dtype=torch.bool)
    wanted[1, 1] = wanted[2, 2] = True
    assert torch.equal(found[0].isnan(), wanted.expand(2, 3, 3))
    assert torch.equal(same.nan_to_num(7.0), found.nan_to_num(7.0))


def test_seeding_a_model_draws_as_torch_does_and_keeps_nothing():
    """Thousands of models would leave thousands of traces of the stack in torch's list of calls."""
    before = len(torch.cuda._queued_calls)
    seed_model(2**63 + 5)
    drawn, kept = torch.rand(3), len(torch.cuda._queued_calls)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    assert kept <= before
