"""Opacus, three ways: as documented, hand-fed, and hand-fed by one process per core."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.fleet_cases import Case, case_of, wait
from benchmarks.measure import Contender
from expost.training._torch.modules import LOSSES


def steps_of(case: Case, batch: int, device: str) -> int:
    """Return the steps per turn; more on faster devices."""
    return case.peer_steps[batch] * (1 if device == "cpu" else 10 if case.key == "b" else 3)


def hand_fed(case: Case, batch: int, device: str) -> Contender:
    """Run Opacus without its loader: ``X[idx]``, with Poisson samples drawn beforehand."""
    module = case.module().to(device)
    wrapped = GradSampleModule(module)
    optimiser = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    X, y = torch.from_numpy(case.X).to(device), torch.from_numpy(case.y).to(device)
    rng = np.random.default_rng(1)
    samples = [
        np.flatnonzero(rng.random(len(X)) < batch / len(X))
        for _ in range(steps_of(case, batch, device))
    ]
    chosen = [torch.from_numpy(sample).to(device) for sample in samples]

    def run() -> None:
        for idx in chosen:
            optimiser.zero_grad()
            LOSSES[case.loss](wrapped(X[idx]), y[idx]).backward()
            optimiser.step()
        wait(device)

    return Contender("Opacus hand-fed", run, sum(map(len, samples)))


def documented(case: Case, batch: int, device: str) -> Contender:
    """Run Opacus as its documentation shows."""
    module = case.module().to(device)
    data = TensorDataset(torch.from_numpy(case.X), torch.from_numpy(case.y))
    wrapped, optimiser, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    steps = max(2, steps_of(case, batch, device) // 2)

    def run() -> None:
        for step, (X, y) in enumerate(loader):
            if step == steps:
                break
            optimiser.zero_grad()
            LOSSES[case.loss](wrapped(X.to(device)), y.to(device)).backward()
            optimiser.step()
        wait(device)

    return Contender("Opacus as documented", run, steps * batch)


def better_threads(run: Callable[[], object]) -> int:
    """Return 1 or the number of cores, whichever number of torch threads is faster now."""
    times = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        run()
        start = time.perf_counter()
        run()
        times[threads] = time.perf_counter() - start
    return min(times, key=lambda threads: times[threads])


class Crew:
    """One process per core, each with a hand-fed Opacus on one torch thread.

    They start each turn together and wait between turns.
    """

    def __init__(self, device: str, quick: bool, size: int | None = None) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self.size, self._cpu = size or os.cpu_count() or 1, 0.0
        self._barrier = context.Barrier(self.size)  # kept alive until the others start
        pipes = [context.Pipe() for _ in range(self.size)]
        self._ends = [mine for mine, _ in pipes]
        self._workers = [
            context.Process(target=_work, args=(theirs, self._barrier, device, quick), daemon=True)
            for _, theirs in pipes
        ]
        for worker in self._workers:
            worker.start()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for end, worker in zip(self._ends, self._workers, strict=True):
            if error is None:
                end.send(None)
            else:
                worker.terminate()
        for worker in self._workers:
            worker.join(timeout=30)

    def contender(self, case: Case, batch: int) -> Contender:
        """Return all processes on one case; the CPU seconds are those of all."""
        examples = sum(self._all((case.key, batch)))
        return Contender(
            f"Opacus hand-fed, {self.size} processes", self._turn, examples, lambda: self._cpu
        )

    def _turn(self) -> None:
        self._cpu += sum(self._all("go"))

    def _all(self, message: Any) -> list[float]:
        for end in self._ends:
            end.send(message)
        return [end.recv() for end in self._ends]


def _work(end: Any, barrier: Any, device: str, quick: bool) -> None:
    """Run a worker process.

    The message (key, batch) prepares a case; the answer is the number of examples per turn. "go"
    runs a turn; the answer is its CPU seconds. None ends the worker.
    """
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    torch.set_num_threads(1)
    case: Case | None = None
    contender: Contender | None = None
    while (message := end.recv()) is not None:
        if message == "go" and contender is not None:
            barrier.wait()
            start = time.process_time()
            contender.run()
            end.send(time.process_time() - start)
        else:
            key, batch = message
            case = case if case is not None and case.key == key else case_of(key, quick)
            contender = hand_fed(case, batch, device)
            end.send(contender.examples)
