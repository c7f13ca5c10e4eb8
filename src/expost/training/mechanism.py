"""A training as a mechanism: :class:`DPSGD`, and lists of them for a selector.

The promise is fixed when the mechanism is made, for ``n`` rows, with the noise that will be used (a calibrated configuration is resolved to
its noise multiplier first): what is promised and what is executed cannot drift apart. Tests: ``tests/training/test_mechanism.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import RenyiDP
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import Configuration, TrainingPlan, plans
from expost.training.engines import Trained
from expost.training.fleet import Fleet, check_device


@dataclass(frozen=True)
class DPSGD:
    """Train ``model`` (as in :class:`~expost.training.Fleet`) by ``configuration`` on ``n`` rows: (X, y), randomness → Trained.

    Under a selector all surviving trainings of one model on one ``device`` go to one fleet.
    """

    model: str | Callable[[], Any]
    configuration: Configuration
    n: int
    classes: int | None = None
    loss: str | None = None
    device: str = "cpu"
    guarantee: RenyiDP = field(init=False, repr=False)

    def __post_init__(self) -> None:
        Fleet(
            self.model, [self.configuration], self.classes, self.loss
        )  # refuses what it cannot train
        check_device(self.device)
        object.__setattr__(
            self, "configuration", resolved(self.configuration, self.configuration.plan(self.n))
        )
        object.__setattr__(self, "guarantee", self.configuration.promise(self.n))

    def __call__(self, data: Any, randomness: Randomness) -> Trained:
        return self.run_together([self], data, [randomness])[0]

    @property
    def together_key(self) -> tuple[Any, ...]:
        """Trainings of one model on as many rows go to one fleet (``selection.work.Together``)."""
        return (type(self), self.model, self.n, self.classes, self.loss, self.device)

    def run_together(
        self, calls: Sequence[DPSGD], data: Any, randomness: Sequence[Randomness]
    ) -> list[Trained]:
        """All these trainings as one fleet; each has a sample and noise of its own."""
        X, y = data
        if len(X) != self.n:
            raise InvalidInput(
                "data", "another number of rows", f"the promise was made for {self.n} rows"
            )
        fleet = Fleet(self.model, [call.configuration for call in calls], self.classes, self.loss)
        return fleet.train(
            X,
            y,
            randomness=list(randomness),
            simulation=randomness[0].simulated,
            device=self.device,
        )


def resolved(configuration: Configuration, plan: TrainingPlan) -> Configuration:
    """The configuration with the plan's noise written out."""
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
    """A candidate for each configuration, all calibrated together; the settings as written are the public parameters."""
    Fleet(model, configurations, classes, loss)  # refuses what it cannot train
    made = []
    for settings, plan in zip(configurations, plans(configurations, n), strict=True):
        public = {
            name: _plain(value) for name, value in vars(settings).items() if value is not None
        }
        mechanism = DPSGD(model, resolved(settings, plan), n, classes, loss, device)
        made.append(
            Candidate(
                mechanism,
                params=public | {"noise_multiplier": plan.noise_multiplier},
                repeats=repeats,
            )
        )
    return made


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else float(value)
