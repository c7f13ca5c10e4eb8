"""Arguments of a module as an axis of a search: what is released is the architecture that won."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import expost  # noqa: E402
from expost.errors import InvalidInput  # noqa: E402
from expost.randomness.source import SimulationRandomness  # noqa: E402
from expost.tuning.request.settings import read_settings  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(1)
Y = RNG.integers(0, 2, 500)
X = np.clip(0.5 + 0.3 * (Y[:, None] - 0.5) + 0.15 * RNG.standard_normal((500, 3)), 0, 1)
WIDTHS: list[int] = []


def make(width: int, layers: int = 1) -> torch.nn.Module:
    """Return a network that can be told from another by its shapes."""
    WIDTHS.append(width)
    body = [torch.nn.Linear(3, width), *[torch.nn.Linear(width, width)] * (layers - 1)]
    return torch.nn.Sequential(*body, torch.nn.Tanh(), torch.nn.Linear(width, 2))


JOB = {
    "model": make,
    "training": "dp-sgd",
    "classes": 2,
    "feature_bounds": [0, 1],
    "epsilons": [4],
    "learning_rates": [1.0],
    "epochs": [2],
    "batch_sizes": [100],
    "clips": [1],
    "delta": 1e-5,
    "max_epsilon": 40,
}


@pytest.mark.parametrize("seed", [1, 2])
def test_the_released_model_has_the_arguments_that_are_certified(seed, tmp_path):
    WIDTHS.clear()
    done = expost.tune(
        X,
        Y,
        **JOB,
        maximize=True,
        search_arguments={"width": [2, 5], "layers": [1]},
        out=tmp_path / "out",
        randomness=SimulationRandomness(seed),
        simulation=True,
    )
    width = done.params["width"]
    assert done.params["layers"] == 1
    assert done.model.parameters["0.weight"].shape == (width, 3)
    assert set(WIDTHS) == {2, 5}  # each was tried on made-up rows before anything was charged
    loaded = expost.load_model(tmp_path / "out", make)
    assert np.array_equal(loaded.predict(X[:20]), done.model.predict(X[:20]))
    record = json.loads(done.certificate())
    assert record["params"]["width"] == width


def test_the_grid_has_every_combination():
    tables = {
        "data": {"path": "rows.npz", "classes": 2, "feature_bounds": [0, 1]},
        "model": {"kind": "nets.py:make", "training": "dp-sgd", "arguments": {"depth": 2}},
        "search": {
            "epsilons": [1, 2],
            "learning_rates": [1.0, 2.0],
            "epochs": [1],
            "batch_sizes": [10],
            "clips": [1],
            "arguments": {"width": [64, 128], "skip": [True, False]},
        },
        "goal": {"at_least": 0.8},
        "privacy": {"delta": 1e-5},
    }
    settings = read_settings(tables)
    assert len(settings.search.settings) == 8
    assert {
        (point.arguments["width"], point.arguments["skip"]) for point in settings.search.settings
    } == {(64, True), (64, False), (128, True), (128, False)}
    assert json.dumps(settings.public())
    tables["search"]["arguments"] = {"kind": ["mlp", "cnn"]}  # models of two kinds
    assert {point.arguments["kind"] for point in read_settings(tables).search.settings} == {
        "mlp",
        "cnn",
    }
    for wrong in ({"width": 64}, {"width": []}, {"width": [1, 1]}, {"depth": [1]}, {"clip": [1]}):
        tables["search"]["arguments"] = wrong
        with pytest.raises(InvalidInput, match=r"search\.arguments"):
            read_settings(tables)
    tables["search"]["arguments"] = {"width": [1]}
    tables["model"] = {"kind": "logistic", "training": "dp-sgd"}
    with pytest.raises(InvalidInput, match="module of your own"):
        read_settings(tables)


def test_an_architecture_that_cannot_be_trained_is_refused_before_a_charge():
    with pytest.raises(InvalidInput, match="model"):
        expost.plan_job(X, Y, **JOB, at_least=0.6, search_arguments={"width": [2, -1]})


def small(width: int = 2) -> torch.nn.Module:
    """Return one layer more than ``wide``."""
    return torch.nn.Sequential(
        torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)
    )


def wide() -> torch.nn.Module:
    """Return one layer."""
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_modules_are_an_axis(seed, tmp_path):
    """The released model is of the module that the certificate names, and loads with it."""
    settings = {name: value for name, value in JOB.items() if name != "model"}
    done = expost.tune(
        X,
        Y,
        **settings,
        model=[small, wide],
        maximize=True,
        out=tmp_path / "out",
        randomness=SimulationRandomness(seed),
        simulation=True,
    )
    won = {f"{__name__}:small": small, f"{__name__}:wide": wide}[done.params["model"]]
    assert set(done.model.parameters) == {name for name, _ in won().named_parameters()}
    loaded = expost.load_model(tmp_path / "out", won)
    assert np.array_equal(loaded.predict(X[:20]), done.model.predict(X[:20]))
    assert json.loads(done.certificate())["params"]["model"] == done.params["model"]


def test_modules_and_their_arguments_are_one_grid(tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def a(width): return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2))\n"
        "def b(width): return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))\n"
    )
    tables = {
        "data": {"path": "rows.npz", "classes": 2, "feature_bounds": [0, 1]},
        "model": {"training": "dp-sgd"},
        "search": {
            **{name: JOB[name] for name in ("epsilons", "learning_rates", "epochs")},
            **{name: JOB[name] for name in ("batch_sizes", "clips")},
            "model": ["nets.py:a", "nets.py:b"],
            "arguments": {"width": [2, 3]},
        },
        "goal": {"maximize": True},
        "privacy": {"delta": 1e-5},
    }
    settings = read_settings(tables)
    assert settings.model.kind == "nets.py:a"
    points = [dict(point.arguments) for point in settings.search.settings]
    assert points == [
        {"model": name, "width": width} for name in ("nets.py:a", "nets.py:b") for width in (2, 3)
    ]
    assert "nets.py:b" in json.dumps(settings.public())


@pytest.mark.parametrize(
    ("model", "search", "said"),
    [
        (None, {"model": ["nets.py:a", "nets.py:a"]}, r"search\.model.*different"),
        (None, {"model": ["softmax", "nets.py:a"]}, r"search\.model.*module:name"),
        (None, {"model": []}, r"search\.model"),
        ("nets.py:c", {"model": ["nets.py:a", "nets.py:b"]}, r"search\.model.*one of them"),
        (None, {"model": ["n.py:a"], "arguments": {"model": ["b"]}}, r"search\.model already"),
    ],
)
def test_a_list_of_modules_that_does_not_fit_is_refused(model, search, said):
    tables = {
        "data": {"path": "rows.npz", "classes": 2, "feature_bounds": [0, 1]},
        "model": {"training": "dp-sgd"} | ({} if model is None else {"kind": model}),
        "search": {
            **{name: JOB[name] for name in ("epsilons", "learning_rates", "epochs")},
            **{name: JOB[name] for name in ("batch_sizes", "clips")},
            **search,
        },
        "goal": {"maximize": True},
        "privacy": {"delta": 1e-5},
    }
    with pytest.raises(InvalidInput, match=said):
        read_settings(tables)
