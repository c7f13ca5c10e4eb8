"""Many DP-SGD trainings at once: ``Fleet("logistic", configurations).train(X, y)``.

Each model draws its own Poisson samples and its own noise from its own stream. Models share only
the data that they read. So the guarantee of each model is that of its plan, whatever else is in the
fleet, and the guarantees of all models compose. A selector decides which of the trained models may
be released, and at what charge.

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
from expost.training.configuration import Configuration, check_class_weights
from expost.training.data import with_a_row
from expost.training.engines import FleetRun, Trained
from expost.training.progress import Meter, TrainingProgress

LINEAR_MODELS = {"linear": "squared", "logistic": "logistic", "softmax": "softmax"}


@dataclass(frozen=True)
class Fleet:
    """Models of one kind, one per configuration.

    Parameters
    ----------
    model : str or callable
        "linear", "logistic" (labels 0 and 1) or "softmax" (labels 0 … classes − 1); their training
        starts with all parameters zero. Or a function that returns a new ``torch.nn.Module`` of the
        same architecture at every call.
    configurations : sequence of Configuration
        Settings of the models.
    classes : int, optional
        Number of classes, required for "softmax" and not allowed otherwise. It is public and is
        never derived from the labels.
    loss : {"softmax", "logistic", "squared"}, optional
        Loss of a module; "softmax" by default. Not allowed for the linear models.

    Raises
    ------
    InvalidInput
        If an argument is not valid.

    Examples
    --------
    ::

        settings = [Configuration(lr, 5, 256, 1.0, epsilon=1.0, delta=1e-6) for lr in (0.1, 1.0)]
        trained = Fleet("logistic", settings).train(X, y)
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
                "pass a non-empty list of Configuration",
            )
        if not all(isinstance(configuration, Configuration) for configuration in configurations):
            raise InvalidInput(
                "configurations", "a list of other objects", "pass a list of Configuration"
            )
        if not callable(self.model) and (
            not isinstance(self.model, str) or self.model not in LINEAR_MODELS
        ):
            raise InvalidInput(
                "model",
                self.model,
                "pass 'linear', 'logistic', 'softmax' or a function that returns an nn.Module",
            )
        if self.loss is not None and (
            not callable(self.model) or self.loss not in LINEAR_MODELS.values()
        ):
            raise InvalidInput(
                "loss", self.loss, "pass 'softmax', 'logistic' or 'squared', and only with a module"
            )
        if self.model == "softmax":
            if self.classes is None:
                raise InvalidInput(
                    "classes",
                    None,
                    "pass the number of classes: taking it from the labels would reveal data",
                )
            count_of(self.classes, "classes", at_least=2)
        elif self.classes is not None:
            raise InvalidInput(
                "classes",
                self.classes,
                "omit it: only 'softmax' needs it (the outputs of a module define it)",
            )
        if isinstance(self.model, str):
            check_class_weights(configurations, LINEAR_MODELS[self.model], self.classes or 1)

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
        rows: int | None = None,
    ) -> list[Trained]:
        """Train every configuration on all rows.

        Parameters
        ----------
        X : array_like
            Rows, the first axis over examples; real numbers. A row with NaN or infinity adds
            nothing to any step.
        y : array_like
            One target per example: a real number ("linear", "squared"), 0 or 1 ("logistic"), or a
            class number ("softmax"). A row with another target adds nothing to any step.
        randomness : Randomness or sequence of Randomness, optional
            OS entropy by default. A seeded source requires ``simulation=True``. In a list with one
            source per configuration, each model draws from its own source, so its numbers do not
            depend on the other models in the fleet.
        simulation : bool
            Allow seeded randomness and zero noise, which do not protect the data.
        threads : int, optional
            Models trained at the same time on a CPU. By default OMP_NUM_THREADS, which pools and
            clusters set to the share of a worker, or else the number of cores. Results do not
            depend on it.
        memory_limit : int, optional
            Bytes that training may use in addition to the data. A lower limit means fewer models at
            once and smaller chunks of a batch.
        progress : callable, optional
            Called with (examples processed, examples in total), both expected numbers. See
            :func:`~expost.training.progress_bar`.
        device : str
            "cpu", or "cuda" or "cuda:NUMBER" if torch finds one.
        rows : int, optional
            Public number of rows. Sampling rate and steps are computed from it, the number of rows
            in ``X`` may differ, and the guarantees are for add-remove neighbours. By default the
            number of rows in ``X`` is public, and the guarantees are for zero-out neighbours.

        Returns
        -------
        list of Trained
            In the order of the configurations.

        Raises
        ------
        InvalidInput
            If an argument is not valid, or the type or the shape of the data. It does not depend on
            the values in the data.
        SimulationOnly
            If a source is seeded and ``simulation`` is false.
        MissingExtra
            If numba or torch is needed and not installed.
        """
        sources = self._sources(randomness, simulation)
        workers = default_threads() if threads is None else count_of(threads, "threads", at_least=1)
        limit = None if memory_limit is None else count_of(memory_limit, "memory_limit", at_least=1)
        if progress is not None and not callable(progress):
            raise InvalidInput("progress", type(progress).__name__, "pass a function, or omit it")
        check_device(device)
        if not simulation and any(
            configuration.noise_multiplier == 0 for configuration in self.configurations
        ):
            raise InvalidInput(
                "noise_multiplier",
                0,
                "without noise there is no privacy; pass a number > 0, or simulation=True",
            )
        public = None if rows is None else count_of(rows, "rows", at_least=1)
        if public is not None:
            X, y = with_a_row(X, y)
        job = FleetRun(
            self.configurations, sources, workers, limit, Meter(progress), device, public
        )
        if callable(self.model):
            return job.train_modules(self.model, self.loss or "softmax", X, y)
        return job.train_linear(LINEAR_MODELS[self.model], self.classes or 1, X, y)

    def _sources(
        self, randomness: Randomness | Sequence[Randomness] | None, simulation: bool
    ) -> list[Randomness]:
        """Return one checked source per configuration."""
        count = len(self.configurations)
        if not isinstance(randomness, (list, tuple)):
            source = require_protection(randomness, simulation=simulation)  # type: ignore[arg-type]
            return [source] * count
        if len(randomness) != count:
            raise InvalidInput(
                "randomness",
                f"{len(randomness)} sources",
                f"pass one source, or one per configuration ({count})",
            )
        return [require_protection(source, simulation=simulation) for source in randomness]


def check_device(device: object) -> None:
    """Refuse a text that is not a device name; whether the device exists is checked at use."""
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise InvalidInput("device", device, "pass 'cpu', 'cuda' or 'cuda:NUMBER'")


def default_threads() -> int:
    """Return the default number of threads."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(share)) if share.isdecimal() else os.cpu_count() or 1
