"""Models: what was saved is what is loaded, and loading runs no code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.features.columns import Column, TableSchema
from expost.randomness.source import SimulationRandomness
from expost.tuning import Model, load_model
from expost.tuning.model.released_model import Recipe
from expost.tuning.request.factories import factory_of
from tests.tuning.jobs import clouds, job

UNIT = TableSchema.plain(((0.0, 1.0),), 2, 2)


def test_round_trip_with_class_names(tmp_path: Path) -> None:
    recipe = Recipe("logistic", "logistic", TableSchema.plain(((0.0, 2.0),), 2, ("no", "yes")))
    model = Model(recipe, {"weight": np.array([[1.0, -1.0]]), "bias": np.array([0.1])})
    model.save(tmp_path / "model.npz")
    loaded = load_model(tmp_path / "model.npz")
    assert loaded.recipe == recipe
    assert loaded.predict([[9.0, 0.0], [0.0, 9.0]]).tolist() == ["yes", "no"]


def test_outputs_beyond_the_classes_are_not_decisions(tmp_path: Path) -> None:
    recipe = Recipe("softmax", "softmax", TableSchema.plain(((0.0, 1.0),), 1, ("no", "yes")))
    model = Model(recipe, {"weight": np.array([[0.0], [1.0], [9.0]]), "bias": np.zeros(3)})
    assert model.predict([[1.0]]).tolist() == ["yes"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weight=np.ones(3))
    with pytest.raises(InvalidInput, match="not a model"):
        load_model(tmp_path / "other.npz")


def test_a_folder_stands_for_the_model_in_it(tmp_path: Path) -> None:
    model = Model(
        Recipe("logistic", "logistic", UNIT), {"weight": np.ones((1, 2)), "bias": np.zeros(1)}
    )
    with pytest.raises(InvalidInput, match=r"the folder has no model\.npz"):
        load_model(tmp_path)
    model.save(tmp_path / "model.npz")
    assert load_model(tmp_path).recipe == model.recipe
    assert load_model(str(tmp_path)).recipe == model.recipe


@pytest.mark.parametrize("name", ["rows.csv", "row.npy", "objects.npz", "short.npz", "header.npz"])
def test_the_error_for_other_files_does_not_advise_to_read_them_unsafely(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text("age,label\n30,yes\n")
    if name == "row.npy":
        np.save(file, np.ones(3))
    if name == "objects.npz":
        np.savez(file, expost=np.array([{"a": 1}], dtype=object))
    if name == "short.npz":
        np.savez(file, weight=np.ones(300))
        file.write_bytes(file.read_bytes()[:200])
    if name == "header.npz":
        np.savez(file, expost=np.array("[1, 2]"))
    with pytest.raises(InvalidInput, match="not a model that expost saved; give model") as error:
        load_model(file)
    assert "pickle" not in str(error.value)
    with pytest.raises(InvalidInput, match="there is no such file"):
        load_model(tmp_path / "missing.npz")


def test_a_module_of_your_own(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "tiny_nets.py").write_text(
        "from torch import nn\n\ndef make():\n"
        "    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))\n",
        encoding="utf-8",
    )
    X, y = clouds()
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    config = tmp_path / "job.toml"
    config.write_text(
        '[data]\npath = "rows.npz"\nfeature_bounds = [0, 1]\nclasses = 2\n'
        '[model]\nkind = "tiny_nets:make"\n'
        "[search]\nepsilons = [8]\nlearning_rates = [1]\nepochs = [3]\n"
        "batch_sizes = [60]\nclips = [1]\n"
        "[goal]\nmaximize = true\n[privacy]\ndelta = 1e-4\noverhead = 0.5\nmax_epsilon = 20\n",
        encoding="utf-8",
    )
    source = SimulationRandomness(1)
    result = expost.tune(config, out=tmp_path / "out", randomness=source, simulation=True)
    assert result.model is not None
    with pytest.raises(InvalidInput, match="tiny_nets:make"):
        load_model(tmp_path / "out" / "model.npz")

    def make() -> object:
        return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    loaded = load_model(tmp_path / "out" / "model.npz", make)
    assert np.array_equal(loaded.predict(X), result.model.predict(X))


def test_the_arguments_of_a_module_come_back(tmp_path: Path) -> None:
    """Catches a model that is loaded with the defaults of its class and predicts otherwise."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, sign: float = 1.0, width: int = 2) -> None:
            super().__init__()
            self.sign, self.linear = sign, torch.nn.Linear(width, 2)

        def forward(self, rows: object) -> object:
            return self.sign * self.linear(rows)

    made = factory_of("own:Net", tmp_path, given=Net, arguments={"sign": -1.0})
    values = {"linear.weight": np.eye(2, dtype="f4"), "linear.bias": np.zeros(2, dtype="f4")}
    model = Model(Recipe("own:Net", "softmax", UNIT, None, made), values)
    model.save(tmp_path / "model.npz")
    rows = [[1.0, 0.0], [0.0, 1.0]]
    assert model.predict(rows).tolist() == [1, 0]
    for factory in (Net, lambda: Net(-1.0)):  # the class, and a function that knows its arguments
        assert load_model(tmp_path / "model.npz", factory).predict(rows).tolist() == [1, 0]
    with pytest.raises(InvalidInput, match=r"'linear.weight' of shape \(2, 3\).*\(2, 2\)"):
        load_model(tmp_path / "model.npz", lambda: Net(width=3))


def test_an_array_of_images_reaches_the_module_in_its_shape() -> None:
    torch = pytest.importorskip("torch")
    X, y = clouds()
    seen = set()

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, rows: object) -> object:
            seen.add(tuple(rows.shape[1:]))  # type: ignore[attr-defined]
            return self.linear(rows.flatten(1))  # type: ignore[attr-defined]

    settings = {"feature_bounds": [0, 1], "classes": 2, "epochs": [1], "learning_rates": [1]}
    result = expost.tune(X.reshape(-1, 1, 2), y, model=Net, maximize=True, epsilons=[4], **settings)
    assert seen == {(1, 2)}
    assert result.model is not None
    assert np.array_equal(result.model.predict(X), result.model.predict(X.reshape(-1, 1, 2)))


def test_results_models_and_plans_are_short_in_a_console() -> None:
    planned: list[object] = []
    source = SimulationRandomness(2)
    result = expost.tune(
        job(), *clouds(), randomness=source, simulation=True, before=planned.append
    )
    for each in (result, result.model, planned[0]):
        assert len(repr(each)) < 400
    assert repr(result).startswith(f"Tuned(passed={result.passed}, params=")
    assert repr(planned[0]).startswith("JobPlan(attempts=3, candidates=")


@pytest.mark.parametrize("kind", ["no_such_module:make", "json:nothing"])
def test_a_factory_that_is_not_there(kind: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match=r"model\.kind"):
        expost.tune(job(model={"kind": kind}), *clouds())


def test_rows_that_do_not_fit_the_network_are_refused_before_anything_runs() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match="shape"):
        expost.tune(job(model={"kind": "cnn", "input_shape": [1, 28, 28]}), *clouds())


def test_frozen_layers_are_those_of_the_training() -> None:
    """Frozen values are not among the parameters: training, scoring and loading make them equal.

    They do not depend on what torch drew before.
    """
    torch = pytest.importorskip("torch")
    from torch import nn

    from expost.training import Configuration, Fleet

    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 2))
        module[0].requires_grad_(False)
        return module

    X, y = clouds()
    settings = [Configuration(1.0, 30, len(X) / 4, 5.0, noise_multiplier=0)]
    (found,) = Fleet(make, settings).train(
        X, y, randomness=SimulationRandomness(1), simulation=True
    )
    model = Model(
        Recipe("nets:make", "softmax", UNIT, factory=make, centred=False), found.parameters
    )
    for _ in range(3):
        torch.rand(1)
        assert (model.predict(X) == y).mean() > 0.9


def _mixing_batch():
    """A module that divides by the largest number of its whole batch."""
    torch = pytest.importorskip("torch", reason="modules need torch: pip install 'expost[torch]'")

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.inner(x / x.abs().amax()).squeeze(-1)

    return Mixing


def test_outputs_of_a_module_are_computed_row_by_row():
    """A huge row beside others changes nothing for them, though the module looks across its batch;
    a head without an axis for its one output is fine.
    """
    factory = _mixing_batch()
    recipe = Recipe("mine:make", "logistic", UNIT, factory=factory, centred=False)
    parameters = {"inner.weight": np.array([[1.0, -2.0]], "f4"), "inner.bias": np.zeros(1, "f4")}
    rows = np.random.default_rng(0).standard_normal((600, 2)).astype(np.float32)
    alone = recipe.outputs(parameters, rows)
    assert alone.shape == (600, 1)
    expected = (rows / np.abs(rows).max(1, keepdims=True)) @ np.array([1.0, -2.0])
    assert np.allclose(alone[:, 0], expected, atol=1e-5)
    hostile = rows.copy()
    hostile[7] = 1e30
    beside = recipe.outputs(parameters, hostile)
    others = np.arange(600) != 7
    assert (beside[others] == alone[others]).all()


class _Odd:
    """Factories of modules through which one scoring row could act on others, or on a failure."""

    def __init__(self, how):
        self.how = how

    def __call__(self):
        import torch

        how = self.how

        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.last = torch.nn.Linear(2, 1), torch.zeros(1)

            def forward(self, x):
                if how == "raises":
                    x = x + torch.linalg.cholesky(torch.diag_embed(2 + x)).sum()
                elif how == "fills":
                    x = x.T.index_fill(0, (x[0, :1] // 1000).long(), 0.0).T
                elif how == "draws":
                    x = torch.nn.functional.dropout(x, 0.5, True)
                made = self.inner(x + self.last)
                if how == "remembers":
                    self.last = x[0, :1]
                return made

        return Odd()


@pytest.mark.parametrize("how", ["raises", "fills", "draws", "remembers"])
def test_no_scoring_row_acts_on_the_outputs_of_others_or_makes_them_fail(how):
    pytest.importorskip("torch", reason="modules need torch: pip install 'expost[torch]'")
    recipe = Recipe("mine:make", "logistic", UNIT, factory=_Odd(how))
    parameters = {"inner.weight": np.array([[1.0, -2.0]], "f4"), "inner.bias": np.zeros(1, "f4")}
    rows = np.random.default_rng(0).uniform(0, 1, (700, 2)).astype(np.float32)
    plain = recipe.outputs(parameters, rows)
    hostile = rows.copy()
    hostile[7] = -5000.0
    others = np.arange(700) != 7
    beside = recipe.outputs(parameters, hostile)
    assert np.isfinite(plain).all()
    assert (beside[others] == plain[others]).all()
    assert np.isnan(beside[7]).all() == (how == "raises")
    assert (recipe.outputs(parameters, rows[others]) == plain[others]).all()


# What a model remembers


def frame_of(rows: int = 300) -> object:
    """Two clouds as a table with names, a column of text and labels −1 and 1."""
    pd = pytest.importorskip("pandas")
    X, y = clouds(rows)
    return pd.DataFrame(
        {
            "width": 10 * X[:, 0],
            "height": X[:, 1],
            "side": np.where(y == 1, "right", "left"),
            "label": np.where(y == 1, 1, -1),
        }
    )


def tuned(**data: object) -> Model:
    told = {
        "target": "label",
        "classes": [-1, 1],
        "feature_bounds": {"width": [0, 10], "height": [0, 1]},
        "categories": {"side": ["left", "right"]},
        "missing": {"height": 0.5},
        **data,
    }
    result = expost.tune(
        job(data=told, goal={"at_least": 0.6}, search={"epsilons": [8]}),
        frame_of(),
        randomness=SimulationRandomness(4),
        simulation=True,
    )
    assert result.model is not None
    return result.model


def test_a_model_finds_columns_by_name(tmp_path: Path) -> None:
    """Catches columns taken by position: reordered, they would give other predictions."""
    model, frame = tuned(), frame_of()
    model.save(tmp_path / "model.npz")
    loaded = load_model(tmp_path / "model.npz")
    assert loaded.recipe == model.recipe
    found = loaded.predict(frame)
    assert set(found.tolist()) == {-1, 1}
    assert (found == frame["label"]).mean() > 0.9
    mixed = frame[["label", "side", "height", "width"]].assign(more=1)
    assert np.array_equal(loaded.predict(mixed), found)
    pl = pytest.importorskip("polars")
    assert np.array_equal(loaded.predict(pl.from_pandas(mixed)), found)
    assert np.array_equal(loaded.predict(frame[["width", "height", "side"]].to_numpy()), found)
    gaps = frame.assign(height=np.nan, side="elsewhere")
    assert len(loaded.predict(gaps)) == 300
    chances = loaded.predict_proba(mixed)
    assert chances.shape == (300, 2)
    assert np.allclose(chances.sum(axis=1), 1)
    assert loaded.classes == [-1, 1]
    assert np.array_equal(np.array(loaded.classes)[chances.argmax(axis=1)], found)


def test_rows_that_do_not_fit_a_model() -> None:
    model, frame = tuned(), frame_of(5)
    with pytest.raises(InvalidInput, match=r"X lacks the column 'width'.*did you mean 'width_'"):
        model.predict(frame.rename(columns={"width": "width_"}))
    with pytest.raises(InvalidInput, match=r"the columns 'width', 'side', .*; X has the columns"):
        model.predict(frame.drop(columns="width").rename(columns={"side": "q"}))
    with pytest.raises(InvalidInput, match="trained with 3 columns"):
        model.predict(np.zeros((4, 2)))
    with pytest.raises(InvalidInput, match=r"cannot be read in 'width'\"") as error:
        model.predict(frame.assign(width=np.nan))
    assert "data.missing" in str(error.value)
    plain = Model(
        Recipe("linear", "squared", TableSchema.plain(((0.0, 1.0),), 2, None, (0.0, 9.0))),
        {"weight": np.array([[1.0, 0.0]]), "bias": np.zeros(1)},
    )
    assert plain.predict([[1.0, 0.0], [0.5, 1.0]]).tolist() == [9.0, 4.5]
    assert plain.classes is None
    with pytest.raises(InvalidInput, match="columns"):
        plain.predict([[1.0]])
    with pytest.raises(InvalidInput, match="no classes"):
        plain.predict_proba([[1.0, 0.0]])


def test_probabilities_of_three_classes() -> None:
    weights = {"weight": np.diag([1.0, 2.0, 3.0]), "bias": np.zeros(3)}
    schema = TableSchema.plain(((0.0, 1.0),), 3, ("a", 2, "c"))
    model = Model(Recipe("softmax", "softmax", schema), weights)
    rows = np.eye(3)
    raw = np.exp(np.diag([1.0, 2.0, 3.0]))
    assert np.allclose(model.predict_proba(rows), raw / raw.sum(axis=1, keepdims=True))
    assert model.predict(rows).tolist() == ["a", 2, "c"]
    assert model.predict_proba(rows[:0]).shape == (0, 3)


def test_a_module_is_named_as_in_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its file and name; one module is no way to make modules."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = Recipe("nets.py:make", "softmax", TableSchema.plain(((0.0, 1.0),), 2, 2))
    parameters = {"weight": np.eye(2, dtype=np.float32), "bias": np.zeros(2, dtype=np.float32)}
    Model(recipe, parameters).save(tmp_path / "model.npz")
    found = load_model(tmp_path, "nets.py:make").predict(np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert found.tolist() == [0, 1]
    with pytest.raises(InvalidInput, match="this is one module"):
        load_model(tmp_path, torch.nn.Linear(2, 2))


def test_a_module_gets_numbers_from_minus_one_to_one_and_other_columns_as_they_are() -> None:
    """As linear features have them; wide arrays and pictures stay from 0 to 1, tokens are whole."""
    columns = (
        Column.of("number", "age", (0, 100)),
        Column.of("category", "town", ("a", "b")),
        Column.of("boolean", "owner"),
        Column.of("number", "debt", (-5, 5), "indicator"),
    )
    table = Recipe("nets:make", "softmax", TableSchema(columns, 2))
    cells: list[np.ndarray] = [
        np.array([0, 50, 100.0]),
        np.array(["a", "b", "c"]),
        np.array([True, False, True]),
        np.array([np.nan, 5, -5]),
    ]
    encoded = table.schema.encode(cells)
    before = encoded.copy()
    shaped = table.shaped(encoded)
    assert (encoded == before).all()
    assert shaped.tolist() == [
        [-1, 1, 0, 0, 1, 0, 1],
        [0, 0, 1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1, -1, 0],
    ]
    for alone in range(3):
        assert (table.shaped(encoded[alone : alone + 1]) == shaped[alone]).all()
    wide = np.random.default_rng(0).random((2, 200))
    for other in (
        Recipe("softmax", "softmax", TableSchema(columns, 2)),
        Recipe("nets:make", "softmax", TableSchema.plain(((0, 1),), 200, 2)),
        Recipe("cnn", "softmax", TableSchema.plain(((0, 1),), 200, 2), (200,)),
        Recipe("nets:make", "softmax", TableSchema.plain(((0, 9),), 200, 2, None, True)),
        replace(table, centred=False),
    ):
        rows = before if other.schema.names is not None else wide
        assert (other.shaped(rows) == rows).all()


def test_a_module_of_an_older_file_gets_numbers_from_0_to_1(tmp_path: Path) -> None:
    """Its file does not say how its numbers are scaled."""
    torch = pytest.importorskip("torch")

    def make() -> object:
        return torch.nn.Linear(1, 2)

    recipe = Recipe("nets:make", "softmax", TableSchema.plain(((0.0, 4.0),), 1, 2), factory=make)
    saved = Model(
        recipe, {"weight": np.array([[1.0], [0.0]], "f4"), "bias": np.array([0.0, 0.1], "f4")}
    )
    saved.save(tmp_path / "new.npz")
    X = [[0.0], [1.0], [3.0]]
    assert saved.predict(X).tolist() == [1, 1, 0]
    assert load_model(tmp_path / "new.npz", make).predict(X).tolist() == [1, 1, 0]
    with np.load(tmp_path / "new.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = next(key for key, value in arrays.items() if value.dtype.kind == "U")
    header = json.loads(str(arrays[name]))
    assert header.pop("centred") is True
    np.savez(tmp_path / "old.npz", **{**arrays, name: np.array(json.dumps(header))})
    assert load_model(tmp_path / "old.npz", make).predict(X).tolist() == [1, 0, 0]
