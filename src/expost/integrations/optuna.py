"""An Optuna study that holds what may be seen: the releases of private selections.

Optuna stores every trial with its parameters and its value. For private data this is a leak: which
candidates ran and what the losers scored is secret. :class:`PrivateStudy` takes the search space
from Optuna distributions, lists the candidates from it by a public rule (a grid, or draws from a
public seed), runs a selector of this package, and stores one trial per release: the winner's
parameters, its released score, and its charge. Dashboards and plots of Optuna then show these.
Every trial has the same time, 1 January 1970: how long a search took tells how many candidates ran.

Trials in the clear are refused: a study that holds any is not used, and the study that
:attr:`PrivateStudy.study` returns cannot ask, tell, optimise, enqueue or add. A person who opens
the same storage with Optuna itself can still write to it; the next call here refuses such a study.

Tests: ``tests/integrations/test_optuna.py``.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from itertools import product
from typing import Any

from expost.errors import InvalidInput, import_extra
from expost.execution.calls import Raised, call_or_failure
from expost.mechanisms import FAILED, NOTHING
from expost.rationals import count_of
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.selection.selector import Selector

__all__ = ["PrivateStudy", "public_settings"]

_MARK = "expost:release"
_MOST_SETTINGS = 100_000
_NO_TIME = datetime(1970, 1, 1)  # without a zone, as Optuna stores times


def public_settings(
    space: Mapping[str, Any], n: int | None = None, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Return settings of a search space, by a rule that looks at no data.

    Parameters
    ----------
    space : mapping
        Names of parameters and Optuna distributions.
    n : int, optional
        How many settings to draw at random. By default the whole grid, for which float
        distributions need a ``step``.
    seed : int
        A public seed of the draws. It has nothing to do with privacy.

    Returns
    -------
    list of dict
        The settings, without repetition.

    Raises
    ------
    InvalidInput
        If the space is empty, has other distributions, or has no finite grid.
    """
    optuna = import_extra("optuna", "optuna")
    if not isinstance(space, Mapping) or not space:
        raise InvalidInput("space", type(space).__name__, "pass names and Optuna distributions")
    for name, distribution in space.items():
        if not isinstance(distribution, optuna.distributions.BaseDistribution):
            raise InvalidInput(
                f"space[{name!r}]", type(distribution).__name__, "pass a distribution"
            )
    if n is None:
        axes = [_values(name, distribution) for name, distribution in space.items()]
        if math.prod(map(len, axes)) > _MOST_SETTINGS:
            raise InvalidInput("space", "a large grid", "pass n to draw settings at random")
        return [dict(zip(space, values, strict=True)) for values in product(*axes)]
    storage = optuna.storages.InMemoryStorage()  # holds public settings only
    storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "scratch")
    sampler = optuna.samplers.RandomSampler(seed=seed)
    scratch = optuna.study.Study("scratch", storage, sampler=sampler)
    drawn = [
        scratch.ask(fixed_distributions=dict(space)).params
        for _ in range(count_of(n, "n", at_least=1))
    ]
    return list(
        {json.dumps(params, sort_keys=True, default=repr): params for params in drawn}.values()
    )


class PrivateStudy:
    """Search an Optuna space privately, and keep the releases as an Optuna study.

    Parameters
    ----------
    space : mapping
        Names of parameters and Optuna distributions.
    storage : str or BaseStorage, optional
        As in ``optuna.create_study``; in memory by default.
    study_name : str, default="expost"
        Name of the study in the storage. It is made if it does not exist.

    Raises
    ------
    InvalidInput
        If the study holds trials in the clear.
    MissingExtra
        If Optuna is not installed.

    Examples
    --------
    ::

        space = {
            "epsilon": CategoricalDistribution([0.5, 1.0, 2.0]),
            "learning_rate": FloatDistribution(0.1, 4.0, log=True),
        }
        study = PrivateStudy(space, storage="sqlite:///releases.db")
        release = study.search(make_mechanism, RandomDropping(0.1), data, n=20, score=accuracy)
        study.study.best_params  # of the releases
    """

    def __init__(
        self, space: Mapping[str, Any], *, storage: Any = None, study_name: str = "expost"
    ) -> None:
        optuna = import_extra("optuna", "optuna")
        self.space = dict(space)
        public_settings(self.space, 1)  # checks the space
        study = optuna.create_study(
            storage=storage, study_name=study_name, direction="maximize", load_if_exists=True
        )
        self.study_name, self._storage = study_name, study._storage
        self._refuse_foreign_trials(study)

    @property
    def study(self) -> Any:
        """The releases as an Optuna study, to read and to plot; it refuses trials in the clear."""
        study = _released_study()(study_name=self.study_name, storage=self._storage)
        self._refuse_foreign_trials(study)
        return study

    def search(
        self,
        candidate: Callable[[dict[str, Any]], Any],
        selector: Selector,
        data: Any,
        *,
        n: int | None = None,
        seed: int = 0,
        **request: Any,
    ) -> Release:
        """Run a selector over settings of the space and store what it releases.

        Parameters
        ----------
        candidate : callable
            From a setting to a :class:`~expost.Candidate`, or to a mechanism with a guarantee.
        selector : Selector
            Chooses and charges, for example :class:`~expost.RandomDropping`.
        data : object
            What the mechanisms are called with.
        n, seed
            As in :func:`public_settings`.
        **request
            Further arguments of ``selector.select``: ``score``, ``ledger``, ``budget`` and so on.

        Returns
        -------
        Release
            The release that was stored.

        Raises
        ------
        InvalidInput
            If an argument is not valid, or the study holds trials in the clear. Nothing was
            charged.
        """
        if not isinstance(selector, Selector):
            raise InvalidInput("selector", type(selector).__name__, "pass a selector of expost")
        self._refuse_foreign_trials(self.study)
        listed = []
        for params in public_settings(self.space, n, seed=seed):
            mechanism = candidate(dict(params))
            listed.append(
                mechanism if isinstance(mechanism, Candidate) else Candidate(mechanism, params)
            )
        release = selector.select(listed, data, **request)
        stored = call_or_failure(self.add, release)
        if isinstance(stored, Raised):  # the release is paid for and must not be lost
            warnings.warn(
                f"the release could not be stored ({type(stored.error).__name__}); mend the "
                "storage and pass the release to add()",
                stacklevel=2,
            )
        return release

    def add(self, release: Release) -> None:
        """Store a release as a finished trial.

        Parameters
        ----------
        release : Release
            From any selection, such as ``ExPostSearch.release_`` or ``Tuned.release``. Parameters
            that are not in the space are stored as an attribute.
        """
        if not isinstance(release, Release):
            raise InvalidInput("release", type(release).__name__, "pass a Release")
        optuna = import_extra("optuna", "optuna")
        inside = {
            name: release.params[name]
            for name, distribution in self.space.items()
            if name in release.params and _contains(distribution, release.params[name])
        }
        value = release.score
        complete = (
            value is not None
            and math.isfinite(value)
            and release.passed is not False
            and release.value is not NOTHING
            and release.value is not FAILED
        )
        attributes = release.as_dict(encode=lambda _: None)
        attributes.pop("value", None)
        states = optuna.trial.TrialState
        trial = optuna.trial.create_trial(
            state=states.COMPLETE if complete else states.FAIL,
            value=value if complete else None,
            params=inside,
            distributions={name: self.space[name] for name in inside},
            user_attrs={_MARK: True} | {key: attributes[key] for key in sorted(attributes)},
        )
        trial.datetime_start = trial.datetime_complete = _NO_TIME  # its duration is secret
        study = self.study
        study._storage.create_new_trial(study._study_id, template_trial=trial)

    def _refuse_foreign_trials(self, study: Any) -> None:
        """Refuse a study with a trial that is not a release."""
        if not all(_MARK in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
            raise InvalidInput(
                "study_name",
                self.study_name,
                "this study holds trials in the clear, with parameters and values that no "
                "selection released; use another study or another storage, and keep this one from "
                "everybody who may not see the data",
            )


def _contains(distribution: Any, value: Any) -> bool:
    """Whether a distribution has a value."""
    inside = call_or_failure(lambda: distribution._contains(distribution.to_internal_repr(value)))
    return inside is True


def _values(name: str, distribution: Any) -> list[Any]:
    """Return the finite list of values of a distribution."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    step = distribution.step
    if step is None or distribution.log:
        raise InvalidInput(
            f"space[{name!r}]", "a continuous distribution", "give it a step, or pass n"
        )
    count = math.floor((distribution.high - distribution.low) / step + 1e-9) + 1
    if count > _MOST_SETTINGS:
        raise InvalidInput(f"space[{name!r}]", f"{count} values", "give a larger step, or pass n")
    return [distribution.low + step_number * step for step_number in range(count)]


@cache
def _released_study() -> Any:
    """Return Optuna's Study without the methods that make or write trials."""
    study = import_extra("optuna", "optuna").study.Study

    def refuse(self: Any, *arguments: Any, **options: Any) -> Any:
        raise InvalidInput(
            "study",
            "a trial in the clear",
            "this study stores only what a private selection released; call PrivateStudy.search",
        )

    writing = ("ask", "tell", "optimize", "enqueue_trial", "add_trial", "add_trials")
    return type("ReleasedStudy", (study,), dict.fromkeys(writing, refuse))
