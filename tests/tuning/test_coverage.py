"""Coverage at the door: "passed" and the bound on the population of whole jobs of ``expost.tune``.

Each scenario makes several hundred jobs on fresh scoring rows whose law is known. Plans depend on
public numbers only and are made once; a training is replaced by a model drawn at random (DP-SGD)
or has one step from look to look (progressive), because the claims are about a model that does not
depend on the scoring rows. Everything else is the public call: noise, selection, attempts, and what
the result states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

import expost
from expost.randomness.source import SimulationRandomness
from expost.training import progressive
from expost.training.engines import Trained
from expost.tuning.model import tuned
from expost.tuning.plan import strategies as jobs
from expost.tuning.rows.job_rows import JobRows, held_out
from expost.tuning.runs.candidates import TrainAndScore

CONFIDENCE = 0.9
JOBS = 200
SCORED: list[Any] = []  # the rows of the last job
DP_SGD = {"learning_rates": [1], "epochs": [1], "batch_sizes": [20], "clips": [1]}


@dataclass
class Claims:
    """What several jobs claimed, and which of it was wrong."""

    passed: int = 0
    population_bounds: int = 0
    wrong_scoring_rows: int = 0
    wrong_population: int = 0


def allowed(jobs: int) -> float:
    """The most wrong claims of ``jobs`` jobs; more have probability below 10⁻⁴ if they hold."""
    share = 1 - CONFIDENCE
    return share * jobs + 3.8 * sqrt(share * (1 - share) * jobs)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> np.random.Generator:
    """Plan once, train by drawing a model, and leave out the comparison with other methods."""
    generator = np.random.default_rng(24)
    plan_strategies, plans = jobs.plan_strategies, []
    step_squares = progressive.step_squares

    def planned(*asked: Any, **options: Any) -> Any:
        if not plans:
            plans.append(plan_strategies(*asked, **options))
        return plans[0]

    def drawn(self: Any, calls: Any, data: Any, randomness: Any) -> list[Trained]:
        width, outputs = data["X"].shape[1], self.recipe.class_count
        return [
            Trained(
                {
                    "weight": generator.normal(size=(outputs, width)),
                    "bias": np.zeros(outputs),
                },
                call.configuration,
                None,
            )
            for call in calls
        ]

    as_data = JobRows.as_data

    def kept(self: Any, identity: str) -> Any:
        SCORED[:] = [as_data(self, identity)]
        return SCORED[0]

    monkeypatch.setattr(JobRows, "as_data", kept)
    monkeypatch.setattr(jobs, "plan_strategies", planned)
    one_step = lambda levels, first, _: step_squares(levels, first, 1)  # noqa: E731
    monkeypatch.setattr(progressive, "step_squares", one_step)
    monkeypatch.setattr(TrainAndScore, "train", drawn)
    monkeypatch.setattr(tuned, "comparison", lambda *_: None)
    return generator


def scored_accuracy(model: Any) -> float:
    """The accuracy on the scoring rows of the last job that can be used, without noise."""
    (data,) = SCORED
    usable = ~np.isnan(data["score_y"])
    right = (
        model.recipe.decide(model.parameters, data["score_X"][usable]) == data["score_y"][usable]
    )
    return float(np.mean(right))


def simulate(
    tables: dict[str, Any],
    draw: Callable[[], tuple[Any, Any]],
    expected: float = inf,
    repeats: int = JOBS,
) -> Claims:
    """Make jobs, and count claims that are wrong.

    ``draw`` makes the rows and labels of all places; a row whose label is NaN cannot be used.
    ``expected`` is the expected accuracy of every model on a new row that can be used.
    """
    claims = Claims()
    for number in range(repeats):
        X, y = draw()
        source = SimulationRandomness(number)
        result = expost.tune(tables, X, y, randomness=source, simulation=True)
        if not result.passed:
            continue
        assert result.model is not None
        assert result.bounds is not None
        claims.passed += 1
        actual = scored_accuracy(result.model)
        assert result.bounds.on_scoring_rows >= tables["goal"]["at_least"]
        claims.wrong_scoring_rows += actual < result.bounds.on_scoring_rows
        if result.bounds.on_population is not None:
            claims.population_bounds += 1
            claims.wrong_population += result.bounds.on_population > expected
    return claims


def table(bar: float, training: str, classes: int, **data: Any) -> dict[str, Any]:
    """A job by one way of training."""
    made: dict[str, Any] = {
        "data": {"feature_bounds": [-1, 1], "classes": classes, "holdout": 0.9, **data},
        "model": {"kind": "softmax", "training": training},
        "goal": {"metric": "accuracy", "at_least": bar, "confidence": CONFIDENCE},
        "privacy": {"delta": 1e-4},
    }
    if training == "dp-sgd":
        made["search"] = {"epsilons": [60], **DP_SGD}
        made["privacy"] |= {"attempts": 2, "max_epsilon": 200}
    else:
        made["model"]["levels"] = [0.6 * 1.3**step for step in range(12)]
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:epsilon")
@pytest.mark.parametrize("training", ["dp-sgd", "progressive"])
@pytest.mark.parametrize(("usable", "bar"), [(0.033, 0.3), (0.1, 0.2), (1.0, 0.12)])
def test_bounds_hold_for_every_share_of_empty_places(
    quick: np.random.Generator, training: str, usable: float, bar: float
) -> None:
    """Labels are guesses: the expected accuracy of every model is 0.1, however well one looks."""
    places = 300

    def draw() -> tuple[Any, Any]:
        y = quick.integers(0, 10, places).astype(float)
        y[quick.random(places) > usable] = np.nan
        return quick.uniform(-1, 1, (places, 3)), y

    claims = simulate(table(bar, training, 10), draw, 0.1)
    if training == "dp-sgd":
        assert claims.passed > JOBS / 20  # so that there is something to be wrong about
    assert claims.wrong_population <= allowed(JOBS)
    assert claims.wrong_scoring_rows <= allowed(JOBS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:epsilon")
@pytest.mark.parametrize("training", ["dp-sgd", "progressive"])
@pytest.mark.parametrize("secret", [False, True], ids=["public rows", "secret rows"])
def test_a_model_below_the_bar_rarely_passes(
    quick: np.random.Generator, training: str, secret: bool
) -> None:
    """One row decides: as many scoring rows are right as the goal asks for, less one."""
    places, bar = 200, 0.6

    def draw() -> tuple[Any, Any]:
        y = np.zeros(places)
        if secret:  # which rows are held out is secret, and how many of them are right is random
            y[: int((1 - bar) * places)] = 1
            quick.shuffle(y)
        else:
            y[np.flatnonzero(held_out(places, 0.9))[int(bar * 0.9 * places) - 1 :]] = 1
        return np.zeros((places, 2)), y  # all rows look alike: the models predict class 0

    tables = table(bar, training, 2, **({"rows": places} if secret else {}))
    if training == "dp-sgd":
        tables["search"]["epsilons"] = [0.5]
        tables["privacy"] |= {"attempts": 1, "repeats": 8}  # the best of about 76 runs
    claims = simulate(tables, draw)
    assert claims.wrong_scoring_rows <= allowed(JOBS)
