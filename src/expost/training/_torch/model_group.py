"""Training of a group of models that make their steps together on a torch device.

Steps are made in stretches. At the start of a stretch, the Poisson samples of all its steps are
drawn. At its end, progress is reported. A model leaves the group when its steps are done.

On CUDA a step is recorded as a graph, so that no time is lost between its operations. One graph is
recorded for every number of models still training and every (rounded up) size of the largest
sample. The clipped sums of a step are in :mod:`expost.training._torch.clipped_sums`.

A coordinate of the noise that float64 does not decide (:mod:`expost.training.exact_noise`) needs
the host. On a CPU that is done at once. On CUDA, the number of the first such step is noted and
looked at after some steps. Then these are repeated up to that step, the step is made with the host,
and the stretch goes on. Numbers are functions of the step, so they are the same.

Tests: ``tests/training/test_clipping.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._torch.clipped_sums import ClippedSums, full_precision
from expost.training._torch.device_keystream import DeviceStream, lattices_of
from expost.training.configuration import BETA1, BETA2, TINY, Configuration, TrainingPlan
from expost.training.engines import Meter
from expost.training.exact_noise import clip_bound, lattice_of

DEFAULT_MEMORY = 4 << 30
_SAMPLE_BYTES = 1 << 28  # memory for the samples of a stretch
_STRETCH = 128  # most steps of a stretch
_MOST_STEPS = 1 << 32  # the step is one 32-bit word of the keystream's state
_WORTH = 24  # least number of steps for which recording a graph pays off


def train_batched(
    sums: ClippedSums,
    configurations: Sequence[Configuration],
    planned: Sequence[TrainingPlan],
    source: DeviceStream,
    seeds: Sequence[int],
    most: int | None,
    memory: int | None,
    meter: Meter,
) -> list[Array]:
    """Return the final parameters of all configurations; ``most`` limits the models of a group."""
    if max(plan.steps for plan in planned) >= _MOST_STEPS:
        raise InvalidInput(
            "epochs",
            "more than 2^32 steps",
            "the keystream on a device counts up to 2^32 steps; reduce epochs or pass device='cpu'",
        )
    limit = memory or _default_memory(source.device)
    scheduled = any(configuration.schedule != "constant" for configuration in configurations)
    state_bytes = 8 * (8 * sums.width + scheduled * max(plan.steps for plan in planned))
    together = max(1, min(limit // (2 * state_bytes), most or len(planned)))
    trained: list[Any] = [None] * len(planned)
    for members in _groups(configurations, planned, int(together)):
        scratch = max(1, limit - len(members) * state_bytes)
        chosen = (
            [configurations[p] for p in members],
            [planned[p] for p in members],
            [seeds[p] for p in members],
        )
        group = ModelGroup(*chosen, sums, source.of(members), scratch)
        with full_precision():
            for member, parameters in zip(members, group.train(meter), strict=True):
                trained[member] = parameters
    return trained


def _default_memory(device: str) -> int:
    """Return the bytes that training may use if no limit is given."""
    return DEFAULT_MEMORY if device == "cpu" else int(torch.cuda.mem_get_info(device)[0]) // 3


def _groups(
    configurations: Sequence[Configuration], planned: Sequence[TrainingPlan], together: int
) -> list[list[int]]:
    """Group indices by batch size, optimiser and schedule, the longest trainings first."""
    families: dict[tuple[float, str, str], list[int]] = {}
    for index in sorted(range(len(planned)), key=lambda index: -planned[index].steps):
        configuration = configurations[index]
        families.setdefault(
            (planned[index].sampling_rate, configuration.optimiser, configuration.schedule), []
        ).append(index)
    return [
        family[first : first + together]
        for family in families.values()
        for first in range(0, len(family), together)
    ]


class ModelGroup:
    """Models of one batch size, one optimiser and one schedule.

    The longest training comes first, so the models that are still training come first.
    """

    def __init__(
        self,
        configurations: Sequence[Configuration],
        planned: Sequence[TrainingPlan],
        seeds: Sequence[int],
        sums: ClippedSums,
        source: DeviceStream,
        scratch: int,
    ) -> None:
        self.sums, self.source, self.scratch = sums, source, scratch
        self.parameters = sums.start(seeds)
        self.first, self.second = (
            torch.zeros_like(self.parameters),
            torch.zeros_like(self.parameters),
        )
        self.steps = [plan.steps for plan in planned]
        self.rate, self.batch = planned[0].sampling_rate, float(configurations[0].batch_size)
        self.optimiser = configurations[0].optimiser
        clips = [float(configuration.clip) for configuration in configurations]
        most = sums.exact_rows or sums.rows
        self.clips = self._column([clip_bound(clip, sums.width, most).clip for clip in clips])
        lattices = [
            lattice_of(clip, plan.noise_multiplier)
            for clip, plan in zip(clips, planned, strict=True)
        ]
        self.lattices = lattices_of(lattices, self.parameters.device)
        self.noisy = any(plan.noise_multiplier > 0 for plan in planned)
        sums.weigh(
            [configuration.class_weights for configuration in configurations],
            self.parameters.device,
        )
        # models × steps, or models × 1 if the learning rate is constant
        rates = [
            configuration.learning_rates(plan.steps)
            for configuration, plan in zip(configurations, planned, strict=True)
        ]
        self.rates = self._column([np.pad(rate, (0, len(rates[0]) - len(rate))) for rate in rates])
        decays = [float(configuration.weight_decay) for configuration in configurations]
        self.decays = self._column(decays) if any(decays) else None
        self.momenta = self._column(
            [float(configuration.momentum) for configuration in configurations]
        )
        # number of the step, counted from 1
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.parameters.device)
        self.exact = not self.parameters.is_cuda  # whether the host decides at once
        self.first_open = torch.full_like(self.clock, _MOST_STEPS)  # first step that needs the host

    def _column(self, numbers: Sequence[float] | Sequence[Array]) -> torch.Tensor:
        return torch.from_numpy(np.array(numbers, dtype=np.float64)).to(self.parameters.device)

    def train(self, meter: Meter) -> Array:
        """Make all steps and return the final parameters: models × width."""
        done = 0
        while done < self.steps[0]:
            active = sum(steps > done for steps in self.steps)
            end = self.steps[active - 1]  # no model leaves before this step
            recorder = self._recorder(active, end - done)
            while done < end:
                stretch = self._stretch(active, end - done)
                self._move_on(recorder, active, done, stretch)
                done += stretch
                meter.add(active * stretch * self.batch)
        return np.asarray(self.parameters.cpu().numpy())

    def _recorder(self, active: int, steps: int) -> Recorder:
        on_cuda = self.parameters.is_cuda and self.sums.fixed
        return Recorder(
            lambda rows, counts: self._step(rows, counts, active),
            record=on_cuda and steps >= _WORTH,
        )

    def _stretch(self, active: int, left: int) -> int:
        """Return the number of steps of the next stretch; its samples must fit the memory."""
        if self.rate >= 1.0:
            return min(left, _STRETCH)
        expected = 8 * active * (self.rate * self.sums.rows * 2 + 64)
        return int(max(1, min(left, _STRETCH, _SAMPLE_BYTES // expected)))

    def _steps_of_a_look(self, active: int) -> int:
        """Return after how many steps to look whether one of them needed the host.

        About one number in 2^30 needs it, and the steps since the last look are then repeated. So n
        numbers per step repeat n·L/2^31 steps for each step made, and looking costs about an eighth
        of a step: the sum is least at L = 2^14 / √n.
        """
        return max(1, int(2**14 / math.sqrt(active * self.parameters.shape[1])))

    def _move_on(self, recorder: Recorder, active: int, done: int, stretch: int) -> None:
        """Make ``stretch`` steps after ``done``."""
        rows, counts = self.source.poisson_samples(
            self.rate, self.sums.rows, active, done + 1, stretch
        )
        largest, finished = counts.amax(1).tolist(), 0

        def record(first: int, last: int) -> None:
            self.clock.fill_(done + first)
            for step in range(first, last):
                self.sums.before_step(done + step)
                recorder(rows[step], counts[step], largest[step])

        def with_host(first: int, last: int) -> None:
            self.clock.fill_(done + first)
            before, self.exact = self.exact, True
            for step in range(first, last):
                self.sums.before_step(done + step)
                size = recorder.size(rows[step], largest[step])
                self._step(rows[step, :, :size], counts[step], active)
            self.exact = before

        look = stretch if self.exact else self._steps_of_a_look(active)
        while finished < stretch:
            last = min(stretch, finished + look)
            finished = self._advance(record, with_host, done, finished, last)

    def _advance(
        self,
        record: Callable[[int, int], None],
        with_host: Callable[[int, int], None],
        done: int,
        first: int,
        last: int,
    ) -> int:
        """Make steps of a stretch from ``first`` on and return how many of it are made now.

        If a norm was not finite, all are repeated with care. If a step needs the host, those before
        it are repeated and it is made with the host.
        """
        state = self.parameters, self.first, self.second
        watched = self.sums.sound is not None or not self.exact
        before = [tensor.clone() for tensor in state] if watched else []
        if self.sums.sound is not None:
            self.sums.sound.fill_(True)
            self.sums.careful = False
        self.first_open.fill_(_MOST_STEPS)
        record(first, last)
        if self.sums.sound is not None and not bool(self.sums.sound):
            _restore(state, before)
            self.sums.careful = True
            with_host(first, last)
            return last
        open_step = int(self.first_open) - done - 1
        if self.exact or open_step >= last:
            return last
        _restore(state, before)
        record(first, open_step)
        with_host(open_step, open_step + 1)
        return open_step + 1

    def _step(self, rows: torch.Tensor, counts: torch.Tensor, active: int) -> None:
        """Make one step: clipped sum, noise, division by the expected batch size, optimiser."""
        self.clock += 1
        taken = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
        total = self.sums(self.parameters[:active], rows, taken, self.clips[:active], self.scratch)
        if self.noisy:
            total = self._noisy(total, self.lattices[:active])
        self._move(total.div_(self.batch), active)

    def _noisy(self, total: torch.Tensor, lattices: torch.Tensor) -> torch.Tensor:
        """Return the sums with noise, on their lattices."""
        noisy, doubt = self.source.noisy(total, lattices, self.clock)
        if not self.exact:
            here = torch.where(doubt.any(), self.clock, _MOST_STEPS)
            self.first_open.copy_(torch.minimum(self.first_open, here))
        elif bool(doubt.any()):
            # a sum that is not finite belongs to a stretch that will be repeated with care
            self.source.settle(
                total, noisy, doubt & torch.isfinite(total), lattices, int(self.clock)
            )
        return noisy

    def _move(self, gradient: torch.Tensor, active: int) -> None:
        """Update the parameters by the optimiser."""
        parameters, first, second = (
            self.parameters[:active],
            self.first[:active],
            self.second[:active],
        )
        rates = self.rates[:active]
        if rates.shape[1] > 1:
            rates = rates.index_select(1, self.clock - 1)
        if self.decays is not None:
            parameters.mul_(1.0 - rates * self.decays[:active, None])
        if self.optimiser == "sgd":
            parameters.addcmul_(rates, gradient, value=-1.0)
        elif self.optimiser == "momentum":
            first.mul_(self.momenta[:active, None]).add_(gradient)
            parameters.addcmul_(rates, first, value=-1.0)
        else:
            step = self.clock.to(torch.float64)
            first.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            fade1, fade2 = 1 - torch.pow(BETA1, step), 1 - torch.pow(BETA2, step)
            parameters -= rates * (first / fade1) / (torch.sqrt(second / fade2) + TINY)


class Recorder:
    """Calls a step; with ``record``, records one CUDA graph per sample size and replays it."""

    def __init__(self, step: Callable[[torch.Tensor, torch.Tensor], None], *, record: bool) -> None:
        self._step, self._record = step, record
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._warm: set[int] = set()
        self._pool: Any = None

    def __call__(self, rows: torch.Tensor, counts: torch.Tensor, largest: int) -> None:
        size = self.size(rows, largest)
        if not self._record or size not in self._warm:
            # the first step of a size is not recorded; it also loads kernels and libraries
            self._warm.add(size)
            self._step(rows[:, :size], counts)
            return
        if size not in self._graphs:
            try:
                self._graphs[size] = self._recorded(rows, counts, size)
            except RuntimeError:
                # a module may do what a graph cannot hold, e.g. copy from the host: nothing ran yet
                self._record = False
                self._step(rows[:, :size], counts)
                return
        graph, given_rows, given_counts = self._graphs[size]
        given_rows.copy_(rows[:, :size])
        given_counts.copy_(counts)
        graph.replay()

    def size(self, rows: torch.Tensor, largest: int) -> int:
        """Return the number of rows of a step: the largest sample, rounded up if recorded."""
        return min(rows.shape[1], rounded(largest)) if self._record else largest

    def _recorded(
        self, rows: torch.Tensor, counts: torch.Tensor, size: int
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        """Record a step; return the graph and the tensors from which it reads its sample."""
        given_rows, given_counts = rows[:, :size].clone(), counts.clone()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(given_rows, given_counts)
        return graph, given_rows, given_counts


def rounded(size: int) -> int:
    """Round a size up so that few different sizes occur.

    Sizes are multiples of a sixteenth of the largest power of two that is not above ``size``.
    """
    step = max(8, 1 << max(0, size.bit_length() - 5))
    return -(-size // step) * step


def _restore(state: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> None:
    """Write back what was there before."""
    for tensor, old in zip(state, before, strict=True):
        tensor.copy_(old)
