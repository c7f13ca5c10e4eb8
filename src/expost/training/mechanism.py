"""A training as a mechanism: :class:`DPSGD`, and lists of candidates for a selector.

The guarantee is computed when the mechanism is made, for the public number ``n`` and the noise that
will be used. A configuration with ``epsilon`` and ``delta`` is first resolved to its noise
multiplier. So the guarantee always belongs to the training that is executed. Sampling rate and
steps use ``n``, never the number of rows in the data, so the guarantee is for add-remove
neighbours.
Tests: ``tests/training/test_mechanism.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from expost.privacy.guarantees import ADD_REMOVE, RenyiDP
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import Configuration, TrainingPlan, plans
from expost.training.engines import Trained
from expost.training.fleet import Fleet, check_device


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
            self.configuration.promise(self.n, device=self.device, neighbours=ADD_REMOVE),
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
