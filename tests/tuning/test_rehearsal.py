"""The rehearsal: what cannot be trained and scored is refused by name before any charge."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.features.columns import TableSchema
from expost.privacy.guarantees import RenyiDP
from expost.randomness.source import SimulationRandomness
from expost.training.configuration import Configuration
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import Score
from expost.tuning.plan import rehearsal
from expost.tuning.plan.rehearsal import Pace, measure
from expost.tuning.request.settings import GoalSettings
from expost.tuning.runs.candidates import TrainAndScore
from tests.tuning.jobs import clouds, job

torch = pytest.importorskip("torch", reason="modules need torch: pip install 'expost[torch]'")
nn = torch.nn


def module(forward: Callable[..., Any], outputs: int = 2, **layers: Any) -> Callable[[], Any]:
    """A factory of a module with a linear layer, ``layers``, and this forward."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, outputs)
            for name, make in layers.items():
                setattr(self, name, make())

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Module


def needs_an_argument(width: int) -> Any:
    return nn.Linear(2, width)


REFUSED = {
    "squeeze": (
        module(lambda self, x: self.head(x).squeeze(-1), outputs=1),
        r"model returned shape \(5,\) for 5 rows; expected \(5, 2\): one value per class; .*logis",
    ),
    "width": (
        module(lambda self, x: self.head(x), outputs=1),
        r"returned shape \(5, 1\) for 5 rows; expected \(5, 2\)",
    ),
    "batch of one": (
        module(lambda self, x: self.head(x).squeeze(0)),
        r"returned shape \(2,\) for 1 row; expected \(1, 2\)",
    ),
    "tuple": (
        module(lambda self, x: (self.head(x), x)),
        r"returned a tuple .*return one tensor",
    ),
    "shape": (
        module(lambda self, x: self.conv(x).flatten(1), conv=lambda: nn.Conv2d(1, 2, 3)),
        r"raised .* for 5 rows of shape \(2,\).*model\.input_shape",
    ),
    "mixing": (
        module(lambda self, x: self.head(x / x.abs().amax())),
        "other values for a row when other rows are in its batch",
    ),
    "batch norm": (
        module(lambda self, x: self.head(self.norm(x)), norm=lambda: nn.BatchNorm1d(2)),
        "BatchNorm1d at 'norm'",
    ),
    "tokens": (
        module(lambda self, x: self.head(self.words(x).mean(1)), words=lambda: nn.Embedding(9, 2)),
        r"Embedding, which takes whole numbers.*data\.integers = true",
    ),
    "argument": (needs_an_argument, r"cannot be made: TypeError.*\(width.*model\.arguments"),
    "no module": (lambda: 3, "torch.nn.Module"),
    "values": (
        module(lambda self, x: self.head(x) if x.abs().sum() >= 0 else self.head(-x)),
        "cannot be vectorised over examples .*vmap",
    ),
}


@pytest.mark.parametrize("executor", [False, True], ids=["here", "worker"])
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name_and_nothing_is_charged(
    tmp_path: Path, what: str, executor: bool
) -> None:
    factory, said = REFUSED[what]
    ledger = Ledger.create(tmp_path / "ledger.db", BUDGET)
    options: dict[str, Any] = {"ledger": ledger, "out": tmp_path / "out"}
    with ThreadPoolExecutor(1) as pool:
        if executor:
            options["executor"] = pool
        with pytest.raises(InvalidInput, match=said):
            expost.tune(job(model={"kind": factory}), *clouds(60), **options)
    assert [entry.action for entry in ledger.entries()] == ["create"]
    assert not (tmp_path / "out").exists()


def test_class_weights_must_fit_the_outputs_and_nothing_is_charged(tmp_path: Path) -> None:
    """Also if only one point of the grid is wrong."""
    ledger = Ledger.create(tmp_path / "ledger.db", BUDGET)
    factory, _ = FINE["layer norm"]
    wrong = job(model={"kind": factory}, search={"class_weights": [[1, 2], [1, 2, 3]]})
    with pytest.raises(InvalidInput, match=r"class_weights.*pass 2 numbers"):
        expost.tune(wrong, *clouds(60), ledger=ledger, out=tmp_path / "out")
    assert [entry.action for entry in ledger.entries()] == ["create"]


BUDGET = ApproxBudget(100, 0.01, "zero-out")

FINE = {
    "one output": (module(lambda self, x: self.head(x).squeeze(-1), outputs=1), "logistic"),
    "layer norm": (
        module(lambda self, x: self.head(self.norm(x)), norm=lambda: nn.LayerNorm(2)),
        "softmax",
    ),
    "group norm": (
        module(lambda self, x: self.head(self.norm(x)), norm=lambda: nn.GroupNorm(1, 2)),
        "softmax",
    ),
    "dropout": (
        module(lambda self, x: self.head(self.drop(x)), drop=lambda: nn.Dropout(0.5)),
        "softmax",
    ),
}


def mechanism(factory: Any, loss: str = "softmax", optimiser: str = "sgd") -> TrainAndScore:
    recipe = Recipe("mine:make", loss, SCHEMA, factory=factory)
    how = Configuration(1.0, 2, 10, 1.0, noise_multiplier=1.0, optimiser=optimiser)
    goal = GoalSettings("accuracy", 0.7)
    return TrainAndScore(how, recipe, Score(goal, 0.1), PROMISE)


SCHEMA = TableSchema.plain(((0.0, 1.0),), 2, 2)
PROMISE = RenyiDP((2.0,), (1.0,), "zero-out")


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """A recurrent layer over three steps of two numbers."""

    def __init__(self, kind: str, first: bool = True) -> None:
        super().__init__()
        self.rnn, self.head = getattr(nn, kind)(2, 3, batch_first=first), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0][:, -1])


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Attention over three steps of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.look(x, x, x)[0].mean(1))


def over_three_steps(factory: Any) -> TrainAndScore:
    made = mechanism(factory)
    wide = TableSchema.plain(((0.0, 1.0),), 6, 2)
    return replace(made, recipe=replace(made.recipe, schema=wide, input_shape=(3, 2)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "attention"])
def test_sequence_layers_are_trained_and_scored(kind: str) -> None:
    """And scoring computes what torch computes."""
    made = over_three_steps(Attention if kind == "attention" else lambda: Recurrent(kind))
    rehearsal.rehearse_candidate(made)
    torch.manual_seed(0)
    module = made.recipe.factory().eval()  # type: ignore[misc]
    parameters = {name: each.detach().numpy() for name, each in module.named_parameters()}
    X = np.random.default_rng(0).random((20, 6))
    with torch.no_grad():
        wanted = module(torch.from_numpy(X.reshape(20, 3, 2)).float()).numpy()
    found = made.recipe.outputs(parameters, X)
    assert np.allclose(np.reshape(found, wanted.shape), wanted, atol=1e-6)


def test_steps_first_is_seen_as_mixing() -> None:
    """Catches a recurrent layer that takes the batch for time."""
    with pytest.raises(InvalidInput, match="batch_first=True"):
        rehearsal.rehearse_candidate(over_three_steps(lambda: Recurrent("GRU", first=False)))


@pytest.mark.parametrize("what", FINE)
def test_what_works_passes(what: str) -> None:
    rehearsal.rehearse_candidate(mechanism(*FINE[what]))


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("kind", "loss"), [("logistic", "logistic"), ("softmax", "softmax")])
def test_built_in_models_pass(kind: str, loss: str, optimiser: str) -> None:
    recipe = Recipe(kind, loss, SCHEMA)
    how = Configuration(1.0, 2, 10, 1.0, noise_multiplier=1.0, optimiser=optimiser)
    score = Score(GoalSettings("accuracy", 0.7), 0.1)
    for relation in ("zero-out", "add-remove"):
        promise = RenyiDP((2.0,), (1.0,), relation)
        rehearsal.rehearse_candidate(
            TrainAndScore(how, recipe, replace(score, centred=True), promise)
        )


def test_every_size_of_batch_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a rehearsal that never makes an empty batch, or never scores."""
    seen: list[tuple[int, float, int]] = []
    real = TrainAndScore.run_together

    def note(self: Any, calls: Any, data: Any, randomness: Any) -> Any:
        assert all(each.simulated for each in randomness)
        batch = float(calls[0].configuration.batch_size)
        seen.append((len(data["X"]), batch, len(data["score_X"])))
        return real(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", note)
    rehearsal.rehearse_candidate(mechanism(FINE["layer norm"][0]))
    assert {(rows, round(batch), scored) for rows, batch, scored in seen} == {
        (5, 0, 1),
        (1, 1, 5),
        (5, 5, 5),
    }


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
        ),
    ],
)
def test_the_forecast_is_within_a_factor_of_two(device: str) -> None:
    """Against trainings and scores of the length of the job; the best of up to ten tries counts,
    because another process may take the processor.
    """
    tried = []
    for factory in (None, module(lambda self, x: self.head(torch.tanh(x)))):
        first = mechanism(factory)
        if factory is None:
            recipe = Recipe("softmax", "softmax", SCHEMA)
            first = TrainAndScore(first.configuration, recipe, first.score, first.guarantee)
        epochs = 40 if factory is None or device == "cuda" else 2
        how = Configuration(1.0, epochs, 50, 1.0, noise_multiplier=1.0)
        first = TrainAndScore(how, first.recipe, first.score, first.guarantee, device=device)
        generator = np.random.default_rng(0)
        X, y = generator.random((2000, 2)), generator.integers(0, 2, 2000)
        data = {"X": X, "y": y, "score_X": X[:500], "score_y": y[:500]}
        data |= {"rows": None, "score_rows": None}
        ratios = []
        while len(ratios) < 10 and not any(0.5 <= ratio <= 2 for ratio in ratios):
            pace = measure([first], 2000, 500, 1)
            expost.tuning.plan.rehearsal._known.clear()
            started = time.perf_counter()
            first(data, SimulationRandomness(1))
            ratios.append(pace.seconds(1) / (time.perf_counter() - started))
        tried.append(min(ratios, key=lambda ratio: abs(np.log(ratio))))
    assert all(0.5 <= ratio <= 2 for ratio in tried), tried


def test_token_ids_reach_an_embedding(tmp_path: Path) -> None:
    """Whole numbers are not scaled: in training, in scoring and in the saved model."""
    generator = np.random.default_rng(0)
    X = generator.integers(0, 9, (400, 5))
    y = (X >= 5).sum(1) > 2

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.norm = nn.Embedding(9, 4), nn.LayerNorm(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            assert x.dtype == torch.int64
            return self.head(self.norm(self.words(x)).mean(1))

    result = expost.tune(
        X,
        y.astype(int),
        model=Bag,
        integers=True,
        feature_bounds=[0, 8],
        classes=2,
        maximize=True,
        epsilons=[8],
        max_epsilon=20,
        learning_rates=[2],
        epochs=[10],
        out=tmp_path / "out",
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert np.mean(result.model.predict(X) == y) > 0.7
    loaded = expost.load_model(tmp_path / "out" / "model.npz", Bag)
    assert np.array_equal(loaded.predict(X), result.model.predict(X))


def test_seconds_of_many_runs() -> None:
    pace = Pace(run=2.0, share=0.5, fixed=1.0)
    assert pace.seconds(1) == 3
    assert pace.seconds(100) == 51
    assert Pace(2.0, 2.0, 0.0, workers=4).seconds(8) == 4
