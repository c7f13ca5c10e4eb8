"""Public features as an axis of a search, and user functions in jobs and in models that are loaded.

A candidate is a setting *with* its features: what is trained, scored, certified, saved and loaded
must be the map of the candidate that was released.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs the native extra")

import expost
from expost.cli.main import main
from expost.errors import InvalidInput
from expost.features import EncodedColumns, Features, Function, RandomFourier
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.settings import read_settings

FOURIER = {"features": "random_fourier", "dimension": 6, "scale": 2.0, "seed": 1}
SEARCH: dict[str, Any] = {
    "epsilons": [2.0, 4.0],
    "learning_rates": [8.0],
    "epochs": [8],
    "batch_sizes": [128],
    "clips": [1.0],
}


def board(count: int = 900, seed: int = 0) -> tuple[Any, Any]:
    """Fields of a chessboard: no linear model of the columns tells them apart."""
    X = np.random.default_rng(seed).random((count, 2))
    return X, (X[:, 0] < 0.5).astype(int) ^ (X[:, 1] < 0.5)


def product(row: Any) -> Any:
    """What tells them apart."""
    if row[0] > 0.99:
        raise ValueError("this row cannot be read")
    return [(row[0] - 0.5) * (row[1] - 0.5), 0.05]


def job(features: Any, **more: Any) -> dict[str, Any]:
    return {
        "data": {"feature_bounds": [0, 1], "classes": 2, "holdout": 0.3, **more.get("data", {})},
        "model": {"kind": "logistic", "training": "dp-sgd"},
        "search": SEARCH | {"features": features},
        "goal": {"metric": "accuracy", "at_least": more.get("at_least", 0.75)},
        "privacy": {"delta": 1e-4, "attempts": 20, "max_epsilon": 200.0},
    }


def run(tables: Any, seed: int = 1, rows: Any = None, **more: Any) -> Any:
    X, y = board() if rows is None else rows
    return expost.tune(tables, X, y, randomness=SimulationRandomness(seed), simulation=True, **more)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of two maps, only one can reach the goal."""
    made = run(job(["plain", Function(product, 2)]), out=tmp_path_factory.mktemp("jobs") / "out")
    assert made.passed
    return made


def test_the_released_model_has_the_features_of_its_candidate(result: Any) -> None:
    record = {
        "features": "function",
        "constant": 0.3,
        "norm": "row",
        "function": f"{__name__}:product",
        "dimension": 2,
        "shape": None,
    }
    assert result.params["features"] == record
    certificate = json.loads(result.certificate())
    assert certificate["tuning"]["features"]["record"] == record
    assert "product" in certificate["tuning"]["features"]["in_words"]
    X, y = board(2000, seed=5)
    assert np.mean(result.model.predict(X) == y) > 0.75


def test_its_price_is_computed_again_and_its_features_are_compared(
    result: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified(document: Any) -> tuple[int, str]:
        path = tmp_path / "release.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["expost", "certificate", "verify", str(path)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, " ".join(capsys.readouterr().out.split())

    document = json.loads(result.certificate())
    code, text = verified(document)
    assert "charge: correct" in text
    document["tuning"]["features"]["record"]["dimension"] = 3
    code, text = verified(document)
    assert code != 0
    assert "features" in text


def test_a_saved_model_is_loaded_with_the_functions_that_the_caller_names(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, X = f"{__name__}:product", board(50, seed=2)[0]
    wanted = result.model.predict_proba(X)
    for functions in ({name: product}, [name], (name, "other:function"), name):
        loaded = expost.load_model(result.model_path, functions=functions)
        assert np.array_equal(loaded.predict_proba(X), wanted)
    again = tmp_path / "again.npz"
    expost.load_model(result.model_path, functions=[name]).save(again)
    assert np.array_equal(expost.load_model(again, functions=[name]).predict_proba(X), wanted)
    for nothing in (None, {}, [], ["other:function"], {"other:function": product}):
        with pytest.raises(InvalidInput, match=f"functions=\\{{'{name}': function\\}}"):
            expost.load_model(result.model_path, functions=nothing)


def test_no_name_in_a_file_is_imported_that_the_caller_did_not_name(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap_of_this_test.py"
    trap.write_text("raise SystemExit('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with np.load(result.model_path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["expost"]))
    for name in ("trap_of_this_test:product", "trap_of_this_test.py:product"):
        header["features"]["function"] = name
        np.savez(tmp_path / "model.npz", **(arrays | {"expost": np.array(json.dumps(header))}))
        for functions in (None, [f"{__name__}:product"], {f"{__name__}:product": product}):
            with pytest.raises(InvalidInput, match="trap_of_this_test"):
                expost.load_model(tmp_path, functions=functions)


MAPS = """\
from more_maps import centre

def product(row):
    import lazily_imported
    return [(row[0] - centre) * (row[1] - centre), lazily_imported.OFFSET]
"""


def write_maps(folder: Path) -> None:
    (folder / "maps.py").write_text(MAPS, encoding="utf-8")
    (folder / "more_maps.py").write_text("centre = 0.5\n", encoding="utf-8")
    (folder / "lazily_imported.py").write_text("OFFSET = 0.05\n", encoding="utf-8")


@pytest.mark.parametrize("training", ["dp-sgd", "progressive"])
def test_a_job_file_may_name_a_function_of_its_folder(
    training: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its name in the job it is certified, saved and loaded."""
    write_maps(tmp_path)
    record = '{ features = "function", function = "maps.py:product", dimension = 2 }'
    X, y = board(500)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    tables = {
        "dp-sgd": f'training = "dp-sgd"\n[search]\nepsilons = [2, 4]\nlearning_rates = [8]\n'
        f'epochs = [8]\nbatch_sizes = [128]\nclips = [1]\nfeatures = ["plain", {record}]',
        "progressive": f'training = "progressive"\nfeatures = {record}',
    }
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "rows.npz"\nfeature_bounds = [0, 1]\nclasses = 2\nholdout = 0.3\n'
        f'[model]\nkind = "logistic"\n{tables[training]}\n[goal]\nat_least = 0.75\n'
        "[privacy]\ndelta = 1e-4\nmax_epsilon = 100\n",
        encoding="utf-8",
    )
    source: Any = {"randomness": SimulationRandomness(1), "simulation": True}
    made = expost.tune(tmp_path / "job.toml", out=tmp_path / "out", **source)
    assert made.passed
    record_made = made.record()["features"]["record"]
    assert record_made["function"] == "maps.py:product"
    monkeypatch.chdir(tmp_path)
    loaded = expost.load_model(tmp_path / "out", functions=["maps.py:product"])
    assert np.array_equal(loaded.predict(X[:50]), made.model.predict(X[:50]))
    assert "maps" not in sys.modules


def test_maps_are_computed_once_per_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    plain = Features.transform_cells

    def counted(self: Features, cells: Any) -> Any:
        if len(cells) > 200:  # not the rows of a rehearsal
            seen.append((len(cells), self.kind))
        return plain(self, cells)

    monkeypatch.setattr(Features, "transform_cells", counted)
    X, y = board()
    labels = np.random.default_rng(1).permutation(y)  # nothing passes: all attempts are made
    tables = job(["plain", FOURIER, Function(product, 2)], at_least=0.7)
    made = run(tables, rows=(X, labels))
    assert len(made.attempts) > 3
    assert sorted(seen) == sorted(set(seen))  # two parts of the rows, each map once
    assert {kind for _, kind in seen} == {"encoded-columns", "random_fourier", "function"}


ROWS = [(0.995, 0.5, 1.0), (np.nan, 0.5, 1.0), (1e308, -np.inf, 0.0), (0.5, 0.5, 7.0)]


def bad(row: Any) -> Any:
    """A function that cannot read many rows, in many ways."""
    if row[0] > 0.9:
        raise KeyError("private")
    if row[0] < 0.1:
        return "no numbers"
    if row[0] < 0.2:
        return [np.inf, 1.0]
    return [1.0] if row[0] < 0.3 else [row[1], 1.0]


@pytest.mark.parametrize("place", [0, 3, 29])
def test_hostile_rows_change_one_row_of_the_features(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row ends a job, and the features of all other rows are the same bits."""
    from expost.training.fleet import Fleet

    given: list[Any] = []
    train = Fleet.train

    def watched(self: Any, X: Any, y: Any, **more: Any) -> Any:
        if len(X) > 10:
            given.append(np.array(X))
        return train(self, X, y, **more)

    monkeypatch.setattr(Fleet, "train", watched)
    X, y = board(30)
    X[:, 0] = np.linspace(0, 1, 30)
    tables = job([Function(bad, 2), FOURIER], at_least=0.55)
    tables["search"] |= {"epsilons": [8.0], "batch_sizes": [8], "epochs": [1]}
    tables["privacy"]["attempts"] = 2
    parts = []
    for row in [None, *ROWS]:
        rows, labels = X.copy(), y.astype(float)
        if row is not None:
            rows[place], labels[place] = row[:2], row[2]
        given.clear()
        run(tables, rows=(rows, labels))
        parts.append({part.shape[1]: part for part in given})
    assert parts[0]
    for made in parts[1:]:
        for width in set(made) & set(parts[0]):
            same = (made[width] == parts[0][width]).all(axis=1)
            assert np.count_nonzero(~same) <= 1


def test_a_row_that_cannot_be_used_is_an_empty_place(tmp_path: Path) -> None:
    """The judgement of hostile rows: the same certificate and model as with the empty place."""

    def outcome(row: Any) -> Any:
        X, y = board(60)
        rows, labels = X.copy(), y.astype(float)
        rows[7], labels[7] = row[:2], row[2]
        tables = job(["plain", FOURIER], at_least=0.55)
        tables["search"] |= {"epsilons": [8.0], "batch_sizes": [16], "epochs": [1]}
        made = run(tables, rows=(rows, labels))
        document = json.loads(made.certificate())
        weights = None if made.model is None else made.model.parameters["weight"].tolist()
        return document["spent"], document["params"], weights

    tame = outcome((np.nan, np.nan, np.nan))
    for row in [(np.nan, 0.5, 1.0), (0.5, 0.5, 7.0), (0.5, 0.5, np.inf), (-np.inf, 0.1, 0.0)]:
        assert outcome(row) == tame


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([], "a list of different choices"),
        ("other", "a list of different choices"),
        (["auto", "auto"], "a list of different choices"),
        ([RandomFourier(6, 2.0, seed=1)] * 2, "a list of different choices"),
        ([{"features": "unknown"}], "this version knows"),
        ([{"features": "function", "function": "no_such_module:f", "dimension": 1}], "not found"),
        ([EncodedColumns(3)], "rows of 3 values"),
        ([Function(lambda row: row[99], 1)], "cannot read"),
    ],
)
def test_choices_are_checked_before_anything_is_charged(features: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        expost.plan_job(job(features), *board())


def test_networks_and_tokens_have_no_axis_of_features() -> None:
    for change in ({"model": {"kind": "cnn"}}, {"data": {"integers": True}}):
        tables = job(["auto"])
        for name, values in change.items():
            tables[name] |= values
        with pytest.raises(InvalidInput, match="only linear models"):
            read_settings(tables, given_data=True)


def test_keywords_name_columns_a_map_or_an_axis() -> None:
    X = board(100)[0]
    facts: dict[str, Any] = {"at_least": 0.7, "feature_bounds": [0, 1], "classes": 2}
    axis = expost.default_job(X, features=["plain", FOURIER], **facts)
    assert axis["search"]["features"] == ["plain", FOURIER]
    assert expost.default_job(X, features="plain", **facts)["model"]["features"] == "plain"
    columns = expost.default_job(X, features=["age", "plain"], **facts)
    assert columns["data"]["features"] == ["age", "plain"]


def test_the_axis_of_a_search_in_scikit_learn_is_a_step_of_its_pipeline() -> None:
    """Its certificate names the map, and its price is computed again."""
    pytest.importorskip("sklearn")
    from sklearn.pipeline import Pipeline

    from expost.certificates.verify import verify_certificate
    from expost.sklearn import DPLogisticRegression, ExPostSearch

    estimator = DPLogisticRegression(classes=[0, 1], feature_bounds=(-1, 1), delta=1e-4)
    maps = [Function(product, 2), Function(bad, 2)]
    search = ExPostSearch(
        Pipeline([("features", "passthrough"), ("model", estimator)]),
        {"features": maps, "model__learning_rate": [8.0]},
        epsilons=[4.0],
        at_least=0.7,
        attempts=20,
        training="dp-sgd",
        max_epsilon=1000.0,
        random_state=1,
        simulation=True,
    ).fit(*board())
    assert search.passed_
    document = json.loads(search.certificate())
    assert document["params"]["features"]["function"] == f"{__name__}:product"
    assert verify_certificate(document) == []
