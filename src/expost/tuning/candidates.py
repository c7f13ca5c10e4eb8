"""The candidates of a tuning job: DP-SGD on the training rows, then a score on the others; survivors train as one fleet.

What a candidate promises: the pointwise larger of its training's Rényi curve (``expost.training.configuration``: exactly the plan that is
executed, its noise written down, not calibrated again) and its score's (:mod:`expost.tuning.scoring`); with public scoring the training's
alone. Add-remove neighbours in the sense of :mod:`expost.tuning.rows`. Tests: ``tests/tuning/test_scoring.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.codec import NpzCodec
from expost.mechanisms.outcome import FAILED
from expost.privacy.guarantees import Guarantee, RenyiDP
from expost.privacy.orders import DEFAULT_ORDERS
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.training.configuration import Configuration, plans, promises
from expost.training.engines import need_device
from expost.training.fleet import Fleet
from expost.tuning.model import Recipe
from expost.tuning.scoring import Score, free_rho, with_scoring
from expost.tuning.settings import Settings


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """A candidate's output: parameters, and a score with the law of its noise.

    ``deviation`` is the standard deviation of the noise on the score and ``unit`` the score's
    smallest step; both are public and 0 if the scoring rows are public.
    """

    parameters: Mapping[str, Array]
    score: float
    deviation: float = 0.0
    unit: float = 0.0
    law: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class FittedCodec:
    """Fitted models in checkpoints: base64 of ``.npz``, no pickle."""

    def encode(self, value: Fitted) -> Any:
        return {
            "score": value.score,
            "deviation": value.deviation,
            "unit": value.unit,
            "parameters": NpzCodec().encode(dict(value.parameters)),
        }

    def decode(self, stored: Any) -> Fitted:
        return Fitted(
            NpzCodec().decode(stored["parameters"]),
            float(stored["score"]),
            float(stored["deviation"]),
            float(stored["unit"]),
        )


@dataclass(frozen=True)
class Hooks:
    """What belongs to the process that trains: ``progress``, for the curator's eyes, and how many ``threads`` it may use."""

    progress: Callable[[float, float], None] | None = None
    threads: int | None = None

    def __reduce__(self) -> tuple[Callable[[], Hooks], tuple[()]]:
        """Nobody listens in a worker, and its threads are its own."""
        return _in_a_worker, ()


def _in_a_worker() -> Hooks:
    """Pools and clusters say how many cores a worker has by OMP_NUM_THREADS; one, if nothing is said."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return Hooks(threads=max(1, int(said)) if said.isdecimal() else 1)


@dataclass(frozen=True, eq=False, repr=False)
class TrainAndScore:
    """One training and its score: a mechanism, and one that can run together with its kind."""

    configuration: Configuration
    recipe: Recipe
    score: Score
    guarantee: RenyiDP
    together_key: Hashable = "expost.tuning"
    device: str = "cpu"
    hooks: Hooks = field(default_factory=Hooks)

    def __call__(self, data: Any, randomness: Randomness) -> Fitted:
        (output,) = self.run_together([self], data, [randomness])
        if output is FAILED:
            raise ValueError("the model could not be scored")
        assert isinstance(output, Fitted)
        return output

    def run_together(
        self, calls: Sequence[TrainAndScore], data: Any, randomness: Sequence[Randomness]
    ) -> list[Any]:
        """All trainings as one fleet; sample, noise, first parameters and score of each model come from its own source."""
        trained = fleet(self.recipe, [call.configuration for call in calls]).train(
            self.recipe.shaped(data["X"]),
            data["y"],
            randomness=randomness,
            simulation=randomness[0].simulated,
            threads=self.hooks.threads,
            progress=self.hooks.progress,
            device=self.device,
        )
        return [
            call.rate(each.parameters, data, source)
            for call, each, source in zip(calls, trained, randomness, strict=True)
        ]

    def check_here(self) -> None:
        """Refuse a place without the device, before anything is charged."""
        if self.device != "cpu":
            need_device(self.device)

    def rate(self, parameters: Mapping[str, Array], data: Any, randomness: Randomness) -> Any:
        """The model with its score; one that cannot be scored is the outcome FAILED."""
        try:
            decided = self.recipe.decide(parameters, data["score_X"])
        except (ArithmeticError, RuntimeError, ValueError):
            return FAILED
        truth = data["score_y"]
        if self.recipe.target_bounds is not None:
            low, high = self.recipe.target_bounds
            truth = low + truth * (high - low)
        rows = len(truth)
        return Fitted(
            parameters,
            self.score(decided, truth, randomness),
            self.score.deviation / rows,
            self.score.unit / rows,
        )


def fleet(recipe: Recipe, configurations: Sequence[Configuration]) -> Fleet:
    """A fleet of the recipe's models."""
    if recipe.factory is not None:
        return Fleet(recipe.factory, configurations, loss=recipe.loss)
    return Fleet(
        recipe.kind,
        configurations,
        classes=recipe.class_count if recipe.kind == "softmax" else None,
    )


def make_candidates(
    settings: Settings, recipe: Recipe, n: int, hooks: Hooks, device: str = "cpu"
) -> list[Candidate]:
    """Return every setting at every level, for ``n`` training rows. No data is read.

    Levels ascend; within a level the settings whose curves cost a selection least come first.
    """
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise InvalidInput("device", device, "give 'cpu' or 'cuda'")
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
                each.learning_rate,
                each.epochs,
                each.batch_size,
                each.clip,
                None,
                epsilon,
                delta,
                model.optimiser,
                model.momentum,
            )
            for epsilon, each in grid
        ]
        planned = plans(wanted, n, device=device)
    except InvalidInput as error:
        raise InvalidInput(f"search ({error.field})", error.value, error.valid) from None
    except OverflowError:
        raise InvalidInput(
            "search", "epochs / batch_sizes", "more steps than can be counted; give fewer epochs"
        ) from None
    private = settings.privacy.scoring == "private"
    promised: dict[int, tuple[RenyiDP, Score]] = {}
    candidates = []
    for (epsilon, each), plan, training in zip(
        grid, planned, _common(promises(planned)), strict=True
    ):
        if id(training) not in promised:
            rho = free_rho(training) if private else None
            promise = training if rho is None else with_scoring(training, rho)
            promised[id(training)] = (promise, Score(settings.goal, rho))
        promise, score = promised[id(training)]
        fixed = Configuration(
            each.learning_rate,
            each.epochs,
            each.batch_size,
            each.clip,
            noise_multiplier=plan.noise_multiplier,
            optimiser=model.optimiser,
            momentum=model.momentum,
        )
        params = {
            "epsilon": epsilon,
            "learning_rate": each.learning_rate,
            "epochs": each.epochs,
            "batch_size": each.batch_size,
            "clip": each.clip,
        }
        mechanism = TrainAndScore(fixed, recipe, score, promise, device=device, hooks=hooks)
        candidates.append(Candidate(mechanism, params, repeats=settings.privacy.repeats))
    costs = {id(each.guarantee): selection_cost(each.guarantee, delta) for each in candidates}
    return sorted(candidates, key=lambda each: (each.params["epsilon"], costs[id(each.guarantee)]))


def selection_cost(promise: Guarantee, delta: float) -> float:
    """Return about what selecting a candidate costs: min over α of 2ε(α) + ln(1/δ)/(α−1).

    Under pure DP it is 2ε, whatever δ is.
    """
    if (pure := promise.as_pure()) is not None:
        return 2 * pure.epsilon
    curve = promise.as_renyi() or promise.to_renyi(DEFAULT_ORDERS)
    orders, losses = np.array(curve.orders), np.array(curve.epsilons)
    return float(np.min(2 * losses - np.log(delta) / (orders - 1)))


def _common(curves: Sequence[RenyiDP | None]) -> list[RenyiDP]:
    """The curves on the orders that all of them list (very large divergences are left out of a curve); shared objects stay shared."""
    present = [curve for curve in curves if curve is not None]
    orders = sorted(set.intersection(*(set(curve.orders) for curve in present)))
    if not orders or len(present) < len(curves):
        raise InvalidInput(
            "search.epsilons",
            None,
            "the levels have no Rényi order in common; give levels closer together",
        )
    cut = {id(curve): curve.on(orders) for curve in present}
    return [cut[id(curve)] for curve in present]


def deviation_of(candidate: Candidate, rows: int) -> float:
    """Standard deviation of a candidate's score noise."""
    mechanism = candidate.mechanism
    assert isinstance(mechanism, TrainAndScore)
    return float(np.float64(mechanism.score.deviation) / rows)
