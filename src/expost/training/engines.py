"""One call of a fleet: check the data, choose the engine, train, and add the guarantees.

Engines:

- Linear models on a CPU: :mod:`expost.training._native.linear`, native, one model per thread.
- Modules whose layers all have a native kernel, on a CPU: :mod:`expost.training._native.network`,
  native, one model per thread.
- Other modules on a CPU: :mod:`expost.training._torch.modules`, one model per thread, each on one
  torch thread unless there are fewer models than threads.
- CUDA: :mod:`expost.training._torch.model_group`, many models per step, with the sums of
  :mod:`expost.training._torch.clipped_sums` (linear models),
  :mod:`expost.training._torch.layer_chain` (chains of supported layers) or
  :mod:`expost.training._torch.modules` (other modules).

**Progress.** The count of :class:`Meter` is that of expected examples (steps × expected batch),
which are public. Under a selector, which models are trained is not public, so do not log the
progress.

Tests: ``tests/training/test_fleet.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, RenyiDP
from expost.randomness.source import Randomness
from expost.training.configuration import (
    OWN,
    Configuration,
    TrainingPlan,
    check_class_weights,
    exact_rows,
    guarantees_of,
    plans,
)

DEFAULT_MEMORY = 4 << 30  # scratch memory of modules on a CPU, in bytes
_STRIDE = 1e8  # multiply-adds between two reports of progress


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes
    ----------
    parameters : dict of str to ndarray
        Parameters by name, with the names and shapes of torch.
    configuration : Configuration
        The settings of the training.
    guarantee : RenyiDP or None
        The privacy guarantee of the parameters. It is None only for a simulation without noise.

    Notes
    -----
    There is no loss, accuracy or actual batch size. They would depend on the data beyond what the
    guarantee covers.
    """

    parameters: dict[str, Array] = field(repr=False)
    configuration: Configuration
    guarantee: RenyiDP | None


@dataclass(frozen=True)
class FleetRun:
    """One call of a fleet: configurations, randomness, limits and device."""

    configurations: Sequence[Configuration]
    sources: Sequence[Randomness]  # one per configuration
    threads: int
    memory: int | None
    meter: Meter
    device: str
    public_rows: int | None = None  # None: the number of rows in the data is public

    @property
    def neighbours(self) -> str:
        """The relation of the guarantees."""
        return ZERO_OUT if self.public_rows is None else ADD_REMOVE

    def exact_rows(self, count: int) -> int:
        """Return how many of ``count`` rows a step must sum exactly; a public number."""
        return exact_rows(self.public_rows or count, self.neighbours)

    def train_linear(self, loss: str, outputs: int, X: Any, y: Any) -> list[Trained]:
        """Train one linear model per configuration."""
        from expost.training.configuration import check_training_data

        rows, targets = check_training_data(X, y, loss, outputs, dimensions=2)
        check_class_weights(self.configurations, loss, outputs)
        planned = self._plan(len(rows))
        width = rows.shape[1] + 1
        if self.device == "cpu":
            flat = self._native_linear(loss, outputs, rows, targets, planned)
        else:
            need_device(self.device)
            from expost.training._torch.clipped_sums import LinearSums

            flat = self._batched(LinearSums(rows, targets, loss, outputs, self.device), planned)
        tables = [parameters.reshape(outputs, width) for parameters in flat]
        return self._trained(
            planned,
            [{"weight": table[:, :-1].copy(), "bias": table[:, -1].copy()} for table in tables],
        )

    def train_modules(self, factory: Callable[[], Any], loss: str, X: Any, y: Any) -> list[Trained]:
        """Train one module per configuration."""
        need_device(self.device)
        import torch
        from torch import nn
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from expost.training._torch.modules import (
            ModuleSums,
            check_module,
            outputs_of,
            takes_integers,
        )
        from expost.training.configuration import check_rows, check_training_data

        shaped = check_rows(X, dimensions=None)
        whole = getattr(X, "dtype", None) is not None and np.asarray(X).dtype.kind in "iu"

        def checked() -> Any:
            return check_module(factory())

        if isinstance(factory, nn.Module):
            raise InvalidInput(
                "model",
                "an nn.Module",
                "pass a function that returns a fresh one, so that models share nothing",
            )
        with _own_generator():
            # frozen parameters and buffers come from this module, whatever was drawn before
            torch.manual_seed(0)
            module = checked()
            whole = whole and takes_integers(module, shaped.shape[1:])
            outputs = outputs_of(module, shaped[:0].astype(np.int64) if whole else shaped)
            if loss not in ("softmax", OWN) and outputs != 1:
                raise InvalidInput(
                    "model",
                    f"{outputs} outputs",
                    f"with the loss {loss!r} a model must return one number per example",
                )
            check_class_weights(self.configurations, loss, outputs)
            rows, targets = check_training_data(shaped, y, loss, outputs, dimensions=None)
            planned = self._plan(len(rows))
            if whole:
                with np.errstate(invalid="ignore"):  # a number that is too large is outside
                    rows = rows.astype(np.int64)
            elif self.device == "cpu" and loss != OWN:
                trained = self._native_network(module, checked, loss, rows, targets, planned)
                if trained is not None:
                    return trained
            sums: Any = None
            if self.device != "cpu" and not whole and loss != OWN:
                sums = self._chain(module, checked, rows, targets, loss)
            # torch's fused attention on a CPU cannot be vectorised over examples
            with sdpa_kernel(SDPBackend.MATH):
                sums = sums or ModuleSums(module, checked, rows, targets, loss, self.device)
                if self.device == "cpu":
                    flat = self._modules_on_cpu(sums, planned)
                else:
                    flat = self._batched(sums, planned)
        return self._trained(planned, [sums.arrays(parameters) for parameters in flat])

    def _chain(
        self, module: Any, factory: Callable[[], Any], rows: Array, targets: Array, loss: str
    ) -> Any:
        """Return the sums for a chain of supported layers, or None."""
        from expost.training._torch.layer_chain import ChainSums
        from expost.training._torch.plain_chain import UnsupportedChain

        try:
            return ChainSums(module, factory, rows, targets, loss, self.device)
        except UnsupportedChain:
            return None  # trained as any other module

    def _modules_on_cpu(self, sums: Any, planned: Sequence[TrainingPlan]) -> list[Array]:
        """Train modules by torch, one model per thread; noise and updates are native."""
        import torch

        from expost.training._native.noise import (
            noisy,
            poisson_sample,
            settle_state,
            state_of,
            step_settings,
            streams,
            update,
        )
        from expost.training._torch.modules import ThreadedSums

        sources, seeds = streams(self.sources), self._seeds()
        sums.exact_rows = self.exact_rows(sums.rows)
        first = dict(enumerate(np.asarray(sums.start([seed])[0].numpy()) for seed in seeds))
        threaded = ThreadedSums(sums, min(self.threads, len(planned)))
        scratch = max(1, (self.memory or DEFAULT_MEMORY) // threaded.workers)

        def train_one(model: int) -> Array:
            plan, configuration = planned[model], self.configurations[model]
            settings = step_settings(configuration, plan, sums.width, sums.exact_rows)
            state, source = state_of(first.pop(model)), sources[model]
            sample = np.empty(sums.rows, dtype=np.int64)
            batch, stride = float(configuration.batch_size), max(1, plan.steps // 100)
            with threaded.sums() as mine:
                mine.seed = seeds[model]
                mine.weigh([configuration.class_weights], "cpu")
                for step in range(1, plan.steps + 1):
                    count = poisson_sample(source, settings.rate, sums.rows, sample)
                    mine.before_step(step)
                    mine.add_up(
                        state.parameters,
                        sample[:count],
                        settings.bound.clip,
                        scratch,
                        state.total,
                    )
                    if noisy(state, settings, source) > 0:
                        settle_state(state, settings, source)
                    update(state, settings, step)
                    if step % stride == 0 or step == plan.steps:
                        self.meter.add(((step - 1) % stride + 1) * batch)
            return np.asarray(state.parameters)

        before = torch.get_num_threads()
        try:
            return self._side_by_side(train_one, planned, 5 * 8 * sums.width, threaded.workers)
        finally:
            torch.set_num_threads(before)

    def _batched(self, sums: Any, planned: Sequence[TrainingPlan]) -> list[Array]:
        """Train in groups on a torch device."""
        from expost.training._torch.device_keystream import DeviceStream
        from expost.training._torch.model_group import train_batched

        stream, seeds = DeviceStream(self.sources, self.device), self._seeds()
        sums.exact_rows = self.exact_rows(sums.rows)
        return train_batched(
            sums, self.configurations, planned, stream, seeds, None, self.memory, self.meter
        )

    def _seeds(self) -> list[int]:
        """Return one secret per model, from which initial parameters and dropout are drawn."""
        return [source.bits(256) for source in self.sources]

    def _plan(self, n: int) -> list[TrainingPlan]:
        """Return the plans and tell the meter the total."""
        planned = plans(
            self.configurations,
            self.public_rows or n,
            device=self.device,
            neighbours=self.neighbours,
        )
        self.meter.start(self.configurations, planned)
        return planned

    def _native_linear(
        self, loss: str, outputs: int, rows: Array, targets: Array, planned: Sequence[TrainingPlan]
    ) -> list[Array]:
        """Train linear models with the native kernel."""
        from expost.training._native import linear
        from expost.training._native.noise import streams
        from expost.training.configuration import LOSSES

        width, norms = outputs * (rows.shape[1] + 1), linear.row_norms(rows)
        sources, kind = streams(self.sources), LOSSES.index(loss)

        def train_one(model: int) -> Array:
            given = rows, targets, norms, kind, outputs
            train = partial(linear.train_linear, *given)
            plan, first = planned[model], np.zeros(width)
            return self._native(model, plan, first, sources[model], len(rows), width, train)

        return self._side_by_side(train_one, planned, 5 * 8 * width + 8 * len(rows))

    def _native(
        self,
        model: int,
        plan: TrainingPlan,
        first: Array,
        source: Any,
        count: int,
        work: float,
        train: Callable[..., int],
    ) -> Array:
        """Train one model from ``first`` on by a native kernel; progress is reported now and then.

        ``work`` is the number of multiply-adds per example, ``count`` the number of rows.
        """
        from expost.training._native.noise import make_steps, settle_state, state_of, step_settings

        configuration, most = self.configurations[model], self.exact_rows(count)
        settings = step_settings(configuration, plan, len(first), most)
        state, sample = state_of(first), np.empty(count, dtype=np.int64)
        class_weights = np.array(configuration.class_weights or (), dtype=np.float64)

        def run(done: int, steps: int, resumed: bool) -> int:
            return train(settings, state, source, sample, done, steps, resumed, class_weights)

        batch = float(configuration.batch_size)
        stride = max(1, int(_STRIDE / (batch * work)))
        for done in range(0, plan.steps, stride):
            now = min(stride, plan.steps - done)
            make_steps(run, lambda: settle_state(state, settings, source), done, now)
            self.meter.add(now * batch)
        return np.asarray(state.parameters)

    def _native_network(
        self,
        module: Any,
        factory: Callable[[], Any],
        loss: str,
        rows: Array,
        targets: Array,
        planned: Sequence[TrainingPlan],
    ) -> list[Trained] | None:
        """Train with the native kernel, or return None if it does not support a layer."""
        from expost.training._native import network as network_kernel
        from expost.training._native.network import Network
        from expost.training._native.noise import streams
        from expost.training._torch.module_state import seed_model
        from expost.training._torch.plain_chain import UnsupportedChain
        from expost.training.configuration import LOSSES

        try:
            network = Network(module, rows.shape[1:])
        except UnsupportedChain:
            return None
        dtype = np.float64 if network.double else np.float32
        sources, kind, first = streams(self.sources), LOSSES.index(loss), []
        for seed in self._seeds():
            seed_model(seed)
            first.append(network.flat(factory()))
        with np.errstate(over="ignore"):  # a row that overflows has no finite norm: it adds nothing
            flat_rows = network.rows(rows).astype(dtype, copy=False)

        def train_one(model: int) -> Array:
            given = network.table, flat_rows, targets, kind, network.scratch(dtype)
            train = partial(network_kernel.train_network, *given)
            plan, start = planned[model], first[model]
            return self._native(model, plan, start, sources[model], len(rows), network.work, train)

        memory = (
            sum(buffer.nbytes for buffer in network.scratch(dtype))
            + 5 * 8 * network.width
            + 8 * len(rows)
        )
        parameters = self._side_by_side(train_one, planned, memory)
        return self._trained(planned, [network.named(flat, dtype) for flat in parameters])

    def _side_by_side(
        self,
        train_one: Callable[[int], Array],
        planned: Sequence[TrainingPlan],
        memory: int,
        workers: int | None = None,
    ) -> list[Array]:
        """Run ``train_one`` for every index in threads, the longest trainings first.

        So no thread is left with a long training at the end.
        """
        workers = workers or self.threads
        if self.memory is not None:
            if self.memory < memory:
                raise InvalidInput(
                    "memory_limit",
                    self.memory,
                    f"pass at least {memory} bytes, which one model needs in addition to the data",
                )
            workers = min(workers, self.memory // memory)
        order = sorted(
            range(len(planned)),
            key=lambda index: -planned[index].steps * planned[index].sampling_rate,
        )
        if workers == 1 or len(planned) == 1:  # a thread would not use what this one has freed
            trained = {index: train_one(index) for index in order}
            return [trained[index] for index in range(len(planned))]
        with ThreadPoolExecutor(max_workers=workers) as pool:
            futures = {index: pool.submit(train_one, index) for index in order}
            try:
                return [futures[index].result() for index in range(len(planned))]
            except BaseException:
                self.meter.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _trained(
        self, planned: Sequence[TrainingPlan], parameters: Sequence[dict[str, Array]]
    ) -> list[Trained]:
        """Return the trained models with their guarantees."""
        together = zip(
            parameters, self.configurations, guarantees_of(planned, self.neighbours), strict=True
        )
        return [
            Trained(parameters, configuration, guarantee)
            for parameters, configuration, guarantee in together
        ]


def need_device(device: str) -> None:
    """Refuse a device that torch does not find."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    if device != "cpu" and not torch.cuda.is_available():
        raise InvalidInput("device", device, "torch finds no CUDA device here; pass 'cpu'")


@contextmanager
def _own_generator() -> Iterator[None]:
    """Restore torch's generator afterwards; it is seeded for each model inside."""
    import torch

    with torch.random.fork_rng():
        yield


TrainingProgress = Callable[[float, float], None]
"""Called with (examples processed, examples in total).

Calls come from any thread, but never from two threads at once."""


@contextmanager
def progress_bar(
    label: str = "training", *, unit: str | None = "examples"
) -> Iterator[TrainingProgress]:
    """Draw a progress bar on standard error, or in the cell of a notebook.

    It shows the speed and the time left. In a notebook tqdm draws it, if it is installed.
    Do not log it, and clear it before sharing a notebook: see the module's docstring.

    Parameters
    ----------
    label : str
        Text before the bar.
    unit : str, optional
        What is counted per second. None: no speed is shown.

    Yields
    ------
    callable
        The ``progress`` argument of :meth:`Fleet.train <expost.training.Fleet.train>`.

    Examples
    --------
    ::

        with progress_bar() as bar:
            fleet.train(X, y, progress=bar)
    """
    if _in_notebook() and find_spec("tqdm") is not None:
        with _notebook_bar(label, unit) as report:
            yield report
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(label, total=None, speed="")

        def update(done: float, total: float) -> None:
            elapsed = display.tasks[0].elapsed
            speed = f"{done / elapsed:,.0f} {unit}/s" if elapsed and unit is not None else ""
            display.update(task, completed=done, total=total, speed=speed)

        yield update


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return type(running).__name__ == "ZMQInteractiveShell"


@contextmanager
def _notebook_bar(label: str, unit: str | None) -> Iterator[TrainingProgress]:
    """Draw the bar with tqdm, which finds the kind of notebook itself; it disappears at the end."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(desc=label, unit=f" {unit or ''}", unit_scale=bool(unit), leave=False) as bar:

        def update(done: float, total: float) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


class Meter:
    """Counts expected examples across threads.

    After ``stopped`` is set, each thread of the fleet ends at its next report.
    """

    def __init__(self, progress: TrainingProgress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.done = self.total = 0.0
        self.stopped = False

    def start(
        self, configurations: Sequence[Configuration], planned: Sequence[TrainingPlan]
    ) -> None:
        """Compute the total, which is known before the first step."""
        self.total = sum(
            plan.steps * float(configuration.batch_size)
            for configuration, plan in zip(configurations, planned, strict=True)
        )

    def add(self, examples: float) -> None:
        """Count processed examples and report progress."""
        if self.stopped:
            raise InterruptedError("the fleet was stopped")
        if self._progress is not None:
            with self._lock:
                self.done += examples
                self._progress(self.done, self.total)
