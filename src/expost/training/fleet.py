"""Many DP-SGD trainings at once: ``Fleet("logistic", configurations).train(X, y)``.

Each model draws its own Poisson samples and its own noise from its own stream. Models share only
the data that they read. So the guarantee of each model is that of its plan, whatever else is in the
fleet, and the guarantees of all models compose. A selector decides which of the trained models may
be released, and at what charge.

**A training as a mechanism** is a :class:`DPSGD`. Its guarantee is computed when the mechanism is
made, for the public number ``n`` and the noise that will be used. A configuration with ``epsilon``
and ``delta`` is first resolved to its noise multiplier. So the guarantee always belongs to the
training that is executed. Sampling rate and steps use ``n``, never the number of rows in the data,
so the guarantee is for add-remove neighbours.

Tests: ``tests/training/test_fleet.py``, ``tests/training/test_mechanism.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, RenyiDP
from expost.randomness.source import Randomness, require_protection
from expost.rationals import count_of
from expost.selection.candidate import Candidate
from expost.training.configuration import (
    LOSSES,
    OWN,
    Configuration,
    TrainingPlan,
    check_class_weights,
    plans,
    with_a_row,
)
from expost.training.engines import FleetRun, Meter, Trained, TrainingProgress

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
    loss : {"softmax", "logistic", "squared", "own"}, optional
        Loss of a module; "softmax" by default. "own": the first output of the module is the loss
        of the row, computed from the row alone. Not allowed for the linear models.

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
        if self.loss is not None and (not callable(self.model) or self.loss not in (*LOSSES, OWN)):
            raise InvalidInput(
                "loss",
                self.loss,
                "pass 'softmax', 'logistic', 'squared' or 'own', and only with a module",
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
            class number ("softmax"). A row with another target adds nothing to any step. None with
            the loss "own".
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
        if y is None and self.loss == OWN:
            y = np.zeros(len(X))
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


@dataclass(frozen=True)
class DPSGD:
    """One DP-SGD training as a mechanism.

    A call takes the data ``(X, y)`` and a source of randomness, and returns a
    :class:`~expost.training.Trained`. Under a selector, all surviving trainings of one model on one
    device are run as one fleet.

    Parameters
    ----------
    model, classes, loss
        As in :class:`~expost.training.Fleet`.
    configuration : Configuration
        Settings of the training. The attribute holds them with the noise multiplier resolved.
    n : int
        Public number of rows. The data may have another number of rows: nothing depends on it but
        the sums.
    device : str
        "cpu", "cuda" or "cuda:NUMBER".

    Attributes
    ----------
    guarantee : RenyiDP
        The Rényi curve of the training, under add-remove neighbours.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or there is no noise and so no guarantee.
    """

    model: str | Callable[[], Any]
    configuration: Configuration
    n: int
    classes: int | None = None
    loss: str | None = None
    device: str = "cpu"
    guarantee: RenyiDP = field(init=False, repr=False)

    def __post_init__(self) -> None:
        Fleet(self.model, [self.configuration], self.classes, self.loss)  # checks the arguments
        check_device(self.device)
        object.__setattr__(
            self,
            "configuration",
            resolved(
                self.configuration,
                self.configuration.plan(self.n, device=self.device, neighbours=ADD_REMOVE),
            ),
        )
        object.__setattr__(
            self,
            "guarantee",
            self.configuration.guarantee(self.n, device=self.device, neighbours=ADD_REMOVE),
        )

    def __call__(self, data: Any, randomness: Randomness) -> Trained:
        return self.run_together([self], data, [randomness])[0]

    @property
    def together_key(self) -> tuple[Any, ...]:
        """Key of the trainings that run as one fleet.

        They have the same model, number of rows, classes, loss and device. See
        :class:`expost.execution.calls.Together`.
        """
        return (type(self), self.model, self.n, self.classes, self.loss, self.device)

    def run_together(
        self, calls: Sequence[DPSGD], data: Any, randomness: Sequence[Randomness]
    ) -> list[Trained]:
        """Run several trainings as one fleet; each draws its own samples and noise.

        Parameters
        ----------
        calls : sequence of DPSGD
            Trainings with the same :attr:`together_key`.
        data : tuple
            Rows and targets ``(X, y)``.
        randomness : sequence of Randomness
            One source per training.

        Returns
        -------
        list of Trained
            In the order of ``calls``.

        Raises
        ------
        InvalidInput
            If the type or the shape of the data is not valid.
        """
        X, y = data
        fleet = Fleet(self.model, [call.configuration for call in calls], self.classes, self.loss)
        return fleet.train(
            X,
            y,
            randomness=list(randomness),
            simulation=randomness[0].simulated,
            device=self.device,
            rows=self.n,
        )


def resolved(configuration: Configuration, plan: TrainingPlan) -> Configuration:
    """Return the configuration with the noise multiplier of its plan."""
    return replace(configuration, noise_multiplier=plan.noise_multiplier, epsilon=None, delta=None)


def candidates(
    model: str | Callable[[], Any],
    configurations: Sequence[Configuration],
    n: int,
    *,
    classes: int | None = None,
    loss: str | None = None,
    repeats: int = 1,
    device: str = "cpu",
) -> list[Candidate]:
    """Return one candidate per configuration, for a selector.

    The noise of all configurations is calibrated in one call. The public parameters of a candidate
    are the settings as given, and the resolved noise multiplier.

    Parameters
    ----------
    model, classes, loss
        As in :class:`~expost.training.Fleet`.
    configurations : sequence of Configuration
        One training each.
    n : int
        Public number of rows.
    repeats : int
        Number of copies of each candidate that compete, see :class:`~expost.Candidate`.
    device : str
        "cpu", "cuda" or "cuda:NUMBER".

    Returns
    -------
    list of Candidate
        In the order of the configurations.

    Raises
    ------
    InvalidInput
        If an argument is not valid, or a configuration has no noise.
    """
    Fleet(model, configurations, classes, loss)  # checks the arguments
    check_device(device)
    mechanisms = []
    planned = plans(configurations, n, device=device, neighbours=ADD_REMOVE)
    for settings, plan in zip(configurations, planned, strict=True):
        public = {
            name: _plain(value)
            for name, value in vars(settings).items()
            if value is not None and (name not in _EXTRAS or value != _EXTRAS[name])
        }
        mechanism = DPSGD(model, resolved(settings, plan), n, classes, loss, device)
        mechanisms.append(
            Candidate(
                mechanism,
                params=public | {"noise_multiplier": plan.noise_multiplier},
                repeats=repeats,
            )
        )
    return mechanisms


# settings that are listed only if they are given
_EXTRAS = {"weight_decay": 0, "schedule": "constant"}


def _plain(value: Any) -> Any:
    """Return a text, number or list that can be written as JSON."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (str, int, float)) else float(value)
