"""Train any torch module step by step with all rows, and pay for the steps that were made.

The claim is that of :mod:`expost.training.progressive`: step t releases the sum of the clipped
gradients of all rows plus exact rounded Gaussian noise, so the first t steps together are
√(μ_1² + … + μ_t²)-Gaussian DP, whatever is computed from them. Every row passes through the module
on its own, and contributions are rounded to a grid and added as whole numbers
(:class:`expost.training._torch.modules.ModuleSums`). Rows are clipped so that none moves the sum by
more than ``clip`` (:func:`expost.training.exact_noise.clip_bound`). Passes have a fixed shape, and
a row has a fixed position in one of them, so the rounding of one row's gradient depends on no other
row. Positions are those of a public number of places: rows that do not count are zeros there. So
the relation is zero-out; with a secret number of rows, positions would not be fixed. Where places
are persons, each has as many positions as rows may count, and a row counts with its share
(:mod:`expost.tuning.rows.job_columns`).

Where a module draws random numbers (dropout), each row has draws of its own in each step, from the
secret key. They are independent of the rows and have the same law whatever the rows are, also where
a row makes the module raise and the rows of its block pass once more with new draws. So the claim,
which holds for given draws, holds on average over them.

**The rule** has no learning rate that depends on the scale of the gradients. The direction is an
average of the released gradients, each weighted by its precision (the inverse variance of its
noise), with a memory of a few steps. Each entry is divided by its usual size: the root of the
known variance of its noise and of its signal, which is measured as the square of the average less
that variance. A step has a public length. Noise falls geometrically, so early steps are nearly at
random, which costs nothing. What is scored and released is not the last weights, which go on
moving by steps of that length, but an average of the weights of the last steps, weighted by
precision. With more parameters than rows (:data:`FEW_STEPS`) steps are fewer, because noise moves
weights further; entries are not scaled, and from where the signal of typical gradients stands out
the length falls as 1/√μ of the steps made. A module with frozen parameters begins near a good
model, which steps at random would lose: its steps are short where the average is mostly noise. How
the constants were picked: docs/progressive.md.

Tests: ``tests/training/test_progressive_modules.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.randomness.source import RunKey
from expost.rationals import count_of
from expost.training.exact_noise import clip_bound
from expost.training.fleet import default_threads

_SEED_RUN = 2**62  # the run of a key that seeds initial weights and dropout; steps count from 0
_MEMORY = 2**29  # bytes of activations at a time, of all threads
_FEWEST, _MOST = 16, 256  # rows of a pass


@dataclass(frozen=True)
class ModuleRule:
    """How weights follow the released gradients. All of it is public and free."""

    length: float = 0.7
    memory: float = 0.8  # of the average gradient
    slow: float = 0.97  # memory of the squares of its entries
    shared: float = 0.3  # part of the mean square in that of each entry; 1: entries are not scaled
    fall: float = 0.0  # power of μ by which steps become shorter
    constant: float = 3.0  # they keep their length until μ is this many times √width / places
    average: float = 0.9  # memory of the weights that are released
    caution: float = 0.0  # power of the signal's share in the average by which steps are shorter
    most: int = 32  # steps while μ² doubles, if a step is quick


MANY_STEPS = ModuleRule()
FEW_STEPS = ModuleRule(shared=1.0, fall=0.5)
"""Steps for fewer parameters than rows, and for more parameters."""

FINE_TUNING = ModuleRule(length=2.8, caution=1.0, fall=0.25, most=20)
"""Steps for a module with frozen parameters, which begins near a good model."""

_WORK, _FEWEST_STEPS = 4e9, 8  # rows times parameters while μ² doubles


@dataclass(frozen=True, eq=False)
class ModuleTraining:
    """What is trained: a module on rows of any shape. All of it is public.

    ``factory`` returns a new module at each call; ``outputs`` is its number of classes, or 1.
    ``together``: the positions of a person, if places are persons.
    """

    factory: Callable[[], Any]
    loss: str
    places: int
    clip: float = 0.1
    class_weights: tuple[float, ...] | None = None
    rule: ModuleRule = field(default_factory=ModuleRule)
    together: int = 1

    def __post_init__(self) -> None:
        count_of(self.places, "places", at_least=1)
        count_of(self.together, "together", at_least=1)
        if not 2.0**-20 <= self.clip <= 2.0**20:
            raise InvalidInput("clip", self.clip, "give a number from 1e-6 to 1e6")

    @cached_property
    def width(self) -> int:
        """Number of trained parameters."""
        with _as_in_training():
            module = self.checked()
            return sum(value.numel() for value in module.parameters() if value.requires_grad)

    @cached_property
    def fine_tunes(self) -> bool:
        """Whether some parameters are frozen: the module begins near a good model."""
        with _as_in_training():
            return not all(value.requires_grad for value in self.checked().parameters())

    @cached_property
    def steps(self) -> int:
        """Number of steps while μ² doubles: fewer where one takes long."""
        with _as_in_training():
            parameters = sum(value.numel() for value in self.checked().parameters())
        fitting = int(_WORK / (parameters * self.places * self.together))
        return max(_FEWEST_STEPS, min(self.rule.most, fitting))

    def checked(self) -> Any:
        """Return a new module that can be trained."""
        from expost.training._torch.modules import check_module

        return check_module(self.factory())

    @property
    def sensitivity(self) -> float:
        """How much one row, or one person, moves the sum of gradients that is released, in ℓ2."""
        return self.clip

    @property
    def first_square(self) -> float:
        """μ² of the first step: noise twice as large as any gradient."""
        return 0.25 * self.width / self.places**2

    def start(self, key: RunKey) -> ModuleDescent:
        """Return a new module's weights, drawn by the key."""
        import torch

        from expost.training._torch.module_state import Parameters

        with torch.random.fork_rng():
            torch.manual_seed(0)
            parameters = Parameters(self.checked(), self.checked, "cpu")
            seed = key.source(_SEED_RUN).bits(256)
            first = parameters.start([seed])[0].numpy()
        return ModuleDescent(self, np.asarray(first, dtype=np.float64), seed)

    def rows_of(
        self, rows: Array, targets: Array, device: str, shares: Floats | None = None
    ) -> ModuleRows:
        """Return the rows with the modules that sum over them."""
        return ModuleRows(self, rows, targets, shares)

    def exact_sum(self, rows: Any, descent: ModuleDescent, step: int) -> Floats:
        """Return the sum of the clipped gradients of all rows, exact on a CPU."""
        return np.asarray(rows.gradient_sum(descent.weights, descent.seed, step))

    def arrays(self, weights: Floats) -> dict[str, Array]:
        """Return flat weights by name, in the module's shapes and precision."""
        import torch

        from expost.training._torch.module_state import Parameters

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Parameters(self.checked(), self.checked, "cpu").arrays(np.asarray(weights))


class ModuleDescent:
    """The weights, moved by released gradients, and their average. Reads nothing else."""

    def __init__(self, training: ModuleTraining, weights: Floats, seed: int) -> None:
        self._rule, self.weights, self.seed = training.rule, weights, seed
        self._sum, self._squares = np.zeros_like(weights), np.zeros_like(weights)
        self.released = weights
        self._precision = self._spread = self._weight = self._released = 0.0
        self._square, self._unit = 0.0, training.clip / training.places
        self._falls_from = self._rule.constant * math.sqrt(len(weights)) / training.places

    def move(self, gradient: Floats, noise: float) -> None:
        """Take a step of the rule's length along the average gradient, entry by entry scaled."""
        if not np.isfinite(gradient).all():
            return
        rule, precision = self._rule, noise**-2
        self._sum = rule.memory * self._sum + precision * gradient
        self._precision = rule.memory * self._precision + precision
        self._spread = rule.memory**2 * self._spread + precision
        average, variance = self._sum / self._precision, self._spread / self._precision**2
        self._squares = rule.slow * self._squares + precision * (np.square(average) - variance)
        self._weight = rule.slow * self._weight + precision
        signal = self._squares / self._weight
        mean = max(float(signal.mean()), 0.0)
        signal = (1 - rule.shared) * np.maximum(signal, 0.0) + rule.shared * mean
        direction = average / np.sqrt(signal + variance)
        norm = float(np.sqrt(np.square(direction).sum()))
        self._square += (self._unit / noise) ** 2  # μ² of the steps made
        part = min(1.0, self._falls_from / math.sqrt(self._square)) ** rule.fall
        part *= (mean / (mean + variance)) ** rule.caution
        if norm > 0:
            self.weights = self.weights - rule.length * part * direction / norm
        self._released = rule.average * self._released + precision
        self.released = self.released + precision / self._released * (self.weights - self.released)


class ModuleRows:
    """Rows and one module per thread, which sum the clipped gradients of all rows."""

    def __init__(
        self, training: ModuleTraining, rows: Array, targets: Array, shares: Floats | None = None
    ) -> None:
        import torch

        from expost.training._torch.modules import (
            ModuleSums,
            ThreadedSums,
            outputs_of,
            takes_integers,
        )
        from expost.training.configuration import check_rows, check_training_data

        self._training = training
        shaped = check_rows(rows, dimensions=None)
        with _as_in_training():
            torch.manual_seed(0)  # frozen parameters and buffers, as in a fleet
            module = training.checked()
            whole = np.asarray(rows).dtype.kind in "iu" and takes_integers(module, shaped.shape[1:])
            outputs = outputs_of(module, shaped[:0].astype(np.int64) if whole else shaped)
            X, y = check_training_data(shaped, targets, training.loss, outputs, dimensions=None)
            if whole:
                with np.errstate(invalid="ignore"):
                    X = X.astype(np.int64)
            sums = ModuleSums(module, training.checked, X, y, training.loss, "cpu")
            sums.weigh([training.class_weights], "cpu")
            sums.shares = shares
            self._threaded = ThreadedSums(sums, default_threads())
        every = training.places * training.together
        self._bound = clip_bound(training.clip, sums.width, every, training.together)
        self._count = len(X)
        fitting = _MEMORY // (sums.bytes_per_example() * self._threaded.workers)
        self._size = max(_FEWEST, min(_MOST, fitting))

    def gradient_sum(self, weights: Floats, seed: int, step: int) -> Floats:
        """Return the sum over all rows: whole numbers of steps, added in any order."""
        import torch

        from expost.training._native.fixed_point import from_steps

        workers, before = self._threaded.workers, torch.get_num_threads()
        starts = range(0, self._count, self._size)

        def part(first: int) -> Array:
            steps = np.zeros(len(weights), dtype=np.int64)
            with self._threaded.sums() as sums:
                sums.seed = seed
                for start in starts[first::workers]:
                    sums.before_step(step * len(starts) + start // self._size)
                    block = slice(start, min(start + self._size, self._count))
                    sums.add_block(
                        weights, block, self._size, self._bound.clip, self._bound.grid, steps
                    )
            return steps

        try:
            with _as_in_training(), ThreadPoolExecutor(workers) as pool:
                total = sum(pool.map(part, range(workers)), start=np.zeros(len(weights), np.int64))
        finally:
            torch.set_num_threads(before)
        exact = total.view(np.float64)
        from_steps(total, self._bound.grid, exact)
        return exact


@contextmanager
def _as_in_training() -> Iterator[None]:
    """Restore torch's generator afterwards; attention is computed so that it can be vectorised."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield
