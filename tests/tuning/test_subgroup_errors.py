"""Errors of a model by subgroup: a function of each row alone, charged before rows are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import expost
from expost.cli.main import app
from expost.errors import BudgetRefused, InvalidInput
from expost.features.columns import Column, TableSchema
from expost.randomness.source import SimulationRandomness as SIMULATION
from expost.tuning.model import subgroup_errors as module
from expost.tuning.model.released_model import Model, Recipe
from expost.tuning.model.subgroup_errors import row_errors
from tests.hostile.test_analytics import LINES

ASKED: dict[str, Any] = {"target": "ill", "by": "sex", "keys": ["f", "m"], "epsilon": 2.0}


def classifier() -> Model:
    """Says 1 if dose is above a half of its range 0 … 10."""
    columns = (Column(name="dose", low=0.0, high=10.0), Column(name="age", low=0.0, high=100.0))
    schema = TableSchema(columns, classes=2)
    weight, bias = np.array([[1.0, 0.0]]), np.array([-0.5])
    return Model(Recipe("logistic", "logistic", schema), {"weight": weight, "bias": bias})


def regression() -> Model:
    """Predicts the dose itself, as a share of the range 0 … 20 of the target."""
    schema = TableSchema((Column(name="dose", low=0.0, high=10.0),), target_bounds=(0.0, 20.0))
    weight, bias = np.array([[1.0]]), np.array([0.0])
    return Model(Recipe("linear", "squared", schema), {"weight": weight, "bias": bias})


def write(path: Path, rows: int = 4000, extra: str = "") -> Path:
    """Men are always wrong in a quarter of the rows, women never."""
    lines = ["id,dose,age,sex,ill"]
    for number in range(rows):
        dose, sex = (number % 10) + 0.25, "fm"[number % 2]
        ill = int(dose > 5) ^ int(sex == "m" and number % 8 == 1)
        lines.append(f"p{number},{dose},50,{sex},{ill}")
    path.write_text("\n".join(lines) + "\n" + extra)
    return path


def test_errors_of_rows() -> None:
    dose = np.array(["1", "9", "1", "x", "", "9", "9"], dtype=object)
    age = np.array(["50", "50", "50", "50", "50", "nan", "50"], dtype=object)
    ill = np.array(["0", "1", "1", "0", "0", "1", "7"], dtype=object)
    # right, right, wrong; then cells, and a label, that cannot be read
    assert row_errors(classifier(), [dose, age], ill) == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    targets = np.array(["2", "12", "20", "none"], dtype=object)
    errors = row_errors(regression(), [np.array(["1", "1", "0", "1"], dtype=object)], targets)
    assert errors == pytest.approx([0.0, 0.5, 1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("odd", ["x", "", "1e999", "nan", "007", "\ufffd"])
def test_no_row_changes_the_error_of_another(odd: str) -> None:
    """A neighbour has one row more, whatever its cells are."""
    draw = np.random.default_rng(1)
    dose = [f"{value:.3f}" for value in draw.uniform(0, 10, 40)]
    age = [str(value) for value in draw.integers(0, 100, 40)]
    ill = [str(value) for value in draw.integers(0, 2, 40)]
    columns = [np.array(cells, dtype=object) for cells in (dose, age, ill)]
    before = row_errors(classifier(), columns[:2], columns[2])
    more = [np.array([*cells, odd], dtype=object) for cells in (dose, age, ill)]
    assert row_errors(classifier(), more[:2], more[2])[:40] == before


def test_averages_and_their_certificate(tmp_path: Path) -> None:
    """At a confidence at which two intervals miss less often than twice in a million tests."""
    rows = write(tmp_path / "rows.csv", extra="p1,broken\n,,,,\np2,1,2,other,0\n")
    model = tmp_path / "model.npz"
    classifier().save(model)
    ledger = expost.Ledger.create(tmp_path / "ledger.db", expost.PureBudget(3.0), "b")
    paid = {"ledger": ledger, "budget": "b", "confidence": 1 - 1e-6}
    told = expost.subgroup_errors(model, rows, user="id", **paid, **ASKED)
    error = {answer.group: answer for answer in told.answers}
    assert error["f"].low <= 0.0 + 1e-9
    assert error["m"].low <= 0.25 <= error["m"].high
    assert error["m"].low > error["f"].high
    certificate = told.certificate()
    assert expost.verify_certificate(certificate, ledger=ledger) == []
    assert certificate["source"] == "errors of a model on rows.csv"
    spent = float(ledger.standing("b").filter.settled[0])
    assert spent == pytest.approx(told.as_dict()["spent"])
    assert 0 < spent <= 2.0


def test_reserved_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_source", lambda *_: pytest.fail("rows were read"))
    ledger = expost.Ledger.create(tmp_path / "ledger.db", expost.PureBudget(1.0), "b")
    with pytest.raises(BudgetRefused):
        expost.subgroup_errors(
            classifier(), tmp_path / "rows.csv", ledger=ledger, budget="b", **ASKED
        )
    for change in ({"keys": []}, {"by": "ill"}, {"plus_minus": -1.0}, {"epsilon": 0.0}):
        with pytest.raises(InvalidInput):
            expost.subgroup_errors(classifier(), tmp_path / "rows.csv", **ASKED | change)


def test_the_evidence_of_a_model(tmp_path: Path) -> None:
    rows, errors, folder = write(tmp_path / "rows.csv"), tmp_path / "errors.json", tmp_path / "job"
    job = {"data": {"path": str(rows), "target": "ill", "features": ["dose", "age"]}}
    job["data"] |= {"feature_bounds": {"dose": [0, 10], "age": [0, 100]}, "classes": 2}
    job |= {
        "goal": {"at_least": 0.6},
        "privacy": {"max_epsilon": 4.0, "delta": 1e-6},
        "model": {"kind": "logistic"},
    }
    expost.tune(job, out=folder, simulation=True, randomness=expost.SimulationRandomness(3))
    found = next(folder.glob("*model.npz"))
    source = expost.SimulationRandomness(4)
    told = expost.subgroup_errors(found, rows, simulation=True, randomness=source, **ASKED)
    errors.write_text(json.dumps(told.certificate()))
    words = ["evidence", str(folder / "release.json"), "--errors", str(errors)]
    ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "pack")])
    assert ran.exit_code in (0, 1), ran.output  # simulated: it says so
    pack = json.loads((tmp_path / "pack" / "assessment.json").read_text())
    point = pack["releases"][0]["points"][6]
    assert point["covered"]
    assert "2 public subgroups" in point["answer"]
    assert "Measured for an extra epsilon of" in point["answer"]
    wrong = CliRunner().invoke(app, [*words[:2], "--errors", str(folder / "release.json")])
    assert isinstance(wrong.exception, InvalidInput)


@pytest.mark.parametrize(
    ("user", "start"),
    [
        (None, 0),
        ("id", 1),
        pytest.param(None, 1, marks=pytest.mark.long),
        pytest.param("id", 0, marks=pytest.mark.long),
    ],
)
def test_no_line_of_a_file_makes_it_fail(tmp_path: Path, user: str | None, start: int) -> None:
    """Hostile lines: the release has the same groups, and nothing is raised."""
    lines = {
        **LINES,
        "an odd person": b"\xff\xfe,1,50,f,0\n",
        "an odd group": b"p,1,50,\xed\xa0\x80,0\n",
    }
    for number, line in enumerate([*lines.values()][start::2]):
        path = write(tmp_path / f"rows{number}.csv", rows=40)
        path.write_bytes(path.read_bytes() + line)
        told = expost.subgroup_errors(
            classifier(), path, user=user, simulation=True, randomness=SIMULATION(1), **ASKED
        )
        groups = [answer.group for answer in (*told.answers, *told.unanswered)]
        assert sorted(groups) == ["f", "m"]


@pytest.mark.parametrize("cell", [b"\xff", "1e400", float("nan"), 10**30, None])
def test_no_cell_of_parquet_makes_it_fail(tmp_path: Path, cell: Any) -> None:
    """An odd person beside ordinary ones, of the type that the column then has."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = {
        bytes: arrow.binary(),
        str: arrow.string(),
        float: arrow.float64(),
        int: arrow.decimal128(38),
    }
    kind = kinds.get(type(cell), arrow.string())
    plain = {bytes: b"p", str: "p", float: 1.0, int: 1}.get(type(cell), "p")
    size = 40
    table = arrow.table(
        {
            "id": arrow.array([plain] * size + [cell], kind),
            "dose": [1.0] * (size + 1),
            "age": [50.0] * (size + 1),
            "sex": ["f", "m"] * (size // 2) + [None],
            "ill": [0] * (size + 1),
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    told = expost.subgroup_errors(
        classifier(),
        tmp_path / "rows.parquet",
        user="id",
        simulation=True,
        randomness=SIMULATION(1),
        **ASKED,
    )
    assert len(told.answers) + len(told.unanswered) == 2
