"""Every kind of certificate that the package writes is called correct by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost import ZCDP, PureDP
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.tuning.request.tune_request import TRAININGS
from tests.cli.counting import expost  # noqa: F401  (a fixture)

FACTS = [
    *("--target", "label", "--classes", "no,yes", "--bounds", "age=0:40", "--bounds", "b=0:1"),
    *("--categories", "city=Bern,Zug", "--dates", "day=2020-01-01:2021-12-31"),
    *("--booleans", "member", "--missing", "age=20", "--missing", "day=indicator"),
]
WAYS: dict[str, list[str]] = {
    "dp-sgd": ["--training", "dp-sgd", "--attempts", "2", "--epsilons", "1,4"],
    "noise-reduction": ["--training", "noise-reduction", "--target", "age"],
    "progressive": ["--training", "progressive", "--max-epsilon", "3"],
    "auto": ["--training", "auto", "--attempts", "2", "--epsilons", "4"],
    "secret number of rows": ["--training", "progressive", "--rows", "1500"],
}
BARS = {"reached": "0.6", "missed": "0.96"}
NUMBER = [  # the same table, with a number as its target
    *("--target-bounds", "0:40", "--bounds", "b=0:1", "--categories", "city=Bern,Zug"),
    *("--categories", "label=no,yes", "--dates", "day=2020-01-01:2021-12-31"),
    *("--booleans", "member", "--missing", "day=indicator"),
]
ERRORS = {"reached": "250", "missed": "1"}


def table(path: Path, rows: int = 1500) -> None:
    """Write rows with categories, dates, truth values, gaps and a blank line."""
    generator = np.random.default_rng(4)
    lines = ["age;city;day;member;b;label"]
    for number in range(rows):
        label = int(generator.integers(0, 2))
        age = "" if number == 5 else f"{np.clip(10 + 20 * label + 8 * generator.normal(), 0, 40)}"
        day = "" if number % 9 == 0 else f"2020-{1 + number % 12:02}-{1 + number % 28:02}"
        city, member = ("Bern", "Zug", "Basel", "")[number % 4], ("true", "no")[number % 2]
        lines.append(f"{age};{city};{day};{member};{generator.random():.3f};{['no', 'yes'][label]}")
    path.write_text("\n".join([*lines[:9], "", *lines[9:]]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("way", WAYS)
def test_models(expost, tmp_path, monkeypatch, way, bar):  # noqa: F811
    """Catches a way of training whose price cannot be computed again."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "rows.csv")
    relation = "add-remove" if "--rows" in WAYS[way] else "zero-out"
    Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, relation))
    facts = [*FACTS, "--at-least", BARS[bar]]
    if way == "noise-reduction":
        facts = [*NUMBER, "--at-most", ERRORS[bar]]
    options = [*facts, *WAYS[way], "--ledger", "ledger.db", "--out", "out"]
    done = expost("tune", "rows.csv", *options)
    assert done.code == (0 if bar == "reached" else 5), done.err
    check = ["certificate", "verify", "out/release.json", "--ledger", "ledger.db"]
    checked = ["charge", "ledger"]
    if bar == "reached":
        check += ["--model", "out/model.npz"]
        checked.append("model")
    verdict = expost(*check, "--json")
    assert verdict.document["problems"] == []
    assert verdict.document["checked"] == checked
    assert verdict.code == 0
    shown = expost("certificate", "out/release.json", "--verbose")
    assert shown.code == 0
    assert "cannot be read" not in shown.out


QUERIES: dict[str, list[str]] = {
    "count": [],
    "rows": ["--count-rows", "--max-rows-per-user", "1"],
    "sum": ["--sum", "v", "--bounds", "0", "2"],
    "mean": ["--mean", "v", "--bounds", "0", "2"],
    "gaussian": ["--delta", "1e-6"],
}


@pytest.mark.parametrize("query", QUERIES)
def test_counts(expost, tmp_path, monkeypatch, query):  # noqa: F811
    """Catches a question whose price cannot be computed again."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{user},{'ab'[user % 2]},{user % 3}" for user in range(2000)]
    Path("visits.csv").write_text("u,g,v\n" + "\n".join(rows) + "\n")
    Path("keys.txt").write_text("a\nb\n")
    budget = PureDP(100) if query != "gaussian" else ZCDP(100)
    Ledger.create(tmp_path / "ledger.db", budget)
    done = expost(
        *("count", "visits.csv", "--user", "u", "--by", "g", "--keys", "keys.txt"),
        *("--epsilon", "2", "--within", "0.2", "--certificate", "count.json"),
        *("--max-groups-per-user", "1", "--ledger", "ledger.db", *QUERIES[query]),
    )
    assert done.code == 0, done.err
    verdict = expost("certificate", "verify", "count.json", "--ledger", "ledger.db", "--json")
    assert verdict.document["problems"] == []
    shown = expost("certificate", "count.json", "--verbose")
    assert shown.code == 0
    assert "cannot be read" not in shown.out


@pytest.mark.parametrize("secret", [{}, {"n_rows": 1500}], ids=["public", "secret"])
@pytest.mark.parametrize("settings", [{"training": way} for way in TRAININGS[:3]])
def test_searches(expost, tmp_path, settings: dict[str, Any], secret: dict[str, Any]):  # noqa: F811
    """Catches a search by ExPostSearch whose certificate is called wrong."""
    pytest.importorskip("sklearn")
    from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch

    generator = np.random.default_rng(2)
    y = generator.integers(0, 2, 1500)
    X = np.where(y[:, None] == 1, 8.0, 2.0) + generator.normal(size=(1500, 2))
    model = DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 10), delta=1e-5)
    settings = settings | {"at_least": 0.7}
    if settings["training"] == "dp-sgd":
        settings |= {"param_grid": {"epsilon": [1.0, 4.0]}, "attempts": 2}
    if settings["training"] == "noise-reduction":
        model = DPLinearRegression(feature_bounds=(0, 10), target_bounds=(0, 1), delta=1e-5)
        settings |= {"at_least": -0.4}
    search = ExPostSearch(model, **settings, **secret).fit(X, y)
    file = search.save(tmp_path / "kept")
    verdict = expost("certificate", "verify", file, "--json")
    assert verdict.document["problems"] == []
    document = json.loads(file.read_text())
    assert document["requests"]["grids"]
    shown = expost("certificate", file, "--verbose")
    assert shown.code == 0
    assert "cannot be read" not in shown.out
    assert "rows that were passed in Python" in shown.out
