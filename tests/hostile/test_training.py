"""Trainings with hostile rows: fleets, the mechanism, its candidates, and the Opacus adapter.

The judgement is exact. A row that cannot be used gives the same model as an empty place, for each
seed. A row that can be used moves the sum of one step by at most the clipping norm; this is read
off a training of one step with every row in the sample and without noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs the native extra")

from expost import FAILED, RandomDropping, SimulationRandomness
from expost.errors import InvalidInput
from expost.training import DPSGD, Configuration, Fleet, candidates
from tests.hostile.judge import same_as_tame, within_claim

N, CLIP = 8, 0.5
ROWS = np.linspace(-1, 1, 2 * N).reshape(N, 2)
LABELS = np.array([0.0, 1.0] * (N // 2))
EMPTY = (np.vstack([ROWS[1:], [[0.0, 0.0]]]), np.append(LABELS[1:], math.nan))
"""Row 0 is moved to the end and emptied: an empty place is a place without a target."""

UNUSABLE: dict[str, tuple[list[float], float]] = {
    "NaN": ([math.nan, 0.5], 1.0),
    "infinity": ([math.inf, -math.inf], 1.0),
    "a target that is no number": ([0.5, 0.5], math.nan),
    "an infinite target": ([0.5, 0.5], -math.inf),
    "a label outside": ([0.5, 0.5], 7.0),
    "a label between": ([0.5, 0.5], 0.5),
    "a negative label": ([0.5, 0.5], -1.0),
}
USABLE: dict[str, tuple[list[float], float]] = {
    "one row more": ([0.3, -0.2], 1.0),
    "huge": ([1e308, -1e308], 0.0),
    "large": ([1e19, 1e19], 1.0),
    "tiny": ([5e-324, -5e-324], 0.0),
    "zero": ([0.0, 0.0], 1.0),
    "a huge target": ([0.3, -0.2], 1e308),
}


def modules() -> dict[str, Any]:
    """torch modules: plain, one that looks across the batch, one that mixes after a certain row."""
    torch = pytest.importorskip("torch")

    class Across(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x / (1e-3 + x.abs().amax()))

    class Blended(Across):
        def forward(self, x: Any) -> Any:
            return self.layer(torch.where(x > 0.9, x.mean(0, keepdim=True), x))

    return {"plain": lambda: torch.nn.Linear(2, 2), "across": Across, "blended": Blended}


MODELS = ["linear", "logistic", "softmax", "plain", "across", "blended"]


def fleet(model: str, configuration: Configuration) -> Fleet:
    if model in ("linear", "logistic"):
        return Fleet(model, [configuration])
    if model == "softmax":
        return Fleet(model, [configuration], classes=2)
    return Fleet(modules()[model], [configuration], loss="softmax")


def with_row(row: tuple[list[float], float]) -> tuple[Any, Any]:
    return np.vstack([ROWS[1:], [row[0]]]), np.append(LABELS[1:], row[1])


def parameters(trained: Any) -> Any:
    return np.concatenate([value.ravel() for value in trained.parameters.values()])


def trained(model: str, data: Any, seed: int, **settings: Any) -> Any:
    settings = {"epochs": 4, "batch_size": 3, "noise_multiplier": 1.0, **settings}
    configuration = Configuration(learning_rate=1.0, clip=CLIP, **settings)
    (found,) = fleet(model, configuration).train(
        *data, randomness=SimulationRandomness(seed), simulation=True
    )
    return parameters(found)


@pytest.mark.parametrize("model", MODELS)
def test_a_row_that_cannot_be_used_is_an_empty_place(model):
    """A regression accepts every finite target: a label outside is a row like others there."""
    for name, row in UNUSABLE.items():
        if model == "linear" and math.isfinite(sum(map(abs, (*row[0], row[1])))):
            continue
        same_as_tame(
            lambda seed, row=row: trained(model, with_row(row), seed).tolist(),
            lambda seed: trained(model, EMPTY, seed).tolist(),
            seeds=2,
        )
        assert name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_row_moves_one_step_by_at_most_the_clipping_norm(model, dtype):
    """Every row is in the sample (rate 1), there is no noise, and the learning rate is 1.

    The two steps are released as parameters, which are rounded to their type afterwards.
    """

    def step(data: Any) -> Any:
        with np.errstate(over="ignore"):
            rows = data[0].astype(dtype)
        return trained(model, (rows, data[1]), 1, epochs=1, batch_size=N, noise_multiplier=0)

    empty = step(EMPTY)
    rounding = float(np.finfo(empty.dtype).eps * np.linalg.norm(empty))
    for name, row in (USABLE | UNUSABLE).items():
        moved = float(np.linalg.norm(step(with_row(row)).astype(np.float64) - empty))
        assert moved <= CLIP / N * (1 + 1e-9) + rounding, (name, moved)
    reached = float(np.linalg.norm(step(with_row(USABLE["one row more"])) - empty))
    assert reached > 0.1 * CLIP / N  # test of the test: a row does move the step


@pytest.mark.parametrize("name", [*UNUSABLE, *USABLE])
def test_candidates_never_fail_on_rows(name):
    """Every candidate yields a model on both sides: a failure would be released without noise."""
    settings = [
        Configuration(rate, 2, 4, CLIP, noise_multiplier=2.0, optimiser=optimiser)
        for rate in (0.1, 10.0)
        for optimiser in ("sgd", "adam")
    ]
    given = candidates("logistic", settings, N)
    absent = ROWS[1:], LABELS[1:]  # n is public, the number of rows is not
    for data in (with_row((UNUSABLE | USABLE)[name]), EMPTY, absent):
        release = RandomDropping(1.0, delta=1e-6).select(
            given,
            data,
            score=lambda model: float(np.isfinite(parameters(model)).all()),
            on_failure=lambda *failure: pytest.fail(f"failed: {failure}"),
        )
        assert release.value is not FAILED
        assert release.score == 1.0


@pytest.mark.parametrize(
    "data",
    [
        (np.full((N, 2), math.nan), LABELS),
        (ROWS, np.zeros(N)),
        (ROWS, np.full(N, 9.0)),
        (ROWS.astype(int), LABELS.astype(bool)),
    ],
    ids=["nothing can be used", "one class", "no label is known", "integers and Booleans"],
)
@pytest.mark.parametrize("model", MODELS)
def test_whole_data_sets(model, data):
    assert np.isfinite(trained(model, data, 3)).all()


def test_the_law_of_a_released_model():
    """By many runs of the mechanism: its guarantee at a row that is as far away as can be."""
    configuration = Configuration(1.0, 1, N, CLIP, noise_multiplier=4.0)
    mechanism = DPSGD("logistic", configuration, N)

    def released(data: Any, randomness: Any) -> float:
        return float(parameters(mechanism(data, randomness))[0])

    claim = mechanism.guarantee.to_approx(1e-5)
    huge = with_row(([1e9, 0.0], 1.0))
    within_claim(released, EMPTY, huge, claim=claim, runs=250)


class TestOpacus:
    """The adapter: the same rows, one training with Opacus."""

    @pytest.fixture(autouse=True)
    def _needs_opacus(self) -> Any:
        pytest.importorskip("opacus", reason="needs the opacus extra")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def train(self, factory: Callable[[], Any], data: Any, seed: int, **settings: Any) -> Any:
        from expost.integrations.opacus import train_with_opacus

        settings = {"epochs": 2, "batch_size": 3, "noise_multiplier": 1.0, **settings}
        return parameters(
            train_with_opacus(
                factory,
                Configuration(learning_rate=1.0, clip=CLIP, **settings),
                *data,
                randomness=SimulationRandomness(seed),
                simulation=True,
            )
        )

    @pytest.mark.parametrize("name", UNUSABLE)
    def test_a_row_that_cannot_be_used_is_an_empty_place(self, name):
        plain = modules()["plain"]
        same_as_tame(
            lambda seed: self.train(plain, with_row(UNUSABLE[name]), seed).tolist(),
            lambda seed: self.train(plain, EMPTY, seed).tolist(),
            seeds=2,
        )

    def test_a_row_moves_one_step_by_at_most_the_clipping_norm(self):
        def step(data: Any) -> Any:
            one = {"epochs": 1, "batch_size": N, "noise_multiplier": 0}
            return self.train(modules()["plain"], data, 1, **one)

        empty = step(EMPTY)
        for name, row in (USABLE | UNUSABLE).items():
            moved = float(np.linalg.norm(step(with_row(row)) - empty))
            assert moved <= CLIP / N * (1 + 1e-5), (name, moved)

    @pytest.mark.parametrize("name", ["across", "blended"])
    def test_a_module_that_looks_across_the_batch_is_refused(self, name):
        """Opacus would compute wrong gradients; made-up rows show it before any row is read."""
        with pytest.raises(InvalidInput, match="across"):
            self.train(modules()[name], (ROWS, LABELS), 1)
