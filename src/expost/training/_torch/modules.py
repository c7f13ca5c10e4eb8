"""DP-SGD for any ``torch.nn.Module``: clipped sums of per-example gradients.

Every example passes through the module on its own (as a batch of one, vectorised by
``torch.func.vmap``), so its gradient cannot depend on other examples
(:mod:`expost.training._torch.module_taps`). Layers that carry statistics of the batch from step to
step are refused by name. Norms and sums are computed from inputs and slopes of the layers, mostly
without forming per-example gradients (:mod:`expost.training._torch.clipped_sums`). Batches are
processed in chunks that fit the memory.

On a CPU, models train one at a time per thread, and sums over rows are exact. On CUDA, models of
one batch size train together, vectorised over models as well, a step is recorded as a graph, and
sums are float64 matrix products whose rounding is part of the plan
(:func:`expost.training.exact_noise.rounding_slack`).

Parameters that need no gradient, and buffers, are not changed and are not in the result. All models
share those of a module made under ``torch.manual_seed(0)``.
Tests: ``tests/training/test_modules.py`` and ``tests/training/test_module_taps.py``.

Which modules can be trained: checks by their layers and by zeros, without data.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_module_state.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._torch.clipped_sums import (
    ClippedSums,
    Part,
    Written,
    clip_factors,
    clipped_totals,
    cut,
    slopes_of,
)
from expost.training._torch.convolutions import kernels_of
from expost.training._torch.module_state import Parameters, ReachableState, WholeState, seed_draws
from expost.training._torch.module_taps import ModuleTaps, not_vectorised
from expost.training.exact_noise import contribution_step

_WORKING_SET = 1 << 27  # bytes of a chunk on a CPU; larger ones are slower
_KEPT = 1 << 25  # bytes of per-example gradients that are not computed twice
_FEWEST = 8  # rows of a pass: for one to three rows, torch's products add in another order

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": lambda outputs, target: functional.cross_entropy(outputs, target.to(torch.int64)),
    "logistic": lambda outputs, target: functional.binary_cross_entropy_with_logits(
        outputs.flatten(), target.to(outputs.dtype)
    ),
    "squared": lambda outputs, target: functional.mse_loss(
        outputs.flatten(), target.to(outputs.dtype)
    ),
}


def mnist_cnn() -> nn.Module:
    """Return the network of the MNIST example of Opacus.

    It has 26,010 parameters and takes images of 1 × 28 × 28 in ten classes.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: two threads become slow when another process uses a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ModuleSums(ClippedSums):
    """Sums of clipped per-example gradients of models of one architecture.

    ``exact`` chooses sums in fixed point, one model after another. They are the default on a CPU.
    """

    def __init__(
        self,
        module: nn.Module,
        factory: Callable[[], Any],
        X: Array,
        y: Array,
        loss: str,
        device: str,
        *,
        exact: bool | None = None,
    ) -> None:
        self.module = module.to(device).train()
        self.exact = device == "cpu" if exact is None else exact
        self.parameters = Parameters(self.module, factory, device)
        self.dtype, self.width = self.parameters.dtype, self.parameters.width
        self.X, self.y = torch.from_numpy(X).to(device), self.targets(y, device)
        if self.X.dtype != torch.int64:  # tokens stay integers
            self.X = self.X.to(self.dtype)
        self.rows, self.loss = len(X), loss
        self.kernels = None if self.exact else kernels_of(device)
        blank = torch.zeros(X.shape[1:], dtype=self.X.dtype, device=device)
        state = torch.random.get_rng_state()
        self.taps = ModuleTaps(
            self.module, self.parameters.trained, blank, exact=self.exact, kernels=self.kernels
        )
        self.sound = None if self.exact else torch.ones((), dtype=torch.bool, device=device)
        self.fixed = not self.exact
        self.seed = 0
        self.shares: Array | None = None  # of rows of persons, in add_block
        self.draws = False  # whether the module draws random numbers, as dropout does
        try:
            self.draws = self._draws(blank)
            self._bytes = self._measure(blank)
        except Exception as error:
            raise not_vectorised(self.module, error) from error
        finally:
            torch.random.set_rng_state(state)

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        parameters = self.parameters.start(seeds)
        self.seed = int(seeds[0])
        self.before_step(0)
        return parameters

    def before_step(self, step: int) -> None:
        """Seed dropout and similar layers for a step, so that a repeated step draws the same."""
        if self.draws:
            seed_draws(self.seed, step, self.X.device)

    def arrays(self, flat: Array) -> dict[str, Array]:
        return self.parameters.arrays(flat)

    def again(self) -> ModuleSums | None:
        """Return sums with a new module of the factory, for another thread; rows are shared.

        None if it computes other outputs than the first one.
        """
        other = copy.copy(self)
        with torch.random.fork_rng():
            torch.manual_seed(0)  # as the first module was made
            other.module = self.parameters.factory().to(self.X.device).train()
        other.parameters = Parameters(other.module, self.parameters.factory, str(self.X.device))
        other.taps = ModuleTaps(
            other.module,
            other.parameters.trained,
            torch.zeros_like(self.X[0]),
            exact=self.exact,
            kernels=self.kernels,
        )
        flat = self._first_parameters()
        outputs = [sums._blank_outputs(flat) for sums in (self, other)]
        return other if torch.equal(*outputs) else None

    def _first_parameters(self) -> torch.Tensor:
        trained = [value.detach().flatten() for value in self.parameters.trained.values()]
        return torch.cat(trained)[None].to(torch.float64)

    def _blank_outputs(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the outputs for an example of zeros."""
        with self.taps.state.kept():
            blank = torch.zeros_like(self.X[:1]).expand(1, 2, *self.X.shape[1:])
            return self.taps.outputs(blank, self._values(flat))[0].detach().nan_to_num()

    def _values(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.parameters.named(parameters.to(self.dtype, copy=True))

    def _draws(self, blank: torch.Tensor) -> bool:
        """Return whether a pass over a blank example draws from torch's generator."""
        generator: Any = torch.random if blank.device.type == "cpu" else torch.cuda
        before = generator.get_rng_state()
        with self.taps.state.kept():
            self._parts(self._blank_values(), blank.expand(1, 2, *blank.shape), None)
        return not torch.equal(before, generator.get_rng_state())

    def _blank_values(self) -> dict[str, torch.Tensor]:
        trained = self.parameters.trained.items()
        return {name: torch.zeros_like(value, requires_grad=False)[None] for name, value in trained}

    def _measure(self, blank: torch.Tensor) -> int:
        """Return the bytes that one example of one model needs."""
        seen = [2 * blank.numel()]

        def count(layer: nn.Module, arguments: Any, output: Any) -> None:
            seen[0] += 8 * output.numel() if isinstance(output, torch.Tensor) else 0
            if isinstance(layer, nn.Conv1d | nn.Conv2d):
                patch = layer.weight[0].numel()
                seen[0] += 2 * patch * output.numel() // layer.out_channels

        with torch.no_grad(), self.taps.state.kept():  # which removes the hooks, too
            for layer in self.module.modules():
                layer.register_forward_hook(count)
            self.module(blank[None])
        with self.taps.state.kept():
            parts = self._parts(self._blank_values(), blank[None, None], None)
            stored = sum(3 * part.held for part in parts)
        return (seen[0] + stored) * self.parameters.itemsize

    def bytes_per_example(self) -> int:
        return self._bytes

    def _parts(
        self,
        values: dict[str, torch.Tensor],
        X: torch.Tensor,
        y: torch.Tensor | None,
        model: int = 0,
    ) -> list[Part]:
        """Return the gradients of a batch; without targets, of the sum of the outputs.

        ``model`` is the number of the first model.
        """
        whole = WholeState() if self.draws and not X.is_cuda else nullcontext()  # type: ignore[no-untyped-call]
        with whole:
            outputs, copies = self.taps.outputs(X, values)
        if y is None:
            slopes = torch.ones_like(outputs)
        else:
            slopes = self.weighted(slopes_of(outputs, y, self.loss), y, model)
        with torch.no_grad():
            return self.taps.gradients(outputs, copies, slopes)

    def batch(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        memory: int,
    ) -> torch.Tensor:
        if not self.exact:
            return super().batch(parameters, rows, taken, clips, memory)
        totals = torch.empty_like(parameters)
        for model, clip in enumerate(clips.tolist()):
            chosen = rows[model][taken[model]].numpy()
            self.add_up(
                parameters[model].numpy(), chosen, clip, memory, totals[model].numpy(), model
            )
        return totals

    def chunk(
        self,
        parameters: torch.Tensor,
        rows: torch.Tensor,
        taken: torch.Tensor,
        clips: torch.Tensor,
        model: int = 0,
    ) -> torch.Tensor:
        """Return the sums by matrix products; ``model`` is the number of the first model."""
        try:
            parts = self._parts(self._values(parameters), self.X[rows], self.y[rows], model)
        except Exception as error:
            self.taps.state.restore()
            if _fatal(error, rows):
                raise
            if rows.shape[1] > 1:
                half = rows.shape[1] // 2
                return self.chunk(
                    parameters, rows[:, :half], taken[:, :half], clips, model
                ) + self.chunk(parameters, rows[:, half:], taken[:, half:], clips, model)
            if len(rows) > 1:
                return torch.cat(
                    [
                        self.chunk(
                            parameters[one], rows[one], taken[one], clips[one], model + one.start
                        )
                        for one in (slice(row, row + 1) for row in range(len(rows)))
                    ]
                )
            return torch.zeros_like(parameters)
        with self.taps.state.kept():
            return self._summed(parts, rows, taken, clips)

    def _summed(
        self, parts: list[Part], rows: torch.Tensor, taken: torch.Tensor, clips: torch.Tensor
    ) -> torch.Tensor:
        """Return the clipped sums of a pass."""
        totals = clipped_totals(self, parts, rows, taken, clips, self.kernels)
        named = {part.name: total for part, total in zip(parts, totals, strict=True)}
        outputs = [
            named[name] if name in named else clips.new_zeros(len(rows), value.numel())
            for name, value in self.parameters.trained.items()
        ]
        return torch.cat(outputs, dim=1)

    def add_up(
        self,
        parameters: Array,
        rows: Array,
        clip: float,
        memory: int,
        total: Array,
        model: int = 0,
    ) -> None:
        """Write the sum over ``rows`` for one model to ``total``; it is made in fixed point."""
        from expost.training._native.fixed_point import from_steps

        chosen = torch.from_numpy(rows)
        if self.valid is not None:
            chosen = chosen[self.valid[chosen]]
        total[:] = 0.0
        sums, grid = total.view(np.int64), contribution_step(clip, self.exact_rows or self.rows)
        values = self._values(torch.from_numpy(parameters)[None])
        count = max(_FEWEST, min(memory, _WORKING_SET) // self._bytes)
        for some in torch.split(chosen, count) if len(chosen) else ():
            self._add_steps(values, model, some, clip, grid, sums)
        from_steps(sums, grid, total)

    def _add_steps(
        self,
        values: dict[str, torch.Tensor],
        model: int,
        rows: torch.Tensor,
        clip: float,
        grid: float,
        sums: Array,
    ) -> None:
        """Add the steps of the grid of all ``rows`` to ``sums``.

        If the module raises, the rows are tried in halves: a row on which it raises alone adds
        nothing. Whether a training fails must not depend on a row.
        """
        size, ones = max(_FEWEST, len(rows)), torch.ones(len(rows), dtype=torch.float64)
        X, y, taken = (_filled(given, size) for given in (self.X[rows], self.y[rows], ones))
        if not self._add_pass(values, X, y, taken, clip, grid, sums, model) and len(rows) > 1:
            for some in torch.tensor_split(rows, 2):
                self._add_steps(values, model, some, clip, grid, sums)

    def add_block(
        self, parameters: Array, block: slice, size: int, clip: float, grid: float, sums: Array
    ) -> None:
        """Add the steps of the grid of the rows of a block, in a pass of ``size`` rows.

        Each row has its own position in a pass of a fixed shape, and rows that do not count are
        zeros. So how the gradient of a row is rounded does not depend on any other row. If the
        module raises, each row passes alone, in its position: one that raises adds nothing.
        """
        X, y = self.X[block], self.y[block]
        counts = torch.ones(len(X), dtype=torch.bool) if self.valid is None else self.valid[block]
        mask = counts.reshape(-1, *[1] * (X.ndim - 1))
        shares = counts.to(torch.float64)
        if self.shares is not None:
            shares = shares * torch.from_numpy(self.shares[block])
        X = _filled(torch.where(mask, X, X.new_zeros(())), size)
        y, taken = _filled(y, size), _filled(shares, size)
        values = self._values(torch.from_numpy(parameters)[None])
        if not self._add_pass(values, X, y, taken, clip, grid, sums):
            for row in torch.nonzero(taken).flatten().tolist():
                alone = torch.zeros_like(X)
                alone[row] = X[row]
                one = torch.zeros_like(taken)
                one[row] = taken[row]
                self._add_pass(values, alone, y, one, clip, grid, sums)

    def _add_pass(
        self,
        values: dict[str, torch.Tensor],
        X: torch.Tensor,
        y: torch.Tensor,
        taken: torch.Tensor,
        clip: float,
        grid: float,
        sums: Array,
        model: int = 0,
    ) -> bool:
        """Add the rows by the shares ``taken`` and return True; False if the module raised."""
        try:
            parts = self._parts(values, X[None], y[None], model)
        except Exception as error:
            self.taps.state.restore()
            if _fatal(error, X):
                raise
            return False
        with self.taps.state.kept():
            self._add_parts(parts, clip, grid, sums, taken.numpy())
        return True

    def _add_parts(
        self, parts: list[Part], clip: float, grid: float, sums: Array, taken: Array
    ) -> None:
        """Add the steps of the grid of a pass to ``sums``."""
        square, room = torch.zeros(1, len(taken), dtype=torch.float64), _KEPT
        for index, part in sorted(enumerate(parts), key=lambda numbered: numbered[1].size):
            room -= part.size * square.shape[1] * self.parameters.itemsize
            if isinstance(part, Written) and room >= 0:
                parts[index] = part.stored()
            square += parts[index].square()
        bound = torch.tensor(clip, dtype=torch.float64)
        factors = cut(clip_factors(square.sqrt(), bound))[0].numpy() * taken
        chosen = np.flatnonzero(factors)
        for part in parts:
            first = self.parameters.starts[part.name]
            part_slice = slice(first, first + part.size)
            part.add_summed(chosen, factors[chosen], 1.5 * 2.0**52 * grid, sums[part_slice])


def _filled(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return the rows with zeros behind them, ``size`` together."""
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])


def _fatal(error: Exception, rows: torch.Tensor) -> bool:
    """Return whether an error of a pass is not due to a row: no memory, or a recorded graph."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return rows.is_cuda and torch.cuda.is_current_stream_capturing()


class ThreadedSums:
    """Sums for several threads, each with a module of its own.

    Modules are made by the factory: a copy of a module would share its functions, and a hook that
    refers to the module would act on the first one. A module that draws random numbers (dropout),
    or shares what it changes with others, is trained by one thread only: results must not depend
    on the order of threads.
    """

    def __init__(self, sums: ModuleSums, workers: int) -> None:
        self._idle = [sums]
        for _ in range(0 if sums.draws else workers - 1):
            other = sums.again()
            if other is None or any(other.taps.state.shares(one.taps.state) for one in self._idle):
                break
            self._idle.append(other)
        self.workers = len(self._idle)

    @contextmanager
    def sums(self) -> Iterator[ModuleSums]:
        """Lend the sums of one thread; torch uses one thread inside."""
        torch.set_num_threads(1)  # two threads are slow when another process uses a core
        mine = self._idle.pop()
        try:
            yield mine
        finally:
            self._idle.append(mine)


def check_module(module: Any) -> nn.Module:
    """Return the module if it can be trained.

    Refuse a layer that mixes the examples of a batch, that changes its weights in a forward pass,
    or that has no parameters yet (lazy layers), and hooks that would have no effect.
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(
            "model", type(module).__name__, "pass a function that returns a torch.nn.Module"
        )
    for name, layer in module.named_modules():
        coupled = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        remembers = (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        )
        if coupled or remembers:
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name or 'the top'!r}",
                "it mixes the examples of a batch, so the gradient of one example cannot be "
                "bounded; use GroupNorm or LayerNorm",
            )
        refusal = _refused(layer)
        if refusal is not None:
            raise InvalidInput("model", f"{refusal[0]} at {name or 'the top'!r}", refusal[1])
        if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name!r}",
                "specify the sizes: lazy layers have no parameters yet",
            )
    for name, parameter in module.named_parameters():
        hooks: Any = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        if any(hooks):
            raise InvalidInput(
                "model",
                f"a hook on the parameter {name!r}",
                "gradients are computed per example, where hooks on parameters are not called; "
                "remove it",
            )
    strange = {parameter.dtype for parameter in module.parameters()} - {
        torch.float32,
        torch.float64,
    }
    if strange:
        raise InvalidInput(
            "model",
            f"parameters of {strange.pop()}",
            "use float32 or float64: lower precision is too coarse for clipping",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("model", type(module).__name__, "pass a module with parameters to train")
    return module


def _refused(layer: nn.Module) -> tuple[str, str] | None:
    """Return what of a layer cannot be trained, and what to use instead; None if all can."""
    kept = [type(layer), *map(type, layer._forward_pre_hooks.values())]
    if any(kind.__name__ in ("_SpectralNorm", "SpectralNorm") for kind in kept):
        return (
            "spectral_norm",
            "it keeps vectors from one pass to the next, which are set back here; use weight_norm "
            "(torch.nn.utils.parametrizations), or divide by torch.linalg.matrix_norm(weight, 2) "
            "in the forward pass",
        )
    if getattr(layer, "max_norm", None) is not None and isinstance(
        layer, nn.Embedding | nn.EmbeddingBag
    ):
        return (
            f"{type(layer).__name__} with max_norm",
            "it rescales its weights for the tokens of a batch, a change without noise; leave "
            "max_norm out, and normalise what is looked up: functional.normalize(embedding(x))",
        )
    if layer._backward_hooks or layer._backward_pre_hooks:
        return (
            f"a backward hook of {type(layer).__name__}",
            "gradients are computed per example, where hooks on gradients are not called; remove "
            "it, or change the gradient in the forward pass (detach, a function of your own)",
        )
    return None


def takes_integers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the module accepts rows of int64, such as tokens; found with zeros."""
    blank = torch.zeros((1, *shape), dtype=torch.int64, device=next(module.parameters()).device)
    try:
        with torch.no_grad(), ReachableState(module).kept():
            module(blank)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return False
    return True


def outputs_of(module: nn.Module, X: Array) -> int:
    """Return the number of outputs per example, found with zeros: no data is read.

    Rows are numbers of the module's precision, or int64 if ``X`` holds integers.
    """
    like = next(module.parameters())
    dtype = torch.int64 if X.dtype.kind in "iu" else like.dtype
    with torch.no_grad(), ReachableState(module).kept():
        blank = torch.zeros((1, *X.shape[1:]), dtype=dtype, device=like.device)
        try:
            outputs = module(blank)
            if isinstance(outputs, torch.Tensor):
                return int(outputs.numel())
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            raise InvalidInput(
                "X",
                f"rows of shape {X.shape[1:]}",
                "the model does not accept rows of this shape; pass rows that fit its first layer",
            ) from None
    raise InvalidInput(
        "model",
        f"a module that returns {type(outputs).__name__}",
        "return one tensor: the outputs of each example",
    )
