"""Every module of a zoo: the sum over a batch is the sum of its rows, each as torch computes it.

The reference is torch's autograd in float64 for one row at a time, without vmap. Each module is
tried on the CPU engine and on the CUDA path (matrix products), which runs on a CPU here. Hostile
rows are among the rows: NaN, large numbers, tokens outside the vocabulary.
"""

from functools import lru_cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from expost.training._torch.modules import ModuleSums
from expost.training.exact_noise import clip_bound
from tests.training.zoo import CLASSES, OPERATIONS, ZOO, rows_of

CLIP = 0.5
# torch raises for an index outside; here it is ignored
IGNORED = ("operation index_fill",)


def wanted_of(name, factory, X, y):
    """Return the clipped gradient of every row; zero if torch raises or it is not finite."""
    module, found = factory(), []
    for row, label in zip(X, y, strict=True):
        if name == "counts passes":
            module = factory()
        trained = [value for value in module.parameters() if value.requires_grad]
        if name == "operation grid sample" and not np.isfinite(row).all():
            found.append(np.zeros(sum(value.numel() for value in trained)))
            continue  # torch itself may end the process
        try:
            outputs = module(torch.from_numpy(row[None]))
            loss = functional.cross_entropy(outputs, torch.tensor([int(label)]))
            slopes = torch.autograd.grad(loss, trained, allow_unused=True)
        except (RuntimeError, IndexError):
            slopes = [None] * len(trained)
        flat = torch.cat(
            [
                torch.zeros(value.numel()) if each is None else each.to_dense().flatten()
                for value, each in zip(trained, slopes, strict=True)
            ]
        )
        length = float(flat.norm())
        scale = min(1.0, CLIP / length) if 0 < length < np.inf else 0.0
        found.append(np.where(np.isfinite(flat), flat, 0.0) * scale)
    return np.array(found)


@lru_cache(maxsize=2)
def expected(name):
    """Rows of a module, the numbers of the hostile ones, labels and clipped gradients."""
    factory, shape, tokens = ZOO[name]
    X, hostile = rows_of(shape, tokens=tokens)
    y = np.arange(len(X)) % CLASSES * 1.0
    return X, hostile, y, wanted_of(name, factory, X, y)


def summing(module, factory, X, y, *, exact):
    sums = ModuleSums(module, factory, X, y, "softmax", "cpu", exact=exact)
    sums.careful = True
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    least = clip_bound(CLIP, sums.width, sums.rows).clip  # lower than CLIP by all rounding
    flat, clips = flat.double()[None], torch.tensor([least], dtype=torch.float64)

    def add(rows, using=sums):
        places = torch.as_tensor(rows, dtype=torch.int64)[None]
        taken = torch.ones_like(places, dtype=torch.bool)
        return using(flat, places, taken, clips, 1 << 30)[0].numpy()

    return sums, add


LAPACK = "operation lstsq"  # its last bits depend on where an array lies in memory


def close(one, other):
    return np.allclose(one, other, rtol=0, atol=1e-8 * CLIP)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exact", [True, False], ids=["CPU", "CUDA path"])
@pytest.mark.parametrize("name", ZOO)
def test_a_sum_is_the_sum_of_its_rows(name, exact):
    factory = ZOO[name][0]
    X, hostile, y, wanted = expected(name)
    sums, add = summing(factory(), factory, X, y, exact=exact)
    whole = add(range(len(X)))
    alone = np.array([add([row]) for row in range(len(X))])
    assert close(whole, alone.sum(0))
    assert (np.linalg.norm(alone, axis=1) <= CLIP).all()
    usual = [row for row in range(len(X)) if row not in hostile]
    compared = usual if name.startswith(IGNORED) else range(len(X))
    assert close(alone[compared], wanted[compared])
    assert np.abs(alone[usual]).max() > 0
    assert close(add(usual), alone[usual].sum(0))  # the hostile rows change no other
    # the steps before, on other rows, leave nothing behind
    repeats = close if name == LAPACK else np.array_equal
    assert repeats(add(range(len(X))), whole)
    if exact:
        other = sums.again()
        assert other is not None
        assert not other.taps.state.shares(sums.taps.state)
        assert repeats(add(range(len(X)), other), whole)


def test_the_zoo_is_large():
    assert len(ZOO) >= 120
    assert len(OPERATIONS) >= 72


@pytest.mark.filterwarnings("ignore")
def test_the_zoo_has_models_of_the_transformers_library():
    pytest.importorskip("transformers")
    assert sum(name.startswith("transformers") for name in ZOO) >= 13
