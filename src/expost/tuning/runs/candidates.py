"""The candidates of a tuning job: DP-SGD on the training rows, then a score on the other rows.

Candidates that are kept by a selection train together, one fleet per choice of public features.

The guarantee of a candidate is the pointwise maximum of the Rényi curve of its training and the
curve of its score (:mod:`expost.tuning.model.scoring`); with public scoring it is the curve of the
training alone. The curve of the training belongs to exactly the plan that is executed
(``expost.training.configuration``): its noise is stored and not calibrated again. The neighbouring
relation is that of :mod:`expost.tuning.rows.job_rows`.

Tests: ``tests/tuning/test_scoring.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.checkpoint import NpzCodec
from expost.mechanisms import FAILED
from expost.privacy.guarantees import Guarantee, RenyiDP
from expost.privacy.profiles import DEFAULT_ORDERS
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import (
    Configuration,
    check_class_weights,
    guarantees_of,
    plans,
)
from expost.training.engines import Trained, need_device
from expost.training.fleet import Fleet, resolved
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import (
    Bounds,
    Score,
    check_metric,
    free_rho,
    predictions,
    truth_of_rows,
    with_scoring,
)
from expost.tuning.request.factories import with_arguments
from expost.tuning.request.settings import Settings
from expost.tuning.rows.job_columns import Choice, FeatureRows, features_for


@dataclass(frozen=True, eq=False, repr=False)
class ScoredModel:
    """Output of a candidate: parameters, and a score with the distribution of its noise."""

    parameters: Mapping[str, Array]
    score: float
    deviation: float = 0.0
    unit: float = 0.0
    lead: float | None = None
    bounds: Bounds | None = None
    law: str = "gaussian"

    def __float__(self) -> float:
        """Return what a search compares with its target: the lead if there is one."""
        return self.score if self.lead is None else self.lead


@dataclass(frozen=True)
class FittedCodec:
    """Encode fitted models for checkpoints, as base64 of ``.npz`` without pickle."""

    def encode(self, value: ScoredModel) -> Any:
        """Return the fitted model as JSON types."""
        return {
            "score": value.score,
            "deviation": value.deviation,
            "unit": value.unit,
            "lead": value.lead,
            "bounds": None if value.bounds is None else list(vars(value.bounds).values()),
            "parameters": NpzCodec().encode(dict(value.parameters)),
        }

    def decode(self, stored: Any) -> ScoredModel:
        """Return the fitted model that :meth:`encode` stored."""
        return ScoredModel(
            NpzCodec().decode(stored["parameters"]),
            float(stored["score"]),
            float(stored["deviation"]),
            float(stored["unit"]),
            stored["lead"],
            None if stored["bounds"] is None else Bounds(*stored["bounds"]),
        )


@dataclass(frozen=True)
class Hooks:
    """Settings of the process that trains. They do not affect the result."""

    progress: Callable[[float, float], None] | None = None
    threads: int | None = None

    def checkpoint_identity(self) -> int | None:
        """Return the thread count: a callback, such as a bar that has moved, is no other job."""
        return self.threads

    def __reduce__(self) -> tuple[Callable[[], Hooks], tuple[()]]:
        """Pickling drops the callback and the thread count; workers set their own."""
        return _in_a_worker, ()


def _in_a_worker() -> Hooks:
    """Return the hooks of a worker: as many threads as OMP_NUM_THREADS says, or one."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return Hooks(threads=max(1, int(said)) if said.isdecimal() else 1)


@dataclass(frozen=True, eq=False, repr=False)
class TrainAndScore:
    """Mechanism that trains one model and scores it. Several can run together as one fleet."""

    configuration: Configuration
    recipe: Recipe
    score: Score
    guarantee: RenyiDP
    together_key: Hashable = "expost.tuning"
    device: str = "cpu"
    hooks: Hooks = field(default_factory=Hooks)
    rows: FeatureRows | None = None

    def __call__(self, data: Any, randomness: Randomness) -> ScoredModel:
        """Train and score one model."""
        (output,) = self.run_together([self], data, [randomness])
        if output is FAILED:
            raise ValueError("the model could not be scored")
        assert isinstance(output, ScoredModel)
        return output

    def run_together(
        self, calls: Sequence[TrainAndScore], data: Any, randomness: Sequence[Randomness]
    ) -> list[Any]:
        """Train several models as one fleet and score each of them."""
        trained = self.train(calls, data, randomness)
        return [
            call.rate(outcome.parameters, data, source)
            for call, outcome, source in zip(calls, trained, randomness, strict=True)
        ]

    def train(
        self, calls: Sequence[TrainAndScore], data: Any, randomness: Sequence[Randomness]
    ) -> list[Trained]:
        """Train several models as one fleet."""
        return fleet(self.recipe, [call.configuration for call in calls]).train(
            self.recipe.shaped(data["X"]) if self.rows is None else self.rows.of(data["X"]),
            data["y"],
            randomness=list(randomness),
            simulation=randomness[0].simulated,
            threads=self.hooks.threads,
            progress=self.hooks.progress,
            device=self.device,
            rows=data["rows"],
        )

    def check_here(self) -> None:
        """Raise an error if the device is missing here, before anything is charged."""
        if self.device != "cpu":
            need_device(self.device)

    def rate(self, parameters: Mapping[str, Array], data: Any, randomness: Randomness) -> Any:
        """Return the model with its score, or ``FAILED`` if it cannot be scored."""
        X = data["score_X"] if self.rows is None else self.rows.of(data["score_X"])
        recipe = replace(self.recipe, features=None)  # the rows are features already
        try:
            predicted = predictions(self.score.metric, recipe, parameters, X)
        except (ArithmeticError, RuntimeError, ValueError):
            return FAILED
        truth = truth_of_rows(self.score.metric, self.recipe, data["score_y"])
        rows = data["score_rows"] or len(truth)
        return ScoredModel(
            parameters,
            self.score(predicted, truth, randomness, rows),
            self.score.deviation / rows,
            self.score.unit / rows,
        )


def fleet(recipe: Recipe, configurations: Sequence[Configuration]) -> Fleet:
    """Return a fleet of models with this recipe, one per configuration."""
    if recipe.factory is not None:
        return Fleet(recipe.factory, configurations, loss=recipe.loss)
    return Fleet(
        recipe.kind,
        configurations,
        classes=recipe.class_count if recipe.kind == "softmax" else None,
    )


def make_candidates(
    settings: Settings,
    recipe: Recipe,
    n: int,
    hooks: Hooks,
    device: str = "cpu",
    shape: tuple[int, ...] | None = None,
) -> list[Candidate]:
    """Return the candidates: every setting at every level. No data is read."""
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise InvalidInput("device", device, "give 'cpu' or 'cuda'")
    check_metric(settings.goal.measure, recipe)
    grid = [
        (epsilon, setting)
        for epsilon in settings.search.epsilons
        for setting in settings.search.settings
    ]
    for _, setting in grid:
        if setting.batch_size > n:
            raise InvalidInput(
                "search.batch_sizes",
                setting.batch_size,
                f"there are {n} training rows; give at most that many",
            )
    model, delta = settings.model, settings.privacy.delta
    try:
        wanted = [
            Configuration(
                point.learning_rate,
                point.epochs,
                point.batch_size,
                point.clip,
                epsilon=epsilon,
                delta=delta,
                **{"optimiser": model.optimiser, "momentum": model.momentum, **point.extras()},
            )
            for epsilon, point in grid
        ]
        if recipe.factory is None:  # the outputs of a module are counted when it is rehearsed
            check_class_weights(wanted, model.loss, recipe.class_count or 1)
        planned = plans(wanted, n, device=device, neighbours=settings.data.relation)
    except InvalidInput as error:
        raise InvalidInput(f"search ({error.field})", error.value, error.valid) from None
    except OverflowError:
        raise InvalidInput(
            "search",
            "epochs / batch_sizes",
            "the number of steps is too large; give fewer epochs or larger batches",
        ) from None
    private = settings.privacy.scoring == "private"
    secret = settings.data.rows is not None  # the actual number of rows
    guarantees: dict[int, tuple[RenyiDP, Score]] = {}
    candidates = []
    # One table of orders: a selection compares and composes the curves order by order.
    curves = _common(guarantees_of(planned, settings.data.relation))
    featured: dict[str, tuple[Recipe, FeatureRows | None, int]] = {}
    for (epsilon, point), configuration, plan, training in zip(
        grid, wanted, planned, curves, strict=True
    ):
        if id(training) not in guarantees:
            rho = free_rho(training, delta) if private else None
            guarantee = training if rho is None else with_scoring(training, rho)
            guarantees[id(training)] = (guarantee, Score(settings.goal, rho, private and secret))
        guarantee, score = guarantees[id(training)]
        fixed = resolved(configuration, plan)
        params = {
            "epsilon": epsilon,
            "learning_rate": point.learning_rate,
            "epochs": point.epochs,
            "batch_size": point.batch_size,
            "clip": point.clip,
            **{name: _plain(value) for name, value in point.extras().items()},
        }
        name = repr((point.features, point.arguments))
        if name not in featured:
            # A number, not the record: two functions may have one name.
            built = recipe
            if point.arguments is not None:
                factory = with_arguments(recipe.factory, point.arguments, model.others)
                built = replace(recipe, kind=factory.name, factory=factory)
            featured[name] = (*_featured(point.features, settings, built, shape), len(featured))
        own, rows, key = featured[name]
        params |= {name: _plain(value) for name, value in (point.arguments or {}).items()}
        if own.features is not None:
            named = isinstance(point.features, str)
            params["features"] = point.features if named else own.features.as_dict()
        together = ("expost.tuning", key)
        mechanism = TrainAndScore(fixed, own, score, guarantee, together, device, hooks, rows)
        candidates.append(Candidate(mechanism, params, repeats=settings.privacy.repeats))
    costs = {
        id(candidate.guarantee): selection_cost(candidate.guarantee, delta)
        for candidate in candidates
    }
    return sorted(candidates, key=lambda one: (one.params["epsilon"], costs[id(one.guarantee)]))


def _featured(
    choice: Choice | None, settings: Settings, recipe: Recipe, shape: tuple[int, ...] | None
) -> tuple[Recipe, FeatureRows | None]:
    """Return the recipe of a linear model on public features, and the features of its rows."""
    if choice is None:
        return recipe, None
    pictures = settings.data.shape or shape
    features = features_for(choice, recipe.schema, pictures, settings.folder)
    assert features is not None  # tokens are refused with the settings
    return replace(recipe, features=features), FeatureRows(features)


def _plain(value: Any) -> Any:
    """Return a public setting as it is written in a certificate."""
    return list(value) if isinstance(value, tuple) else value


def selection_cost(guarantee: Guarantee, delta: float) -> float:
    """Return the approximate cost of selecting a candidate: min over α of 2ε(α) + ln(1/δ)/(α−1).

    Under pure DP it is 2ε, whatever δ is.
    """
    if (pure := guarantee.as_pure()) is not None:
        return 2 * pure.epsilon
    curve = guarantee.as_renyi() or guarantee.to_renyi(DEFAULT_ORDERS)
    orders, losses = np.array(curve.orders), np.array(curve.epsilons)
    return float(np.min(2 * losses - np.log(delta) / (orders - 1)))


def _common(curves: Sequence[RenyiDP | None]) -> list[RenyiDP]:
    """Restrict the curves to their common orders; equal objects stay equal objects.

    A curve does not list orders at which its divergence is very large.
    """
    present = [curve for curve in curves if curve is not None]
    orders = sorted(set.intersection(*(set(curve.orders) for curve in present)))
    if not orders or len(present) < len(curves):
        raise InvalidInput(
            "search.epsilons",
            "these levels",
            "they have no Rényi order in common; give levels closer together",
        )
    cut = {id(curve): curve.on(orders) for curve in present}
    return [cut[id(curve)] for curve in present]


def deviation_of(candidate: Candidate, rows: int) -> float:
    """Return the standard deviation of the noise of a candidate's score on ``rows`` rows."""
    return float(np.float64(score_of(candidate).deviation) / max(1, rows))


def score_of(candidate: Candidate) -> Score:
    """Return how the outputs of a candidate that trains one model are scored."""
    score = getattr(candidate.mechanism, "score", None)
    assert isinstance(score, Score)
    return score
