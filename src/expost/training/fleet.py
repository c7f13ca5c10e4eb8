"""Many DP-SGD trainings together: ``Fleet("logistic", configurations).train(X, y)``.

Each model draws its own Poisson samples and its own noise from a stream of its own; models share nothing but the data they read. So the
promise of each is that of its plan, whatever else is in the fleet, and all of them together compose. Which of the trained models may be
released, and at what charge, is a selector's business.
Tests: ``tests/training/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from expost.errors import InvalidInput
from expost.randomness.source import Randomness, require_protection
from expost.rationals import count_of
from expost.training.configuration import Configuration
from expost.training.engines import FleetRun, Trained
from expost.training.progress import Meter, TrainingProgress

LINEAR_MODELS = {"linear": "squared", "logistic": "logistic", "softmax": "softmax"}


@dataclass(frozen=True)
class Fleet:
    """Models of one kind, one a configuration.

    ``model``    "linear", "logistic" (labels 0 and 1), "softmax" (labels 0 … classes − 1), all from zero; or a function that returns a
                 fresh ``torch.nn.Module``, the same architecture at each call
    ``classes``  how many there are: public, never read off the labels; for "softmax"
    ``loss``     of a module: "softmax" (default), "logistic" or "squared"
    """

    model: str | Callable[[], Any]
    configurations: Sequence[Configuration]
    classes: int | None = None
    loss: str | None = None

    def __post_init__(self) -> None:
        configurations = self.configurations
        if (
            isinstance(configurations, Configuration)
            or not isinstance(configurations, Sequence)
            or not configurations
        ):
            raise InvalidInput(
                "configurations",
                type(configurations).__name__,
                "give a non-empty list of Configuration",
            )
        if not all(isinstance(configuration, Configuration) for configuration in configurations):
            raise InvalidInput("configurations", "other things", "give a list of Configuration")
        if not callable(self.model) and (
            not isinstance(self.model, str) or self.model not in LINEAR_MODELS
        ):
            raise InvalidInput(
                "model",
                self.model,
                "give 'linear', 'logistic', 'softmax' or a function that returns an nn.Module",
            )
        if self.loss is not None and (
            not callable(self.model) or self.loss not in LINEAR_MODELS.values()
        ):
            raise InvalidInput(
                "loss", self.loss, "give 'softmax', 'logistic' or 'squared', and only with a module"
            )
        if self.model == "softmax":
            if self.classes is None:
                raise InvalidInput(
                    "classes",
                    None,
                    "say how many there are: reading it off the labels would tell about the data",
                )
            count_of(self.classes, "classes", at_least=2)
        elif self.classes is not None:
            raise InvalidInput(
                "classes",
                self.classes,
                "leave it out: only 'softmax' takes it (a module's outputs say it)",
            )

    def train(
        self,
        X: Any,
        y: Any,
        *,
        randomness: Randomness | Sequence[Randomness] | None = None,
        simulation: bool = False,
        threads: int | None = None,
        memory_limit: int | None = None,
        progress: TrainingProgress | None = None,
        device: str = "cpu",
    ) -> list[Trained]:
        """Train every configuration on all rows; results in the order of the configurations.

        ``randomness``    OS entropy by default; a seeded source (and zero noise) only with ``simulation=True``. With a list, one source a
                          configuration, each model's numbers come from its own: they do not depend on what else is in the fleet
        ``threads``       models trained side by side on a CPU (default: OMP_NUM_THREADS, by which pools and clusters give a worker its
                          share, else all cores); results do not depend on it
        ``memory_limit``  bytes that training may use beside the data: fewer models at once, smaller chunks of a batch
        ``progress``      called with (examples processed, examples in all), both expected; see :func:`~expost.training.progress_bar`
        ``device``        "cpu", or "cuda" where torch has one
        """
        sources = self._sources(randomness, simulation)
        workers = _cores() if threads is None else count_of(threads, "threads", at_least=1)
        limit = None if memory_limit is None else count_of(memory_limit, "memory_limit", at_least=1)
        if progress is not None and not callable(progress):
            raise InvalidInput(
                "progress", type(progress).__name__, "give a function, or leave it out"
            )
        check_device(device)
        if not simulation and any(
            configuration.noise_multiplier == 0 for configuration in self.configurations
        ):
            raise InvalidInput(
                "noise_multiplier",
                0,
                "without noise nothing is protected; say simulation=True if that is meant",
            )
        job = FleetRun(self.configurations, sources, workers, limit, Meter(progress), device)
        if callable(self.model):
            return job.train_modules(self.model, self.loss or "softmax", X, y)
        return job.train_linear(LINEAR_MODELS[self.model], self.classes or 1, X, y)

    def _sources(
        self, randomness: Randomness | Sequence[Randomness] | None, simulation: bool
    ) -> list[Randomness]:
        count = len(self.configurations)
        if not isinstance(randomness, (list, tuple)):
            return [require_protection(randomness, simulation=simulation)] * count  # type: ignore[arg-type]
        if len(randomness) != count:
            raise InvalidInput(
                "randomness",
                f"{len(randomness)} sources",
                f"give one, or one a configuration ({count})",
            )
        return [require_protection(each, simulation=simulation) for each in randomness]


def check_device(device: object) -> None:
    """Refuse what names no device; whether there is one is seen when it is used."""
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise InvalidInput("device", device, "give 'cpu', 'cuda' or 'cuda:NUMBER'")


def _cores() -> int:
    said = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(said)) if said.isdecimal() else os.cpu_count() or 1
